"""A device whose times come from a script, on a clock of its own: the search is tested for what it decides.

Every call is really made, once a block, so that contract and results stay real; what it cost is made up. Nothing here
depends on how fast or busy the machine is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from autotune.calibrate import measure as _measure
from autotune.config import Calibration
from autotune.devices import Call, Device, Sample
from autotune.request import Request
from swa_alloc.operations import Objective, Target
from swa_alloc.profile import StrategyProfile
from swa_alloc.strategies import Bound, Strategy, candidate_label
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

DEFAULT = "index_fill"  # on a CPU

Cost = Callable[[str, int], Any]  # label, number of indices -> microseconds a call, or a Sample


class Clock:
    """Seconds that pass only when somebody says so, and a little at each look, so that no wait is for free."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.advance(1e-6)
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class ScriptedDevice(Device):
    """A CPU on which a call costs what ``cost`` says, times drift and noise.

    Args:
        cost: From a candidate's label and the number of indices to what a call costs.
        clock: Advances by what the calls cost.
        cold: By label, how many times longer a call takes to return after a model's step.
        noise: Standard deviation of the logarithm of each sample.
        drift: Factor on every sample at a time in seconds since the start: a machine whose speed changes.
        stall: By label and number of indices, the share of a backlog that a call waits for; with it the device is an
            asynchronous one.
        jitter: What is added to the microseconds that calls behind a backlog take to return.
        captures: By label, whether a call can be captured; with it the device has graphs.
        seed: Of the noise.
    """

    torch_device = torch.device("cpu")
    budget_s = 5.0
    step_us = 150.0

    def __init__(  # noqa: PLR0913 - a script has many parts
        self,
        cost: Cost,
        clock: Clock,
        *,
        cold: Callable[[str], float] = lambda _label: 4.0,
        noise: float = 0.0,
        drift: Callable[[float], float] = lambda _now: 1.0,
        stall: Callable[[str, int], float] | None = None,
        jitter: Callable[[np.random.Generator], float] = lambda _generator: 0.0,
        captures: Callable[[str], bool] | None = None,
        seed: int = 12345,
    ) -> None:
        self._stall = stall
        self._cold = cold
        self._jitter = jitter
        self._captures = captures
        self._cost = cost
        self.clock = clock
        self._start = clock.now
        self._noise = noise
        self._drift = drift
        self._random = np.random.default_rng(seed)
        self.timed: dict[str, int] = {}
        self.free = 1 << 30

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def time(self, call: Call, block: Sequence[tuple[torch.Tensor, ...]]) -> Sample:
        label = getattr(call, "label", DEFAULT)
        self.timed[label] = self.timed.get(label, 0) + 1
        call(*block[0])
        cost = self._cost(label, block[0][0].numel())
        sample = cost if isinstance(cost, Sample) else Sample(cost, cost, cost)
        factor = math.exp(self._random.normal(0.0, self._noise)) * self._drift(self.clock.now - self._start)
        us = sample.wall_us * factor
        # An impossible time takes some time, too.
        self.clock.advance((us if math.isfinite(us) and us > 0 else 10.0) * len(block) / 1e6)
        return Sample(sample.host_us * factor, sample.device_us * factor, us)

    def cold_us(self, call: Call, arguments: tuple[torch.Tensor, ...]) -> float:
        label = getattr(call, "label", DEFAULT)
        cost = self._cost(label, arguments[0].numel())
        cold_us = cost.host_us if isinstance(cost, Sample) else cost
        factor = math.exp(self._random.normal(0.0, self._noise)) * self._drift(self.clock.now - self._start)
        us = self._cold(label) * cold_us * factor
        self.clock.advance((self.step_us + (us if math.isfinite(us) and us > 0 else 10.0)) / 1e6)
        call(*arguments)
        return us

    @property
    def kernel_us(self) -> float:
        return 0.0 if self._stall is None else 150.0

    def return_us(
        self, call: Call, block: Sequence[tuple[torch.Tensor, ...]], backlog_us: float
    ) -> tuple[float, float] | None:
        if self._stall is None:
            return None
        label = getattr(call, "label", DEFAULT)
        cost = self._cost(label, block[0][0].numel())
        host_us = cost.host_us if isinstance(cost, Sample) else cost
        factor = math.exp(self._random.normal(0.0, self._noise))
        self.clock.advance(backlog_us / 1e6)
        # Whoever waits for the backlog waits once: the block's later calls find an idle stream.
        waited_us = self._stall(label, block[0][0].numel()) * backlog_us
        return float(host_us * len(block) * factor + waited_us + self._jitter(self._random)), backlog_us

    def capture(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        if self._captures is None:
            return None
        # Which candidate it is, is known to the callable that the closure holds.
        (bound,) = [
            cell.cell_contents for cell in call.__closure__ or () if callable(getattr(cell, "cell_contents", None))
        ]
        if not self._captures(getattr(bound, "label", DEFAULT)):
            raise RuntimeError("operation not permitted when stream is capturing")
        return call

    def free_bytes(self) -> int | None:
        return self.free


class _Labelled:
    """A bound strategy that the scripted device can tell from the others."""

    def __init__(self, label: str, call: Bound) -> None:
        self.label = label
        self._call = call

    def __call__(self, *arguments: torch.Tensor) -> Any:
        return self._call(*arguments)


class ScriptedStrategy(Strategy):
    """A right strategy; a subclass sets ``name``, and ``clear`` where it does something else."""

    name: ClassVar[str]

    def __init__(self, **params: Any) -> None:
        self.params = params

    def bind(self, target: Target) -> Bound:
        return _Labelled(candidate_label(self.name, self.params), self.clear(target))

    def clear(self, target: Target) -> Bound:
        table = target.table
        return lambda indices: table.index_fill_(0, indices.to(torch.int64), 0)


def named(name: str, **members: Any) -> type[ScriptedStrategy]:
    """A subclass of ``ScriptedStrategy``."""
    return type(name, (ScriptedStrategy,), {"name": name, **members})


def measure(request: Request, **options: Any) -> StrategyProfile:
    """Carry out a request by its scripted device's own clock."""
    device = request.device
    assert isinstance(device, ScriptedDevice)
    return _measure(request, clock=device.clock, **options)


SETTINGS = Calibration(budget_s=5.0)


def request(
    device: Device,
    strategies: Sequence[str],
    counts: Sequence[int] = (1, 64, 1024),
    *,
    page_size: int = 1,
    settings: Calibration = SETTINGS,
    objective: Objective | None = None,
    backlog_us: float = 0.0,
    require_capturable: bool = False,
) -> Request:
    """A request that races the default against these strategies, for token clears of these sizes."""
    entries = tuple(TraceEntry("clear", "token", "int32", count, "scattered", 1.0) for count in counts)
    trace = Trace(SCHEMA, 4096, page_size, entries)
    return Request(
        device,
        "scripted",
        trace,
        backlog_us,
        objective or device.default_objective,
        settings,
        {"clear": tuple(strategies)},
        {"clear": DEFAULT},
        {},
        require_capturable=require_capturable,
    )


def recorded(profile: StrategyProfile, index_dtype: str = "int32") -> Cost:
    """The times that a profile's measurements hold of token clears, to be replayed."""
    found = {
        (candidate.label, measurement.indices): Sample(candidate.host_us, candidate.device_us, candidate.wall_us)
        for measurement in profile.evidence.measurements
        if measurement.kind == ("clear", "token", index_dtype)
        for candidate in measurement.candidates
    }
    return lambda label, count: found[label, count]


def winners(profile: StrategyProfile) -> Mapping[tuple[str, str], set[str]]:
    """The labels that each target and index dtype uses, whatever the size."""
    found: dict[tuple[str, str], set[str]] = {}
    for decision in profile.decisions:
        found.setdefault((decision.kind.target, decision.kind.index_dtype), set()).add(decision.label)
    return found


__all__ = [
    "DEFAULT",
    "SETTINGS",
    "Clock",
    "ScriptedDevice",
    "ScriptedStrategy",
    "measure",
    "named",
    "recorded",
    "request",
    "winners",
]
