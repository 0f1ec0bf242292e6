"""What a race may conclude from its samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from races import MARGIN, Raced, add, entrant, flat

from autotune.contest.intervals import MIN_ROUNDS
from autotune.contest.race import EARLY_ROUNDS, Race, Series
from swa_alloc.evidence import Figures

# Pairing


def test_only_costs_of_the_same_round_are_compared() -> None:
    # The machine is twice as slow in the second half, and the late-comer, 10 % faster, was there only then.
    default, late = entrant("default"), entrant("late")
    race = add(Race([default], 1, MARGIN), [{default: 10.0}] * 30)
    race.join(late)
    add(race, [{default: 20.0, late: 18.0}] * 20)
    # Unpaired, it looks far slower.
    assert race.series[late].median_cost("latency") > race.series[default].median_cost("latency")
    there, back = race.ratio(late, default, "latency"), race.ratio(default, late, "latency")
    assert there is not None
    assert back is not None
    assert there.median == pytest.approx(0.9)
    assert back.median == pytest.approx(1 / 0.9)


def test_a_drift_that_is_larger_than_the_difference_does_not_hide_it() -> None:
    drift = np.linspace(1, 3, 64)
    found = Raced({"default": 10 * drift, "other": 9.8 * drift}).ratio("other", "default")
    assert (found.low, found.median, found.high) == pytest.approx((0.98, 0.98, 0.98))


def test_who_left_is_compared_over_the_rounds_that_it_ran() -> None:
    raced = Raced({"default": [10.0] * 10, "other": [20.0] * 10})
    raced.race.leave(raced["other"])
    add(raced.race, [{raced["default"]: 99.0}] * 10)
    assert raced.ratio("other", "default").median == pytest.approx(2.0)
    assert raced.race.running == [raced["default"]]


def test_two_that_never_met_have_no_ratio() -> None:
    raced = Raced({"default": [10.0] * 10, "early": [20.0] * 10})
    raced.race.leave(raced["early"])
    late = entrant("late")
    raced.race.join(late)
    add(raced.race, [{raced["default"]: 10.0, late: 9.0}] * 10)
    assert raced.race.ratio(raced["early"], late, "latency") is None
    assert raced.race.ratio(late, raced["default"], "latency") is not None


def test_a_round_changes_what_was_known_before() -> None:
    raced = Raced({"default": [10.0] * MIN_ROUNDS, "other": [9.0] * MIN_ROUNDS})
    assert raced.ratio("other", "default").high == pytest.approx(0.9)
    add(raced.race, [{raced["default"]: 10.0, raced["other"]: 20.0}])
    assert raced.ratio("other", "default").high == pytest.approx(2.0)


# Impossible samples


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("figure", Figures._fields)
def test_an_impossible_sample_is_a_gap_that_is_counted(bad: float, figure: str) -> None:
    times = [flat(9.0)] * 20
    times[3] = flat(9.0)._replace(**{figure: bad})
    raced = Raced({"default": [10.0] * 20, "other": times})
    series = raced.race.series[raced["other"]]
    assert series.dropped == 1
    # The rounds behind it still pair with the right ones.
    found = raced.ratio("other", "default")
    assert (found.low, found.high) == pytest.approx((0.9, 0.9))
    assert series.median_cost("latency") == series.percentile_90("serving") == 9.0
    assert series.medians() == (9.0, 9.0, 9.0, 9.0)
    assert not series.unmeasurable


def test_gaps_keep_rounds_aligned_where_speeds_differ() -> None:
    speeds = [1.0, 4.0] * 16
    times = [9.0 * speed for speed in speeds]
    times[0] = -1.0
    found = Raced({"default": [10.0 * speed for speed in speeds], "other": times}).ratio("other", "default")
    assert (found.low, found.high) == pytest.approx((0.9, 0.9))


@pytest.mark.parametrize(
    ("bad", "good", "unmeasurable"), [(2, 6, False), (3, 5, True), (7, 0, False), (8, 0, True), (16, 48, False)]
)
def test_too_many_impossible_samples_are_too_many(bad: int, good: int, unmeasurable: bool) -> None:  # noqa: FBT001 - a case
    series = Series(0)
    for value in [math.nan] * bad + [9.0] * good:
        series.add(flat(value))
    assert series.dropped == bad
    assert series.unmeasurable is unmeasurable


def test_who_has_not_one_possible_sample_has_no_cost() -> None:
    raced = Raced({"default": [10.0] * 20, "other": [0.0] * 20})
    series = raced.race.series[raced["other"]]
    assert series.median_cost("latency") == math.inf
    assert series.medians() is None
    assert raced.race.ratio(raced["other"], raced["default"], "latency") is None
    assert raced.race.finishers() == [raced["default"]]
    # It cannot be called beaten either: nobody knows.
    assert not raced.beaten("other")


# Who is beaten


def test_one_is_beaten_only_when_it_surely_is_slower_by_more_than_two_percent() -> None:
    raced = Raced({"default": [10.0] * 20, "close": [10.1] * 20, "far": [10.3] * 20})
    assert not raced.beaten("close")
    assert raced.beaten("far")


def test_one_that_may_still_be_faster_is_not_beaten() -> None:
    assert not Raced({"default": [10.0] * 20, "unsure": [9.0, 13.0] * 10}).beaten("unsure")


def test_one_is_beaten_by_whoever_leads_not_by_the_default_alone() -> None:
    assert Raced({"default": [10.0] * 20, "good": [9.5] * 20, "best": [5.0] * 20}).beaten("good")


def test_one_that_is_best_under_an_objective_is_not_beaten() -> None:
    # Slow to wait for, and the fastest to return.
    raced = Raced({"default": [Figures(10, 10, 10, 12)] * 20, "returns": [Figures(4, 4, 8, 30)] * 20})
    assert not raced.beaten("returns")
    assert Raced({"default": [Figures(10, 10, 10, 12)] * 20, "slow": [Figures(11, 4, 8, 30)] * 20}).beaten("slow")


def test_a_stall_is_part_of_what_a_call_costs_a_server() -> None:
    raced = Raced({"default": [10.0] * 20, "waits": [5.0] * 20})
    assert raced.ratio("waits", "default", "serving").median == pytest.approx(0.5)
    raced.race.stall(raced["waits"], 45.0)
    assert raced.ratio("waits", "default", "serving").median == pytest.approx(5.0)
    assert raced.ratio("waits", "default", "latency").median == pytest.approx(0.5)
    # Samples that come later carry it, too.
    add(raced.race, [{raced["default"]: 10.0, raced["waits"]: 5.0}])
    assert raced.race.series[raced["waits"]].costs("serving").tolist() == [50.0] * 21


def test_the_default_is_never_beaten() -> None:
    raced = Raced({"default": [10.0] * 20, "other": [1.0] * 20})
    assert not raced.beaten("default")
    assert not raced.beaten("other")


def test_one_that_is_far_behind_in_each_of_a_few_rounds_leaves_early() -> None:
    assert EARLY_ROUNDS < MIN_ROUNDS
    few = Raced({"default": [10.0] * EARLY_ROUNDS, "behind": [15.0] * EARLY_ROUNDS, "once": [15.0, 15.0, 15.0, 13.0]})
    assert few.beaten("behind")
    assert not few.beaten("once")
    fewer = EARLY_ROUNDS - 1
    assert not Raced({"default": [10.0] * fewer, "behind": [100.0] * fewer}).beaten("behind")


def test_one_that_is_far_behind_under_one_objective_alone_does_not_leave_early() -> None:
    rounds = EARLY_ROUNDS
    raced = Raced({"default": [Figures(10, 10, 10, 12)] * rounds, "waited": [Figures(10, 10, 10, 90)] * rounds})
    assert not raced.beaten("waited")


def test_noise_of_thirty_percent_seldom_throws_out_an_equal_one_early() -> None:
    generator = np.random.default_rng(0)
    thrown = 0
    for _ in range(500):
        times = 10 * np.exp(generator.normal(0, 0.3, (2, EARLY_ROUNDS)))
        thrown += Raced({"default": times[0], "equal": times[1]}).beaten("equal")
    assert thrown / 500 <= 0.02


# The default's place


def test_a_default_that_leaves_is_replaced_by_the_next_who_runs() -> None:
    raced = Raced({"default": [10.0] * 9, "gone": [9.0] * 9, "first": [8.0] * 9, "second": [7.9] * 9})
    for label in ("gone", "default"):
        raced.race.leave(raced[label])
    assert raced.race.default is raced["first"]
    assert not raced.beaten("first")
    # It is told apart from itself from then on.
    assert raced.race.noise_floor == 0
    for _ in range(MIN_ROUNDS):
        raced.race.add_round({raced["first"]: flat(8.0), raced["second"]: flat(7.9)}, flat(8.4))
    assert raced.race.noise_floor == pytest.approx(0.05)


def test_a_race_without_anybody_left_keeps_its_samples() -> None:
    raced = Raced({"default": [10.0] * 9})
    raced.race.leave(raced["default"])
    assert raced.race.running == raced.race.finishers() == []
    assert raced.race.series[raced["default"]].median_cost("latency") == 10.0


@pytest.mark.parametrize(("again", "floor"), [([10.0], 0.0), ([10.4], 0.04), ([9.5, 10.2], 0.05)])
def test_the_noise_floor_is_how_far_the_default_differs_from_itself(again: list[float], floor: float) -> None:
    default = entrant("default")
    race = Race([default], 1, MARGIN)
    for i in range(20):
        race.add_round({default: flat(10.0)}, flat(again[i % len(again)]))
    assert race.noise_floor == pytest.approx(floor)


def test_a_default_that_was_timed_once_a_round_has_no_noise_floor() -> None:
    assert Raced({"default": [10.0] * 20}).race.noise_floor == 0


# What medians do not show

TABLES = 4


def by_table(*factors: float, rounds: int = 96, noise: float = 0.002) -> Raced:
    """An entrant whose speed depends on the table that a round was run on."""
    generator = np.random.default_rng(0)
    default, other = 10 * np.exp(generator.normal(0, noise, (2, rounds)))
    speeds = np.resize(np.array(factors), rounds)
    return Raced({"default": default, "other": other * speeds}, tables=len(factors))


@pytest.mark.parametrize(
    ("factors", "depends"),
    [
        ((0.9, 0.9, 0.9, 1.1), True),
        ((0.9, 0.94, 0.9, 0.8), False),  # faster on every one of them
        ((0.9,), False),
        ((0.9, 1.1), False),  # two have a range and no spread
    ],
)
def test_who_is_faster_on_some_tables_only_depends_on_memory(factors: tuple[float, ...], depends: bool) -> None:  # noqa: FBT001 - a case
    raced = by_table(*factors)
    assert raced.race.depends_on_memory(raced["other"], raced["default"], "latency") is depends


def test_tables_with_few_rounds_say_nothing_about_memory() -> None:
    raced = by_table(0.9, 0.9, 0.9, 1.1, rounds=TABLES * (MIN_ROUNDS - 1))
    assert not raced.race.depends_on_memory(raced["other"], raced["default"], "latency")


def test_a_late_comers_rounds_are_told_apart_by_the_table_that_they_ran_on() -> None:
    default, late = entrant("default"), entrant("late")
    race = Race([default], TABLES, MARGIN)
    add(race, [{default: 10.0}])
    race.join(late)
    # Slower on table 0 alone, which is the fourth that it sees.
    generator = np.random.default_rng(0)
    for turn in range(1, 97):
        us = (11.0 if turn % TABLES == 0 else 9.0) * math.exp(generator.normal(0, 0.002))
        add(race, [{default: 10.0, late: us}])
    assert race.depends_on_memory(late, default, "latency")


def stalling(often: int, worth: float, rounds: int = 96) -> Raced:
    """An entrant that is faster, but for one round in so many."""
    times = np.where(np.arange(rounds) % often == 0, worth, 7.0)
    return Raced({"default": [10.0] * rounds, "other": times})


@pytest.mark.parametrize(
    ("often", "worth", "heavy"),
    [
        (6, 10_000.0, True),
        (6, 29.0, True),  # 10.7 us on average
        (6, 26.0, False),  # within four medians
        (48, 10_000.0, False),  # twice in 96 rounds is chance
        (10, 30.0, False),  # 9.3 us on average: still faster
    ],
)
def test_who_stalls_so_often_that_its_mean_is_slower_has_a_heavy_tail(often: int, worth: float, heavy: bool) -> None:  # noqa: FBT001 - a case
    raced = stalling(often, worth)
    assert raced.race.tail_heavy(raced["other"], raced["default"], "latency") is heavy
    assert not raced.race.tail_heavy(raced["default"], raced["other"], "latency")


def test_hiccups_that_both_have_are_nobodys_tail() -> None:
    generator = np.random.default_rng(0)
    heavy = 0
    for _ in range(300):
        times = 10 * np.exp(generator.normal(0, 0.1, (2, 96))) + (generator.random((2, 96)) < 0.05) * 1000
        raced = Raced({"default": times[0], "other": times[1]})
        heavy += raced.race.tail_heavy(raced["other"], raced["default"], "latency")
    assert heavy / 300 <= 0.02
