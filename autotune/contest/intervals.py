"""What can be said of the middle of a few noisy numbers whose noise is as likely to add as to take away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

# At 64 rounds of hot blocks the interval's half-width is about 1 % on two shared, noisy CPU cores.
CONFIDENCE = 0.99
# Of what is likely rather than sure.
LIKELY = 0.3
# Fewer rounds than this have no interval at that confidence.
MIN_ROUNDS = 8
# Of more numbers than this, the medians of so many groups stand for them: the work grows with the square.
_MOST = 256

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
    """The middle of some ratios, given as logarithms, NaN for a gap; None with fewer than ``MIN_ROUNDS`` of them.

    It is the Hodges-Lehmann estimate, the median of the means of all pairs, with the interval that the Wilcoxon
    signed-rank test does not reject (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, sections 3.2 and
    3.3). A few hiccups do not move it; under normal noise it needs two thirds of the rounds that the plain median does.
    """
    found = logs[np.isfinite(logs)]
    if len(found) < MIN_ROUNDS:
        return None
    group = -(-len(found) // _MOST)
    found = np.median(found[: len(found) // group * group].reshape(-1, group), axis=1)
    rows, columns = _pairs(len(found))
    means = (found[rows] + found[columns]) / 2
    last = len(means) - 1
    rank, likely_rank = _rank(len(found), CONFIDENCE), _rank(len(found), LIKELY)
    wanted = [rank, last // 2, last - last // 2, last - rank, last - likely_rank]
    low, middle, above_middle, high, likely_high = np.partition(means, wanted)[wanted]
    return Interval(*(math.exp(end) for end in (low, (middle + above_middle) / 2, high, likely_high)))


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
def _pairs(count: int) -> tuple[np.ndarray[Any, np.dtype[np.intp]], ...]:
    """Rows and columns of all pairs of ``count`` numbers, each with itself too."""
    return np.triu_indices(count)


@cache
def _rank(count: int, confidence: float) -> int:
    """How many of the ``count * (count + 1) / 2`` means lie outside the interval at either end.

    By the normal approximation to the signed-rank statistic, which at a high confidence leaves out up to three fewer
    than the exact distribution does.
    """
    mean, deviation = count * (count + 1) / 4, math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return max(0, math.floor(mean - 0.5 + NormalDist().inv_cdf((1 - confidence) / 2) * deviation))
