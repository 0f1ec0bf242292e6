"""SWATokenToKVPoolAllocator keeps the contract, at any page size, sorted or not, whatever clears for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from allocator_contract import AllocatorContract, AllocatorMachine, Make
from builders import CPU, PROPERTY, Operators, make_profile
from hypothesis import settings

from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.errors import PoolError
from swa_alloc.pool import PoolAllocator


def _make(size: int, size_swa: int, page_size: int, kvcache: Any = None, **keywords: Any) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(size, size_swa, page_size, torch.bfloat16, "cpu", kvcache, **keywords)


class TestAllocator(AllocatorContract):
    @pytest.fixture(params=[False, True], ids=["unsorted", "need_sort"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda *arguments: _make(*arguments, need_sort=request.param)


class TestAllocatorThatClearsThroughAProfile(AllocatorContract):
    """A choice by size and dtype, and a mask over the whole table, change nothing of what an allocator does."""

    @pytest.fixture(params=["masked_scatter", "scatter"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda *arguments: _make(*arguments, strategy=request.param, strict_profile=True)


def _machine(page_size: int, *, need_sort: bool) -> Any:
    class Machine(AllocatorMachine):
        def make(self, size: int, size_swa: int, page_size: int) -> SWATokenToKVPoolAllocator:
            return _make(size, size_swa, page_size, need_sort=need_sort)

    Machine.page_size = page_size
    case = Machine.TestCase
    case.settings = settings(PROPERTY, max_examples=25, stateful_step_count=25)
    return case


TestAgainstAModelPage1 = _machine(1, need_sort=False)
TestAgainstAModelPage4 = _machine(4, need_sort=False)
TestAgainstAModelPage64 = _machine(64, need_sort=False)
TestAgainstAModelPage1Sorted = _machine(1, need_sort=True)
TestAgainstAModelPage4Sorted = _machine(4, need_sort=True)


def test_keeps_what_callers_read_back() -> None:
    allocator = SWATokenToKVPoolAllocator(8, 4, 4, torch.float16, torch.device("cpu"), None, True)  # noqa: FBT003 - as SGLang calls it
    assert (allocator.dtype, allocator.page_size, allocator.need_sort) == (torch.float16, 4, True)
    assert str(allocator.device) == "cpu"
    assert "4" in allocator.debug_print()
    assert "8" in allocator.debug_print()


@pytest.mark.parametrize("page_size", [1, 4])
def test_need_sort_hands_out_ascending_slots_once_the_fresh_ones_run_short(page_size: int) -> None:
    allocator = _make(6 * page_size, 6 * page_size, page_size, need_sort=True)
    slots = allocator.alloc(6 * page_size)
    assert slots is not None
    allocator.free(slots.view(-1, page_size)[[4, 1, 3]].view(-1))
    again = allocator.alloc(3 * page_size)
    assert again is not None
    assert again.tolist() == slots.view(-1, page_size)[[1, 3, 4]].view(-1).tolist()


def test_clearing_is_bound_once_without_a_frame_around_it() -> None:
    allocator = _make(8, 8, 4)
    assert allocator.clear_full_to_swa_mapping is allocator.clear_full_to_swa_mapping
    assert "clear_full_to_swa_mapping" in vars(allocator)


# Operators whose result's shape, or whose result, the host has to wait for.
WAITING = {"_local_scalar_dense", "nonzero", "unique_dim", "_unique2", "unique_consecutive", "masked_select"}


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_alloc_and_clear_never_make_the_host_wait_for_the_device(page_size: int) -> None:
    allocator = _make(64 * page_size, 64 * page_size, page_size)
    with Operators() as ran:
        slots = allocator.alloc(2 * page_size)
        assert slots is not None
        allocator.clear_full_to_swa_mapping(slots)
        allocator.clear_full_to_swa_mapping(slots.to(torch.int32))
        allocator.translate_loc_from_full_to_swa(slots)
        allocator.set_full_to_swa_mapping(slots, slots)
    assert "index_fill_" in ran.names
    assert not ran.names & WAITING


@pytest.mark.parametrize("page_size", [1, 4])
def test_alloc_and_free_cost_nothing_that_grows_with_the_pool(page_size: int) -> None:
    allocator = _make(10_000 * page_size, 10_000 * page_size, page_size)
    with Operators() as ran:
        slots = allocator.alloc(page_size)
        assert slots is not None
        allocator.free_swa(slots)
        allocator.free(slots)
    assert 0 < ran.largest <= 2 * page_size


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


@pytest.mark.parametrize("indices", [torch.tensor([1.0]), torch.tensor([True]), torch.tensor([[1]]), torch.tensor(1)])
def test_what_is_no_list_of_indices_is_refused_everywhere(indices: torch.Tensor) -> None:
    allocator = _make(8, 8, 1)
    slots = allocator.alloc(2)
    assert slots is not None
    for free in (allocator.free, allocator.free_swa, allocator.free_full):
        with pytest.raises(PoolError, match="indices must be 1-D and int32 or int64"):
            free(indices)
    with pytest.raises(PoolError, match="indices must be 1-D and int32 or int64"):
        allocator.set_full_to_swa_mapping(indices, indices)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (6, 6)


def test_another_default_device_does_not_matter() -> None:
    # A server may have set its accelerator as the default device.
    with torch.device("meta"):
        allocator = _make(8, 8, 4)
        slots = allocator.alloc(4)
        assert slots is not None
        allocator.free(slots)
    assert slots.tolist() == [4, 5, 6, 7]
    assert allocator.available_size() == 8


def test_what_is_made_in_inference_mode_works_outside_it() -> None:
    with torch.inference_mode():
        allocator = _make(8, 8, 4, strategy="masked_fill")
    slots = allocator.alloc(8)
    assert slots is not None
    allocator.free(slots)
    assert allocator.available_size() == 8


def test_clearing_everything_restores_a_sentinel_that_an_index_of_minus_one_has_overwritten() -> None:
    allocator = _make(8, 8, 4)
    allocator.set_full_to_swa_mapping(torch.tensor([-1]), torch.tensor([4]))
    allocator.clear()
    assert allocator.full_to_swa_index_mapping.tolist() == [0] * 12 + [-1]
