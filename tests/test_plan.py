"""Which numbers of indices are timed, and which share of the calls each stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.bench.sandbox import draw_rows
from autotune.traffic.plan import Plan, Point, make_plan
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, CallKind, Target, empty_mapping
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

np = pytest.importorskip("numpy")

KIND = CallKind("clear", "token", "int32")


def trace(*entries: TraceEntry, page_size: int = 16, size: int = 1 << 16) -> Trace:
    made = Trace(SCHEMA, size, page_size, entries)
    made.check()
    return made


def entry(
    count: int,
    weight: float = 1.0,
    target: Any = "token",
    dtype: Any = "int32",
    layout: Any = "scattered",
    *,
    operation: Any = "clear",
) -> TraceEntry:
    return TraceEntry(operation, target, dtype, count, layout, weight)


def plan_of(weights: Mapping[int, float], sizes: int = 6) -> Plan:
    """Of a trace with one kind of call."""
    return make_plan(trace(*(entry(count, weight) for count, weight in weights.items()), page_size=1), sizes)


def points(plan: Plan, target: str = "token", dtype: str = "int32", operation: str = "clear") -> list[Point]:
    return [point for point in plan.points if point.kind == (operation, target, dtype)]


def counts(plan: Plan, target: str = "token", dtype: str = "int32") -> list[int]:
    return [point.count for point in points(plan, target, dtype)]


# Which sizes.


def test_one_and_both_ends_are_timed_however_few_sizes_there_may_be() -> None:
    assert counts(plan_of({5: 1.0, 64: 1000.0, 2000: 1.0}, sizes=3)) == [1, 5, 2000]


def test_one_is_one_of_the_sizes_and_stands_for_no_calls_where_there_are_none() -> None:
    weights = {2**power: 1.0 for power in range(3, 13)}
    first, *others = points(plan_of(weights, sizes=6))
    assert (first.count, first.layout, first.weight) == (1, "run", 0.0)
    assert len(others) == 5


def test_a_size_of_one_that_was_recorded_has_its_weight_and_layout() -> None:
    (first, *_) = points(make_plan(trace(entry(1, 3.0), entry(64, 1.0), page_size=1), 6))
    assert (first.count, first.layout, first.weight) == (1, "scattered", 0.75)


def test_the_heaviest_sizes_are_timed() -> None:
    weights = {1: 1.0, 4: 5.0, 16: 2.0, 64: 40.0, 256: 3.0, 1024: 20.0, 4096: 1.0}
    assert counts(plan_of(weights, sizes=4)) == [1, 64, 1024, 4096]


def test_equal_weights_are_spread_evenly_over_the_octaves() -> None:
    assert counts(plan_of({2**power: 1.0 for power in range(13)}, sizes=5)) == [1, 8, 64, 512, 4096]


def test_similar_weights_do_not_crowd_at_the_small_end() -> None:
    # Slightly heavier the smaller they are.
    timed = counts(plan_of({2**power: 1.0 - 0.01 * power for power in range(13)}, sizes=6))
    assert max(large / small for small, large in pairwise(timed)) <= 2**4


def test_the_largest_size_of_a_heavy_octave_is_timed_beside_its_heaviest() -> None:
    weights = {5: 1.0, 70: 50.0, 90: 5.0, 110: 5.0, 128: 20.0, 1000: 10.0, 2000: 1.0}
    assert {70, 128} <= set(counts(plan_of(weights, sizes=6)))


def test_sizes_that_few_calls_have_in_a_narrow_gap_are_not_worth_a_race() -> None:
    assert counts(plan_of({62: 50.0, 63: 5.0, 64: 45.0}, sizes=12)) == [1, 62, 64]


def test_sizes_that_many_calls_have_are_timed_in_a_narrow_gap_too() -> None:
    assert counts(plan_of({62: 1.0, 63: 1.0, 64: 1.0}, sizes=12)) == [1, 62, 63, 64]


@pytest.mark.parametrize("step", [62, 63, 64, 65])
@pytest.mark.parametrize("weights", [{62: 40.0, 63: 30.0, 64: 30.0}, {62: 50.0, 63: 25.0, 64: 25.0, 3000: 2.0}])
def test_a_step_anywhere_among_neighbouring_sizes_costs_little(weights: dict[int, float], step: int) -> None:
    # From the step on, one strategy takes 20 us instead of 10, and another 13 everywhere.
    def costs(count: int) -> tuple[float, float]:
        return (20.0 if count >= step else 10.0), 13.0

    timed = counts(plan_of(weights, sizes=6))
    taken = sum(weight * costs(count)[_served(count, timed, costs)] for count, weight in weights.items())
    best = sum(weight * min(costs(count)) for count, weight in weights.items())
    assert taken <= 1.01 * best
    # Timed at 62 alone, calls at 63 and 64 would cost 20 us instead of 13 with a step at 63.
    if step == 63:
        alone = sum(weight * costs(count)[_served(count, [1, 62], costs)] for count, weight in weights.items())
        assert alone > 1.2 * best


def _served(count: int, timed: Sequence[int], costs: Any) -> int:
    """Which of the strategies serves a size: the fastest at the nearest timed one, as borders lie halfway."""
    nearest = min(timed, key=lambda size: (abs(math.log(size / count)), size))
    return int(np.argmin(costs(nearest)))


@given(
    weights=st.dictionaries(st.integers(1, 1 << 16), st.floats(0.01, 100.0), min_size=1, max_size=60),
    sizes=st.integers(3, 12),
)
@settings(max_examples=300, deadline=None)
def test_more_sizes_are_those_of_fewer_and_others_besides(weights: dict[int, float], sizes: int) -> None:
    fewer, more = counts(plan_of(weights, sizes)), counts(plan_of(weights, sizes + 1))
    assert set(fewer) <= set(more)
    assert len(more) <= len(fewer) + 1


def test_the_order_of_the_entries_does_not_matter() -> None:
    entries = [entry(count, 0.1 * count) for count in (8, 9, 64, 65, 700, 5000)]
    entries += [entry(count, 0.7, layout="run") for count in (8, 9, 64, 65, 700, 5000)]
    assert make_plan(trace(*entries), 4) == make_plan(trace(*reversed(entries)), 4)


# What a size stands for.


def test_a_size_stands_for_the_calls_nearest_to_it_by_ratio_and_halfway_for_the_lower_one() -> None:
    # 40 lies halfway between 4 and 400.
    plan = plan_of({4: 30.0, 39: 0.01, 40: 0.02, 41: 0.04, 400: 70.0}, sizes=3)
    total = 100.07
    weights = {point.count: point.weight for point in points(plan)}
    assert weights == pytest.approx({1: 0.0, 4: 30.03 / total, 400: 70.04 / total})


def test_weights_are_shares_of_the_whole_trace() -> None:
    plan = make_plan(trace(entry(8, 30.0), entry(4, 10.0, target="page")), sizes=6)
    assert sum(point.weight for point in points(plan, "token")) == pytest.approx(0.75)
    assert sum(point.weight for point in points(plan, "page")) == pytest.approx(0.25)


def test_a_size_in_several_layouts_is_timed_once_in_the_commonest() -> None:
    entries = (entry(64, 2.0, layout="run"), entry(64, 5.0, layout="pages"), entry(64, 1.0))
    plan = make_plan(trace(*entries), sizes=6)
    for dtype in INDEX_DTYPES:
        assert [(point.count, point.layout) for point in points(plan, "token", dtype)] == [(1, "run"), (64, "pages")]


def test_calls_are_every_size_of_a_called_kind_with_its_share_of_all_calls() -> None:
    entries = (entry(300, 2.0), entry(17, 3.0, layout="run"), entry(17, 1.0), entry(5, 4.0, operation="set"))
    calls = make_plan(trace(*entries), sizes=3).calls
    assert calls == {KIND: ((17, 0.4), (300, 0.2)), CallKind("set", "token", "int32"): ((5, 0.4),)}


# Which kinds.


def test_a_kind_that_the_trace_lacks_borrows_sizes_and_has_no_weight() -> None:
    plan = make_plan(trace(entry(32), entry(512), page_size=16), sizes=6)
    assert counts(plan, "token", "int64") == [1, 32, 512]
    assert counts(plan, "page", "int32") == counts(plan, "page", "int64") == [1, 2, 32]
    assert {point.kind for point in plan.points if point.weight} == {KIND}
    assert set(plan.calls) == {KIND}


@pytest.mark.parametrize(("sizes", "borrowed"), [(3, 3), (6, 3), (8, 4), (12, 6)])
def test_a_kind_that_the_trace_lacks_borrows_half_of_the_sizes_and_three_at_least(sizes: int, borrowed: int) -> None:
    plan = plan_of({4**power: 1.0 for power in range(8)}, sizes)
    assert len(counts(plan, dtype="int32")) == min(8, sizes)
    found = counts(plan, dtype="int64")
    assert len(found) == borrowed
    assert (found[0], found[-1]) == (1, 4**7)
    # The middle is one of them.
    assert {4**3, 4**4} & set(found)


def test_an_operation_that_the_trace_lacks_is_left_out() -> None:
    made = trace(entry(32), entry(4, operation="take", target="page"))
    assert {kind.operation for kind in make_plan(made, sizes=6).kinds} == {"clear", "take"}
    assert make_plan(trace(entry(32)), 6, ["take"]) == Plan((), {})


def test_each_operation_has_its_own_kinds() -> None:
    made = trace(*(entry(2, operation=operation, target=TARGET[operation]) for operation in OPERATIONS), page_size=16)
    assert {kind[:2] for kind in make_plan(made, sizes=6).kinds} == {
        *((operation, target) for operation in ("clear", "set") for target in ("token", "page")),
        ("translate", "token"),
        ("take", "page"),
    }


def test_only_the_operations_asked_for_are_planned_with_their_share_of_all_calls() -> None:
    plan = make_plan(trace(entry(32, 3.0), entry(8, 1.0, operation="set"), page_size=1), 6, ["set"])
    assert {kind.operation for kind in plan.kinds} == {"set"}
    assert sum(point.weight for point in plan.points) == pytest.approx(0.25)
    assert plan.calls == {CallKind("set", "token", "int32"): ((8, 0.25),)}


def test_an_operation_without_weight_is_timed_all_the_same() -> None:
    plan = make_plan(trace(entry(32), entry(8, 0.0, operation="set"), page_size=1), 6, ["set"])
    assert [point.count for point in points(plan, operation="set")] == [1, 8]


def test_the_other_dtype_is_a_nearer_relative_than_the_other_target() -> None:
    plan = make_plan(trace(entry(48), entry(7, target="page", dtype="int64")), sizes=6)
    assert counts(plan, "token", "int64") == [1, 48]
    assert counts(plan, "page", "int32") == [1, 7]


def test_sizes_in_slots_become_whole_pages_without_twins() -> None:
    # 17 and 30 slots are two pages either way.
    assert counts(make_plan(trace(entry(17), entry(30), entry(300)), sizes=6), "page", "int32") == [1, 2, 19]


def test_there_is_no_page_target_where_pages_are_slots() -> None:
    assert {kind.target for kind in make_plan(trace(entry(32), page_size=1), sizes=6).kinds} == {"token"}


TARGET = {"clear": "token", "set": "token", "translate": "token", "take": "page"}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    page_size = draw(st.sampled_from([1, 2, 16]))
    size = page_size * draw(st.integers(1, 64))
    kinds = [("token", size)] + ([("page", size // page_size)] if page_size > 1 else [])
    entries = []
    for _ in range(draw(st.integers(1, 12))):
        target, rows = draw(st.sampled_from(kinds))
        layouts = ("run", "pages", "scattered") if target == "token" else ("run", "scattered")
        entries.append(
            entry(
                draw(st.integers(1, rows)),
                float(draw(st.integers(1, 1000))),
                target,
                draw(st.sampled_from(["int32", "int64"])),
                draw(st.sampled_from(layouts)),
            )
        )
    return trace(*entries, page_size=page_size, size=size)


@given(made=traces(), sizes=st.integers(3, 12))
@settings(max_examples=150, deadline=None)
def test_any_trace_has_a_plan_that_stands_for_all_its_calls(made: Trace, sizes: int) -> None:
    plan = make_plan(made, sizes)
    total = sum(entry.weight for entry in made.entries)
    targets = ("token", "page") if made.page_size > 1 else ("token",)
    assert set(plan.kinds) == {("clear", target, dtype) for target in targets for dtype in INDEX_DTYPES}
    for kind in plan.kinds:
        own = [entry for entry in made.entries if entry.kind == kind]
        timed = [point for point in plan.points if point.kind == kind]
        found = [point.count for point in timed]
        assert found == sorted(set(found))
        assert found[0] == 1
        assert len(found) <= (sizes if own else max(3, sizes // 2))
        assert sum(point.weight for point in timed) == pytest.approx(sum(entry.weight for entry in own) / total)
        if own:
            recorded = {entry.count for entry in own}
            assert {min(recorded), max(recorded)} <= set(found) <= recorded | {1}
            assert [count for count, _ in plan.calls[kind]] == sorted(recorded)
    assert sum(weight for calls in plan.calls.values() for _, weight in calls) == pytest.approx(1)


@given(made=traces(), sizes=st.integers(3, 12))
@settings(max_examples=150, deadline=None)
def test_any_plan_can_be_measured(made: Trace, sizes: int) -> None:
    mapping = empty_mapping(made.size, made.page_size, torch.device("cpu"))
    for point in make_plan(made, sizes).points:
        target = Target("clear", point.kind.target, INDEX_DTYPES[point.kind.index_dtype], mapping, made.page_size)
        rows = draw_rows(target, point.count, point.layout, np.random.default_rng(0))
        first, end = (
            (made.page_size, made.size + made.page_size) if point.kind.target == "token" else (1, len(target.table))
        )
        assert len(set(rows.tolist())) == point.count
        # Neither padding nor the sentinel.
        assert rows.min() >= first
        assert rows.max() < end
