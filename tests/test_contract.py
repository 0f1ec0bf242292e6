"""What is checked before anything is timed: every right strategy passes, and no wrong one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from builders import CPU
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.bench.contract import check_sum, fault, number, violation
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


# On a small table


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


# On a full-sized table

SLOTS = 1 << 10


def full_sized(operation: str, page_size: int = PAGE_SIZE, slots: int = SLOTS) -> list[Target]:
    """Targets of that operation whose mapping is numbered."""
    mapping = empty_mapping(slots, page_size, CPU)
    number(mapping)
    called = OPERATIONS[operation]
    return [
        Target(called.name, name, dtype, mapping, page_size)
        for name in called.targets(page_size)
        for dtype in INDEX_DTYPES.values()
    ]


def arguments_of(target: Target, rows: tuple[int, ...] = (40, 7, 19, 23)) -> tuple[torch.Tensor, ...]:
    indices = torch.tensor(rows, dtype=target.index_dtype)
    return OPERATIONS[target.operation].arguments(target.table, indices)


@pytest.mark.parametrize("page_size", [1, PAGE_SIZE])
@pytest.mark.parametrize(("operation", "name"), [(o, name) for o in OPERATIONS for name in builtin_names(o)])
def test_every_built_in_strategy_that_can_run_here_is_right_on_a_full_sized_table_and_leaves_it_as_it_was(
    operation: str, name: str, page_size: int
) -> None:
    strategy = create(operation, name)
    for target in full_sized(operation, page_size):
        if strategy.unavailable(target) is None:
            before = target.mapping.clone()
            assert fault(strategy.bind(target), target, arguments_of(target), call_it) is None
            assert torch.equal(target.mapping, before)


def test_an_index_of_minus_one_is_the_last_row() -> None:
    for target in full_sized("translate"):
        right = create("translate", "subscript").bind(target)
        assert fault(right, target, arguments_of(target, (40, -1, 7, -1)), call_it) is None
        assert fault(read_zero_for_minus_one(target), target, arguments_of(target, (40, -1)), call_it) is not None


def test_rows_that_come_twice_are_legal() -> None:
    for target in full_sized("clear"):
        clear = create("clear", "index_put").bind(target)
        assert fault(clear, target, arguments_of(target, (40, 7, 40, 7)), call_it) is None


@pytest.mark.parametrize(
    ("operation", "wrong", "reason"),
    [
        ("set", set_to_the_first, "row"),
        ("set", set_padding_too, "row 0 became"),
        ("translate", read_int32, "the result is wrong"),
        ("translate", read_nothing, "the result is wrong"),
        ("take", take_and_leave, "row"),
        ("take", take_slots, "the result is wrong"),
        ("take", clear_and_take, "the result is wrong"),
    ],
)
def test_what_is_wrong_on_a_full_sized_table_is_found_out_and_the_table_put_right(
    operation: str, wrong: Wrong, reason: str
) -> None:
    for target in full_sized(operation):
        before = target.mapping.clone()
        found = fault(wrong(target), target, arguments_of(target), call_it)
        assert found is not None
        assert found.startswith(reason)
        assert torch.equal(target.mapping, before)


def also_clears(row: int) -> Wrong:
    """A clear that writes to one row that no index names."""

    def bind(target: Target) -> Bound:
        table = target.table

        def call(indices: torch.Tensor) -> None:
            table.index_fill_(0, indices.long(), 0)
            table[row] = 0

        return call

    return bind


@pytest.mark.parametrize("row", [0, 6, 8, 39, 41, -1])
def test_rows_beside_those_that_are_named_and_both_ends_are_looked_at(row: int) -> None:
    for target in full_sized("clear"):
        before = target.mapping.clone()
        found = fault(also_clears(row)(target), target, arguments_of(target), call_it)
        assert found is not None
        assert found.startswith(f"row {row % target.table.shape[0]} became")
        assert torch.equal(target.mapping, before)


def test_the_message_says_what_a_row_holds_and_what_it_should() -> None:
    target = full_sized("clear", page_size=1)[0]
    assert fault(lambda _indices: None, target, arguments_of(target), call_it) == "row 7 became [8] and should be [0]"


@pytest.mark.parametrize("operation", ["clear", "take"])
def test_a_call_that_does_nothing_is_found_out_where_an_earlier_call_has_done_its_work(operation: str) -> None:
    for target in full_sized(operation):
        arguments = arguments_of(target)
        right = create(operation, OPERATIONS[operation].fallback).bind(target)
        right(*arguments)
        before = target.mapping.clone()
        assert fault(lambda *_: torch.zeros(4, dtype=torch.int64), target, arguments, call_it) is not None
        assert fault(right, target, arguments, call_it) is None
        assert torch.equal(target.mapping, before)


def test_a_call_that_raises_leaves_the_table_as_it_was() -> None:
    def clear_and_raise(indices: torch.Tensor) -> None:
        target.table.index_fill_(0, indices.long(), 0)
        raise RuntimeError("made up")

    for target in full_sized("clear"):
        before = target.mapping.clone()
        with pytest.raises(RuntimeError, match="made up"):
            fault(clear_and_raise, target, arguments_of(target), call_it)
        assert torch.equal(target.mapping, before)


# Somewhere else


@pytest.mark.parametrize("slots", [1, 2, SLOTS])
@pytest.mark.parametrize("page_size", [1, PAGE_SIZE])
def test_a_numbered_table_adds_up(slots: int, page_size: int) -> None:
    mapping = empty_mapping(slots * page_size, page_size, CPU)
    number(mapping)
    assert check_sum(mapping)
    assert int(mapping[-1]) == -1
    assert mapping[:-1].unique().numel() == mapping.numel() - 1


@pytest.mark.parametrize("place", [0, 1, 700, SLOTS - 1, -1])
@pytest.mark.parametrize("value", [0, -1, 1 << 40])
def test_a_write_anywhere_shows_in_the_sum(place: int, value: int) -> None:
    mapping = empty_mapping(SLOTS, 1, CPU)
    number(mapping)
    unchanged = int(mapping[place]) == value
    mapping[place] = value
    assert check_sum(mapping) is unchanged


def test_a_write_far_from_the_indices_is_left_in_the_table_for_the_sum_to_find() -> None:
    # No row that a call looks at.
    for target in full_sized("clear", slots=1 << 16):
        missed = [row for row in range(2000, 2020) if not _fault_at(row, target)]
        assert missed
        number(target.mapping)
        fault(also_clears(missed[0])(target), target, arguments_of(target), call_it)
        assert not check_sum(target.mapping)


def _fault_at(row: int, target: Target) -> str | None:
    number(target.mapping)
    return fault(also_clears(row)(target), target, arguments_of(target), call_it)


class Scans(TorchDispatchMode):
    """Notes the operators that are given, or make, a tensor as large as a table."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.names: set[str] = set()
        self.made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if any(isinstance(arg, torch.Tensor) and arg.numel() >= self.elements for arg in args):
            self.names.add(func.overloadpacket.__name__)
        elif isinstance(result, torch.Tensor):
            self.made = max(self.made, result.numel())
        return result


# These touch the rows that they are given, whatever the table's length; the others make views.
BY_ROW = {"index_select", "index_copy_", "index_fill_", "index", "index_put_"}
VIEWS = {"slice", "view", "select"}


@pytest.mark.parametrize(
    ("operation", "name"),
    [("clear", "index_fill"), ("set", "index_copy"), ("translate", "subscript"), ("take", "read_then_clear")],
)
def test_a_table_of_four_million_slots_is_not_scanned_for_a_candidate(operation: str, name: str) -> None:
    slots = 4 << 20
    for target in full_sized(operation, slots=slots):
        call, arguments = create(operation, name).bind(target), arguments_of(target)
        # A column of the page view is as long as the table has pages.
        with Scans(slots // PAGE_SIZE) as scans:
            assert fault(call, target, arguments, call_it) is None
        assert {"index_select", "index_copy_"} <= scans.names <= BY_ROW | VIEWS
        assert scans.made < 1000


def test_the_sum_is_one_pass_that_makes_nothing() -> None:
    mapping = empty_mapping(1 << 16, 1, CPU)
    number(mapping)
    with Scans(1 << 16) as scans:
        assert check_sum(mapping)
    assert scans.names == {"sum"}
    assert scans.made <= 1
