"""How sure one may be of a few noisy numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.contest.intervals import CONFIDENCE, MIN_ROUNDS, Interval, Numbers, differ, median_ratio


def known(logs: Numbers) -> Interval:
    found = median_ratio(logs)
    assert found is not None
    return found


# The median


@pytest.mark.parametrize("rounds", [MIN_ROUNDS, 9, 16, 24, 64, 96])
def test_the_interval_holds_the_true_ratio_in_ninety_nine_of_a_hundred_races(rounds: int) -> None:
    generator = np.random.default_rng(rounds)
    races = 1000
    # Heavy tails, as timings have them.
    noise = generator.standard_t(2, (races, rounds)) * 0.02
    found = [known(math.log(0.9) + row) for row in noise]
    held = sum(interval.low <= 0.9 <= interval.high for interval in found)
    assert all(interval.low <= interval.median <= interval.high for interval in found)
    # At least the confidence; three standard errors of a thousand races are 1 %.
    assert held / races >= CONFIDENCE - 0.01


def test_the_interval_narrows_with_rounds() -> None:
    logs = np.random.default_rng(0).normal(0, 0.07, 256)
    widths = [known(logs[:rounds]).high - known(logs[:rounds]).low for rounds in (16, 64, 256)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2.5 * widths[2]


def test_fewer_rounds_than_an_interval_needs_give_none() -> None:
    assert median_ratio(np.zeros(MIN_ROUNDS - 1)) is None
    assert median_ratio(np.zeros(MIN_ROUNDS)) == Interval(1.0, 1.0, 1.0, 1.0)
    # The least that is possible: the whole range of one less misses the median more often than the confidence allows.
    assert 2 * 0.5**MIN_ROUNDS < 1 - CONFIDENCE < 2 * 0.5 ** (MIN_ROUNDS - 1)


@pytest.mark.parametrize("rounds", [64, 256, 257, 1023, 5000])
def test_normal_noise_takes_two_thirds_of_the_rounds_that_a_plain_median_takes(rounds: int) -> None:
    logs = np.random.default_rng(2).normal(0, 0.1, (40, rounds))
    widths = [math.log(found.high / found.low) for found in map(known, logs)]
    # A median's is 2.58 * 1.2533 * sigma / sqrt(n) at either side.
    plain = 2 * 2.58 * 1.2533 * 0.1 / math.sqrt(rounds)
    assert float(np.mean(widths)) < plain * (0.87 if rounds <= 256 else 1.05)


def test_a_few_hiccups_do_not_move_it() -> None:
    logs = np.random.default_rng(3).normal(0, 0.02, 64)
    with_hiccups = np.append(logs, np.full(3, math.log(1000)))
    assert known(with_hiccups).median == pytest.approx(known(logs).median, rel=0.005)
    assert known(with_hiccups).high < 1.05


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf])
def test_gaps_are_no_rounds(gap: float) -> None:
    logs = np.full(MIN_ROUNDS, math.log(0.9))
    assert known(np.append(logs, gap)) == known(logs)
    assert median_ratio(np.append(logs[1:], gap)) is None


def test_a_ratio_and_its_inverse_agree() -> None:
    logs = np.random.default_rng(1).normal(0, 0.1, 40)
    there, back = known(logs), known(-logs)
    assert there.median == pytest.approx(1 / back.median)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))


@pytest.mark.parametrize(
    ("low", "high", "tie"),
    [(0.9, 0.95, False), (0.9, 0.97, True), (0.98, 1.01, True), (1.03, 1.2, True), (1.04, 1.2, False), (0.5, 2, True)],
)
def test_a_tie_is_an_interval_that_meets_the_margin(low: float, high: float, tie: bool) -> None:  # noqa: FBT001 - a case
    assert Interval(low, (low + high) / 2, high, high).meets_one(0.03) is tie


# Groups


@pytest.mark.parametrize("groups", [3, 4, 16])
@pytest.mark.parametrize("rounds", [MIN_ROUNDS, 24])
def test_noise_alone_seldom_makes_groups_differ(groups: int, rounds: int) -> None:
    # 30 % of noise around 0, where medians lie on both sides most easily.
    logs = np.random.default_rng(groups).normal(0, 0.3, (500, groups, rounds))
    assert sum(differ(list(trial)) for trial in logs) / len(logs) <= 0.04


def test_groups_on_both_sides_differ_where_their_noise_is_small() -> None:
    logs = np.random.default_rng(0).normal(0, 0.01, (4, 24))
    assert differ([logs[0] - 0.06, logs[1] - 0.06, logs[2] - 0.06, logs[3] + 0.06])


def test_groups_on_one_side_agree_however_far_apart_they_are() -> None:
    logs = np.random.default_rng(0).normal(0, 0.01, (4, 24))
    assert not differ([logs[0] - 0.06, logs[1] - 0.06, logs[2] - 0.06, logs[3] - 0.5])


def test_two_groups_have_a_range_and_no_spread() -> None:
    assert not differ([np.full(24, -0.1), np.full(24, 0.1)])
    assert differ([np.full(24, -0.1), np.full(24, 0.1), np.full(24, 0.1)])
    assert not differ([])
