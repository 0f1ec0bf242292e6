"""From races to decisions: winners, ties, and the borders between sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from swa_alloc.profile import Decision

if TYPE_CHECKING:
    from autotune.config import Calibration
    from autotune.contest import Contest
    from autotune.race import Race
    from swa_alloc.operations import Objective

# From here on processes differ more from each other: 4 % instead of 1.5 % on a CPU, by where their memory lies.
_LARGE = 128
# Sizes closer than this have no border worth refining.
_CLOSE = 1.5


@dataclass
class Verdict:
    """What one race says.

    Attributes:
        contest: The contest.
        race: Its race under the objective that was asked for.
        choice: Label of the winner.
        ties: Labels that cannot be told from it within the margin.
        margin: The margin that applied to the winner.
    """

    contest: Contest
    race: Race
    choice: str
    ties: set[str]
    margin: float

    @property
    def acceptable(self) -> set[str]:
        """The winner and what ties with it."""
        return {self.choice, *self.ties}

    def choose(self, label: str) -> None:
        """Put a tie in the winner's place."""
        self.ties = self.acceptable - {label}
        self.choice = label


def judge(contests: Sequence[Contest], settings: Calibration, objective: Objective) -> list[Verdict]:
    """A verdict under an objective for each race of one kind, given and returned in ascending order of size.

    The default stays unless another is surely faster by more than the margin, and at the 90th percentile no slower than
    it beyond the margin: OpenMP stalls make some strategies a thousand times slower now and then. Among winners that
    tie, the choice of the next smaller size is kept, else the first in the registry's order: that agrees better between
    processes than the fastest does. Where neighbouring choices tie with each other, they become one; so does a tie
    between two equal choices.
    """
    verdicts: list[Verdict] = []
    for contest in contests:
        before = verdicts[-1].choice if verdicts else None
        verdicts.append(_verdict(contest, contest.race.under(objective), before, settings))
    _merge(verdicts)
    return verdicts


def decisions(verdicts: Sequence[Verdict]) -> list[Decision]:
    """The decisions of one kind: equal neighbours joined, the border at the geometric mean of two sizes."""
    result: list[Decision] = []
    for i, verdict in enumerate(verdicts):
        point, candidate = verdict.contest.point, verdict.contest.candidates[verdict.choice]
        above = verdicts[i + 1] if i + 1 < len(verdicts) else None
        if above is not None and above.choice == verdict.choice:
            continue
        joined = [v for v in verdicts[: i + 1] if not result or v.contest.point.count > (result[-1].max_indices or 0)]
        border = None if above is None else math.isqrt(point.count * above.contest.point.count)
        result.append(
            Decision(
                *point.kind,
                border,
                candidate.name,
                dict(candidate.params),
                round(max(v.margin for v in joined), 5),
                # What ties everywhere in the range.
                tuple(sorted(set.intersection(*(v.ties for v in joined)))),
            )
        )
    return result


def worth_refining(verdicts: Sequence[Verdict]) -> list[int]:
    """Sizes between two whose winners differ, where calling the wrong one would cost more than the margin."""
    sizes = []
    for low, high in pairwise(verdicts):
        small, large = low.contest.point.count, high.contest.point.count
        middle = math.isqrt(small * large)
        apart = large > small * _CLOSE and small < middle < large
        if apart and low.choice != high.choice and (_costly(low, high.choice) or _costly(high, low.choice)):
            sizes.append(middle)
    return sizes


def _verdict(contest: Contest, race: Race, before: str | None, settings: Calibration) -> Verdict:
    default = race.default
    entrants = race.finishers()
    switch = settings.switch_margin if contest.point.count <= _LARGE else settings.switch_margin_large

    def margin(label: str, other: str) -> float:
        return max(switch, race.spread(label, other))

    def wins(label: str) -> bool:
        interval = race.ratio(label, default)
        sure = interval is not None and interval.high < 1 - margin(label, default)
        # On a busy machine the tails of two equals differ by chance, too.
        return sure and race.percentile_90(label) < race.percentile_90(default) * (1 + margin(label, default))

    def to_default(label: str) -> float:
        interval = race.ratio(label, default)
        return interval.median if interval else math.inf

    def ties(label: str, other: str) -> bool:
        interval = race.ratio(label, other)
        return interval is not None and interval.meets_one(margin(label, other))

    order = list(contest.candidates)
    winners = sorted((label for label in entrants if label != default and wins(label)), key=order.index)
    choice = default
    if winners:
        fastest = min(winners, key=to_default)
        level = [label for label in winners if label == fastest or ties(label, fastest)]
        choice = before if before in level else level[0]
    # Whoever is faster by the median without having won is not told apart from the choice either.
    tied = {
        label
        for label in entrants
        if label != choice and (ties(label, choice) or to_default(label) < to_default(choice))
    }
    return Verdict(contest, race, choice, tied, margin(choice, default) if choice in entrants else switch)


def _merge(verdicts: list[Verdict]) -> None:
    """Make one choice of neighbouring choices that tie with each other, all along the range that it then serves."""
    for below, between, above in zip(verdicts, verdicts[1:], verdicts[2:], strict=False):
        # A size that cannot tell needs no range of its own between two that agree.
        if below.choice == above.choice in between.ties:
            between.choose(below.choice)
    run: list[Verdict] = []
    for verdict in verdicts:
        if run and verdict.choice != run[0].choice:
            both = (run[0].choice, verdict.choice)
            mutual = all(set(both) <= member.acceptable for member in (*run, verdict))
            if not mutual:
                run = []
            else:
                # In the registry's order, as among winners that tie at one size.
                first = min(both, key=list(verdict.contest.candidates).index)
                for member in (*run, verdict):
                    member.choose(first)
        run.append(verdict)


def _costly(verdict: Verdict, other: str) -> bool:
    """Whether calling ``other`` at this size would cost more than the margin; one that left the race surely would."""
    race = verdict.race
    interval = race.ratio(other, verdict.choice) if other in race.running else None
    return interval is None or interval.median > 1 + verdict.margin
