"""What a calibration saw: the part of a profile that reports and explanations read, and a start does not."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from swa_alloc.operations import IndexDtype, Objective, OperationName, TargetName
from swa_alloc.strategies import candidate_label

Reason = Literal[
    "unavailable", "wrong_result", "raised", "timed_out", "unmeasurable", "out_of_memory", "not_capturable"
]


class CandidateMeasurement(NamedTuple):
    """What the race showed of one candidate; times in microseconds a call, medians over rounds.

    Attributes:
        strategy: Name of the strategy.
        params: Its parameters.
        host_us: Until the call returns, in a block that begins on an idle stream.
        device_us: What the device spends on it.
        wall_us: The call and a synchronization.
        stall: Whether a call waits for the work that is queued ahead of it: ``asynchronous``, ``blocking`` or
            ``partial``. None on a device where nothing can be.
        stall_low: Lower end of the interval of the share of a backlog that it waits for.
        stall_high: Upper end.
        stall_us: What that costs behind the workload's backlog.
        capturable: Whether it works in a captured graph. None where the device has no graphs.
        p90_us: 90th percentile of the cost under the profile's objective.
        ratio: Median of the paired ratios of its cost to the default's; below 1 is faster. None for a candidate that
            single calls ruled out.
        ratio_low: Lower end of the ratio's confidence interval.
        ratio_high: Upper end.
        rounds: Rounds that it took part in.
        dropped: Samples thrown away as impossible: zero, negative or not finite.
        state: ``complete``, or ``pruned`` once it was beaten under every objective.
    """

    strategy: str
    params: dict[str, Any]
    host_us: float
    device_us: float
    wall_us: float
    stall: Literal["asynchronous", "blocking", "partial"] | None
    stall_low: float | None
    stall_high: float | None
    stall_us: float
    capturable: bool | None
    p90_us: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    rounds: int
    dropped: int
    state: Literal["complete", "pruned"]

    def cost_us(self, objective: Objective) -> float:
        """What an objective minimizes: the wall time; or the slower of host and device, and the stall."""
        return self.wall_us if objective == "latency" else max(self.host_us, self.device_us) + self.stall_us

    @property
    def label(self) -> str:
        """The strategy with its parameters."""
        return candidate_label(self.strategy, self.params)


class Measurement(NamedTuple):
    """The race at one number of indices.

    Attributes:
        operation: Name of the operation.
        target: What is indexed.
        index_dtype: The indices' dtype.
        indices: How many a call passed.
        layout: How they lay in the table: ``run``, ``pages`` or ``scattered``.
        weight: Share of the trace's calls that this size stands for.
        margin: Switch margin, the spread between fresh sandboxes included.
        noise_floor: How far the interval of the default's ratio to itself reaches from 1.
        ties: Labels of the candidates that cannot be told from this size's choice within the margin.
        candidates: All that took part, the fastest first.
    """

    operation: OperationName
    target: TargetName
    index_dtype: IndexDtype
    indices: int
    layout: str
    weight: float
    margin: float
    noise_floor: float
    ties: tuple[str, ...]
    candidates: tuple[CandidateMeasurement, ...]


class Ineligible(NamedTuple):
    """A candidate that could not take part.

    Attributes:
        operation: Name of the operation.
        target: What was to be indexed.
        index_dtype: The indices' dtype.
        strategy: Name of the strategy.
        params: Its parameters.
        reason: The kind of failure.
        detail: The failure in words.
    """

    operation: OperationName
    target: TargetName
    index_dtype: IndexDtype
    strategy: str
    params: dict[str, Any]
    reason: Reason
    detail: str


class Evidence(NamedTuple):
    """Every race, and every candidate that could not take part.

    Attributes:
        measurements: One for each number of indices that was timed.
        ineligible: One for each candidate that was left out, and kind of call.
    """

    measurements: tuple[Measurement, ...] = ()
    ineligible: tuple[Ineligible, ...] = ()
