"""Does a call wait for the work that is queued ahead of it? Told from how long it takes to return behind two backlogs.

On an idle stream a call that waits for the device looks like one that does not: there is nothing to wait for. Behind a
backlog of T it returns T later, and behind 2T another T later, while an asynchronous call returns as before. The share
of the additional T that it waits is its stall. It is classified and not multiplied by a workload's backlog: a jitter of
2 us behind a backlog of 2 ms would become 18 us behind one of 18 ms, which is more than the strategies differ by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from autotune.race import order_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.devices import Arguments, Call, Device

StallClass = Literal["asynchronous", "blocking", "partial"]

# Long kernels in the two backlogs: few, since many short ones would fill the launch queue, and the host waits for that.
_SHORT, _LONG = 4, 8
# Below and above these shares of the backlog the class is clear.
_ASYNCHRONOUS, _BLOCKING = 0.1, 0.5
# Pairs of backlogs after which the class may be clear. Where the first five agree there is nothing more to find out;
# where they do not, the interval on the median of forty shrugs off a quarter of them.
_LOOKS = (5, 12, 24, 40)


@dataclass(frozen=True)
class Stall:
    """How much of a backlog a call waits for.

    Attributes:
        kind: The class.
        low: Lower end of the share's interval; 0 is nothing, 1 is all of it.
        high: Upper end.
    """

    kind: StallClass
    low: float
    high: float

    def cost_us(self, backlog_us: float) -> float:
        """What it costs behind a backlog, in microseconds: nothing, all of it, or the worst that was seen."""
        return {"asynchronous": 0.0, "blocking": 1.0, "partial": min(max(self.high, 0.0), 1.0)}[self.kind] * backlog_us


def measure_stall(device: Device, call: Call, block: Sequence[Arguments]) -> Stall | None:
    """The stall of a block of calls; None on a device on which nothing long enough can be queued ahead of them."""
    if not device.kernel_us > 0:
        return None
    shares: list[float] = []
    for pairs in range(1, _LOOKS[-1] + 1):
        short, long = device.return_us(call, block, _SHORT), device.return_us(call, block, _LONG)
        if short is None or long is None:
            return None
        share = (long - short) / (device.kernel_us * (_LONG - _SHORT))
        if math.isfinite(share) and min(short, long) > 0:
            shares.append(share)
        if pairs not in _LOOKS or len(shares) < _LOOKS[0]:
            continue
        low, high = order_interval(shares)
        if high < _ASYNCHRONOUS:
            return Stall("asynchronous", low, high)
        if low > _BLOCKING:
            return Stall("blocking", low, high)
    return Stall("partial", low, high) if len(shares) >= _LOOKS[0] else None
