"""From races to decisions: winners, ties, and the borders between sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from swa_alloc.evidence import Verdict
from swa_alloc.profile import Decision

if TYPE_CHECKING:
    from autotune.contest.candidates import Entrant
    from autotune.contest.race import Race
    from swa_alloc.evidence import CandidateMeasurement, Measurement
    from swa_alloc.operations import CallKind, Objective

# A default that may yet be beaten by the margin and this much more is worth more rounds.
_WORTH = 0.02
# Of the margin: winners this close to the fastest are level, and the registry's order decides among them.
_LEVEL = 0.5
# Times the best, by interpolation.
_PLAUSIBLE = 1.5
# Of what the wrong choice costs on one side of a border and on the other.
_FAR_LESS = 4.0
# Sizes closer than this have no border worth refining.
CLOSE = 1.1
# Of the margin: what ties with a choice and costs more than this beyond it may take its place only where it won.
_AS_GOOD = 2.0


@dataclass(frozen=True)
class Judgement:
    """What a race says under one objective.

    Attributes:
        entrant: The winner.
        record: The verdict for the record.
        settled: Whether more rounds would say the same.
    """

    entrant: Entrant
    record: Verdict
    settled: bool


def judge(race: Race, objective: Objective) -> Judgement | None:
    """The verdict on a race; None where nothing had rounds enough.

    The default stays unless another is surely faster by more than the margin, on every table, and does not stall so
    often that its mean is slower; where the race is not settled, unless another is likely to be. Among winners that are
    level the first in the registry's order is taken: that agrees better between processes than the fastest does.
    """
    entrants, default = race.finishers(), race.default
    if not entrants:
        return None
    # Of one that lacks a sample or two nothing is known yet.
    settled = len(entrants) == len(race.running)
    winners: list[Entrant] = []
    likely: list[Entrant] = []
    for entrant in entrants:
        interval = race.ratio(entrant, default, objective)
        if entrant is default or interval is None:
            continue
        sure = interval.high < 1 - race.margin
        if not sure and interval.low < 1 - race.margin - _WORTH:
            settled = False
        # The rest of it is slower to find out, and seldom true.
        if interval.likely_high < 1 - race.margin and not _is_unsafe(race, entrant, objective):
            (winners if sure else likely).append(entrant)
    # As long as nothing is sure, what is likely is the best answer there is.
    winners = winners or likely
    choice, level = default, [default]
    if winners:
        fastest = min(winners, key=lambda entrant: _median(race, entrant, default, objective))
        level = [
            entrant
            for entrant in winners
            if entrant is fastest or _median(race, entrant, fastest, objective) < 1 + _LEVEL * race.margin
        ]
        choice = level[0]
        rivals = [race.ratio(choice, entrant, objective) for entrant in winners if entrant is not choice]
        # Another may still turn out to be faster by more than the margin.
        settled = settled and all(rival is None or rival.high < 1 + race.margin for rival in rivals)
    ties = [
        entrant.label
        for entrant in race.measured()
        if entrant is not choice and not entrant.out and _not_told_apart(race, entrant, choice, objective)
    ]
    record = Verdict(choice.label, tuple(entrant.label for entrant in level), tuple(sorted(ties)), race.margin)
    return Judgement(choice, record, settled)


def _is_unsafe(race: Race, entrant: Entrant, objective: Objective) -> bool:
    """Whether an entrant that is faster than the default is not so on every table, or stalls more often."""
    default = race.default
    return race.depends_on_memory(entrant, default, objective) or race.tail_heavy(entrant, default, objective)


def _median(race: Race, one: Entrant, other: Entrant, objective: Objective) -> float:
    interval = race.ratio(one, other, objective)
    return interval.median if interval else math.inf


def _not_told_apart(race: Race, entrant: Entrant, choice: Entrant, objective: Objective) -> bool:
    """Whether an entrant ties with the choice, or is faster by the median without having won."""
    interval = race.ratio(entrant, choice, objective)
    return interval is not None and (
        interval.meets_one(race.margin)
        or (interval.median < 1 and entrant in race.running)
        or race.depends_on_memory(entrant, choice, objective)
    )


@dataclass
class _Size:
    """One timed size in the making of decisions."""

    measurement: Measurement
    choice: str
    acceptable: set[str]
    level: tuple[str, ...]
    margin: float
    params: Mapping[str, CandidateMeasurement] = field(default_factory=dict)

    def choose(self, label: str) -> None:
        self.choice = label

    @property
    def ties(self) -> set[str]:
        return self.acceptable - {self.choice}


def decisions(
    measurements: Sequence[Measurement],
    objective: Objective,
    planned: Sequence[int],
    default: str,
    order: Sequence[str],
) -> list[Decision]:
    """The decisions of one kind under an objective: equal neighbours joined, and borders between the others.

    Where neighbouring choices tie with each other they become one; so does a tie between two equal choices. A choice
    is not extended to planned sizes beyond those that were timed: these keep the default.

    Args:
        measurements: Of this kind, in any order; none leaves it undecided.
        objective: What is minimized.
        planned: Sizes that were to be timed.
        default: Label of the default strategy.
        order: Labels in the registry's order.
    """
    sizes = _sizes(measurements, objective, order)
    if not sizes:
        return []
    kind = sizes[0].measurement.kind
    result: list[Decision] = []
    joined: list[_Size] = []
    for i, size in enumerate(sizes):
        joined.append(size)
        above = sizes[i + 1] if i + 1 < len(sizes) else None
        if above is not None and above.choice == size.choice:
            continue
        border = None if above is None else _border(size, above, objective)
        result.append(_decision(kind, border, joined))
        joined = []
    return _within_timed(result, sizes, planned, default)


@dataclass(frozen=True)
class Border:
    """Between two timed sizes with different choices.

    Attributes:
        small: The lower size.
        large: The higher size.
        below: Label of the lower size's choice.
        above: Label of the higher size's choice.
        loss_us: What the wrong one of the two costs more, at the worse of both sizes.
        narrow: Whether nothing between them is worth a race.
    """

    small: int
    large: int
    below: str
    above: str
    loss_us: float
    narrow: bool


def borders(measurements: Sequence[Measurement], objective: Objective, order: Sequence[str]) -> list[Border]:
    """Where the choice changes, under an objective, between the timed sizes of one kind."""
    found = []
    for low, high in pairwise(_sizes(measurements, objective, order)):
        if low.choice != high.choice:
            small, large = low.measurement.indices, high.measurement.indices
            loss_us = max(_loss_us(low, high.choice, objective), _loss_us(high, low.choice, objective))
            # Where one choice is as good as the other at both sizes it serves all between them.
            tie = high.choice in low.acceptable or low.choice in high.acceptable
            inside = small < math.isqrt(small * large) < large and large > small * CLOSE
            found.append(Border(small, large, low.choice, high.choice, loss_us, tie or not inside or loss_us == 0.0))
    return found


@dataclass(frozen=True)
class Refinement:
    """A size worth a race, halfway between two whose winners differ.

    Attributes:
        indices: The size.
        stake: What the wrong choice costs there, in microseconds a call of the workload, and a little for the width of
            the gap.
        labels: What should race there: whatever may be the fastest under one objective or another.
        splits: How often the gap must be halved, this time included, until the border is close.
    """

    indices: int
    stake: float
    labels: tuple[str, ...]
    splits: float


def refinements(
    measurements: Sequence[Measurement],
    objectives: Sequence[Objective],
    calls: Sequence[tuple[int, float]],
    order: Sequence[str],
) -> list[Refinement]:
    """Sizes halfway between two whose winners differ, where calling the wrong one would cost more than the margin.

    Args:
        measurements: Of one kind.
        objectives: Borders of any of these.
        calls: The workload's (number of indices, weight).
        order: Labels in the registry's order.
    """
    stakes: dict[tuple[int, int], float] = {}
    for objective in objectives:
        for border in borders(measurements, objective, order):
            if not border.narrow:
                weight = sum(weight for count, weight in calls if border.small < count < border.large)
                stake = border.loss_us * (weight + 1e-6 * math.log(border.large / border.small))
                gap = border.small, border.large
                stakes[gap] = max(stake, stakes.get(gap, 0.0))
    by_size = {measurement.indices: measurement for measurement in measurements}
    return [
        Refinement(
            math.isqrt(small * large),
            stake,
            _plausible(by_size[small], by_size[large], objectives),
            math.log2(math.log(large / small) / math.log(CLOSE)),
        )
        for (small, large), stake in stakes.items()
    ]


def _plausible(low: Measurement, high: Measurement, objectives: Sequence[Objective]) -> tuple[str, ...]:
    """Labels of those that may be the fastest halfway between two sizes: by interpolation not far from the best."""
    found: dict[str, None] = {}
    below, above = ({c.label: c.standings for c in side.candidates} for side in (low, high))
    for objective in objectives:
        halfway = {
            label: math.sqrt(below[label][objective].cost_us * above[label][objective].cost_us)
            for label in below
            if label in above
        }
        best = min(halfway.values(), default=0.0)
        found |= {label: None for label, cost in halfway.items() if cost <= _PLAUSIBLE * best}
        for side in (low, high):
            if objective in side.verdicts:
                found[side.verdicts[objective].choice] = None
    return tuple(found)


def _border(low: _Size, high: _Size, objective: Objective) -> int:
    """The largest number of indices that the lower size's choice serves.

    Where one of the choices is as good as the other at both sizes, it serves all between them; so does one whose wrong
    calls would cost far less than the other's. Else the border is the geometric mean.
    """
    below_us, above_us = _loss_us(low, high.choice, objective), _loss_us(high, low.choice, objective)
    if high.choice in low.acceptable or below_us * _FAR_LESS < above_us:
        return low.measurement.indices
    if low.choice in high.acceptable or above_us * _FAR_LESS < below_us:
        return high.measurement.indices - 1
    return math.isqrt(low.measurement.indices * high.measurement.indices)


def _sizes(measurements: Sequence[Measurement], objective: Objective, order: Sequence[str]) -> list[_Size]:
    """Each timed size with its choice, after neighbours have been brought into line."""
    sizes: list[_Size] = []
    for measurement in sorted(measurements, key=lambda m: m.indices):
        verdict = measurement.verdicts.get(objective)
        if verdict is None:
            continue
        by_label = {candidate.label: candidate for candidate in measurement.candidates}
        bar_us = by_label[verdict.choice].standings[objective].cost_us * (1 + _AS_GOOD * verdict.margin)
        ties = [label for label in verdict.ties if by_label[label].standings[objective].cost_us <= bar_us]
        acceptable = {verdict.choice, *verdict.level, *ties}
        size = _Size(measurement, verdict.choice, acceptable, verdict.level, verdict.margin, by_label)
        # Among winners that are level the next smaller size's choice is kept.
        if sizes and sizes[-1].choice in verdict.level:
            size.choose(sizes[-1].choice)
        sizes.append(size)
    _merge(sizes, order)
    return sizes


def _merge(sizes: list[_Size], order: Sequence[str]) -> None:
    """Make one choice of neighbouring choices that tie with each other, all along the range that it then serves."""
    for below, between, above in zip(sizes, sizes[1:], sizes[2:], strict=False):
        # A size that cannot tell needs no range of its own between two that agree.
        if below.choice == above.choice in between.ties:
            between.choose(below.choice)
    run: list[_Size] = []
    for size in sizes:
        if run and size.choice != run[0].choice:
            both = (run[0].choice, size.choice)
            mutual = all(set(both) <= member.acceptable for member in (*run, size))
            if not mutual:
                run = []
            else:
                first = min(both, key=lambda label: _position(label, order))
                for member in (*run, size):
                    member.choose(first)
        run.append(size)


def _position(label: str, order: Sequence[str]) -> int:
    return order.index(label) if label in order else len(order)


def _decision(kind: CallKind, border: int | None, joined: Sequence[_Size]) -> Decision:
    candidate = joined[-1].params[joined[-1].choice]
    return Decision(
        kind,
        border,
        candidate.strategy,
        dict(candidate.params),
        max(size.margin for size in joined),
        # What ties everywhere in the range.
        tuple(sorted(set.intersection(*(size.ties for size in joined)))),
    )


def _within_timed(
    result: list[Decision], sizes: Sequence[_Size], planned: Sequence[int], default: str
) -> list[Decision]:
    """The decisions, with the default for planned sizes below and above those that were timed."""
    smallest, largest = sizes[0].measurement.indices, sizes[-1].measurement.indices
    unmeasured = Decision(result[0].kind, None, default, {}, 0.0, ())
    above, below = [c for c in planned if c > largest], [c for c in planned if c < smallest]
    last = result[-1]
    if above and (last.strategy, last.params) != (default, {}):
        border = math.isqrt(largest * min(above))
        result = [*result[:-1], last._replace(max_indices=border), unmeasured]
    first = result[0]
    if below and (first.strategy, first.params) != (default, {}):
        border = math.isqrt(smallest * max(below))
        result = [unmeasured._replace(max_indices=border), *result]
    return result


def _loss_us(size: _Size, other: str, objective: Objective) -> float:
    """What calling ``other`` at this size would cost more, in microseconds; 0 where that is within the margin."""
    right = size.params[size.choice].standings[objective].cost_us
    found = size.params.get(other)
    if found is None:
        return right
    wrong = found.standings[objective].cost_us
    return wrong - right if wrong > right * (1 + size.margin) else 0.0
