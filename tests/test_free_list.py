"""Free lists: no page twice, all or nothing, O(k), and ascending when they promise it."""

from __future__ import annotations

import copy

import pytest
import torch
from builders import CPU, PROPERTY, Operators
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swa_alloc.errors import PoolError
from swa_alloc.free_list import FreeList, SortedFreeList


def take(pages: FreeList, count: int) -> torch.Tensor:
    """Hand out as many pages, in the two steps that it takes."""
    taken = pages.peek(count)
    pages.drop(count)
    return taken


BOTH = pytest.mark.parametrize("kind", [FreeList, SortedFreeList])


class FreeListMachine(RuleBasedStateMachine):
    """A free list, and plain Python lists of what it must hold."""

    kind: type[FreeList] = FreeList

    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.pages = self.kind(capacity, CPU)
        self.free = set(range(1, capacity + 1))
        # What was handed out: the caller's tensor, and what it held then.
        self.taken: list[tuple[torch.Tensor, list[int]]] = []
        # The sorted list's promise: ascending runs, and what came back waits until they run short.
        self.ascending, self.waiting = sorted(self.free), list[int]()

    @precondition(lambda self: self.free)
    @rule(data=st.data(), peeks=st.integers(1, 2))
    def take(self, data: st.DataObject, peeks: int) -> None:
        share = data.draw(st.integers(0, len(self.free)), label="share")
        for _ in range(peeks):
            taken = self.pages.peek(share)
            # They stay free until they are dropped.
            assert len(self.pages) == len(self.free)
            assert sorted(self.pages.all_ids().tolist()) == sorted(self.free)
        self.pages.drop(share)
        assert taken.dtype is torch.int64
        ids = taken.tolist()
        assert len(ids) == len(set(ids)) == share
        assert set(ids) <= self.free
        if self.kind is SortedFreeList:
            assert ids == self._take_ascending(share)
        self.free -= set(ids)
        self.taken.append((taken, ids))

    def _take_ascending(self, count: int) -> list[int]:
        if count > len(self.ascending):
            self.ascending, self.waiting = sorted(self.ascending + self.waiting), []
        ids, self.ascending = self.ascending[:count], self.ascending[count:]
        return ids

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), dtype=st.sampled_from([torch.int32, torch.int64]), strided=st.booleans())
    def put(self, data: st.DataObject, dtype: torch.dtype, strided: bool) -> None:  # noqa: FBT001 - drawn
        _, ids = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1), label="which"))
        ids = data.draw(st.permutations(ids), label="order")
        self._give_back(torch.tensor(ids, dtype=dtype), strided=strided)
        self.free |= set(ids)
        self.waiting += ids

    def _give_back(self, ids: torch.Tensor, *, strided: bool) -> None:
        lent = ids.repeat_interleave(2)[::2] if strided else ids.clone()
        self.pages.put(lent)
        # The caller may reuse its tensor.
        lent.fill_(0)

    @rule(excess=st.integers(1, 3))
    def put_too_many(self, excess: int) -> None:
        before = self.pages.all_ids().tolist()
        too_many = torch.ones(self.capacity - len(self.free) + excess, dtype=torch.int64)
        with pytest.raises(PoolError, match=f"of {self.capacity} free: freed twice"):
            self.pages.put(too_many)
        assert self.pages.all_ids().tolist() == before

    @rule()
    def reset(self) -> None:
        self.pages.reset()
        self.free, self.taken = set(range(1, self.capacity + 1)), []
        self.ascending, self.waiting = sorted(self.free), []
        assert self.pages.all_ids().tolist() == self.ascending

    @invariant()
    def holds_each_free_page_once(self) -> None:
        ids = self.pages.all_ids().tolist()
        assert sorted(ids) == sorted(self.free)
        assert len(self.pages) == len(self.free)

    @invariant()
    def never_touches_what_it_handed_out(self) -> None:
        assert all(tensor.tolist() == ids for tensor, ids in self.taken)


class SortedFreeListMachine(FreeListMachine):
    kind = SortedFreeList


STATEFUL = settings(PROPERTY, max_examples=60, stateful_step_count=30)
FreeListMachine.TestCase.settings = STATEFUL
SortedFreeListMachine.TestCase.settings = STATEFUL
TestFreeListAgainstAModel = FreeListMachine.TestCase
TestSortedFreeListAgainstAModel = SortedFreeListMachine.TestCase


@BOTH
def test_hands_out_ascending_pages_at_first_and_never_page_0(kind: type[FreeList]) -> None:
    pages = kind(5, CPU)
    first, second = take(pages, 2), take(pages, 3)
    assert [*first.tolist(), *second.tolist()] == [1, 2, 3, 4, 5]


@BOTH
def test_taking_none_of_an_exhausted_list_gives_an_empty_tensor(kind: type[FreeList]) -> None:
    pages = kind(1, CPU)
    take(pages, 1)
    assert take(pages, 0).tolist() == []
    assert len(pages) == 0


@BOTH
def test_all_ids_is_a_copy(kind: type[FreeList]) -> None:
    pages = kind(4, CPU)
    pages.put(take(pages, 2))
    pages.all_ids().zero_()
    assert sorted(pages.all_ids().tolist()) == [1, 2, 3, 4]


def test_the_sorted_list_merges_only_when_the_ascending_pages_run_short() -> None:
    pages = SortedFreeList(6, CPU)
    take(pages, 3)
    pages.put(torch.tensor([3, 1]))
    assert take(copy.deepcopy(pages), 3).tolist() == [4, 5, 6]
    assert take(copy.deepcopy(pages), 4).tolist() == [1, 3, 4, 5]


@BOTH
def test_costs_nothing_that_grows_with_the_pool(kind: type[FreeList]) -> None:
    pages = kind(10_000, CPU)
    with Operators() as made:
        pages.put(take(pages, 3))
        take(pages, 2)
    assert 0 < made.largest <= 3
