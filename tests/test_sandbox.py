"""What calls are timed on: tables as an allocator has them, and indices as the workload draws them."""

from __future__ import annotations

import tracemalloc
from typing import get_args

import numpy as np
import pytest
import torch

from autotune.bench.sandbox import ROTATION, Sandbox, draw, draw_rows
from autotune.devices.cpu import Cpu
from autotune.traffic.plan import Point
from swa_alloc.operations import INDEX_DTYPES, CallKind, IndexDtype, Target, TargetName, empty_mapping
from swa_alloc.trace import Layout

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
PAGE_SIZE = 4
SLOTS = 64


def target(
    name: TargetName = "token", *, slots: int = SLOTS, page_size: int = PAGE_SIZE, device: str = "cpu"
) -> Target:
    mapping = empty_mapping(slots, page_size, torch.device(device))
    return Target("clear", name, torch.int32, mapping, page_size)


def rows(of: Target, count: int, layout: Layout, seed: int = 0) -> list[int]:
    drawn = draw_rows(of, count, layout, np.random.default_rng(seed))
    assert drawn.dtype == np.int64
    return [int(row) for row in drawn]


# Rows


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["token", "page"])
def test_rows_are_distinct_and_neither_padding_nor_the_sentinel(layout: Layout, name: TargetName) -> None:
    of = target(name)
    first, end = (PAGE_SIZE, SLOTS + PAGE_SIZE) if name == "token" else (1, SLOTS // PAGE_SIZE + 1)
    seen: set[int] = set()
    for seed in range(200):
        for count in (1, 2, 7, end - first):
            drawn = rows(of, count, layout, seed)
            assert len(drawn) == len(set(drawn)) == count
            seen.update(drawn)
    # All of them, and nothing else.
    assert seen == set(range(first, end))


def test_a_run_is_a_run() -> None:
    for seed in range(50):
        drawn = rows(target(), 10, "run", seed)
        assert drawn == list(range(drawn[0], drawn[0] + 10))


@pytest.mark.parametrize("count", [4, 8, 10, 3, 1])
def test_pages_come_whole_but_for_the_last_one_in_any_order(count: int) -> None:
    orders = set()
    for seed in range(50):
        drawn = rows(target(), count, "pages", seed)
        for start in range(0, count, PAGE_SIZE):
            page = drawn[start : start + PAGE_SIZE]
            assert page[0] % PAGE_SIZE == 0
            assert page == list(range(page[0], page[0] + len(page)))
        orders.add(tuple(drawn))
    assert len(orders) > 10


def test_scattered_rows_lie_anywhere_in_any_order() -> None:
    drawn = rows(target(slots=4096), 512, "scattered")
    assert drawn != sorted(drawn)
    # As many in the lower half as in the upper one, give or take four standard deviations.
    assert abs(sum(row < 2048 for row in drawn) - 256) < 45


def test_a_page_of_the_page_target_is_one_row() -> None:
    drawn = rows(target("page"), 8, "pages")
    assert drawn != list(range(drawn[0], drawn[0] + 8))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drawing_takes_what_the_rows_take_however_long_the_table_is(layout: Layout) -> None:
    # 8 TiB of a table that is not there.
    of = target(slots=1 << 40, device="meta")
    tracemalloc.start()
    try:
        drawn = rows(of, 1000, layout)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert len(set(drawn)) == 1000
    assert max(drawn) > 1 << 33


# Rotations


def point(count: int = 32, layout: Layout = "scattered", dtype: IndexDtype = "int32") -> Point:
    return Point(CallKind("clear", "token", dtype), count, layout, 1.0)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_a_rotation_is_of_different_indices_every_other_one_sorted(dtype: IndexDtype) -> None:
    rotation = draw(point(dtype=dtype), target()._replace(index_dtype=INDEX_DTYPES[dtype]), seed=0)
    assert [len(indices) for indices in rotation] == [32] * ROTATION
    assert {indices.dtype for indices in rotation} == {INDEX_DTYPES[dtype]}
    assert len({tuple(indices.tolist()) for indices in rotation}) == ROTATION
    assert [torch.equal(indices, indices.sort().values) for indices in rotation] == [False, True] * (ROTATION // 2)


def test_a_seed_gives_the_same_indices_for_every_table() -> None:
    one, other = draw(point(), target(), seed=3), draw(point(), target(), seed=3)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], draw(point(), target(), seed=4)[0])


# Tables


def test_a_table_is_in_the_state_that_an_allocators_is_in() -> None:
    sandbox = Sandbox(SLOTS, PAGE_SIZE, Cpu())
    assert sandbox.mapping.shape == (SLOTS + PAGE_SIZE + 1,)
    # Touched, the sentinel in its place, and a view of it alive.
    assert sandbox.mapping.tolist() == [1] * (SLOTS + PAGE_SIZE) + [-1]
    pages = [value for value in vars(sandbox).values() if isinstance(value, torch.Tensor) and value.dim() == 2]
    assert [view.data_ptr() for view in pages] == [sandbox.mapping.data_ptr()]


@pytest.mark.parametrize("name", ["token", "page"])
def test_a_target_is_the_table_itself(name: TargetName) -> None:
    sandbox = Sandbox(SLOTS, PAGE_SIZE, Cpu())
    found = sandbox.target(CallKind("set", name, "int64"))
    assert (found.operation, found.name, found.index_dtype, found.page_size) == ("set", name, torch.int64, PAGE_SIZE)
    assert found.mapping is sandbox.mapping
