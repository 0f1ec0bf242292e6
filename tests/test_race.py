"""What a race may conclude from its samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
import pytest

from autotune.devices import Sample
from autotune.race import CONTROL, MIN_ROUNDS, OBJECTIVES, Interval, Race, Series

Objective = Literal["serving", "latency"]


def flat(us: float) -> Sample:
    return Sample(us, us, us)


def raced(times: Mapping[str, Iterable[float | Sample]], *, objective: Objective = "latency") -> Race:
    """A race of which every round is given; the first label is the default, ``CONTROL`` is its twin if not given."""
    default = next(iter(times))
    race = Race(default, objective)
    race.begin_pass()
    for label in times:
        if label != CONTROL:
            race.join(label)
    columns = {label: list(column) for label, column in times.items()}
    columns.setdefault(CONTROL, columns[default])
    for row in zip(*columns.values(), strict=True):
        samples = (value if isinstance(value, Sample) else flat(value) for value in row)
        race.add_round(dict(zip(columns, samples, strict=True)))
    return race


def interval(race: Race, label: str, other: str, objective: Objective | None = None) -> Interval:
    found = race.ratio(label, other, objective)
    assert found is not None
    return found


# The interval


@pytest.mark.parametrize("rounds", [MIN_ROUNDS, 16, 24, 64, 96])
def test_the_interval_holds_the_true_ratio_in_ninety_nine_of_a_hundred_races(rounds: int) -> None:
    generator = np.random.default_rng(rounds)
    races = 1000
    held = 0
    for _ in range(races):
        # Heavy tails, as timings have them, and a common drift, as machines have it.
        drift = np.exp(np.cumsum(generator.normal(0, 0.05, rounds)))
        noise = generator.standard_t(2, (2, rounds)) * 0.02
        default, other = 10 * drift * np.exp(noise[0]), 9 * drift * np.exp(noise[1])
        found = interval(raced({"a": default, "b": other}), "b", "a")
        held += found.low <= 0.9 <= found.high
        assert found.low <= found.median <= found.high
    # 99 % or a little more; three standard errors of a thousand races are 1 %.
    assert 0.98 <= held / races <= 0.9999


def test_the_interval_narrows_with_rounds() -> None:
    generator = np.random.default_rng(0)
    times = 10 * np.exp(generator.normal(0, 0.05, (2, 256)))
    widths = []
    for rounds in (16, 64, 256):
        found = interval(raced({"a": times[0, :rounds], "b": times[1, :rounds]}), "b", "a")
        widths.append(found.high - found.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2.5 * widths[2]


def test_fewer_rounds_than_an_interval_needs_give_none() -> None:
    assert raced({"a": [10.0] * (MIN_ROUNDS - 1), "b": [9.0] * (MIN_ROUNDS - 1)}).ratio("b", "a") is None
    assert raced({"a": [10.0] * MIN_ROUNDS, "b": [9.0] * MIN_ROUNDS}).ratio("b", "a") is not None


def test_a_ratio_and_its_inverse_agree() -> None:
    generator = np.random.default_rng(1)
    times = 10 * np.exp(generator.normal(0, 0.1, (2, 40)))
    race = raced({"a": times[0], "b": times[1]})
    there, back = interval(race, "b", "a"), interval(race, "a", "b")
    assert there.median == pytest.approx(1 / back.median)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))


@pytest.mark.parametrize(
    ("low", "high", "tie"),
    [(0.9, 0.95, False), (0.9, 0.97, True), (0.98, 1.01, True), (1.03, 1.2, True), (1.04, 1.2, False), (0.5, 2, True)],
)
def test_a_tie_is_an_interval_that_meets_the_margin(low: float, high: float, tie: bool) -> None:  # noqa: FBT001 - a case
    assert Interval(low, (low + high) / 2, high).meets_one(0.03) is tie


# Pairing


def test_only_costs_of_the_same_round_are_compared() -> None:
    # The machine is twice as slow in the second half, and the candidate, 10 % faster, was there only then.
    race = Race("a", "latency")
    race.join("a")
    for _ in range(30):
        race.add_round({"a": flat(10.0), CONTROL: flat(10.0)})
    race.join("b")
    for _ in range(20):
        race.add_round({"a": flat(20.0), "b": flat(18.0), CONTROL: flat(20.0)})
    # Unpaired, it looks far slower.
    assert race.median_cost("b") > race.median_cost("a")
    assert interval(race, "b", "a").median == pytest.approx(0.9)
    assert interval(race, "a", "b").median == pytest.approx(1 / 0.9)


def test_a_drift_that_is_larger_than_the_difference_does_not_hide_it() -> None:
    drift = np.linspace(1, 3, 64)
    found = interval(raced({"a": 10 * drift, "b": 9.8 * drift}), "b", "a")
    assert (found.low, found.median, found.high) == pytest.approx((0.98, 0.98, 0.98))


def test_a_candidate_that_left_is_compared_over_the_rounds_that_it_ran() -> None:
    race = Race("a", "latency")
    race.join("a")
    race.join("b")
    for _ in range(10):
        race.add_round({"a": flat(10.0), "b": flat(20.0), CONTROL: flat(10.0)})
    race.leave("b")
    for _ in range(10):
        race.add_round({"a": flat(99.0), CONTROL: flat(99.0)})
    assert interval(race, "b", "a").median == pytest.approx(2.0)
    assert race.running == ["a"]


def test_two_that_never_met_have_no_ratio() -> None:
    race = Race("a", "latency")
    race.join("a")
    race.join("b")
    for _ in range(10):
        race.add_round({"a": flat(10.0), "b": flat(20.0), CONTROL: flat(10.0)})
    race.leave("b")
    race.join("c")
    for _ in range(10):
        race.add_round({"a": flat(10.0), "c": flat(9.0), CONTROL: flat(10.0)})
    assert race.ratio("b", "c") is None
    assert race.ratio("c", "a") is not None


# Impossible samples


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("figure", [0, 1, 2])
def test_an_impossible_sample_is_a_gap_that_is_counted(bad: float, figure: int) -> None:
    figures = [9.0, 9.0, 9.0]
    figures[figure] = bad
    times: list[float | Sample] = [9.0] * 20
    times[3] = Sample(*figures)
    race = raced({"a": [10.0] * 20, "b": times})
    assert race.series["b"].dropped == 1
    # The rounds behind it still pair with the right ones.
    found = interval(race, "b", "a")
    assert (found.low, found.high) == pytest.approx((0.9, 0.9))
    assert race.median_cost("b") == 9.0
    assert race.percentile_90("b") == 9.0
    assert race.best_wall("b") == 9.0
    assert race.series["b"].medians() == (9.0, 9.0, 9.0)
    assert not race.series["b"].unmeasurable


def test_gaps_keep_rounds_aligned_where_speeds_differ() -> None:
    speeds = [1.0, 4.0] * 16
    times = [9.0 * speed for speed in speeds]
    times[0] = -1.0
    found = interval(raced({"a": [10.0 * speed for speed in speeds], "b": times}), "b", "a")
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


def test_a_candidate_without_one_possible_sample_has_no_cost() -> None:
    race = raced({"a": [10.0] * 20, "b": [0.0] * 20})
    assert race.median_cost("b") == race.best_wall("b") == math.inf
    assert race.ratio("b", "a") is None
    assert race.finishers() == ["a"]
    # It cannot be called beaten either: nobody knows.
    assert not race.beaten("b")


# Who is beaten


def test_a_candidate_is_beaten_only_when_it_surely_is_slower_by_more_than_two_percent() -> None:
    race = raced({"a": [10.0] * 20, "b": [10.1] * 20, "c": [10.3] * 20})
    assert not race.beaten("b")
    assert race.beaten("c")


def test_an_unsure_candidate_is_not_beaten() -> None:
    race = raced({"a": [10.0] * 20, "b": [9.0, 13.0] * 10})
    assert not race.beaten("b")


def test_a_candidate_is_beaten_by_whoever_leads_not_by_the_default_alone() -> None:
    race = raced({"a": [10.0] * 20, "b": [9.5] * 20, "c": [5.0] * 20})
    assert race.beaten("b")


def test_a_candidate_that_is_best_under_one_objective_is_not_beaten() -> None:
    # Slow to wait for, and the fastest to queue.
    race = raced({"a": [Sample(10, 10, 12)] * 20, "b": [Sample(4, 8, 30)] * 20})
    assert not race.beaten("b")
    slower_everywhere = raced({"a": [Sample(10, 10, 12)] * 20, "b": [Sample(11, 5, 30)] * 20})
    assert slower_everywhere.beaten("b")


def test_the_default_is_never_beaten() -> None:
    race = raced({"a": [10.0] * 20, "b": [1.0] * 20})
    assert not race.beaten("a")
    assert race.beaten("b") is False


def test_nobody_is_beaten_before_there_is_an_interval() -> None:
    assert not raced({"a": [1.0] * 7, "b": [100.0] * 7}).beaten("b")


def test_trailing_is_by_the_best_sample_under_every_objective_and_never_the_default() -> None:
    race = raced(
        {
            "a": [100.0, 100.0],
            "hiccup": [1000.0, 11.0],
            "slow": [90.0, 85.0],
            "queues": [Sample(9, 9, 90), Sample(9, 9, 90)],
            "fast": [10.0, 10.0],
        }
    )
    assert race.trailing(8.0) == ["slow"]
    assert race.trailing(math.inf) == []


# Figures


def test_objectives_are_what_the_design_says() -> None:
    figures = np.array([[1.0, 5.0, 9.0], [6.0, 2.0, 9.5]])
    assert OBJECTIVES["serving"](figures, 0.0).tolist() == [5.0, 6.0]
    assert OBJECTIVES["serving"](figures, 100.0).tolist() == [105.0, 106.0]
    assert OBJECTIVES["latency"](figures, 100.0).tolist() == [9.0, 9.5]


def test_an_objective_other_than_the_races_own_can_be_asked_for() -> None:
    race = raced({"a": [Sample(10, 10, 20)] * 20, "b": [Sample(5, 5, 30)] * 20}, objective="serving")
    assert interval(race, "b", "a").median == pytest.approx(0.5)
    assert interval(race, "b", "a", "latency").median == pytest.approx(1.5)


def test_the_noise_floor_is_how_far_the_default_differs_from_itself() -> None:
    assert raced({"a": [10.0] * 20, CONTROL: [10.0] * 20}).noise_floor == 0
    assert raced({"a": [10.0] * 20, CONTROL: [10.4] * 20}).noise_floor == pytest.approx(0.04)
    assert raced({"a": [10.0] * 20, CONTROL: [9.5, 10.2] * 10}).noise_floor == pytest.approx(0.05)
    assert raced({"a": [10.0] * 4}).noise_floor == 0


def test_the_spread_is_over_fresh_sandboxes() -> None:
    race = Race("a", "latency")
    race.join("a")
    race.join("b")
    for us in (9.0, 9.4, 9.2):
        race.begin_pass()
        for _ in range(10):
            race.add_round({"a": flat(10.0), "b": flat(us), CONTROL: flat(10.0)})
    assert math.isclose(race.spread("b", "a"), math.log(9.4 / 9.0) / 2)
    assert race.spread("a", "a") == 0


def test_a_sandbox_with_too_few_rounds_says_nothing_about_the_spread() -> None:
    race = Race("a", "latency")
    race.join("a")
    race.join("b")
    for us, rounds in ((9.0, 10), (5.0, MIN_ROUNDS - 1)):
        race.begin_pass()
        for _ in range(rounds):
            race.add_round({"a": flat(10.0), "b": flat(us), CONTROL: flat(10.0)})
    assert race.spread("b", "a") == 0


def test_the_spread_of_a_late_comer_is_over_the_sandboxes_that_it_saw() -> None:
    race = Race("a", "latency")
    race.join("a")
    race.begin_pass()
    for _ in range(10):
        race.add_round({"a": flat(10.0), CONTROL: flat(10.0)})
    race.join("b")
    for us in (9.0, 9.9):
        race.begin_pass()
        for _ in range(10):
            race.add_round({"a": flat(10.0), "b": flat(us), CONTROL: flat(10.0)})
    assert math.isclose(race.spread("b", "a"), math.log(9.9 / 9.0) / 2)


def test_a_restart_forgets_the_samples_of_those_who_still_run() -> None:
    race = Race("a", "latency")
    race.join("a")
    race.join("b")
    race.join("c")
    race.add_round({"a": flat(1.0), "b": flat(1.0), "c": flat(90.0), CONTROL: flat(1.0)})
    race.leave("c")
    race.restart()
    assert race.best_wall("a") == race.best_wall("b") == math.inf
    assert race.best_wall("c") == 90.0
    for _ in range(MIN_ROUNDS):
        race.add_round({"a": flat(10.0), "b": flat(9.0), CONTROL: flat(10.0)})
    assert interval(race, "b", "a").median == pytest.approx(0.9)
