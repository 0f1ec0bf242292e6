"""What can be said of the median of a few noisy numbers without assuming how they are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

# At 64 rounds of hot blocks the interval's half-width is about 1.2 % on two shared, noisy CPU cores.
CONFIDENCE = 0.99
# Of what is likely rather than sure.
LIKELY = 0.3
# Fewer rounds than this have no interval at that confidence.
MIN_ROUNDS = 8

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Interval:
    """A median ratio and its confidence interval; ``likely_high`` is the upper end of a narrower one."""

    low: float
    median: float
    high: float
    likely_high: float

    def meets_one(self, margin: float) -> bool:
        """Whether it overlaps ``[1 - margin, 1 + margin]``: a tie."""
        return self.low <= 1 + margin and self.high >= 1 - margin


def median_ratio(logs: Numbers) -> Interval | None:
    """The median of some ratios, given as logarithms, NaN for a gap; None with fewer than ``MIN_ROUNDS`` of them."""
    ordered = np.sort(logs[np.isfinite(logs)])
    if len(ordered) < MIN_ROUNDS:
        return None
    rank, likely_rank = _rank(len(ordered), CONFIDENCE), _rank(len(ordered), LIKELY)
    ends = ordered[rank], np.median(ordered), ordered[len(ordered) - 1 - rank], ordered[len(ordered) - 1 - likely_rank]
    return Interval(*(math.exp(end) for end in ends))


def differ(groups: list[Numbers]) -> bool:
    """Whether the medians of groups lie on both sides of 0, further apart than their own noise explains."""
    if len(groups) < _FEWEST_GROUPS:
        return False
    ordered = [np.sort(group) for group in groups]
    medians = [float(group[len(group) // 2]) for group in ordered]
    if not min(medians) < 0 < max(medians):
        return False
    # Of a median, by the middle half of its group: 1.2533 sigma / sqrt(n), and sigma = IQR / 1.349.
    noise = [(0.929 * float(group[-len(group) // 4] - group[len(group) // 4])) ** 2 / len(group) for group in ordered]
    seen = float(np.var(medians, ddof=1))
    return seen > _CHANCE * float(np.mean(noise))


# Two tables have a range, and no spread.
_FEWEST_GROUPS = 3
# The variance of three or four medians exceeds that of their noise by this factor two times in a hundred.
_CHANCE = 4.0


@cache
def _rank(count: int, confidence: float) -> int:
    """Index of the order statistic at which the sign-test interval on the median of ``count`` values begins."""
    # P(fewer than `rank` values lie below the median) stays within half of what the confidence leaves. In whole
    # numbers, since 2 ** 1024 is no float.
    allowed, ways, tail, rank = (1 - confidence) / 2, 1, 1, 0
    while tail / (1 << count) <= allowed:
        rank += 1
        ways = ways * (count - rank + 1) // rank
        tail += ways
    return rank - 1
