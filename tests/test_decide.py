"""From races to decisions: who wins, what ties, and where the borders lie."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from autotune.config import Calibration
from autotune.decide import Verdict, decisions, judge, worth_refining
from autotune.devices import Sample
from autotune.plan import Point
from autotune.race import CONTROL, Race
from autotune.space import Candidate

SETTINGS = Calibration(budget_s=1.0, sizes=6, passes=4, rounds=24)
# In order of preference.
ORDER = ("default", "first", "second", "third")
ROUNDS, PASSES = 24, 4

Times = Callable[[np.random.Generator, int], np.ndarray]  # generator, pass -> [ROUNDS] microseconds


@dataclass
class StandIn:
    """What ``decide`` reads of a contest."""

    point: Point
    race: Race
    candidates: Mapping[str, Candidate]


def contest(
    count: int,
    costs: Mapping[str, float | Times],
    *,
    noise: float = 0.01,
    measured: Sequence[str] | None = None,
    left: Sequence[str] = (),
    seed: int = 0,
) -> Any:
    """A finished contest at ``count`` indices.

    Args:
        count: Number of indices.
        costs: Microseconds by label, or a function that makes them up.
        noise: Of a cost that is a number.
        measured: The order in which candidates join and are sampled.
        left: Labels that leave the race at its end, as pruned ones do.
        seed: Of the noise.
    """
    race = Race("default", "latency")
    measured = measured or list(costs)
    for label in measured:
        race.join(label)
    generators = {label: np.random.default_rng((seed, count, ORDER.index(label))) for label in costs}
    control = np.random.default_rng((seed, count, 99))
    for number in range(PASSES):
        race.begin_pass()
        columns = {
            label: (
                cost(generators[label], number)
                if callable(cost)
                else cost * np.exp(generators[label].normal(0, noise, ROUNDS))
            )
            for label, cost in costs.items()
        }
        columns[CONTROL] = columns["default"] * np.exp(control.normal(0, noise, ROUNDS))
        for i in range(ROUNDS):
            row = {label: float(columns[label][i]) for label in (*measured, CONTROL)}
            race.add_round({label: Sample(us, us, us) for label, us in row.items()})
    for label in left:
        race.leave(label)
    point = Point("clear", "token", "int32", count, "scattered", 0.5, 0.5)
    candidates = {label: Candidate("clear", label, {}) for label in ORDER if label in costs}
    return StandIn(point, race, candidates)


def choices(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.choice for verdict in verdicts]


def verdict(of: Any, choice: str, ties: set[str], margin: float) -> Verdict:
    return Verdict(of, of.race, choice, ties, margin)


def judged(*contests: Any) -> list[Verdict]:
    return judge(contests, SETTINGS, "latency")


# One size


def test_one_percent_is_a_tie_and_keeps_the_default() -> None:
    (verdict,) = judged(contest(64, {"default": 10.0, "first": 9.9}))
    assert verdict.choice == "default"
    assert verdict.ties == {"first"}


@pytest.mark.parametrize(
    ("count", "cost", "choice"),
    [
        (128, 9.6, "first"),  # 4 % beyond a margin of 3 %
        (128, 9.75, "default"),
        (129, 9.6, "default"),  # beyond 128 indices the margin is 5 %
        (129, 9.3, "first"),
    ],
)
def test_another_wins_only_by_more_than_the_margin(count: int, cost: float, choice: str) -> None:
    (verdict,) = judged(contest(count, {"default": 10.0, "first": cost}, noise=0.003))
    assert verdict.choice == choice
    assert verdict.margin == pytest.approx(0.03 if count <= 128 else 0.05, abs=0.01)


def test_a_clear_winner_has_no_ties() -> None:
    (verdict,) = judged(contest(64, {"default": 10.0, "first": 8.0, "second": 12.0}))
    assert (verdict.choice, verdict.ties) == ("first", set())


def test_what_is_slower_than_the_default_beyond_doubt_is_no_tie() -> None:
    (verdict,) = judged(contest(64, {"default": 10.0, "first": 11.0}))
    assert (verdict.choice, verdict.ties) == ("default", set())


def test_an_unsure_difference_is_a_tie_however_large_it_looks() -> None:
    def either(generator: np.random.Generator, _number: int) -> np.ndarray:
        return 10.0 * np.exp(generator.normal(-0.05, 0.5, ROUNDS))

    (verdict,) = judged(contest(64, {"default": 10.0, "first": either}))
    assert (verdict.choice, verdict.ties) == ("default", {"first"})


def test_a_candidate_that_stalls_at_the_ninetieth_percentile_does_not_win() -> None:
    def stalling(generator: np.random.Generator, _number: int) -> np.ndarray:
        return np.where(np.arange(ROUNDS) % 6 == 0, 10_000.0, 7.0) * np.exp(generator.normal(0, 0.01, ROUNDS))

    (verdict,) = judged(contest(4096, {"default": 10.0, "first": stalling}))
    assert verdict.choice == "default"
    # It is faster by the median, so a machine where it does not stall may choose it.
    assert verdict.ties == {"first"}


def test_the_spread_over_sandboxes_widens_the_margin() -> None:
    def by_memory(generator: np.random.Generator, number: int) -> np.ndarray:
        # 6 % faster on three tables and 20 % on the fourth: what memory does is worth more than what is won.
        return 10.0 * (0.94, 0.94, 0.94, 0.8)[number] * np.exp(generator.normal(0, 0.002, ROUNDS))

    (verdict,) = judged(contest(64, {"default": 10.0, "first": by_memory}, noise=0.002))
    assert (verdict.choice, verdict.ties) == ("default", {"first"})
    steady = contest(64, {"default": 10.0, "first": 9.4}, noise=0.002)
    assert choices(judged(steady)) == ["first"]


def test_a_candidate_that_left_never_wins_and_never_ties() -> None:
    (verdict,) = judged(contest(64, {"default": 10.0, "first": 5.0, "second": 10.0}, left=["first", "second"]))
    assert (verdict.choice, verdict.ties) == ("default", set())


def test_without_rounds_the_default_stays_with_the_plain_margin() -> None:
    race = Race("default", "latency")
    race.join("default")
    race.join("first")
    candidates = {label: Candidate("clear", label, {}) for label in ("default", "first")}
    point = Point("clear", "token", "int32", 64, "scattered", 0.5, 0.5)
    (verdict,) = judged(StandIn(point, race, candidates))
    assert (verdict.choice, verdict.ties, verdict.margin) == ("default", set(), 0.03)


# Several winners


def test_winners_that_tie_are_told_apart_by_the_registrys_order() -> None:
    # The second is the fastest by a hair.
    (verdict,) = judged(contest(64, {"default": 10.0, "first": 8.0, "second": 7.95}))
    assert (verdict.choice, verdict.ties) == ("first", {"second"})


def test_the_smaller_neighbours_choice_comes_before_the_registrys_order() -> None:
    below = contest(16, {"default": 10.0, "first": 9.0, "second": 8.0})
    here = contest(64, {"default": 10.0, "first": 8.0, "second": 8.0})
    assert choices(judged(below, here)) == ["second", "second"]
    assert choices(judged(here)) == ["first"]


def test_a_neighbours_choice_that_does_not_tie_with_the_fastest_is_not_kept() -> None:
    below = contest(16, {"default": 10.0, "first": 9.0, "second": 8.0})
    here = contest(64, {"default": 10.0, "first": 7.0, "second": 8.0})
    assert choices(judged(below, here)) == ["second", "first"]


# Several sizes


def test_neighbouring_choices_that_tie_with_each_other_become_one() -> None:
    # Each wins at its own size, just; the other does not, and cannot be told from it.
    below = contest(16, {"default": 10.0, "first": 9.69, "second": 9.6})
    above = contest(64, {"default": 10.0, "first": 9.6, "second": 9.69})
    assert choices(judged(below)) == ["second"]
    assert choices(judged(above)) == ["first"]
    verdicts = judged(below, above)
    # The earlier one in the registry.
    assert choices(verdicts) == ["first", "first"]
    assert [verdict.ties & {"first", "second"} for verdict in verdicts] == [{"second"}, {"second"}]
    assert len(decisions(verdicts)) == 1


def test_neighbouring_choices_that_tie_on_one_side_only_stay_two() -> None:
    below = contest(16, {"default": 10.0, "first": 9.62}, noise=0.004)
    above = contest(64, {"default": 10.0, "first": 9.75}, noise=0.004)
    verdicts = judged(below, above)
    # The win at 16 is sure: the default does not tie there.
    assert choices(verdicts) == ["first", "default"]
    assert [verdict.ties for verdict in verdicts] == [set(), {"first"}]


def test_a_row_of_choices_becomes_one_only_if_it_ties_along_the_whole_row() -> None:
    sure = contest(4, {"default": 10.0, "first": 11.0, "second": 9.0})
    below = contest(16, {"default": 10.0, "first": 9.69, "second": 9.6})
    above = contest(64, {"default": 10.0, "first": 9.6, "second": 9.69})
    # At 4 the first is out of the question, and 16 goes with it.
    assert choices(judged(sure, below, above)) == ["second", "second", "first"]


def test_a_size_that_cannot_tell_is_absorbed_by_two_equal_neighbours() -> None:
    sides = {"default": 10.0, "first": 8.0}
    between = {"default": 10.0, "first": 9.95}
    verdicts = judged(contest(16, sides), contest(64, between), contest(256, sides))
    assert choices(verdicts) == ["first", "first", "first"]
    assert verdicts[1].ties == {"default"}


def test_a_size_that_can_tell_keeps_its_range() -> None:
    sides = {"default": 10.0, "first": 8.0}
    between = {"default": 10.0, "first": 12.0}
    verdicts = judged(contest(16, sides), contest(64, between), contest(256, sides))
    assert choices(verdicts) == ["first", "default", "first"]


# Borders


def test_the_border_is_the_geometric_mean_and_the_last_decision_is_open() -> None:
    small, large = {"default": 10.0, "first": 12.0}, {"default": 10.0, "first": 8.0}
    made = decisions(judged(contest(16, small), contest(1024, large)))
    assert [(d.max_indices, d.strategy) for d in made] == [(128, "default"), (None, "first")]
    assert {(d.operation, d.target, d.index_dtype) for d in made} == {("clear", "token", "int32")}


def test_equal_neighbours_are_one_decision() -> None:
    small, large = {"default": 10.0, "first": 12.0}, {"default": 10.0, "first": 8.0}
    races = [contest(4, small), contest(16, small), contest(64, large), contest(256, large)]
    assert [(d.max_indices, d.strategy) for d in decisions(judged(*races))] == [(32, "default"), (None, "first")]


def test_one_size_decides_for_every_number() -> None:
    (decision,) = decisions(judged(contest(64, {"default": 10.0, "first": 8.0})))
    assert (decision.max_indices, decision.strategy, decision.params) == (None, "first", {})


def test_a_decision_declares_what_ties_everywhere_in_its_range() -> None:
    # The second ties with the first at 16 only; the third at both.
    here = {"default": 10.0, "first": 8.0, "second": 8.0, "third": 8.0}
    there = {"default": 10.0, "first": 8.0, "second": 9.0, "third": 8.0}
    (decision,) = decisions(judged(contest(16, here), contest(64, there)))
    assert decision.strategy == "first"
    assert decision.ties == ("third",)


def test_a_decision_carries_the_widest_margin_of_its_range() -> None:
    costs = {"default": 10.0, "first": 8.0}
    (decision,) = decisions(judged(contest(16, costs, noise=0.001), contest(1024, costs, noise=0.001)))
    assert decision.margin == pytest.approx(0.05)


# The order of measuring


def test_the_order_in_which_candidates_are_measured_changes_nothing() -> None:
    costs = [
        (16, {"default": 10.0, "first": 9.4, "second": 9.4, "third": 9.3}),
        (64, {"default": 10.0, "first": 8.0, "second": 7.9, "third": 9.9}),
        (512, {"default": 10.0, "first": 9.9, "second": 9.0, "third": 9.0}),
    ]
    expected = decisions(judged(*(contest(count, table) for count, table in costs)))
    shuffler = random.Random(0)  # noqa: S311 - the same orders every time
    for order in itertools.permutations(ORDER):
        races = []
        for count, table in costs:
            measured = list(order)
            shuffler.shuffle(measured)
            races.append(contest(count, table, measured=measured))
        assert decisions(judged(*races)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_two_alike_processes_never_contradict_each_other(seed: int) -> None:
    # Each one's winner is among the other's winner and ties.
    table = {"default": 10.0, "first": 9.71, "second": 9.69, "third": 9.66}
    (one,) = judged(contest(64, table, noise=0.02, seed=seed))
    (other,) = judged(contest(64, table, noise=0.02, seed=seed + 100))
    assert one.choice in other.acceptable
    assert other.choice in one.acceptable


# Refining


def test_a_border_between_different_winners_is_worth_a_size_halfway() -> None:
    small, large = {"default": 10.0, "first": 13.0}, {"default": 10.0, "first": 8.0}
    assert worth_refining(judged(contest(16, small), contest(1024, large))) == [128]


def test_a_border_between_equal_winners_is_not() -> None:
    large = {"default": 10.0, "first": 8.0}
    assert worth_refining(judged(contest(16, large), contest(1024, large))) == []


def test_sizes_that_are_close_are_not_refined_for_ever() -> None:
    small, large = {"default": 10.0, "first": 13.0}, {"default": 10.0, "first": 8.0}
    assert worth_refining(judged(contest(100, small), contest(150, large))) == []
    assert worth_refining(judged(contest(1, small), contest(2, large))) == []


def test_a_border_whose_place_costs_less_than_the_margin_is_not_refined() -> None:
    verdicts = [
        verdict(contest(16, {"default": 10.0, "first": 10.1}), "default", set(), 0.03),
        verdict(contest(1024, {"default": 10.1, "first": 10.0}), "first", set(), 0.03),
    ]
    assert worth_refining(verdicts) == []


def test_a_winner_that_left_the_other_race_surely_costs_there() -> None:
    small = contest(16, {"default": 10.0, "first": 30.0}, left=["first"])
    large = contest(1024, {"default": 10.0, "first": 9.0}, noise=0.002)
    assert worth_refining(judged(small, large)) == [128]
