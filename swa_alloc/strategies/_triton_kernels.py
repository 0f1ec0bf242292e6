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
