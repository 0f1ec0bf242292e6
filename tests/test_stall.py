"""Who waits for the stream is told from who does not, however the times jitter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from autotune.bench.stall import NEVER, PATIENT, Stall, measure_stall, patience
from autotune.devices import Arguments, Call, Device, Sample
from autotune.devices.cpu import Cpu

BLOCK: list[Arguments] = [(torch.arange(8),)] * 4
OWN_US = 12.0

Jitter = Callable[[np.random.Generator], float]


def quiet(_generator: np.random.Generator) -> float:
    return 0.0


def hiccups(generator: np.random.Generator) -> float:
    """A busy host: some microseconds as a rule, and one of twenty returns is held up for about a millisecond."""
    return float(generator.exponential(3.0) + (generator.random() < 0.05) * generator.uniform(200.0, 2000.0))


class Queue(Device):
    """A device with a stream, of which nothing is known but when blocks of calls return.

    Args:
        share: Of the backlog, how much a call waits for where it waits.
        often: The probability that a call waits.
        noise: Standard deviation of the logarithm of the calls' own time.
        jitter: Added to the microseconds that a block takes to return.
        own_us: What a block takes.
        seed: Of the noise.
    """

    torch_device = torch.device("cpu")
    budget_s = 1.0
    kernel_us = 125.0

    def __init__(
        self,
        share: float = 0.0,
        *,
        often: float = 1.0,
        noise: float = 0.0,
        jitter: Jitter = quiet,
        own_us: float = OWN_US,
        seed: int = 0,
    ) -> None:
        self._share, self._often, self._noise, self._jitter, self._own_us = share, often, noise, jitter, own_us
        self._random = np.random.default_rng(seed)
        self.backlogs_us: list[float] = []

    def return_us(self, call: Call, block: Sequence[Arguments], backlog_us: float) -> tuple[float, float]:
        del call
        self.backlogs_us.append(backlog_us)
        own_us = self._own_us * math.exp(self._random.normal(0, self._noise)) + self._jitter(self._random)
        # Of a block the first that waits is the last one: the others find an idle stream.
        waits = self._random.random() < 1 - (1 - self._often) ** len(block)
        return float(own_us + waits * self._share * backlog_us), backlog_us

    def synchronize(self) -> None: ...

    def time(self, call: Call, block: Sequence[Arguments]) -> Sample:
        raise NotImplementedError

    def cold_us(self, call: Call, arguments: Arguments) -> float:
        raise NotImplementedError

    def free_bytes(self) -> int | None:
        return None


def found_on(device: Device, *, own_us: float = OWN_US, out_of_time: bool = False) -> Stall:
    stall = measure_stall(device, lambda _indices: None, BLOCK, own_us, lambda: out_of_time)
    assert stall is not None
    return stall


# Classes


def test_500_noisy_devices_are_all_classified_right() -> None:
    for seed in range(500):
        blocking = seed % 2 == 0
        found = found_on(Queue(float(blocking), noise=0.3, jitter=hiccups, seed=seed))
        assert found == (Stall("blocking", 1.0) if blocking else Stall("asynchronous", 0.0)), seed


@pytest.mark.parametrize("own_us", [4.0, 100.0, 2000.0])
def test_an_asynchronous_call_is_never_partial_at_thirty_percent_noise(own_us: float) -> None:
    for seed in range(800):
        device = Queue(noise=0.3, own_us=own_us, seed=seed)
        assert found_on(device, own_us=own_us) == Stall("asynchronous", 0.0), seed


@pytest.mark.parametrize(
    ("share", "kind", "charged"),
    [
        (0.0, "asynchronous", 0.0),
        (0.05, "asynchronous", 0.0),
        (0.3, "partial", 0.3),
        (0.8, "blocking", 1.0),
        (1.0, "blocking", 1.0),
    ],
)
def test_a_share_of_the_backlog_has_a_class(share: float, kind: str, charged: float) -> None:
    found = found_on(Queue(share))
    assert found.kind == kind
    assert found.share == pytest.approx(charged)


def test_asynchronous_costs_nothing_blocking_everything_and_partial_its_share() -> None:
    assert Stall("asynchronous", 0.0).cost_us(18_000.0) == 0.0
    assert Stall("blocking", 1.0).cost_us(18_000.0) == 18_000.0
    assert Stall("partial", 0.2).cost_us(18_000.0) == 3_600.0


def test_impossible_times_are_passed_over() -> None:
    def impossible(generator: np.random.Generator) -> float:
        return float(generator.choice([0.0, np.inf, np.nan], p=[0.6, 0.2, 0.2]))

    assert found_on(Queue(1.0, jitter=impossible)).kind == "blocking"


# Waits that come now and then


def shares(often: float) -> list[float]:
    """What 400 devices on which one call in so many waits are charged."""
    return [found_on(Queue(1.0, often=often, noise=0.3, jitter=hiccups, seed=seed)).share for seed in range(400)]


@pytest.mark.parametrize("often", [0.05, 0.1, 0.2])
def test_waits_that_come_now_and_then_are_charged_what_they_cost_on_average(often: float) -> None:
    assert often / 2 <= np.mean(shares(often)) <= often * 2


def test_a_call_that_waits_one_time_in_twenty_is_seldom_missed() -> None:
    # Of blocks of four, one in five waits: of two dozen returns nine in ten show more than one.
    assert sum(share > 0 for share in shares(0.05)) >= 0.9 * 400


def test_one_late_return_of_many_is_a_hiccup() -> None:
    late = iter([510.0] + [0.0] * 99)
    assert found_on(Queue(jitter=lambda _generator: next(late))) == Stall("asynchronous", 0.0)


# How it is measured


@pytest.mark.parametrize("own_us", [4.0, 125.0, 400.0, 30_000.0])
def test_the_backlog_lasts_at_least_four_times_as_long_as_the_calls_take_to_return(own_us: float) -> None:
    device = Queue(own_us=own_us)
    found_on(device, own_us=own_us)
    assert min(device.backlogs_us) >= 4 * max(own_us, device.kernel_us)
    # Two lengths, since only what grows with the backlog is a wait for it.
    assert {max(device.backlogs_us) / min(device.backlogs_us)} == {2.0}
    assert len(set(device.backlogs_us)) == 2


def test_a_call_that_always_waits_is_told_by_few_backlogs_and_the_end_of_the_time_ends_the_others() -> None:
    blocking, asynchronous, late = Queue(1.0), Queue(), Queue()
    found_on(blocking)
    found_on(asynchronous)
    assert found_on(late, out_of_time=True) == Stall("asynchronous", 0.0, sure=False)
    assert len(blocking.backlogs_us) == len(late.backlogs_us) < len(asynchronous.backlogs_us)


def test_what_surely_does_not_wait_at_one_size_is_asked_more_briefly_at_the_next() -> None:
    blocking, asynchronous, sporadic = Stall("blocking", 1.0), Stall("asynchronous", 0.0), Stall("partial", 0.05)
    assert patience([]) == patience([None, blocking]) == patience([replace(asynchronous, sure=False)]) == NEVER
    assert patience([blocking, asynchronous]) < NEVER < patience([asynchronous, sporadic]) == PATIENT

    anew, again = Queue(), Queue()
    found_on(anew)
    confirmed = measure_stall(again, lambda _indices: None, BLOCK, OWN_US, lambda: False, patience([asynchronous]))
    assert confirmed == asynchronous
    assert len(again.backlogs_us) < len(anew.backlogs_us)
    # One that waits at this size is told all the same.
    late = measure_stall(Queue(1.0), lambda _indices: None, BLOCK, OWN_US, lambda: False, patience([asynchronous]))
    assert late == blocking


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_no_call_is_asked_without_end(share: float) -> None:
    device = Queue(share, noise=0.3, jitter=lambda generator: float(generator.uniform(0, 5000)))
    measure_stall(device, lambda _indices: None, BLOCK, OWN_US, lambda: False)
    assert len(device.backlogs_us) <= 2 * PATIENT


def test_nothing_can_be_queued_ahead_of_a_cpus_calls() -> None:
    assert measure_stall(Cpu(), lambda _indices: None, BLOCK, OWN_US, lambda: False) is None


def test_a_device_that_cannot_queue_so_long_a_backlog_has_no_answer() -> None:
    class Short(Queue):
        def return_us(self, call: Call, block: Sequence[Arguments], backlog_us: float) -> tuple[float, float] | None:  # type: ignore[override]  # as a Device may
            del call, block, backlog_us
            return None

    assert measure_stall(Short(), lambda _indices: None, BLOCK, OWN_US, lambda: False) is None


def test_the_lengths_that_were_queued_count_and_not_those_that_were_asked_for() -> None:
    class Rounding(Queue):
        """Its kernels are of one length, which no backlog that is asked for is a multiple of."""

        def return_us(self, call: Call, block: Sequence[Arguments], backlog_us: float) -> tuple[float, float]:
            return super().return_us(call, block, 170.0 * round(backlog_us / 170.0))

    assert found_on(Rounding(1.0)) == Stall("blocking", 1.0)
    assert found_on(Rounding(0.3)).share == pytest.approx(0.3)
