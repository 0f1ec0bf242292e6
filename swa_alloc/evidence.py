"""What a calibration saw: the file beside a profile that reports and explanations read, and a start does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from swa_alloc import _json
from swa_alloc._json import AtLeast
from swa_alloc.errors import ProfileError
from swa_alloc.operations import CallKind, Objective
from swa_alloc.strategies import candidate_label

SCHEMA: Final = "swa_alloc.evidence/2"

Reason = Literal[
    "unavailable", "wrong_result", "raised", "timed_out", "unmeasurable", "out_of_memory", "not_capturable"
]


class Figures(NamedTuple):
    """The times of one call, in microseconds, from which every objective's cost follows.

    Attributes:
        cold_us: Until it returns, made once after a stand-in for a model's step.
        host_us: Until it returns, in a block of calls that begins on an idle stream.
        device_us: What the device spends on it.
        wall_us: The call and a synchronization.
    """

    cold_us: float
    host_us: float
    device_us: float
    wall_us: float


def cost_us(objective: Objective, figures: Figures, stall_us: float) -> float:
    """What an objective minimizes, in microseconds a call.

    ``serving``: the slower of the cold call and the device, and the stall behind the workload's backlog. ``latency``:
    the wall time of a hot loop.
    """
    return figures.wall_us if objective == "latency" else max(figures.cold_us, figures.device_us) + stall_us


class Standing(NamedTuple):
    """How a candidate did under one objective.

    Attributes:
        cost_us: What the objective minimizes, in microseconds a call: the median over rounds.
        p90_us: Its 90th percentile.
        ratio: Median of the paired ratios of its cost to the default's; below 1 is faster. None where there was no
            pair.
        ratio_low: Lower end of the ratio's confidence interval.
        ratio_high: Upper end.
    """

    cost_us: float
    p90_us: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None


class CandidateMeasurement(NamedTuple):
    """What a race showed of one candidate; times in microseconds a call, medians over rounds.

    Attributes:
        strategy: Name of the strategy.
        params: Its parameters.
        cold_us: Until it returns, made once after a stand-in for a model's step. None where that was not measured.
        host_us: Until it returns, in a block of calls that begins on an idle stream.
        device_us: What the device spends on it.
        wall_us: The call and a synchronization.
        stall: Whether a call waits for the work that is queued ahead of it. None on a device where nothing can be.
        stall_share: Share of a backlog that it waits for, on average. None where that was not measured.
        stall_us: What that costs behind the workload's backlog.
        capturable: Whether it works in a captured graph. None where the device has no graphs.
        standings: How it did under each objective.
        rounds: Rounds that it took part in.
        dropped: Samples thrown away as impossible: zero, negative or not finite.
        state: ``complete``; ``pruned`` once it was beaten under every objective; ``probed`` where single calls ruled it
            out.
    """

    strategy: str
    params: dict[str, Any]
    cold_us: float | None
    host_us: float
    device_us: float
    wall_us: float
    stall: Literal["asynchronous", "blocking", "partial"] | None
    stall_share: float | None
    stall_us: float
    capturable: bool | None
    standings: dict[Objective, Standing]
    rounds: Annotated[int, AtLeast(0)]
    dropped: Annotated[int, AtLeast(0)]
    state: Literal["complete", "pruned", "probed"]

    @property
    def label(self) -> str:
        """The strategy with its parameters."""
        return candidate_label(self.strategy, self.params)


class Verdict(NamedTuple):
    """What a race says under one objective.

    Attributes:
        choice: Label of the candidate that serves this size.
        level: Labels of the winners that tie with the fastest, the choice among them.
        ties: Labels of the candidates that cannot be told from the choice within the margin.
        margin: Switch margin, the spread between fresh tables included.
    """

    choice: str
    level: tuple[str, ...]
    ties: tuple[str, ...]
    margin: Annotated[float, AtLeast(0)]


class Measurement(NamedTuple):
    """The race at one number of indices.

    Attributes:
        kind: What was called.
        indices: How many indices a call passed.
        layout: How they lay in the table: ``run``, ``pages`` or ``scattered``.
        weight: Share of the trace's calls that this size stands for.
        settled: Whether the race went on until its decision was beyond doubt.
        noise_floor: How far the interval of the default's ratio to itself reaches from 1.
        verdicts: What it says under each objective.
        candidates: All that took part, the fastest first.
    """

    kind: CallKind
    indices: Annotated[int, AtLeast(1)]
    layout: str
    weight: Annotated[float, AtLeast(0)]
    settled: bool
    noise_floor: float
    verdicts: dict[Objective, Verdict]
    candidates: tuple[CandidateMeasurement, ...]


class Ineligible(NamedTuple):
    """A candidate that could not take part.

    Attributes:
        kind: What was to be called.
        strategy: Name of the strategy.
        params: Its parameters.
        reason: The kind of failure.
        detail: The failure in words.
    """

    kind: CallKind
    strategy: str
    params: dict[str, Any]
    reason: Reason
    detail: str


class EvidenceDocument(NamedTuple):
    """The file beside a profile: every race, and every candidate that could not take part.

    Attributes:
        schema: Version of this format.
        measurements: One for each kind of call and number of indices that was timed.
        ineligible: One for each candidate that was left out, and kind of call.
    """

    schema: Literal["swa_alloc.evidence/2"]
    measurements: tuple[Measurement, ...]
    ineligible: tuple[Ineligible, ...]


class Evidence(NamedTuple):
    """Every race, and every candidate that could not take part.

    Attributes:
        measurements: One for each kind of call and number of indices that was timed.
        ineligible: One for each candidate that was left out, and kind of call.
    """

    measurements: tuple[Measurement, ...] = ()
    ineligible: tuple[Ineligible, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Evidence:
        """What lies in a file; nothing where there is none.

        Raises:
            ProfileError: it cannot be read, or is no evidence of this version.
        """
        try:
            document = _json.decode(EvidenceDocument, _json.of_schema(SCHEMA, _json.read(path)))
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise ProfileError(f"evidence {path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ProfileError(f"evidence {path} is not usable: {error}; profiles work without it") from error
        return cls(document.measurements, document.ineligible)

    def document(self) -> dict[str, Any]:
        """The evidence as JSON types, as it stands in a file."""
        return dict(_json.plain(EvidenceDocument(SCHEMA, self.measurements, self.ineligible)))
