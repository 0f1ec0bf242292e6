"""Which sizes are timed, and what share of the budget each gets."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.plan import Point, make_plan
from autotune.sandbox import draw_rows
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, Target, empty_mapping
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

np = pytest.importorskip("numpy")


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


def counts(points: tuple[Point, ...], target: str = "token", dtype: str = "int32") -> list[int]:
    return [point.count for point in points if (point.target, point.index_dtype) == (target, dtype)]


def test_the_ends_and_the_heaviest_between_them_are_timed() -> None:
    weights = {1: 1.0, 4: 5.0, 16: 2.0, 64: 9.0, 256: 3.0, 1024: 1.0}
    points = make_plan(trace(*(entry(count, weight) for count, weight in weights.items())), sizes=4)
    assert counts(points) == [1, 4, 64, 1024]


def test_every_size_is_timed_where_there_are_few() -> None:
    assert counts(make_plan(trace(entry(512), entry(8), entry(64)), sizes=6)) == [8, 64, 512]


def test_an_octave_is_timed_at_its_heaviest_size_and_with_its_whole_weight() -> None:
    points = make_plan(trace(entry(100, 1.0), entry(120, 6.0), entry(150, 3.0)), sizes=6)
    (point,) = [point for point in points if (point.target, point.index_dtype) == ("token", "int32")]
    assert (point.count, point.weight) == (120, 1.0)


def test_a_size_in_several_layouts_is_timed_once_in_the_commonest() -> None:
    entries = (entry(64, 2.0, layout="run"), entry(64, 5.0, layout="pages"), entry(64, 1.0))
    points = [point for point in make_plan(trace(*entries), sizes=6) if point.target == "token"]
    assert [(point.count, point.layout) for point in points] == [(64, "pages")] * 2


def test_the_order_of_the_entries_does_not_matter() -> None:
    entries = [entry(count, weight) for count, weight in ((8, 3.0), (9, 3.0), (64, 1.0), (700, 1.0), (5000, 2.0))]
    assert make_plan(trace(*entries), 3) == make_plan(trace(*reversed(entries)), 3)


def test_a_kind_that_the_trace_lacks_borrows_sizes_and_has_no_weight() -> None:
    points = make_plan(trace(entry(32), entry(512), page_size=16), sizes=6)
    assert counts(points, "token", "int64") == [32, 512]
    assert counts(points, "page", "int32") == counts(points, "page", "int64") == [2, 32]
    for point in points:
        borrowed = (point.target, point.index_dtype) != ("token", "int32")
        assert (point.weight == 0) == borrowed
        # It is decided all the same, so it needs its rounds.
        assert point.share > 0


def test_a_kind_that_the_trace_lacks_borrows_half_of_the_sizes_and_three_at_least() -> None:
    made = trace(*(entry(4**power, weight=float(power != 3)) for power in range(8)), page_size=1)
    assert len(counts(make_plan(made, sizes=8), dtype="int32")) == 8
    assert counts(make_plan(made, sizes=8), dtype="int64") == [1, 4, 16, 16384]
    assert counts(make_plan(made, sizes=4), dtype="int64") == [1, 4, 16384]


def test_an_operation_that_the_trace_lacks_is_left_out() -> None:
    made = trace(entry(32), entry(4, operation="take", target="page"))
    assert {point.operation for point in make_plan(made, sizes=6)} == {"clear", "take"}


def test_each_operation_has_its_own_kinds() -> None:
    made = trace(*(entry(2, operation=operation, target=TARGET[operation]) for operation in OPERATIONS), page_size=16)
    kinds = {point.kind[:2] for point in make_plan(made, sizes=6)}
    assert kinds == {
        *((operation, target) for operation in ("clear", "set") for target in ("token", "page")),
        ("translate", "token"),
        ("take", "page"),
    }


def test_only_the_operations_asked_for_are_timed_and_share_the_budget() -> None:
    made = trace(entry(32, 3.0), entry(8, 1.0, operation="set"), page_size=1)
    points = make_plan(made, 6, ["set"])
    assert {point.operation for point in points} == {"set"}
    assert sum(point.share for point in points) == pytest.approx(1)
    # Of the trace's calls, and not of what is timed.
    assert sum(point.weight for point in points) == pytest.approx(0.25)
    assert make_plan(made, 6, ["take"]) == ()


def test_an_operation_without_weight_is_timed_all_the_same() -> None:
    points = make_plan(trace(entry(32), entry(8, 0.0, operation="set"), page_size=1), 6, ["set"])
    assert [point.share for point in points] == pytest.approx([0.5, 0.5])


def test_the_other_dtype_is_a_nearer_relative_than_the_other_target() -> None:
    points = make_plan(trace(entry(48), entry(7, target="page", dtype="int64")), sizes=6)
    assert counts(points, "token", "int64") == [48]
    assert counts(points, "page", "int32") == [7]


def test_sizes_in_slots_become_whole_pages_without_twins() -> None:
    # 17 and 30 slots are two pages either way.
    points = make_plan(trace(entry(17), entry(30), entry(300)), sizes=6)
    assert counts(points, "page", "int32") == [2, 19]


def test_there_is_no_page_target_where_pages_are_slots() -> None:
    assert {point.target for point in make_plan(trace(entry(32), page_size=1), sizes=6)} == {"token"}


def test_weights_are_shares_of_the_whole_trace() -> None:
    points = make_plan(trace(entry(8, 30.0), entry(4, 10.0, target="page")), sizes=6)
    weights = {(point.target, point.index_dtype): point.weight for point in points}
    assert weights["token", "int32"] == pytest.approx(0.75)
    assert weights["page", "int32"] == pytest.approx(0.25)


def test_a_frequent_size_gets_more_of_the_budget_and_a_rare_one_enough() -> None:
    points = make_plan(trace(entry(8, 99.0), entry(512, 1.0), page_size=1), sizes=6)
    often, rarely = (point.share for point in points if point.index_dtype == "int32")
    assert often > rarely
    # Half of the budget is spread evenly over the four points.
    assert rarely >= 0.5 / 4


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
def test_any_trace_has_a_plan_that_can_be_measured(made: Trace, sizes: int) -> None:
    points = make_plan(made, sizes)
    assert sum(point.share for point in points) == pytest.approx(1)
    assert all(point.share > 0 for point in points)
    assert sum(point.weight for point in points) <= 1 + 1e-9

    kinds = defaultdict(list)
    for point in points:
        kinds[point.target, point.index_dtype].append(point.count)
    targets = ("token", "page") if made.page_size > 1 else ("token",)
    assert set(kinds) == {(target, dtype) for target in targets for dtype in INDEX_DTYPES}
    for found in kinds.values():
        assert len(found) <= sizes
        assert max(Counter(found).values()) == 1
        assert found == sorted(found)

    mapping = empty_mapping(made.size, made.page_size, torch.device("cpu"))
    for point in points:
        target = Target("clear", point.target, INDEX_DTYPES[point.index_dtype], mapping, made.page_size)
        rows = draw_rows(target, point.count, point.layout, np.random.default_rng(0))
        first, end = (made.page_size, made.size + made.page_size) if point.target == "token" else (1, len(target.table))
        assert len(set(rows.tolist())) == point.count
        # Neither padding nor the sentinel.
        assert rows.min() >= first
        assert rows.max() < end
