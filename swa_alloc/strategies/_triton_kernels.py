"""The Triton kernels behind the Triton strategies. Importing this module imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl


# One compiled kernel for all sizes, strides and alignments: a variant more would be compiled in the middle of serving.
@triton.jit(do_not_specialize=["slots", "index_stride"], do_not_specialize_on_alignment=["table", "indices"])  # type: ignore[untyped-decorator]  # Triton ships no type information
def fill_zero(table, indices, slots, index_stride, ROW_SLOTS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803 - Triton reads this signature, not Python
    """Zero ``table[indices[i] * ROW_SLOTS + j]`` for every i and every j < ROW_SLOTS; ``slots`` is their number."""
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = slot < slots
    row = tl.load(indices + (slot // ROW_SLOTS).to(tl.int64) * index_stride, mask=inside, other=0).to(tl.int64)
    tl.store(table + row * ROW_SLOTS + slot % ROW_SLOTS, tl.zeros([BLOCK], tl.int64), mask=inside)


# Row by row, the one thread that reads an entry is the one that clears it.
@triton.jit(do_not_specialize=["slots", "index_stride"], do_not_specialize_on_alignment=["table", "indices", "taken"])  # type: ignore[untyped-decorator]  # Triton ships no type information
def take_pages(table, indices, taken, slots, index_stride, ROW_SLOTS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803 - Triton reads this signature, not Python
    """``taken[i] = table[indices[i] * ROW_SLOTS] // ROW_SLOTS`` for every i, and then zero those rows."""
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = slot < slots
    number, offset = (slot // ROW_SLOTS).to(tl.int64), slot % ROW_SLOTS
    row = tl.load(indices + number * index_stride, mask=inside, other=0).to(tl.int64)
    entry = table + row * ROW_SLOTS + offset
    leads = inside & (offset == 0)
    tl.store(taken + number, tl.load(entry, mask=leads, other=0) // ROW_SLOTS, mask=leads)
    tl.store(entry, tl.zeros([BLOCK], tl.int64), mask=inside)
