"""What the calibrator checks before it times anything: every right strategy passes, and no wrong one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from builders import CPU

from autotune.contract import violation
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, Target, empty_mapping
from swa_alloc.strategies import Bound, Strategy, builtin_names, create

PAGE_SIZE = 4


def targets(operation: str, page_size: int = PAGE_SIZE) -> list[Target]:
    mapping = empty_mapping(64, page_size, CPU)
    called = OPERATIONS[operation]
    return [
        Target(called.name, name, dtype, mapping, page_size)
        for name in called.targets(page_size)
        for dtype in INDEX_DTYPES.values()
    ]


def call_it(call: Bound, *arguments: torch.Tensor) -> Any:
    return call(*arguments)


@pytest.mark.parametrize("page_size", [1, PAGE_SIZE])
@pytest.mark.parametrize(("operation", "name"), [(o, name) for o in OPERATIONS for name in builtin_names(o)])
def test_every_built_in_strategy_that_can_run_here_is_right(operation: str, name: str, page_size: int) -> None:
    strategy = create(operation, name)
    for target in targets(operation, page_size):
        if strategy.unavailable(target) is None:
            assert violation(strategy, target, call_it) is None


def test_the_table_that_a_target_names_is_left_alone() -> None:
    for target in targets("set"):
        before = target.mapping.clone()
        assert violation(create("set", "index_put"), target, call_it) is None
        assert torch.equal(target.mapping, before)


# Wrong in one way each: from a table to what is called.
Wrong = Callable[[Target], Bound]


def set_to_the_first(target: Target) -> Bound:
    table = target.table
    return lambda indices, peers: table.index_copy_(0, indices.long(), peers[:1].expand_as(peers).contiguous())


def set_and_change_the_peers(target: Target) -> Bound:
    table = target.table

    def call(indices: torch.Tensor, peers: torch.Tensor) -> None:
        table.index_copy_(0, indices.long(), peers)
        peers.zero_()

    return call


def set_and_change_the_indices(target: Target) -> Bound:
    table = target.table

    def call(indices: torch.Tensor, peers: torch.Tensor) -> None:
        table.index_copy_(0, indices.long(), peers)
        indices.zero_()

    return call


def set_padding_too(target: Target) -> Bound:
    table = target.table

    def call(indices: torch.Tensor, peers: torch.Tensor) -> None:
        table.index_copy_(0, indices.long(), peers)
        table[0].zero_()

    return call


def read_int32(target: Target) -> Bound:
    table = target.table
    return lambda indices: table[indices].to(torch.int32)


def read_zero_for_minus_one(target: Target) -> Bound:
    table = target.table
    return lambda indices: torch.where(indices < 0, 0, table[indices])


def read_nothing(_target: Target) -> Bound:
    return lambda _indices: None


def read_a_view(target: Target) -> Bound:
    table = target.table

    def call(indices: torch.Tensor) -> torch.Tensor:
        # Right, and the table's own entries, where the indices lie in a run.
        first, count = indices[:1].long(), indices.numel()
        run = count > 0 and torch.equal(indices.long(), torch.arange(int(first), int(first) + count))
        return table[int(first) : int(first) + count] if run else table[indices]

    return call


def read_into_one_buffer(target: Target) -> Bound:
    table, buffer = target.table, torch.zeros(1 << 10, dtype=torch.int64)

    def call(indices: torch.Tensor) -> torch.Tensor:
        result = buffer[: indices.numel()]
        return result.copy_(table[indices])

    return call


def take_and_leave(target: Target) -> Bound:
    table = target.table
    return lambda indices: table[:, 0][indices].floor_divide_(PAGE_SIZE)


def take_slots(target: Target) -> Bound:
    table = target.table

    def call(indices: torch.Tensor) -> torch.Tensor:
        slots = table[:, 0][indices]
        table[indices] = 0
        return slots

    return call


def clear_and_take(target: Target) -> Bound:
    table = target.table

    def call(indices: torch.Tensor) -> torch.Tensor:
        table[indices] = 0
        return table[:, 0][indices].floor_divide_(PAGE_SIZE)

    return call


WRONG: dict[str, list[tuple[Wrong, str]]] = {
    "set": [
        (set_to_the_first, "random indices: entry"),
        (set_and_change_the_peers, "random indices: the values were changed"),
        (set_and_change_the_indices, "random indices: the indices were changed"),
        (set_padding_too, "random indices: entry 0 became 0"),
    ],
    "translate": [
        (read_int32, "random indices: the result is wrong"),
        (read_zero_for_minus_one, "sentinel indices: the result is wrong"),
        (read_nothing, "random indices: the result is wrong"),
        (read_a_view, "single indices: the result changed afterwards"),
        (read_into_one_buffer, "random indices: the result changed afterwards"),
    ],
    "take": [
        (take_and_leave, "random indices: entry"),
        (take_slots, "random indices: the result is wrong"),
        (clear_and_take, "random indices: the result is wrong"),
    ],
}


@pytest.mark.parametrize(
    ("operation", "wrong", "reason"),
    [(operation, wrong, reason) for operation, cases in WRONG.items() for wrong, reason in cases],
)
def test_a_strategy_that_is_wrong_in_one_way_is_found_out(operation: str, wrong: Wrong, reason: str) -> None:
    class Faulty(Strategy):
        name = "faulty"

        def bind(self, target: Target) -> Bound:
            return wrong(target)

    for target in targets(operation):
        found = violation(Faulty(), target, call_it)
        assert found is not None
        assert found.startswith(reason)


def test_indices_that_come_twice_are_no_case_where_they_differ_from_each_other() -> None:
    class Picky(Strategy):
        name = "picky"

        def bind(self, target: Target) -> Bound:
            take = create("take", "read_then_clear").bind(target)

            def call(indices: torch.Tensor) -> Any:
                assert indices.unique().numel() == indices.numel()
                return take(indices)

            return call

    for target in targets("take"):
        assert violation(Picky(), target, call_it) is None
