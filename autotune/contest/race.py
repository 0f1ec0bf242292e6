"""The race: what each entrant cost in each round, and what can be said of one against another.

Speeds drift and jitter, so nothing is compared across time: only costs of the same round are divided, and a
distribution-free interval on the middle of those ratios decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

import numpy as np

from autotune.contest.intervals import MIN_ROUNDS, Interval, Numbers, differ, median_ratio
from swa_alloc.evidence import Figures, cost_us
from swa_alloc.operations import Objective

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.contest.candidates import Entrant

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
# An entrant is beaten once it is surely slower by more than this under every objective; before there are rounds enough
# to be sure, once it was slower by more than the other in each of a few.
_BEATEN = 1.02
_BEATEN_EARLY, EARLY_ROUNDS = 1.4, 4
# An entrant with more impossible samples than this share cannot be measured.
_MAX_DROPPED = 0.25
# A cost of so many times its own median is in the tail.
_TAIL = 4.0
# Tails differ by more than chance from so many standard deviations of their numbers on.
_TAIL_CHANCE = 2.58


@dataclass
class Series:
    """One entrant's samples, from the round in which it joined.

    Attributes:
        first_round: That round.
        stall_us: What a call waits for the work queued ahead of it.
        figures: Of each round, None for an impossible sample, so that rounds stay aligned.
    """

    first_round: int
    stall_us: float = 0.0
    figures: list[Figures | None] = field(default_factory=list)
    # What was worked out from the figures so far: a look asks for the same many times.
    _costs: dict[Objective, Numbers] = field(default_factory=dict)

    def stall(self, stall_us: float) -> None:
        """Have it cost so much more from here on, the samples so far included."""
        self.stall_us = stall_us
        self._costs.clear()

    def add(self, figures: Figures) -> None:
        """Take down one round."""
        possible = all(math.isfinite(figure) and figure > 0 for figure in figures)
        self.figures.append(figures if possible else None)
        self._costs.clear()

    @property
    def dropped(self) -> int:
        """Rounds without a possible sample."""
        return self.figures.count(None)

    @property
    def unmeasurable(self) -> bool:
        """Whether too many samples were impossible."""
        return len(self.figures) >= MIN_ROUNDS and self.dropped > _MAX_DROPPED * len(self.figures)

    def medians(self) -> Figures | None:
        """Median of each figure; None where there is none."""
        found = [figures for figures in self.figures if figures is not None]
        return Figures(*(float(value) for value in np.median(np.array(found), axis=0))) if found else None

    def costs(self, objective: Objective) -> Numbers:
        """``[rounds]`` costs in microseconds, NaN for a gap."""
        if objective not in self._costs:
            self._costs[objective] = np.array(
                [math.nan if f is None else cost_us(objective, f, self.stall_us) for f in self.figures],
                dtype=np.float64,
            )
        return self._costs[objective]

    def median_cost(self, objective: Objective) -> float:
        """Median cost in microseconds, infinite where there is none."""
        costs = self.costs(objective)
        costs = costs[np.isfinite(costs)]
        return float(np.median(costs)) if len(costs) else math.inf

    def percentile_90(self, objective: Objective) -> float:
        """90th percentile of the cost in microseconds."""
        return float(np.nanpercentile(self.costs(objective), 90))


class Race:
    """Rounds of samples of several entrants at one number of indices.

    Args:
        entrants: What takes part; all are compared with the first, and should that fail, the next one stands in.
        tables: Rounds are run on so many tables in turn.
        margin: Fraction by which another must beat the default.

    Attributes:
        margin: As passed in.
        default: What all are compared with.
        running: What still takes part.
        series: What was measured, of those that left, too.
        rounds: How many there were.
        asked: Whether it is known what the default waits for.
    """

    def __init__(self, entrants: list[Entrant], tables: int, margin: float) -> None:
        self.default = entrants[0]
        self.running = list(entrants)
        self.series = {entrant: Series(0) for entrant in entrants}
        self.rounds = 0
        self.asked = False
        self._control = Series(0)
        self._tables = tables
        self.margin = margin
        self._ratios: dict[tuple[Entrant, Entrant, Objective], tuple[int, Interval | None]] = {}

    def join(self, entrant: Entrant) -> None:
        """Let another take part from the next round on."""
        self.series[entrant] = Series(self.rounds)
        self.running.append(entrant)

    def leave(self, entrant: Entrant) -> None:
        """Take one out; its samples stay.

        Something must be compared with: in the place of a default that leaves, the next that still runs is the default.
        """
        self.running.remove(entrant)
        if entrant is self.default and self.running:
            self.default = self.running[0]
            self._control = Series(self.rounds, self.series[self.default].stall_us)

    def stall(self, entrant: Entrant, stall_us: float) -> None:
        """Have it known what an entrant's calls wait for the workload's backlog."""
        self.series[entrant].stall(stall_us)
        if entrant is self.default:
            self._control.stall(stall_us)
        self._ratios.clear()

    def add_round(self, figures: Mapping[Entrant, Figures], again: Figures | None) -> None:
        """Take down one sample of each running entrant, and maybe a second one of the default."""
        for entrant, found in figures.items():
            self.series[entrant].add(found)
        if again is not None:
            self._control.add(again)
        self.rounds += 1

    @property
    def noise_floor(self) -> float:
        """How far the interval of the default's ratio to itself, of hot calls, reaches from 1; 0 if not measured."""
        interval = median_ratio(self._logs(self._control, self.series[self.default], "latency"))
        return max(interval.high - 1, 1 - interval.low) if interval else 0.0

    def finishers(self) -> list[Entrant]:
        """Those that still run and have rounds enough for an interval."""
        return [entrant for entrant in self.running if self._is_measured(entrant)]

    def measured(self) -> list[Entrant]:
        """Those that have rounds enough for an interval, whether they still run or not."""
        return [entrant for entrant in self.series if self._is_measured(entrant)]

    def _is_measured(self, entrant: Entrant) -> bool:
        return self.ratio(entrant, self.default, "latency") is not None

    def leader(self, objective: Objective) -> Entrant:
        """What is fastest so far."""
        return min(self.running, key=lambda entrant: self.series[entrant].median_cost(objective))

    def ratio(self, one: Entrant, other: Entrant, objective: Objective) -> Interval | None:
        """The cost of one over the other's, paired by round; None with fewer than ``MIN_ROUNDS`` pairs."""
        key = one, other, objective
        known = self._ratios.get(key)
        if known is None or known[0] != self.rounds:
            known = self.rounds, median_ratio(self._logs(self.series[one], self.series[other], objective))
            self._ratios[key] = known
        return known[1]

    def depends_on_memory(self, one: Entrant, other: Entrant, objective: Objective) -> bool:
        """Whether the one is faster on some tables and the other on others: fresh memory alone decides."""
        logs = self._logs(self.series[one], self.series[other], objective)
        turns = np.arange(len(logs)) % self._tables
        groups = [part[np.isfinite(part)] for part in (logs[turns == table] for table in range(self._tables))]
        return differ([group for group in groups if len(group) >= MIN_ROUNDS])

    def tail_heavy(self, one: Entrant, other: Entrant, objective: Objective) -> bool:
        """Whether one stalls so often that its mean is above the other's, whatever the medians say.

        With several OpenMP threads some strategies take a thousand times their median now and then.
        """
        mine, theirs = (self.series[entrant].costs(objective) for entrant in (one, other))
        tails = [int(np.sum(costs > _TAIL * np.nanmedian(costs))) for costs in (mine, theirs)]
        more_often = tails[0] - tails[1] > _TAIL_CHANCE * math.sqrt(sum(tails))
        return more_often and bool(np.nanmean(mine) > np.nanmean(theirs))

    def beaten(self, entrant: Entrant) -> bool:
        """Whether it can win under no objective any more: another is surely faster, or it surely is not fast enough.

        The default never is.
        """
        return entrant is not self.default and all(
            self._surely_slower(entrant, self.leader(objective), objective) or self._cannot_win(entrant, objective)
            for objective in OBJECTIVES
        )

    def _cannot_win(self, entrant: Entrant, objective: Objective) -> bool:
        if not self.asked:
            # The default may cost more than is known.
            return False
        interval = self.ratio(entrant, self.default, objective)
        return interval is not None and interval.low >= 1 - self.margin

    def _surely_slower(self, entrant: Entrant, leader: Entrant, objective: Objective) -> bool:
        interval = self.ratio(entrant, leader, objective)
        if interval is not None:
            return interval.low > _BEATEN
        logs = self._logs(self.series[entrant], self.series[leader], objective)
        logs = logs[np.isfinite(logs)]
        return len(logs) >= EARLY_ROUNDS and float(logs.min()) > math.log(_BEATEN_EARLY)

    def _logs(self, mine: Series, theirs: Series, objective: Objective) -> Numbers:
        start = max(mine.first_round, theirs.first_round)
        end = min(mine.first_round + len(mine.figures), theirs.first_round + len(theirs.figures))
        if end <= start:
            return np.empty(0)
        ours = mine.costs(objective)[start - mine.first_round : end - mine.first_round]
        others = theirs.costs(objective)[start - theirs.first_round : end - theirs.first_round]
        logs: Numbers = np.log(ours / others)
        return logs
