"""What the search does with its time, whatever the calls cost: on a clock that charges for everything."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scripted_device import DEFAULT, SETTINGS, Clock, ScriptedDevice, measure, named, request, winners

from autotune.bench.bench import Bench
from autotune.bench.screening import Screener
from swa_alloc import register_strategy
from swa_alloc.evidence import Evidence, Measurement
from swa_alloc.operations import CallKind
from swa_alloc.profile import StrategyProfile
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

pytestmark = pytest.mark.usefixtures("empty_registry")


def enter(*names: str) -> list[str]:
    """Register right strategies of these names."""
    for name in names:
        register_strategy(named(name))
    return list(names)


def default_against(us: float, others: float | Callable[[int], float] = 20.0) -> Callable[[str, int], float]:
    """The default costs ``us``, and every other the same or a function of the number of indices."""
    return lambda label, count: us if label == DEFAULT else others(count) if callable(others) else others


def timed(profile: StrategyProfile, index_dtype: str = "int32") -> list[int]:
    return [m.indices for m in profile.evidence.measurements if m.kind.index_dtype == index_dtype]


# --- the budget is kept


def test_the_budget_is_kept_and_every_size_has_a_part_of_it() -> None:
    # More rounds are asked for than there is time.
    ways = enter(*(f"way{number}" for number in range(6)))
    clock = Clock()
    device = ScriptedDevice(lambda _label, _count: 30.0, clock, noise=0.2)
    start = clock.now
    settings = replace(SETTINGS, budget_s=0.3, rounds=10_000)
    profile = measure(request(device, ways, counts=(1, 64, 512), settings=settings))
    assert clock.now - start <= 0.33
    assert profile.provenance.measuring_s == pytest.approx(clock.now - start, abs=1e-3)
    # Between them a border may be refined where the noise makes up a winner.
    assert {1, 64, 512} <= set(timed(profile))
    # The trace holds no calls by int64.
    assert all(name.startswith("clear.token.int64") for name in profile.missing)


@pytest.mark.parametrize("budget_s", [0.1, 0.3, 1.0])
def test_noise_that_settles_nothing_does_not_overrun_the_budget(budget_s: float) -> None:
    ways = enter(*(f"way{number}" for number in range(8)))
    clock = Clock()
    generator = iter(range(10**9))
    device = ScriptedDevice(lambda _label, _count: 40.0 + next(generator) % 7, clock, noise=0.5)
    start = clock.now
    settings = replace(SETTINGS, budget_s=budget_s, rounds=10_000)
    measure(request(device, ways, counts=(1, 16, 32, 64, 512, 1024), settings=settings))
    assert clock.now - start <= 1.1 * budget_s


def test_four_candidates_of_100_ms_a_call_do_not_overrun_the_budget() -> None:
    # Each call stays below the limit that would rule it out.
    ways = enter(*(f"way{number}" for number in range(4)))
    clock = Clock()
    device = ScriptedDevice(default_against(1000.0, 100_000.0), clock)
    start = clock.now
    profile = measure(request(device, ways, counts=(1, 16, 32, 64, 512, 1024)))
    assert clock.now - start <= 5.5
    assert {decision.strategy for decision in profile.decisions} == {DEFAULT}


def test_one_candidate_of_100_ms_a_call_among_eight_of_20_us_does_not_eat_the_budget() -> None:
    ways = enter(*(f"way{number}" for number in range(7)), "dear")
    clock = Clock()
    device = ScriptedDevice(
        lambda label, _count: 100_000.0 if label == "dear" else 14.0 if label == "way3" else 20.0, clock, noise=0.02
    )
    start = clock.now
    profile = measure(request(device, ways, counts=(1, 16, 32, 64, 512, 1024)))
    assert clock.now - start <= 2.0
    assert profile.complete
    assert set.union(*winners(profile).values()) == {"way3"}
    assert device.timed["dear"] <= 2 * 2 * 2


def test_one_of_5_ms_a_call_leaves_no_point_unraced() -> None:
    ways = enter(*(f"way{number}" for number in range(7)), "dear")
    clock = Clock()
    device = ScriptedDevice(lambda label, _count: 5000.0 if label == "dear" else 20.0, clock, noise=0.02)
    profile = measure(request(device, ways, counts=(1, 16, 32, 64, 512, 1024)))
    assert profile.missing == ()
    assert len(timed(profile)) == 6


def test_a_dear_default_is_ruled_out_by_single_calls_with_its_figure() -> None:
    (fast,) = enter("fast")
    clock = Clock()
    device = ScriptedDevice(default_against(50_000.0), clock, noise=0.02)
    start = clock.now
    profile = measure(request(device, [fast]))
    assert clock.now - start <= 2.0
    assert set.union(*winners(profile).values()) == {"fast"}
    for measurement in profile.evidence.measurements:
        candidates = {candidate.strategy: candidate for candidate in measurement.candidates}
        if DEFAULT in candidates:
            assert candidates[DEFAULT].state == "probed"
            assert candidates[DEFAULT].wall_us == pytest.approx(50_000, rel=0.1)


def test_a_fast_strategy_that_is_wrong_rules_nobody_out() -> None:
    def wrong(_self: Any, target: Any) -> Any:
        return lambda _indices: target.table[:2].zero_()

    register_strategy(named("wrong", clear=wrong))
    enter("fast")
    cost = {DEFAULT: 40.0, "fast": 30.0, "wrong": 1.0}
    profile = measure(request(ScriptedDevice(lambda label, _count: cost[label], Clock()), ["wrong", "fast"]))
    assert set.union(*winners(profile).values()) == {"fast"}


def test_contracts_that_take_long_do_not_overrun_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    real = Screener.check

    def slow(*arguments: Any) -> None:
        clock.advance(0.05)
        real(*arguments)

    monkeypatch.setattr(Screener, "check", slow)
    ways = enter(*(f"way{number}" for number in range(9)))
    device = ScriptedDevice(default_against(10.0, 5.0), clock, noise=0.02)
    start = clock.now
    profile = measure(request(device, ways, page_size=16, settings=replace(SETTINGS, budget_s=2.0)))
    # Four kinds, ten contracts each: as long as all of the time.
    assert clock.now - start <= 2.2
    raced = {m.kind for m in profile.evidence.measurements}
    assert {CallKind("clear", "token", "int32")} <= raced
    assert profile.complete == (len(raced) == 4)


def test_stalls_that_take_long_do_not_overrun_the_budget() -> None:
    clock = Clock()

    class Slow(ScriptedDevice):
        def return_us(self, call: Any, block: Any, backlog_us: float) -> tuple[float, float] | None:
            self.clock.advance(0.01)
            return super().return_us(call, block, backlog_us)

    ways = enter(*(f"way{number}" for number in range(6)))
    device = Slow(lambda _label, _count: 30.0, clock, noise=0.05, stall=lambda _label, _count: 0.0)
    start = clock.now
    measure(request(device, ways, settings=replace(SETTINGS, budget_s=2.0)))
    assert clock.now - start <= 2.2


def test_nothing_more_is_measured_once_all_is_settled() -> None:
    (fast,) = enter("fast")
    clock = Clock()
    device = ScriptedDevice(default_against(10.0, 7.0), clock)
    start = clock.now
    profile = measure(request(device, [fast], settings=replace(SETTINGS, budget_s=60.0, rounds=1000)))
    assert clock.now - start < 0.2
    assert all(measurement.settled for measurement in profile.evidence.measurements)


def test_progress_is_told_and_never_falls() -> None:
    (alike,) = enter("alike")
    told: list[float] = []
    device = ScriptedDevice(default_against(10.0, 9.7), Clock(), noise=0.4)
    measure(request(device, [alike], settings=replace(SETTINGS, budget_s=0.1, rounds=10_000)), progress=told.append)
    assert told == sorted(told)
    assert 0 <= told[0] < 0.1
    assert 0.9 < told[-1] <= 1


# --- in which order, and what is said of the rest


def heavy_and_light(heavy: float, light: float) -> Trace:
    """A trace of clears by int32 with one weight and by int64 with another."""
    entries = [TraceEntry("clear", "token", "int32", count, "scattered", heavy) for count in (1, 64, 1024)]
    entries += [TraceEntry("clear", "token", "int64", count, "scattered", light) for count in (1, 64, 1024)]
    return Trace(SCHEMA, 4096, 1, tuple(entries))


@pytest.mark.parametrize(("heavy", "first"), [(9.0, "int32"), (1.0, "int64")])
def test_the_kind_with_most_at_stake_is_raced_first(heavy: float, first: str) -> None:
    ways = enter("fast")
    device = ScriptedDevice(default_against(20.0, 10.0), Clock(), noise=0.02)
    told: list[Measurement] = []
    asked = replace(request(device, ways), trace=heavy_and_light(heavy, 10.0 - heavy))
    measure(asked, keep=lambda found, _so_far: told.append(found))
    assert [(found.kind.index_dtype, found.indices) for found in told[:2]] == [(first, 1), (first, 1024)]


def test_the_ends_are_raced_before_the_middle_and_uncalled_kinds_last() -> None:
    ways = enter("fast")
    device = ScriptedDevice(default_against(20.0, 10.0), Clock(), noise=0.02)
    told: list[Measurement] = []
    measure(request(device, ways, counts=(1, 64, 1024)), keep=lambda found, _so_far: told.append(found))
    int32, int64 = ([m.indices for m in told if m.kind.index_dtype == dtype] for dtype in ("int32", "int64"))
    assert int32 == int64 == [1, 1024, 64]
    # The trace holds calls by int32 alone.
    assert [m.kind.index_dtype for m in told] == 3 * ["int32"] + 3 * ["int64"]


def test_a_profile_that_ran_out_of_time_says_what_is_missing() -> None:
    ways = enter(*(f"way{number}" for number in range(8)))
    clock = Clock()
    device = ScriptedDevice(lambda _label, _count: 2000.0, clock, noise=0.02)
    counts = (1, 64, 1024)
    profile = measure(request(device, ways, counts=counts, settings=replace(SETTINGS, budget_s=0.5)))
    raced = {f"{m.kind} at {m.indices}" for m in profile.evidence.measurements if m.settled}
    planned = {f"clear.token.{dtype} at {count}" for dtype in ("int32", "int64") for count in counts}
    assert not profile.complete
    assert set(profile.missing) <= planned
    assert planned - raced <= set(profile.missing)


def test_what_is_known_is_not_measured_again() -> None:
    ways = enter("fast")
    device = ScriptedDevice(default_against(20.0, 10.0), Clock(), noise=0.02)
    whole = measure(request(device, ways))
    assert whole.complete
    half = Evidence(whole.evidence.measurements[:3])
    told: list[Measurement] = []
    again = measure(request(device, ways), known=half, keep=lambda found, _so_far: told.append(found))
    assert {(found.kind, found.indices) for found in told} == {
        (m.kind, m.indices) for m in whole.evidence.measurements[3:]
    }
    assert again.complete
    assert again.decisions == whole.decisions
    assert again.evidence.measurements[:3] == half.measurements


def test_a_complete_answer_needs_no_sample_at_all() -> None:
    ways = enter("fast")
    device = ScriptedDevice(default_against(20.0, 10.0), Clock(), noise=0.02)
    whole = measure(request(device, ways))
    device.timed.clear()
    again = measure(request(device, ways), known=whole.evidence)
    assert device.timed == {}
    assert (again.decisions, again.complete) == (whole.decisions, True)


def test_where_only_the_smallest_size_was_raced_sizes_far_above_keep_the_default() -> None:
    ways = enter("fast")
    clock = Clock()
    device = ScriptedDevice(default_against(20.0, 10.0), clock, noise=0.02)
    whole = measure(request(device, ways, counts=(1, 64, 1024)))
    smallest = Evidence(tuple(m for m in whole.evidence.measurements if m.indices == 1))

    def late(_label: str, _count: int) -> float:
        clock.advance(1.0)
        return 20.0

    cut = measure(
        request(ScriptedDevice(late, clock), ways, counts=(1, 64, 1024), settings=replace(SETTINGS, budget_s=0.1)),
        known=smallest,
    )
    small, large = cut.decisions_for(CallKind("clear", "token", "int32"))
    assert (small.strategy, large.strategy) == ("fast", DEFAULT)
    assert small.max_indices == math.isqrt(1 * 64)
    assert set(cut.missing) == {f"clear.token.{dtype} at {n}" for dtype in ("int32", "int64") for n in (64, 1024)}


def test_a_budget_that_is_gone_at_the_first_call_decides_nothing() -> None:
    clock = Clock()

    def slow(_label: str, _count: int) -> float:
        clock.advance(0.2)
        return 2e5

    profile = measure(request(ScriptedDevice(slow, clock), [], settings=replace(SETTINGS, budget_s=0.1)))
    assert profile.decisions == ()
    assert not profile.complete


# --- wrong on the full-sized table


def test_a_table_that_does_not_add_up_finds_who_wrote_where_no_index_points() -> None:
    def far_away(_self: Any, target: Any) -> Any:
        table = target.table

        def clear(indices: Any) -> None:
            table.index_fill_(0, indices.long(), 0)
            if len(table) > 1000:
                # Far from every row that is looked at around a call.
                table[1901:1903] = 5

        return clear

    register_strategy(named("far_away", clear=far_away))
    enter("fast")
    cost = {DEFAULT: 20.0, "far_away": 5.0, "fast": 10.0}
    profile = measure(
        request(ScriptedDevice(lambda label, _count: cost[label], Clock()), ["far_away", "fast"], counts=(1, 3))
    )
    assert set.union(*winners(profile).values()) == {"fast"}
    assert {(out.strategy, out.reason) for out in profile.evidence.ineligible} == {("far_away", "wrong_result")}


def test_whoever_has_won_is_checked_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    real = Bench.check_full

    def watched(self: Bench, point: Any, entrant: Any) -> None:
        checked.append(entrant.label)
        real(self, point, entrant)

    monkeypatch.setattr(Bench, "check_full", watched)
    ways = enter("fast", "slower")
    cost = {DEFAULT: 20.0, "fast": 10.0, "slower": 18.0}
    measure(request(ScriptedDevice(lambda label, _count: cost[label], Clock(), noise=0.02), ways))
    # Each once before the races; the winner of either kind once more.
    assert checked.count("slower") == 1
    assert checked[-2:] == ["fast", "fast"]
