"""Whatever fails on the way, nothing is lost, and nothing has two owners."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from allocator_calls import Snapshot

from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.errors import PoolError
from swa_alloc.trace import TraceRecorder


def make(size: int = 32, page_size: int = 4, **keywords: Any) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(size, size, page_size, torch.bfloat16, "cpu", None, **keywords)


def one(value: int) -> torch.Tensor:
    return torch.tensor([value])


def taken(slots: torch.Tensor | None) -> torch.Tensor:
    assert slots is not None
    return slots


def mapping_of(allocator: SWATokenToKVPoolAllocator) -> Any:
    return allocator._mapping  # noqa: SLF001 - where a failure can be put in


def fail(*_arguments: Any) -> None:
    raise MemoryError


@pytest.mark.parametrize("page_size", [1, 4])
def test_segments_of_one_page_that_wait_together_release_its_swa_side_once(page_size: int) -> None:
    allocator = make(32, page_size)
    slots = taken(allocator.alloc(2 * page_size))
    with allocator.free_group():
        allocator.free_swa_segment(slots[:page_size], start_pos=0)
        allocator.free_segment(slots, start_pos=0)
    assert Snapshot.of(allocator) == Snapshot.of(make(32, page_size))


@pytest.mark.parametrize("at", ["set_pages", "set"])
def test_an_swa_tail_that_fails_half_way_leaves_no_entry_of_a_free_slot(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = make(64)
    slots = taken(allocator.alloc_extend(one(0), one(0), one(6), one(6), one(-1), 6))
    before = Snapshot.of(allocator)
    with monkeypatch.context() as broken:
        broken.setattr(mapping_of(allocator), at, fail)
        with pytest.raises(MemoryError):
            allocator.alloc_extend_swa_tail(one(6), one(6), one(12), one(12), slots[-1:], 6, 6)
    after = Snapshot.of(allocator)
    assert (after.full_free, after.swa_free) == (before.full_free, before.swa_free)
    assert allocator.translate_loc_from_full_to_swa(slots).tolist() == [before.mapping[slot] for slot in slots.tolist()]
    # The rest of the page that was begun.
    assert allocator.translate_loc_from_full_to_swa(slots[-1:] + torch.tensor([1])).tolist() == [0]


@pytest.mark.parametrize("how", ["alloc", "extend", "tail"])
def test_pages_whose_slots_cannot_be_told_stay_free(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = make()
    calls = {
        "alloc": lambda: allocator.alloc(8),
        "extend": lambda: allocator.alloc_extend(one(0), one(0), one(8), one(8), one(-1), 8),
        "tail": lambda: allocator.alloc_extend_swa_tail(one(0), one(0), one(8), one(8), one(-1), 8, 4),
    }
    with monkeypatch.context() as broken:
        broken.setattr(allocator.full_attn_allocator, "slots", fail)
        with pytest.raises(MemoryError):
            calls[how]()
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (32, 32)
    assert len(taken(allocator.alloc(32))) == 32


@pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped"])
def test_a_resize_that_fails_changes_nothing(grouped: bool) -> None:  # noqa: FBT001 - a case
    allocator = make()
    slots = taken(allocator.alloc(8))
    if grouped:
        allocator.free_group_begin()
        allocator.free_segment(slots[:4], start_pos=0)
    with pytest.raises(RuntimeError):
        allocator.resize(SimpleNamespace(full_max_total_num_tokens=64, swa_max_total_num_tokens=1 << 50))
    allocator.free_group_end()
    free = 28 if grouped else 24
    assert (allocator.size_full, allocator.full_available_size(), allocator.swa_available_size()) == (32, free, free)


def test_a_segment_that_was_never_filled_costs_the_others_of_its_group_nothing() -> None:
    allocator = make()
    slots = taken(allocator.alloc(4))
    allocator.free_group_begin()
    allocator.free_segment(slots, start_pos=0)
    allocator.free_segment(torch.tensor([-1]), start_pos=0)
    with pytest.raises((IndexError, PoolError)):
        allocator.free_group_end()
    assert Snapshot.of(allocator) == Snapshot.of(make())
    # And the next group is an ordinary one.
    slots = taken(allocator.alloc(4))
    with allocator.free_group():
        allocator.free_segment(slots, start_pos=0)
    assert Snapshot.of(allocator) == Snapshot.of(make())


def test_strided_peers_reach_a_strategy_contiguous() -> None:
    allocator = make()
    slots = taken(allocator.alloc(8))
    seen: list[bool] = []
    plain = mapping_of(allocator).set

    def spy(indices: torch.Tensor, peers: torch.Tensor) -> None:
        seen.append(peers.is_contiguous())
        plain(indices, peers)

    mapping_of(allocator).set = spy
    allocator.set_full_to_swa_mapping(slots[:4], slots[::2])
    assert seen == [True]
    assert allocator.translate_loc_from_full_to_swa(slots[:4]).tolist() == slots[::2].tolist()


@pytest.mark.parametrize(("length", "last"), [(7, "its own"), (2, "none")])
def test_strict_names_a_last_slot_that_does_not_end_its_length(length: int, last: str) -> None:
    allocator = make(checks="strict")
    slots = taken(allocator.alloc(4))
    last_loc = slots[-1:] if last == "its own" else one(-1)
    before = Snapshot.of(allocator)
    with pytest.raises(PoolError, match=f"last slot out of step with its length: {int(last_loc)}"):
        allocator.alloc_decode(one(length), one(length), last_loc)
    assert Snapshot.of(allocator) == before


def test_strict_names_a_begun_page_that_two_requests_would_go_on_in() -> None:
    allocator = make(checks="strict")
    slots = taken(allocator.alloc_extend(one(0), one(0), one(2), one(2), one(-1), 2))
    lengths = torch.tensor([3, 3])
    with pytest.raises(PoolError, match=f"last slot out of step with its length: {int(slots[-1])}"):
        allocator.alloc_decode(lengths, lengths, slots[-1:].repeat(2))


def test_strict_does_not_mind_a_request_that_does_not_grow() -> None:
    allocator = make(checks="strict")
    slots = taken(allocator.alloc_extend(one(0), one(0), one(2), one(2), one(-1), 2))
    allocator.free_swa_segment(slots, start_pos=0)
    prefixes, lengths = torch.tensor([2, 0]), torch.tensor([2, 3])
    last = torch.stack((slots[-1], torch.tensor(-1)))
    assert len(taken(allocator.alloc_extend(prefixes, prefixes, lengths, lengths, last, 3))) == 3


def test_a_call_longer_than_the_table_is_recorded_as_long_as_one_can_be_drawn() -> None:
    recorder = TraceRecorder()
    allocator = make(strategy=recorder.strategies)
    allocator.translate_loc_from_full_to_swa(taken(allocator.alloc(32)).repeat(3))
    recorder.trace(32, 4).check()
