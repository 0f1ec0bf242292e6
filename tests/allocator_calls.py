"""How tests call an SWA allocator: with arguments as SGLang passes them, and a look at all that a call can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from builders import one_line

from swa_alloc.errors import PoolError

# What a lent tensor holds once its owner uses it for something else: an index that no table of a test has.
OVERWRITTEN = 2**20


class Snapshot(NamedTuple):
    """All that an allocation or a free can change."""

    full_free: list[int]
    swa_free: list[int]
    mapping: list[int]

    @classmethod
    def of(cls, allocator: Any) -> Snapshot:
        return cls(
            sorted(allocator.full_attn_allocator.get_all_free_pages().tolist()),
            sorted(allocator.swa_attn_allocator.get_all_free_pages().tolist()),
            allocator.full_to_swa_index_mapping.tolist(),
        )


class KVCacheStub:
    """Remembers what was registered."""

    def __init__(self) -> None:
        self.registered: list[torch.Tensor] = []

    def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
        self.registered.append(full_to_swa_index_mapping)


# --- the forms that indices come in, each in memory of its own


def as_row(indices: torch.Tensor) -> torch.Tensor:
    """``indices`` as SGLang passes them: a slice of a row of its int32 request table."""
    table = torch.zeros(2, indices.numel() + 3, dtype=torch.int32, device=indices.device)
    table[1, 1 : 1 + indices.numel()] = indices
    return table[1, 1 : 1 + indices.numel()]


def as_column(indices: torch.Tensor) -> torch.Tensor:
    """``indices`` as a column of an int32 table: strided."""
    table = torch.zeros(indices.numel(), 2, dtype=torch.int32, device=indices.device)
    table[:, 1] = indices
    return table[:, 1]


def as_strided(indices: torch.Tensor) -> torch.Tensor:
    """``indices`` as every third element of a tensor that is 0 between."""
    spaced = torch.zeros(indices.numel(), 3, dtype=indices.dtype, device=indices.device)
    spaced[:, 1] = indices
    return spaced[:, 1]


# In the order of the row, as segments come.
ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int64": torch.clone,
    "int32_row": as_row,
    "int32_column": as_column,
    "strided": as_strided,
}
# In any order, as sets come.
FORMS = {**ROWS, "reversed": lambda indices: indices.flip(0)}


def lend(call: Callable[..., None], indices: torch.Tensor, form: str = "int64", **keywords: Any) -> None:
    """Pass ``indices`` in some form, and overwrite them at once, as the owner of a request table does."""
    lent = FORMS[form](indices)
    call(lent, **keywords)
    lent.fill_(OVERWRITTEN)


def lend_segments(call: Callable[..., None], segments: Sequence[tuple[torch.Tensor, int]], form: str = "int64") -> None:
    """The same for ``(free_index, start_pos)`` pairs."""
    lent = [(FORMS[form](indices), start_pos) for indices, start_pos in segments]
    call(lent)
    for indices, _ in lent:
        indices.fill_(OVERWRITTEN)


# --- requests


class Grow(NamedTuple):
    """A request that grows from ``prefix`` to ``length`` tokens, and the full slot of the last one of its prefix."""

    prefix: int
    length: int
    last_loc: int = -1


def extend(
    allocator: Any,
    requests: Sequence[Grow],
    *,
    dtype: torch.dtype = torch.int64,
    tokens: int | None = None,
    swa_tail_len: int | None = None,
) -> torch.Tensor | None:
    """``alloc_extend``, or ``alloc_extend_swa_tail`` where a tail is given, with arguments as SGLang passes them."""
    prefix_lens = torch.tensor([request.prefix for request in requests], dtype=torch.int64)
    seq_lens = torch.tensor([request.length for request in requests], dtype=torch.int64)
    last_loc = torch.tensor([request.last_loc for request in requests], dtype=dtype)
    if tokens is None:
        tokens = sum(request.length - request.prefix for request in requests)
    arguments = (prefix_lens, prefix_lens.clone(), seq_lens, seq_lens.clone(), last_loc, tokens)
    slots: torch.Tensor | None
    if swa_tail_len is None:
        slots = allocator.alloc_extend(*arguments)
    else:
        slots = allocator.alloc_extend_swa_tail(*arguments, swa_tail_len)
    return slots


def decode(allocator: Any, requests: Sequence[Grow], *, dtype: torch.dtype = torch.int64) -> torch.Tensor | None:
    """``alloc_decode`` of requests that grow by one token each."""
    assert all(request.length == request.prefix + 1 for request in requests)
    seq_lens = torch.tensor([request.length for request in requests], dtype=torch.int64)
    last_loc = torch.tensor([request.last_loc for request in requests], dtype=dtype)
    slots: torch.Tensor | None = allocator.alloc_decode(seq_lens, seq_lens.clone(), last_loc)
    return slots


def begin(allocator: Any, *lengths: int) -> tuple[torch.Tensor, ...]:
    """Requests of these lengths; the full slots of each."""
    slots = extend(allocator, [Grow(0, length) for length in lengths])
    assert slots is not None
    return slots.split(lengths)


def goes_on(row: torch.Tensor, tokens: int) -> Grow:
    """A request that has this row and grows by so many tokens."""
    return Grow(row.numel(), row.numel() + tokens, int(row[-1]))


def pages_taken(slots: Sequence[int], prefix: int, last_loc: int, page_size: int) -> list[int]:
    """The pages that a request was given from ``prefix`` on, which must be filled in order, the begun one first."""
    pages, previous = [], last_loc
    for position, slot in enumerate(slots, prefix):
        if position % page_size:
            assert slot == previous + 1
        else:
            assert slot % page_size == 0
            pages.append(slot // page_size)
        previous = slot
    return pages


def check_growth(allocator: Any, before: Snapshot, requests: Sequence[Grow], slots: torch.Tensor | None) -> None:
    """Every request got slots for its tokens, on both sides alike; nothing else has changed."""
    assert slots is not None
    assert slots.dtype is torch.int64
    counts = [request.length - request.prefix for request in requests]
    assert slots.numel() == sum(counts)
    after = Snapshot.of(allocator)
    page_size = allocator.page_size
    full_pages, swa_pages = [], []
    expected = list(before.mapping)
    for request, grown in zip(requests, slots.split(counts), strict=True):
        full = grown.tolist()
        swa = [after.mapping[slot] for slot in full]
        full_pages += pages_taken(full, request.prefix, request.last_loc, page_size)
        swa_pages += pages_taken(swa, request.prefix, after.mapping[request.last_loc], page_size)
        for slot, peer in zip(full, swa, strict=True):
            expected[slot] = peer
    # The pages were free before, differ from each other, and are not free now.
    assert sorted(full_pages + after.full_free) == before.full_free
    assert sorted(swa_pages + after.swa_free) == before.swa_free
    assert after.mapping == expected


def pages_of(slots: torch.Tensor, page_size: int) -> list[int]:
    """The pages of slots, each once, in the order of their first slots."""
    return list(dict.fromkeys((slots // page_size).tolist()))


@contextmanager
def refused(allocator: Any, match: str) -> Iterator[None]:
    """What runs inside raises PoolError in one line, and changes nothing."""
    before = Snapshot.of(allocator)
    with pytest.raises(PoolError, match=match) as refusal:
        yield
    one_line(refusal.value)
    assert Snapshot.of(allocator) == before


def config(full: Any, swa: Any) -> SimpleNamespace:
    """What ``resize`` reads."""
    return SimpleNamespace(full_max_total_num_tokens=full, swa_max_total_num_tokens=swa)
