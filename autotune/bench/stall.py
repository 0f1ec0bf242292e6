"""Does a call wait for the work that is queued ahead of it? Told from when it returns behind backlogs of known length.

On an idle stream a call that waits for the device looks like one that does not: there is nothing to wait for. Behind a
backlog of T a call that waits returns T later, and behind 2T another T later, while an asynchronous call returns as
before. The share of the additional T that it waits is classified and not multiplied by a workload's backlog: a jitter
of 2 us behind a backlog of 2 ms would become 18 us behind one of 18 ms, which is more than the strategies differ by.
Waits that come now and then are counted: a return that is as late as the backlog is long, behind either length, since a
hiccup of the host may be as long as one of them by chance. They are charged what they cost on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autotune.devices import Arguments, Call, Device

StallClass = Literal["asynchronous", "blocking", "partial"]

# The two backlogs, in units of the device's shortest long kernel or of the calls' own time, whichever is longer: the
# shorter one lasts at least four times as long as the calls take to return.
_SHORT, _LONG = 4, 8
# Below and above these shares of the backlog the class is clear.
_ASYNCHRONOUS, _BLOCKING = 0.1, 0.5
# A return at such a part of the backlog's end has waited for it; a later one was held up by something else.
_EARLIEST, _LATEST = 0.75, 1.35
# Pairs of backlogs after which the class may be clear: a call that always waits is told by five. Of calls that wait
# once in twenty, in blocks of four, none in twelve pairs misses one in a hundred; once one was seen, it takes more to
# tell them from hiccups. Of what surely does not wait at another size as few tell as of what always waits.
_ALWAYS, NEVER, PATIENT = 5, 12, 48
# So few late returns of all may be hiccups; of calls that wait once in twenty, in blocks of four, it is twice as many.
_HICCUPS = 1 / 12


@dataclass(frozen=True)
class Stall:
    """How much of a backlog a call waits for.

    Attributes:
        kind: The class.
        share: Of a backlog, how much a call waits for on average; 0 and 1 where the class is clear.
        sure: Whether there was time enough to tell.
    """

    kind: StallClass
    share: float
    sure: bool = True

    def cost_us(self, backlog_us: float) -> float:
        """What it costs a call behind a backlog on average, in microseconds."""
        return self.share * backlog_us


def patience(elsewhere: Iterable[Stall | None]) -> int:
    """Pairs without a late return that tell a call that never waits, by what it did at other sizes."""
    known = [stall for stall in elsewhere if stall is not None]
    if any(stall.kind == "partial" for stall in known):
        return PATIENT
    return _ALWAYS if any(stall.kind == "asynchronous" and stall.sure for stall in known) else NEVER


def measure_stall(
    device: Device,
    call: Call,
    block: Sequence[Arguments],
    own_us: float,
    out_of_time: Callable[[], bool],
    never: int = NEVER,
) -> Stall | None:
    """The stall of a block of calls; None on a device on which nothing long enough can be queued ahead of them.

    Args:
        device: The device.
        call: What is called.
        block: The calls' arguments.
        own_us: What the block takes to return on an idle stream, in microseconds.
        out_of_time: Asked between pairs; what is known by then is the answer.
        never: Pairs without a late return after which it never waits.
    """
    if not device.kernel_us > 0:
        return None
    unit_us = max(device.kernel_us, own_us)
    returns = _Returns(len(block), never)
    for pairs in range(1, PATIENT + 1):
        short, long = (device.return_us(call, block, length * unit_us) for length in (_SHORT, _LONG))
        if short is None or long is None:
            return None
        returns.add(short, long, own_us)
        last = pairs == PATIENT or (pairs >= _ALWAYS and out_of_time())
        stall = returns.stall(last=last) if pairs in (_ALWAYS, never) or last else None
        if stall is not None:
            return replace(stall, sure=pairs >= never or stall.kind == "blocking")
    return None


class _Returns:
    """When blocks of so many calls returned behind pairs of backlogs, and what that says."""

    def __init__(self, calls: int, never: int) -> None:
        self._calls = calls
        self._never = never
        self._pairs = 0
        self._shares: list[float] = []  # of the difference between the two lengths, how much later the calls returned
        self._waits = [0, 0]  # returns as late as the backlog was long, behind either length
        self._early = 0  # returns before the backlog's end

    def add(self, short: tuple[float, float], long: tuple[float, float], own_us: float) -> None:
        """Take down a pair of (microseconds until the calls had returned, length of the backlog)."""
        self._pairs += 1
        for i, (returned_us, backlog_us) in enumerate((short, long)):
            self._waits[i] += _EARLIEST * backlog_us < returned_us < _LATEST * (backlog_us + own_us)
            self._early += 0 < returned_us <= _EARLIEST * backlog_us
        longer_us = long[1] - short[1]
        share = (long[0] - short[0]) / longer_us if longer_us > 0 else math.nan
        if math.isfinite(share) and min(short[0], long[0]) > 0:
            self._shares.append(share)

    def stall(self, *, last: bool) -> Stall | None:
        """The class, where it is clear or where this was the last pair."""
        if len(self._shares) < _ALWAYS:
            return None
        middle, waits = median(self._shares), sum(self._waits)
        if last and self._early and min(self._waits) and waits >= _HICCUPS * 2 * self._pairs:
            # Of a block the first that waits is the last one: the others find an idle stream.
            return Stall("partial", 1 - (self._early / (self._early + waits)) ** (1 / self._calls))
        if middle > _BLOCKING and (last or (not self._early and _lower_quarter(self._shares) > _BLOCKING)):
            return Stall("blocking", 1.0)
        if middle < _ASYNCHRONOUS and (last or (not waits and self._pairs >= self._never)):
            return Stall("asynchronous", 0.0)
        return Stall("partial", middle) if last else None


def _lower_quarter(shares: list[float]) -> float:
    return sorted(shares)[len(shares) // 4]
