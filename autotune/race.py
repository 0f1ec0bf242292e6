"""The race: what each candidate cost in each round, and what can be said of one against another.

Speeds drift and jitter, so nothing is compared across time: only costs of the same round are divided, and an
order-statistic interval on the median of those ratios decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from autotune.devices import Sample
    from swa_alloc.operations import Objective

# The default raced against itself: what it differs from itself by is noise.
CONTROL = "the default again"
# Of the interval that decides. At 64 rounds its half-width is about 1.2 % on two shared, noisy CPU cores.
_CONFIDENCE = 0.99
# Fewer rounds than this have no interval at that confidence.
MIN_ROUNDS = 8
# A candidate is beaten once it is surely slower by more than this under every objective.
_BEATEN = 1.02
# A candidate with more impossible samples than this share cannot be measured.
_MAX_DROPPED = 0.25

Costs = np.ndarray[Any, np.dtype[np.float64]]

# From [rounds, 3] host, device and wall times, and the microseconds that a call waits for the workload's backlog, to
# [rounds] costs. Under `serving` the slower of host and device paces a loop of calls.
OBJECTIVES: Mapping[Objective, Callable[[Costs, float], Costs]] = MappingProxyType(
    {
        "serving": lambda figures, stall_us: np.maximum(figures[:, 0], figures[:, 1]) + stall_us,
        "latency": lambda figures, _stall_us: figures[:, 2],
    }
)


@dataclass(frozen=True)
class Interval:
    """A median ratio and its confidence interval."""

    low: float
    median: float
    high: float

    def meets_one(self, margin: float) -> bool:
        """Whether it overlaps ``[1 - margin, 1 + margin]``: a tie."""
        return self.low <= 1 + margin and self.high >= 1 - margin


@dataclass
class Series:
    """One candidate's samples, in microseconds, from the round in which it joined.

    Attributes:
        first_round: That round.
        stall_us: What a call waits for the work queued ahead of it.
        figures: Host, device and wall time of each round.
        dropped: Rounds without a possible sample.
    """

    first_round: int
    stall_us: float = 0.0
    figures: list[tuple[float, float, float]] = field(default_factory=list)
    dropped: int = 0
    # What was worked out from the figures so far: a look asks for the same many times.
    _costs: dict[Objective, Costs] = field(default_factory=dict)
    _medians: dict[Objective, float] = field(default_factory=dict)

    def stall(self, stall_us: float) -> None:
        """Add a stall to the costs from here on, those so far included."""
        self.stall_us = stall_us
        self._forget()

    def add(self, sample: Sample) -> None:
        """Take down one round. An impossible sample is kept as a gap, so that rounds stay aligned."""
        self._forget()
        figures = (sample.host_us, sample.device_us, sample.wall_us)
        if all(math.isfinite(figure) and figure > 0 for figure in figures):
            self.figures.append(figures)
        else:
            self.figures.append((math.nan, math.nan, math.nan))
            self.dropped += 1

    def _forget(self) -> None:
        self._costs.clear()
        self._medians.clear()

    @property
    def unmeasurable(self) -> bool:
        """Whether too many samples were impossible."""
        return len(self.figures) >= MIN_ROUNDS and self.dropped > _MAX_DROPPED * len(self.figures)

    def medians(self) -> tuple[float, float, float]:
        """Median host, device and wall time."""
        host, device, wall = np.nanmedian(np.array(self.figures), axis=0)
        return float(host), float(device), float(wall)

    def costs(self, objective: Objective) -> Costs:
        """``[rounds]`` costs, NaN for a gap."""
        if objective not in self._costs:
            figures = np.array(self.figures, dtype=np.float64).reshape(-1, 3)
            self._costs[objective] = OBJECTIVES[objective](figures, self.stall_us)
        return self._costs[objective]

    def median_cost(self, objective: Objective) -> float:
        """Median cost, infinite where there is none."""
        if objective not in self._medians:
            costs = self.costs(objective)
            costs = costs[np.isfinite(costs)]
            self._medians[objective] = float(np.median(costs)) if len(costs) else math.inf
        return self._medians[objective]


class Race:
    """Rounds of samples of several candidates at one number of indices.

    Args:
        default: Label of the strategy that all are compared with; should it fail, the next one stands in.
        objective: What is minimized.
    """

    def __init__(self, default: str, objective: Objective) -> None:
        self.default = default
        self.objective = objective
        self.rounds = 0
        self.series: dict[str, Series] = {CONTROL: Series(0)}
        self.running: list[str] = []
        self._passes: list[int] = []

    def begin_pass(self) -> None:
        """From here on, rounds are run on another sandbox."""
        self._passes.append(self.rounds)

    def join(self, label: str) -> None:
        """Let a candidate take part from the next round on."""
        self.series[label] = Series(self.rounds)
        self.running.append(label)

    def leave(self, label: str) -> None:
        """Take a candidate out; its samples stay.

        Something must be compared with: in the place of a default that leaves, the next who still runs is the default.
        """
        self.running.remove(label)
        if label == self.default and self.running:
            self.default = self.running[0]
            self.series[CONTROL] = Series(self.rounds, self.series[self.default].stall_us)

    def stall(self, label: str, stall_us: float) -> None:
        """Have it known what a candidate's calls wait for the workload's backlog."""
        self.series[label].stall(stall_us)
        if label == self.default:
            self.series[CONTROL].stall(stall_us)

    def under(self, objective: Objective) -> Race:
        """The same race, judged by another objective."""
        judged = copy(self)
        judged.objective = objective
        return judged

    def add_round(self, samples: Mapping[str, Sample]) -> None:
        """Take down one sample of each running candidate, and of ``CONTROL``."""
        for label, sample in samples.items():
            self.series[label].add(sample)
        self.rounds += 1

    @property
    def noise_floor(self) -> float:
        """How far the interval of the default's ratio to itself reaches from 1; 0 where it was not measured."""
        interval = self.ratio(CONTROL, self.default)
        return max(interval.high - 1, 1 - interval.low) if interval else 0.0

    def restart(self) -> None:
        """Forget the samples of those who still run."""
        for label in (*self.running, CONTROL):
            self.series[label] = Series(self.rounds, self.series[label].stall_us)

    def trailing(self, factor: float) -> list[str]:
        """Running candidates, the default excepted, whose best cost is ``factor`` times the fastest's everywhere."""
        best = {label: [self._best(label, objective) for objective in OBJECTIVES] for label in self.running}
        fastest = [min(costs) for costs in zip(*best.values(), strict=True)]
        return [
            label
            for label, costs in best.items()
            if label != self.default and all(factor * f < c < math.inf for c, f in zip(costs, fastest, strict=True))
        ]

    def measured(self, label: str) -> bool:
        """Whether there is any sample of it that can be."""
        return self.best_wall(label) < math.inf

    def best_wall(self, label: str) -> float:
        """Lowest wall time in microseconds, infinite where there is none."""
        return self._best(label, "latency")

    def finishers(self) -> list[str]:
        """Candidates that still run and have rounds enough for an interval."""
        return [label for label in self.running if self.ratio(label, self.default) is not None]

    def median_cost(self, label: str, objective: Objective | None = None) -> float:
        """Median cost in microseconds, infinite where there is none."""
        return self.series[label].median_cost(objective or self.objective)

    def percentile_90(self, label: str) -> float:
        """90th percentile of the cost in microseconds."""
        return float(np.nanpercentile(self.series[label].costs(self.objective), 90))

    def ratio(self, label: str, other: str, objective: Objective | None = None) -> Interval | None:
        """The cost of one over the other's, paired by round; None with fewer than ``MIN_ROUNDS`` pairs."""
        logs = self._log_ratios(label, other, objective or self.objective)
        logs = np.sort(logs[np.isfinite(logs)])
        if len(logs) < MIN_ROUNDS:
            return None
        rank = _rank(len(logs))
        return Interval(
            float(np.exp(logs[rank])), float(np.exp(np.median(logs))), float(np.exp(logs[len(logs) - 1 - rank]))
        )

    def spread(self, label: str, other: str) -> float:
        """Half the range of the pair's median ratio over the sandboxes: what fresh memory alone changes."""
        logs = self._log_ratios(label, other, self.objective)
        start = max(self.series[label].first_round, self.series[other].first_round)
        bounds = [max(0, begin - start) for begin in self._passes] + [len(logs)]
        parts = [logs[a:b] for a, b in pairwise(bounds)]
        medians = [float(np.nanmedian(part)) for part in parts if np.isfinite(part).sum() >= MIN_ROUNDS]
        return (max(medians) - min(medians)) / 2 if medians else 0.0

    def beaten(self, label: str) -> bool:
        """Whether some running candidate is surely faster, under every objective. The default never is."""
        if label == self.default:
            return False
        for objective in OBJECTIVES:
            leader = min(self.running, key=lambda other: self.median_cost(other, objective))
            interval = self.ratio(label, leader, objective)
            if interval is None or interval.low <= _BEATEN:
                return False
        return True

    def _best(self, label: str, objective: Objective) -> float:
        costs = self.series[label].costs(objective)
        return float(np.nanmin(costs)) if np.isfinite(costs).any() else math.inf

    def _log_ratios(self, label: str, other: str, objective: Objective) -> Costs:
        mine, theirs = self.series[label], self.series[other]
        start = max(mine.first_round, theirs.first_round)
        end = min(mine.first_round + len(mine.figures), theirs.first_round + len(theirs.figures))
        if end <= start:
            return np.empty(0)
        mine_costs = mine.costs(objective)[start - mine.first_round : end - mine.first_round]
        their_costs = theirs.costs(objective)[start - theirs.first_round : end - theirs.first_round]
        logs: Costs = np.log(mine_costs / their_costs)
        return logs


def order_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval on the median of some values; from the least to the greatest where they are too few for one."""
    ordered = sorted(values)
    rank = _rank(len(ordered)) if len(ordered) >= MIN_ROUNDS else 0
    return ordered[rank], ordered[len(ordered) - 1 - rank]


@cache
def _rank(count: int) -> int:
    """Index of the order statistic at which the sign-test interval on the median of ``count`` values begins."""
    # P(fewer than `rank` values lie below the median) stays within half of what the confidence leaves.
    tail, rank = 0.0, 0
    while True:
        tail += math.comb(count, rank) / 2.0**count
        if tail > (1 - _CONFIDENCE) / 2:
            return rank - 1
        rank += 1
