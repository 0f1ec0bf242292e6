"""The virtual chip costs what its table says, and charges its clock for everything that a calibration does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from npu.known_calls import known_calls
from virtual_chip import (
    CallCost,
    Table,
    TableError,
    VirtualChip,
    calls_of,
    candidates_of,
    default_of,
    strategies_of,
    strategies_on,
)

from autotune.bench.contract import violation
from autotune.devices import Call
from swa_alloc.operations import OPERATIONS, CallKind, Target, empty_mapping
from swa_alloc.strategies import create, strategy_class

TABLES = sorted(Path(__file__).with_name("benchmarks").joinpath("tables").glob("*.json"))
KIND = CallKind("clear", "token", "int64")
PUT = "aclnnIndexPutImpl"
SLOTS = 256


def table(*calls: CallCost, **others: Any) -> Table:
    return Table("a chip", SLOTS, 1, "default", calls, **others)


def clear(chip: VirtualChip, mapping: torch.Tensor, name: str = "index_put") -> Call:
    with strategies_on(chip):
        return create("clear", name).bind(Target("clear", "token", torch.int64, mapping, 1))


@pytest.fixture
def mapping() -> torch.Tensor:
    return empty_mapping(SLOTS, 1, torch.device("cpu")).fill_(7)


def elapsed_us(chip: VirtualChip, action: Callable[[], object]) -> float:
    start = chip.clock()
    action()
    return (chip.clock() - start) * 1e6


# What a call costs


def test_the_last_entry_that_holds_counts() -> None:
    chip = table(
        CallCost("*", fixed_us=1), CallCost(PUT, fixed_us=2), CallCost(PUT, min_indices=100, fixed_us=3), CallCost("x")
    )
    assert [chip.cost_us(KIND, "index_put", n, 0.0) for n in (99, 100, 101)] == [2, 3, 3]
    assert chip.cost_us(KIND, "index_copy", 100, 0.0) == 1


def test_device_time_grows_with_the_table_and_the_indices() -> None:
    chip = table(CallCost("aclnnInplaceIndexFill", fixed_us=1, element_ns=1000, index_ns=2000))
    assert chip.cost_us(KIND, "index_fill", 5, 0.0) == 1 + (SLOTS + 2) + 5 * 2


def test_an_entry_may_hold_for_large_tables_only() -> None:
    chip = table(CallCost(PUT, fixed_us=9), CallCost(PUT, min_elements=SLOTS + 2, fixed_us=1))
    assert chip.cost_us(KIND, "index_put", 5, 0.0) == 1
    # A page view lacks the sentinel.
    assert chip.cost_us(KIND._replace(target="page"), "index_put", 5, 0.0) == 9


def test_host_and_device_work_at_the_same_time_and_waits_cost_the_backlog() -> None:
    chip = table(CallCost(PUT, fixed_us=3, host_us=10, sync=0.5))
    assert chip.cost_us(KIND, "index_put", 5, 1000.0) == 10 + 500
    twice = table(CallCost("*", fixed_us=8, host_us=5, sync=0.5))
    assert twice.cost_us(KIND, "subscript_assign", 5, 1000.0) == 16 + 750


def test_a_call_without_an_entry_costs_as_much_as_is_documented() -> None:
    assert table().cost_us(KIND, "index_put", 5, 0.0) == 5
    assert table().cost_us(KIND, "subscript_assign", 5, 0.0) == 10


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": None}, "name"),
        ({"slots": 100, "page_size": 64}, "multiple of page_size"),
        ({"calls": [{"fixed_us": 1}]}, "lacks call"),
        ({"calls": [{"call": "*", "fixed": 1}]}, "has fixed"),
        ({"calls": [{"call": "*", "host_us": "1"}]}, "host_us"),
        ({"calls": [{"call": "*", "sync": 2}]}, "sync is a share"),
        ({"noise": -1}, "noise"),
    ],
)
def test_a_bad_table_is_refused_with_what_is_wrong(change: dict[str, Any], complaint: str) -> None:
    good = {"name": "a chip", "slots": 64, "page_size": 1, "workload": "default", "calls": []}
    assert Table.read(good).slots == 64
    bad = {key: value for key, value in {**good, **change}.items() if value is not None}
    with pytest.raises(TableError, match=complaint):
        Table.read(bad)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_tables_can_be_read_and_price_every_candidate(path: Path) -> None:
    for entry in json.loads(path.read_text(encoding="utf-8")):
        chip = Table.read(entry)
        assert all(chip.cost_us(KIND, label, 64, 1000.0) > 0 for label in candidates_of(KIND))


# Strategies


def test_every_default_is_a_candidate() -> None:
    for operation, called in OPERATIONS.items():
        assert default_of(operation) in strategies_of(operation)
        kind = CallKind(called.name, called.targets(64)[0], "int32")
        assert candidates_of(kind)[0] == default_of(operation)


def test_the_calls_of_every_known_strategy_are_found() -> None:
    for key, calls in known_calls().items():
        target, rest = key.split(" ", 1)
        label, dtype = rest.rsplit(" ", 1)
        operation, name = target.split(".")
        assert calls_of(CallKind(operation, name, dtype), label) == tuple(calls)  # type: ignore[arg-type]


def test_strategies_on_the_chip_keep_the_contract_and_the_registry_is_put_back(mapping: torch.Tensor) -> None:
    chip = VirtualChip(table())
    real = strategy_class("clear", "index_put")
    with strategies_on(chip):
        strategy = create("clear", "index_put")
        target = Target("clear", "token", torch.int32, mapping, 1)
        assert violation(strategy, target, lambda call, *arguments: call(*arguments)) is None
        assert create("clear", "triton_fill").unavailable(target) is not None
    assert strategy_class("clear", "index_put") is real


# The clock


def test_a_cold_call_is_seen_to_cost_what_the_table_says(mapping: torch.Tensor) -> None:
    chip = VirtualChip(table(CallCost(PUT, fixed_us=20, host_us=10)))
    call = clear(chip, mapping)
    assert chip.cold_us(call, (torch.arange(5),)) == pytest.approx(10)
    sample = chip.time(call, [(torch.arange(5),)] * 64)
    assert sample.device_us == pytest.approx(20, rel=0.02)
    assert sample.host_us < 10
    assert chip.single(call, (torch.arange(5),)).wall_us == pytest.approx(10 + 20, abs=6)


def test_samples_are_noisy_and_sometimes_held_up(mapping: torch.Tensor) -> None:
    chip = VirtualChip(table(CallCost(PUT, host_us=10), noise=0.1, hiccups=0.2))
    call = clear(chip, mapping)
    times = sorted(chip.cold_us(call, (torch.arange(5),)) for _ in range(200))
    assert times[100] == pytest.approx(10, rel=0.1)
    assert times[20] < 9.5
    assert 10 < sum(us > 400 for us in times) < 80
    blocks = [chip.time(call, [(torch.arange(5),)] * 4) for _ in range(200)]
    assert 10 < sum(block.host_us > 100 for block in blocks) < 80


def test_a_waiting_call_returns_behind_the_backlog_and_fails_in_a_capture(mapping: torch.Tensor) -> None:
    chip = VirtualChip(table(CallCost(PUT, fixed_us=1, host_us=1, sync=1.0), CallCost("aclnnInplaceIndexCopy")))
    waiting, other = clear(chip, mapping), clear(chip, mapping, "index_copy")
    arguments = (torch.arange(5),)
    for call, late in ((waiting, True), (other, False)):
        found = chip.return_us(call, [arguments] * 4, 1000.0)
        assert found is not None
        returned_us, backlog_us = found
        assert backlog_us == pytest.approx(1000, rel=0.3)
        assert (returned_us > 0.9 * backlog_us) is late
    assert chip.capture(lambda: other(*arguments)) is not None
    with pytest.raises(RuntimeError, match="capturing"):
        chip.capture(lambda: waiting(*arguments))


def test_of_calls_that_wait_now_and_then_some_do(mapping: torch.Tensor) -> None:
    chip = VirtualChip(table(CallCost(PUT, host_us=1, sync=0.25)))
    call = clear(chip, mapping)
    found = [chip.return_us(call, [(torch.arange(5),)], 1000.0) for _ in range(200)]
    late = sum(pair is not None and pair[0] > 500 for pair in found)
    assert 25 < late < 80


def test_whatever_is_computed_costs_time() -> None:
    chip = VirtualChip(table())
    large = torch.zeros(1 << 20)
    with strategies_on(chip):
        assert elapsed_us(chip, lambda: torch.add(large, 1)) > 5
        assert elapsed_us(chip, large.cpu) > 400
        assert elapsed_us(chip, lambda: large.sum().item()) > 16
        assert elapsed_us(chip, lambda: chip.capture(lambda: None)) > 100
    # Outside the chip nothing passes.
    assert elapsed_us(chip, lambda: torch.add(large, 1)) == 0


def test_samples_leave_the_table_alone_and_calls_do_not(mapping: torch.Tensor) -> None:
    chip = VirtualChip(table())
    call = clear(chip, mapping)
    chip.time(call, [(torch.arange(5),)])
    assert bool((mapping == 7).all())
    call(torch.arange(5))
    assert mapping[:6].tolist() == [0, 0, 0, 0, 0, 7]


def test_a_drifting_chip_is_now_slower_and_now_faster(mapping: torch.Tensor) -> None:
    chip = VirtualChip(table(CallCost(PUT, host_us=1000), drift=0.3))
    call = clear(chip, mapping)
    times = [chip.cold_us(call, (torch.arange(5),)) for _ in range(2000)]
    assert min(times) < 800
    assert max(times) > 1250
