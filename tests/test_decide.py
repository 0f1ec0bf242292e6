"""From races to decisions: who wins, what ties, and where the borders lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from races import KIND, MARGIN, Raced

from autotune.contest.decide import CLOSE, Judgement, decisions, judge, refinements
from autotune.contest.race import OBJECTIVES
from swa_alloc.evidence import CandidateMeasurement, Figures, Measurement, Standing, Verdict
from swa_alloc.operations import Objective
from swa_alloc.profile import Decision

# The registry's order, the default first.
ORDER = ("default", "first", "second", "third")
ROUNDS, TABLES = 96, 4

Times = Callable[[np.random.Generator], np.ndarray]  # generator -> [ROUNDS] microseconds


def race(costs: Mapping[str, float | Times], *, noise: float = 0.01, seed: int = 0) -> Raced:
    """A finished race, of labels to microseconds or to a function that makes them up."""
    generators = {label: np.random.default_rng((seed, ORDER.index(label))) for label in costs}
    columns = {
        label: (
            cost(generators[label]) if callable(cost) else cost * np.exp(generators[label].normal(0, noise, ROUNDS))
        )
        for label, cost in costs.items()
    }
    return Raced(columns, tables=TABLES)


def judged(raced: Raced, objective: Objective = "latency") -> Judgement:
    found = judge(raced.race, objective)
    assert found is not None
    assert found.entrant.label == found.record.choice
    return found


def verdict(costs: Mapping[str, float | Times], *, noise: float = 0.01, seed: int = 0) -> Verdict:
    return judged(race(costs, noise=noise, seed=seed)).record


# One race


def test_one_percent_is_a_tie_and_keeps_the_default() -> None:
    assert verdict({"default": 10.0, "first": 9.9}) == Verdict("default", ("default",), ("first",), MARGIN)


@pytest.mark.parametrize(("cost", "choice"), [(9.6, "first"), (9.75, "default")])
def test_another_wins_only_by_more_than_the_margin(cost: float, choice: str) -> None:
    assert verdict({"default": 10.0, "first": cost}, noise=0.003).choice == choice


def test_a_clear_winner_has_no_ties() -> None:
    assert verdict({"default": 10.0, "first": 8.0, "second": 12.0}) == Verdict("first", ("first",), (), MARGIN)


def test_what_is_slower_than_the_default_beyond_doubt_is_no_tie() -> None:
    assert verdict({"default": 10.0, "first": 11.0}).ties == ()


def test_what_noise_hides_is_a_tie_and_more_rounds_may_tell() -> None:
    found = judged(race({"default": 10.0, "first": lambda g: 10.0 * np.exp(g.normal(0, 0.5, ROUNDS))}))
    assert (found.record.choice, found.record.ties) == ("default", ("first",))
    assert not found.settled


@pytest.mark.parametrize("cost", [8.0, 9.9, 12.0])
def test_a_winner_a_tie_and_a_default_beyond_doubt_are_settled(cost: float) -> None:
    assert judged(race({"default": 10.0, "first": cost})).settled


def test_a_winner_is_not_settled_while_another_may_be_faster_by_more_than_the_margin() -> None:
    unsure: Times = lambda g: 8.0 * np.exp(g.normal(0, 0.15, ROUNDS))  # noqa: E731 - a case
    found = judged(race({"default": 10.0, "first": 8.0, "second": unsure}))
    assert found.record.choice == "first"
    assert not found.settled
    assert judged(race({"default": 10.0, "first": 8.0, "second": 8.2})).settled


def test_winners_that_are_level_are_told_apart_by_the_registrys_order() -> None:
    # The second is the fastest by a hair.
    found = verdict({"default": 10.0, "first": 8.0, "second": 7.95})
    assert found == Verdict("first", ("first", "second"), ("second",), MARGIN)


def test_a_winner_that_is_not_level_with_the_fastest_is_a_tie_at_most() -> None:
    found = verdict({"default": 10.0, "first": 8.0, "second": 7.8})
    assert found == Verdict("second", ("second",), ("first",), MARGIN)


def test_one_that_is_faster_on_some_tables_only_does_not_win() -> None:
    def by_memory(generator: np.random.Generator) -> np.ndarray:
        speeds = np.resize(np.array([8.0, 8.0, 8.0, 10.5]), ROUNDS)
        return speeds * np.exp(generator.normal(0, 0.002, ROUNDS))

    assert verdict({"default": 10.0, "first": by_memory}).choice == "default"
    # It is faster by the median, so a machine that places memory otherwise may choose it.
    assert verdict({"default": 10.0, "first": by_memory}).ties == ("first",)


def test_one_that_stalls_so_often_that_its_mean_is_slower_does_not_win() -> None:
    def stalling(generator: np.random.Generator) -> np.ndarray:
        return np.where(np.arange(ROUNDS) % 6 == 0, 10_000.0, 7.0) * np.exp(generator.normal(0, 0.01, ROUNDS))

    found = verdict({"default": 10.0, "first": stalling})
    # It is faster by the median, so a machine where it does not stall may choose it.
    assert (found.choice, found.ties) == ("default", ("first",))


def test_what_left_never_wins_and_may_tie() -> None:
    raced = race({"default": 10.0, "first": 5.0, "second": 10.0})
    for label in ("first", "second"):
        raced.race.leave(raced[label])
    assert judged(raced).record == Verdict("default", ("default",), ("second",), MARGIN)


def test_without_its_default_a_race_is_judged_by_who_stands_in() -> None:
    raced = race({"default": 10.0, "first": 9.0, "second": 8.9, "third": 7.0})
    raced.race.leave(raced["default"])
    assert judged(raced).record == Verdict("third", ("third",), (), MARGIN)


def test_nobody_wins_a_race_without_rounds() -> None:
    assert judge(Raced({"default": [10.0] * 7, "first": [5.0] * 7}).race, "latency") is None
    raced = Raced({"default": [10.0] * 9})
    raced.race.leave(raced["default"])
    assert judge(raced.race, "latency") is None


def test_each_objective_has_its_own_verdict() -> None:
    # Returns soon when cold, and is slow in a hot loop.
    raced = Raced({"default": [Figures(20, 5, 5, 5)] * 20, "first": [Figures(10, 5, 6, 9)] * 20})
    assert judged(raced, "serving").record.choice == "first"
    assert judged(raced, "latency").record.choice == "default"


def acceptable(found: Verdict) -> set[str]:
    return {found.choice, *found.ties}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("first", [9.4, 8.0])
def test_alike_processes_agree(seed: int, first: float) -> None:
    table = {"default": 10.0, "first": first, "second": first - 0.1, "third": first - 0.2}
    one, other = verdict(table, noise=0.05, seed=seed), verdict(table, noise=0.05, seed=seed + 100)
    assert one.choice in acceptable(other)
    assert other.choice in acceptable(one)


@pytest.mark.parametrize("seed", range(20))
def test_alike_processes_do_not_contradict_each_other_even_at_the_margin(seed: int) -> None:
    # One may keep the default where the other is just sure enough to leave it, which is a tie to the first.
    table = {"default": 10.0, "first": 9.71, "second": 9.69, "third": 9.66}
    one, other = verdict(table, noise=0.02, seed=seed), verdict(table, noise=0.02, seed=seed + 100)
    assert one.choice in acceptable(other) or other.choice in acceptable(one)


# Several sizes


def at(
    count: int,
    choice: str,
    *,
    ties: Sequence[str] = (),
    level: Sequence[str] = (),
    costs: Mapping[str, float] | None = None,
    margin: float = MARGIN,
    verdicts: Mapping[Objective, str] | None = None,
) -> Measurement:
    """What was measured at one size; the choice and what ties are half as dear as others unless told otherwise."""
    costs = dict.fromkeys(ORDER, 10.0) | dict.fromkeys((*ties, *level), 5.2) | {choice: 5.0} if costs is None else costs
    chosen = dict.fromkeys(OBJECTIVES, choice) | dict(verdicts or {})
    records = {
        objective: Verdict(label, tuple(level) or (label,), tuple(ties), margin) for objective, label in chosen.items()
    }
    candidates = tuple(candidate(label, us) for label, us in costs.items())
    return Measurement(
        KIND, count, "scattered", 0.5, settled=True, noise_floor=0, verdicts=records, candidates=candidates
    )


def candidate(label: str, us: float) -> CandidateMeasurement:
    standings: dict[Objective, Standing] = {objective: Standing(us, us, None, None, None) for objective in OBJECTIVES}
    return CandidateMeasurement(
        strategy=label,
        params={},
        cold_us=us,
        host_us=us,
        device_us=us,
        wall_us=us,
        stall=None,
        stall_share=None,
        stall_us=0.0,
        capturable=None,
        standings=standings,
        rounds=ROUNDS,
        dropped=0,
        state="complete",
    )


def decided(
    *measurements: Measurement, planned: Sequence[int] = (), objective: Objective = "latency"
) -> list[Decision]:
    return decisions(measurements, objective, planned, "default", ORDER)


def borders(*measurements: Measurement, planned: Sequence[int] = ()) -> list[tuple[int | None, str]]:
    return [(decision.max_indices, decision.label) for decision in decided(*measurements, planned=planned)]


def test_the_border_is_the_geometric_mean_and_the_last_decision_is_open() -> None:
    found = decided(at(1024, "first"), at(16, "default"))
    assert [(decision.max_indices, decision.strategy) for decision in found] == [(128, "default"), (None, "first")]
    assert {decision.kind for decision in found} == {KIND}


def test_equal_neighbours_are_one_decision() -> None:
    sizes = at(4, "default"), at(16, "default"), at(64, "first"), at(256, "first")
    assert borders(*sizes) == [(32, "default"), (None, "first")]


def test_one_size_decides_for_every_number() -> None:
    assert borders(at(64, "first")) == [(None, "first")]


def test_nothing_measured_is_nothing_decided() -> None:
    assert decided() == []
    unknown = at(64, "first")._replace(verdicts={"serving": Verdict("first", ("first",), (), MARGIN)})
    assert decided(unknown) == []
    assert len(decided(unknown, objective="serving")) == 1


def test_each_objective_has_its_own_decisions() -> None:
    sizes = at(16, "default"), at(1024, "default", verdicts={"serving": "first"})
    assert borders(*sizes) == [(None, "default")]
    assert [decision.strategy for decision in decided(*sizes, objective="serving")] == ["default", "first"]


def test_a_choice_that_ties_at_the_smaller_size_serves_all_above_it() -> None:
    # Between them nothing is lost by it.
    assert borders(at(16, "default", ties=["first"]), at(1024, "first")) == [(16, "default"), (None, "first")]


def test_a_choice_that_ties_at_the_larger_size_serves_all_below_it() -> None:
    assert borders(at(16, "default"), at(1024, "first", ties=["default"])) == [(1023, "default"), (None, "first")]


def test_choices_that_tie_with_each_other_at_both_sizes_become_one() -> None:
    # The earlier one in the registry.
    sizes = at(16, "second", ties=["first"]), at(64, "first", ties=["second"])
    assert [(d.label, d.ties) for d in decided(*sizes)] == [("first", ("second",))]


def test_a_row_of_choices_becomes_one_only_if_it_ties_along_the_whole_row() -> None:
    # At 4 the first is out of the question, and 16 goes with it.
    sizes = at(4, "second"), at(16, "second", ties=["first"]), at(64, "first", ties=["second"])
    assert [label for _, label in borders(*sizes)] == ["second", "first"]


def test_a_size_that_cannot_tell_is_absorbed_by_two_equal_neighbours() -> None:
    assert borders(at(16, "first"), at(64, "default", ties=["first"]), at(256, "first")) == [(None, "first")]


def test_a_size_that_can_tell_keeps_its_range() -> None:
    found = borders(at(16, "first"), at(64, "default"), at(256, "first"))
    assert found == [(32, "first"), (128, "default"), (None, "first")]


def test_the_smaller_neighbours_choice_comes_before_the_registrys_order_where_winners_are_level() -> None:
    level = at(64, "first", level=["first", "second"], ties=["second"])
    assert borders(at(16, "second"), level) == [(None, "second")]
    assert borders(level) == [(None, "first")]


def test_a_neighbours_choice_that_is_not_level_with_the_fastest_is_not_kept() -> None:
    assert [label for _, label in borders(at(16, "second"), at(64, "first"))] == ["second", "first"]


def test_a_decision_declares_what_ties_everywhere_in_its_range() -> None:
    # The second ties at 16 only; the third at both.
    (decision,) = decided(at(16, "first", ties=["second", "third"]), at(64, "first", ties=["third"]))
    assert (decision.label, decision.ties) == ("first", ("third",))


def test_a_decision_carries_the_widest_margin_of_its_range() -> None:
    (decision,) = decided(at(16, "first", margin=0.03), at(1024, "first", margin=0.05))
    assert decision.margin == 0.05


# Sizes that were not timed


def test_sizes_above_those_that_were_timed_keep_the_default() -> None:
    assert borders(at(16, "first"), planned=[16, 64, 1024]) == [(32, "first"), (None, "default")]


def test_sizes_below_those_that_were_timed_keep_the_default() -> None:
    assert borders(at(64, "first"), planned=[1, 16, 64]) == [(32, "default"), (None, "first")]


def test_a_size_between_sizes_without_a_measurement_has_the_default_on_both_sides() -> None:
    found = borders(at(64, "first"), planned=[16, 64, 256])
    assert found == [(32, "default"), (128, "first"), (None, "default")]


def test_the_default_needs_no_border_to_itself() -> None:
    assert borders(at(64, "default"), planned=[16, 64, 256]) == [(None, "default")]


def test_what_nobody_measured_has_no_ties() -> None:
    *_, last = decided(at(16, "first", ties=["second"]), planned=[16, 1024])
    assert (last.ties, last.params) == ((), {})


@pytest.mark.parametrize("timed", [1, 2, 3, 10])
def test_borders_are_ascending_however_close_the_sizes_are(timed: int) -> None:
    found = borders(at(timed, "first"), at(timed + 1, "second"), planned=[timed, timed + 1, timed + 2])
    bounds = [bound for bound, _ in found[:-1] if bound is not None]
    assert bounds == sorted(set(bounds))
    assert found[-1] == (None, "default")
    assert dict(found)[timed] == "first"


@st.composite
def measurements(draw: st.DrawFn) -> list[Measurement]:
    """Any sizes with any verdicts that a race can come to."""
    found = []
    for count in draw(st.sets(st.integers(1, 3000), min_size=1, max_size=6)):
        level = sorted(draw(st.sets(st.sampled_from(ORDER[1:]), min_size=1)), key=ORDER.index)
        level = draw(st.sampled_from([["default"], level]))
        ties = {*draw(st.sets(st.sampled_from(ORDER))), *level} - {level[0]}
        found.append(at(count, level[0], level=level, ties=sorted(ties)))
    return found


@PROPERTY
@given(measurements(), st.lists(st.integers(1, 4000), max_size=3))
def test_whatever_was_measured_each_timed_size_gets_what_is_right_there_and_others_the_default(
    timed: list[Measurement], planned: list[int]
) -> None:
    found = borders(*timed, planned=planned)
    bounds = [math.inf if bound is None else bound for bound, _ in found]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == math.inf

    def label(count: int) -> str:
        return next(name for bound, (_, name) in zip(bounds, found, strict=True) if count <= bound)

    for measurement in timed:
        assert label(measurement.indices) in acceptable(measurement.verdicts["latency"])
    counts = [measurement.indices for measurement in timed]
    assert {label(count) for count in planned if not min(counts) <= count <= max(counts)} <= {"default"}
    # Neighbours differ, or they would be one.
    assert all(one != other for (_, one), (_, other) in pairwise(found))


# Refining


def refined(
    *measurements: Measurement,
    calls: Sequence[tuple[int, float]] = (),
    objectives: Sequence[Objective] = OBJECTIVES,
) -> dict[int, tuple[float, set[str]]]:
    found = refinements(measurements, objectives, calls, ORDER)
    return {refinement.indices: (refinement.stake, set(refinement.labels)) for refinement in found}


def test_a_border_between_different_winners_is_worth_a_size_halfway() -> None:
    assert list(refined(at(16, "default"), at(1024, "first"))) == [128]


def test_a_border_between_equal_winners_is_not() -> None:
    assert refined(at(16, "first"), at(1024, "first")) == {}


@pytest.mark.parametrize("tied", [(["first"], []), ([], ["default"]), (["first"], ["default"])])
def test_nothing_is_refined_where_one_sides_choice_is_as_good_on_the_other(tied: tuple[list[str], list[str]]) -> None:
    below, above = tied
    assert refined(at(16, "default", ties=below), at(1024, "first", ties=above)) == {}


def test_a_tie_that_looks_far_dearer_does_not_stand_in_for_the_choice() -> None:
    # So few rounds that a call twice as dear was not told apart.
    costs = {"default": 5.0, "first": 10.0}
    sizes = at(16, "default", ties=["first"], costs=costs), at(1024, "first")
    assert list(refined(*sizes)) == [128]
    assert borders(*sizes) == [(128, "default"), (None, "first")]


def test_a_border_must_be_halved_until_both_sides_are_a_tenth_apart() -> None:
    splits = {
        count: refinements([at(16, "default"), at(count, "first")], OBJECTIVES, (), ORDER)[0].splits
        for count in (19, 20, 1024)
    }
    assert 0 < splits[19] < 1 < splits[20] < 2
    assert CLOSE ** (2 ** splits[1024]) == pytest.approx(1024 / 16)


def test_a_border_whose_place_costs_less_than_the_margin_is_not_refined() -> None:
    costs = {"default": 10.0, "first": 10.1}
    assert refined(at(16, "default", costs=costs), at(1024, "first", costs={"default": 10.1, "first": 10.0})) == {}


def test_one_that_was_not_raced_at_the_other_size_surely_costs_there() -> None:
    small = at(16, "default", costs={"default": 10.0})
    large = at(1024, "first", costs={"default": 10.1, "first": 10.0})
    assert list(refined(small, large)) == [128]


def test_the_borders_of_both_objectives_are_refined() -> None:
    sizes = at(16, "default"), at(64, "default", verdicts={"latency": "first"}), at(1024, "first")
    assert set(refined(*sizes)) == {32, 256}
    assert set(refined(*sizes, objectives=["latency"])) == {32}
    assert set(refined(*sizes, objectives=["serving"])) == {256}


def test_who_might_win_there_races_there() -> None:
    ((_, names),) = refined(at(16, "second", ties=["third"]), at(1024, "first")).values()
    assert {"first", "second", "third"} <= names


def test_a_border_in_the_midst_of_the_calls_is_dearer_than_one_beside_them() -> None:
    sizes = at(16, "default"), at(1024, "first"), at(4096, "second")
    busy = refined(*sizes, calls=[(100, 0.2), (900, 0.3), (2000, 0.01)])
    assert busy[128][0] > 10 * busy[2048][0] > 0
    # Where nobody calls, the wider gap is the dearer one.
    idle = refined(*sizes)
    assert idle[128][0] > idle[2048][0] > 0


def steps_at(step: int) -> Callable[[int], Measurement]:
    """The default is the better one up to a size, and twice as slow above."""

    def measured(count: int) -> Measurement:
        return at(count, "default" if count <= step else "first")

    return measured


@pytest.mark.parametrize("step", [1, 2, 5, 62, 100, 300, 383, 3000, 16_000])
def test_refining_finds_a_step_to_a_closeness_of_a_tenth(step: int) -> None:
    measured = steps_at(step)
    known = {count: measured(count) for count in (1, 62, 384, 5000, 20_000)}
    for _ in range(20):
        asked = refined(*known.values())
        if not asked:
            break
        assert not set(asked) & set(known)
        known |= {count: measured(count) for count in asked}
    (border, _), _ = borders(*known.values())
    assert border is not None
    assert step / CLOSE <= border <= step * CLOSE
    # Halving the logarithm takes a few sizes.
    assert len(known) - 5 <= math.ceil(math.log2(math.log(62) / math.log(CLOSE))) + 1


def test_sizes_that_are_close_are_not_refined_for_ever() -> None:
    assert refined(at(100, "default"), at(110, "first")) == {}
    assert refined(at(100, "default"), at(112, "first")) != {}
    assert refined(at(1, "default"), at(2, "first")) == {}
