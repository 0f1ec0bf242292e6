"""SWATokenToKVPoolAllocator keeps the contract, at any page size, sorted or not, checked or not, whatever clears."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from allocator_calls import Snapshot, config
from allocator_contract import AllocatorContract, Make, PaddingContract
from builders import CPU, make_profile

from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.errors import PoolError
from swa_alloc.pool import PoolAllocator


def _make(size: int, size_swa: int, page_size: int, kvcache: Any = None, **keywords: Any) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(size, size_swa, page_size, torch.bfloat16, "cpu", kvcache, **keywords)


class TestAllocator(PaddingContract):
    @pytest.fixture(params=[False, True], ids=["unsorted", "need_sort"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda *arguments: _make(*arguments, need_sort=request.param)


class TestAllocatorThatClearsThroughAProfile(PaddingContract):
    """A mask over the whole table changes nothing of what an allocator does; for others, see the model."""

    @pytest.fixture
    def make(self) -> Make:
        return lambda *arguments: _make(*arguments, strategy="masked_scatter", strict_profile=True)


class TestAllocatorThatLooksForNoPadding(AllocatorContract):
    """What devices do, where to look for padding would be to wait for it."""

    @pytest.fixture
    def make(self, monkeypatch: pytest.MonkeyPatch) -> Make:
        monkeypatch.setattr("swa_alloc.pool.PADDING_FILTERS", {})
        return _make


class TestStrictAllocator(AllocatorContract):
    @pytest.fixture
    def make(self) -> Make:
        return lambda *arguments: _make(*arguments, checks="strict")


class TestAsyncAllocator(AllocatorContract):
    """Nothing that the contract's callers do is a violation, but for what they do to see it refused."""

    @pytest.fixture
    def make(self, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Any:
        made = []

        def make(*arguments: Any) -> SWATokenToKVPoolAllocator:
            made.append(_make(*arguments, checks="async"))
            return made[-1]

        yield make
        for allocator in made:
            allocator.debug_print()
        if "freeing_more_than_there_is" not in request.node.name:
            assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_keeps_what_callers_read_back() -> None:
    allocator = SWATokenToKVPoolAllocator(8, 4, 4, torch.float16, torch.device("cpu"), None, True)  # noqa: FBT003 - as SGLang calls it
    assert (allocator.dtype, allocator.page_size, allocator.need_sort) == (torch.float16, 4, True)
    assert str(allocator.device) == "cpu"


@pytest.mark.parametrize("page_size", [1, 4])
def test_need_sort_hands_out_ascending_slots_once_the_fresh_ones_run_short(page_size: int) -> None:
    allocator = _make(6 * page_size, 6 * page_size, page_size, need_sort=True)
    slots = allocator.alloc(6 * page_size)
    assert slots is not None
    allocator.free(slots.view(-1, page_size)[[4, 1, 3]].view(-1))
    again = allocator.alloc(3 * page_size)
    assert again is not None
    assert again.tolist() == slots.view(-1, page_size)[[1, 3, 4]].view(-1).tolist()


def test_need_sort_sorts_what_a_group_gave_back() -> None:
    allocator = _make(24, 24, 4, need_sort=True)
    slots = allocator.alloc(24)
    assert slots is not None
    with allocator.free_group():
        for page in (4, 1, 3):
            allocator.free_segment(slots[4 * page : 4 * page + 4].to(torch.int32), start_pos=0)
    again = allocator.alloc(12)
    assert again is not None
    assert again.tolist() == slots.view(-1, 4)[[1, 3, 4]].view(-1).tolist()


def test_clearing_is_bound_once_without_a_frame_around_it() -> None:
    allocator = _make(8, 8, 4)
    assert allocator.clear_full_to_swa_mapping is allocator.clear_full_to_swa_mapping
    assert "clear_full_to_swa_mapping" in vars(allocator)
    bound = allocator.clear_full_to_swa_mapping
    with allocator.free_group():
        pass
    assert allocator.clear_full_to_swa_mapping is bound
    with allocator.free_group():
        allocator.clear()
        assert allocator.clear_full_to_swa_mapping is bound
    assert allocator.clear_full_to_swa_mapping is bound


def test_a_pool_of_its_own_refuses_sizes_that_it_could_not_serve() -> None:
    for size, page_size in ((0, 1), (-4, 4), (8, 0), (10, 4)):
        with pytest.raises(PoolError):
            PoolAllocator(size, page_size, CPU)


def test_explain_names_the_profile_and_the_strategies() -> None:
    allocator = _make(256, 256, 4, profile=make_profile("masked_fill"))
    words = allocator.explain()
    assert "clear.token: decided by profile= argument" in words
    assert "int32 any number: masked_fill" in words
    assert "int64 any number: masked_fill" in words


@pytest.mark.parametrize("need_size", [2.0, True, -1, "2", torch.tensor([2])])
@pytest.mark.parametrize("need_sort", [False, True])
def test_an_impossible_need_is_refused_and_changes_nothing(need_size: Any, need_sort: bool) -> None:  # noqa: FBT001 - a case
    allocator = _make(8, 8, 1, need_sort=need_sort)
    with pytest.raises(PoolError, match="need_size must be"):
        allocator.alloc(need_size)
    assert allocator.available_size() == 8
    assert allocator.alloc(8) is not None


def _use(allocator: SWATokenToKVPoolAllocator, row: torch.Tensor, lengths: torch.Tensor) -> None:
    """All that may make a tensor, with 4 slots a page; ``row`` is ``[6]`` int64 and ``lengths`` ``[1]``."""
    zero, five, last_loc = lengths * 0, lengths * 5, row[-1:]
    grown = allocator.alloc_extend(zero, zero, five, five, zero - 1, 5)
    assert grown is not None
    token = allocator.alloc_decode(five + 1, five + 1, grown[-1:])
    assert token is not None
    tail = allocator.alloc_extend_swa_tail(five + 1, five + 1, five * 2, five * 2, token, 4, 1)
    assert tail is not None
    row[:5], row[5:] = grown, token
    with allocator.free_group():
        allocator.free_swa_segment(row[:4].to(torch.int32), start_pos=0)
        allocator.free_full_segment(row[:4], start_pos=0)
        allocator.free_swa(tail)
        allocator.free_page_ids(row[:0])
    assert allocator.translate_loc_from_full_to_swa(last_loc).tolist() == [0]
    allocator.clear_full_to_swa_mapping(last_loc)
    allocator.set_full_to_swa_mapping(last_loc, last_loc)
    allocator.clear()


@pytest.mark.parametrize("checks", ["off", "async", "strict"])
def test_another_default_device_does_not_matter(checks: Any) -> None:
    row, lengths = torch.zeros(6, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    # A server may have set its accelerator as the default device.
    with torch.device("meta"):
        allocator = _make(16, 16, 4, checks=checks)
        slots = allocator.alloc(4)
        assert slots is not None
        allocator.free(slots)
        _use(allocator, row, lengths)
    assert slots.tolist() == [4, 5, 6, 7]
    assert allocator.available_size() == 16


@pytest.mark.parametrize("checks", ["off", "async", "strict"])
def test_what_is_made_in_inference_mode_works_outside_it(checks: Any) -> None:
    row, lengths = torch.zeros(6, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    with torch.inference_mode():
        allocator = _make(8, 8, 4, strategy="masked_fill", checks=checks)
        slots = allocator.alloc(8)
        assert slots is not None
    allocator.free(slots)
    assert allocator.available_size() == 8
    with torch.inference_mode():
        allocator.resize(config(16, 16))
    _use(allocator, row, lengths)
    with torch.inference_mode():
        _use(allocator, row.clone(), lengths)
    assert allocator.available_size() == 16


def test_clearing_everything_restores_a_sentinel_that_somebody_has_overwritten() -> None:
    allocator = _make(8, 8, 4)
    # An index of -1 does it, with some strategies.
    allocator.full_to_swa_index_mapping[-1] = 4
    allocator.clear()
    assert allocator.full_to_swa_index_mapping.tolist() == [0] * 12 + [-1]


def test_a_longer_table_has_the_strategies_that_were_asked_for() -> None:
    allocator = _make(8, 8, 4, strategy="masked_fill", strict_profile=True)
    before = allocator.explain()
    allocator.resize(config(80, 8))
    assert allocator.explain() == before
    assert "masked_fill" in before


def test_a_failed_construction_of_a_longer_table_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = _make(8, 8, 4)
    allocator.alloc(4)
    before = Snapshot.of(allocator)

    def fail(*_arguments: Any, **_keywords: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("swa_alloc.allocator.FullToSWAMapping.allocate", fail)
    with pytest.raises(MemoryError):
        allocator.resize(config(80, 80))
    assert Snapshot.of(allocator) == before
    assert (allocator.size_full, allocator.size_swa) == (8, 8)
