"""Valid profiles, documents and small helpers that several test modules build on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from torch.utils._python_dispatch import TorchDispatchMode

from swa_alloc.evidence import CandidateMeasurement, Evidence, Ineligible, Measurement, Standing, Verdict
from swa_alloc.fingerprint import Fingerprint, fingerprint
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, CallKind, Objective
from swa_alloc.profile import Decision, ProfileWorkload, Provenance, StrategyProfile

CPU = torch.device("cpu")

# The pool that the default profile was "measured" for.
SIZE, PAGE_SIZE = 256, 4

OBJECTIVES: tuple[Objective, ...] = ("serving", "latency")

# A shared machine stalls now and then, so no deadline; and no database, since a test leaves nothing behind.
PROPERTY = settings(
    max_examples=60,
    deadline=None,
    database=None,
    # The fixtures that property tests take are constant during a test.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def here() -> Fingerprint:
    """The fingerprint of the CPU that runs the test."""
    return fingerprint(CPU)


def elsewhere() -> Fingerprint:
    """The fingerprint of a machine that differs in one deciding field, ``device_name``."""
    return here()._replace(device_name="A CPU of another maker")


def next_patch(version: str) -> str:
    """``version`` with another third component: a patch-level difference."""
    release = version.partition("+")[0].split(".")
    return ".".join([*release[:2], "999"])


def decide(
    strategy: str,
    *,
    operation: str = "clear",
    target: str = "token",
    index_dtype: str = "int64",
    max_indices: int | None = None,
    params: dict[str, Any] | None = None,
    ties: tuple[str, ...] = (),
) -> Decision:
    """One decision, for clear unless told otherwise."""
    kind = CallKind(operation, target, index_dtype)  # type: ignore[arg-type]  # plain strs where the fields are Literals
    return Decision(kind, max_indices, strategy, params or {}, 0.03, ties)


def decide_all(strategy: str, params: dict[str, Any] | None = None) -> tuple[Decision, ...]:
    """Decisions that give every clear to one strategy."""
    return tuple(
        decide(strategy, target=target, index_dtype=dtype, params=params)
        for target in OPERATIONS["clear"].paged_targets
        for dtype in INDEX_DTYPES
    )


def decide_everything(strategy: str) -> tuple[Decision, ...]:
    """Decisions that give every clear to one strategy, and every other call to its default."""
    others = (
        decide(operation.default_strategy("cpu"), operation=operation.name, target=target, index_dtype=dtype)
        for operation in OPERATIONS.values()
        if operation.name != "clear"
        for target in operation.paged_targets
        for dtype in INDEX_DTYPES
    )
    return (*decide_all(strategy), *others)


def make_provenance(created: str = "2026-09-30T12:00:00Z", **changes: Any) -> Provenance:
    """Where a test's profile says that it comes from."""
    provenance = Provenance(
        method="measured",
        created=created,
        measuring_s=1.5,
        request="0123456789ab",
        effort={"budget_s": 5.0, "rounds": 64.0},
        rounds=640,
        config={"device": "cpu", "calibration": {"budget_s": 5}},
        overrides=("device=cpu",),
        environment={"OMP_NUM_THREADS": "1"},
    )
    return provenance._replace(**changes)


def make_standing(ratio: float | None = 1.0, *, cost_us: float = 1.0) -> Standing:
    """How a candidate did under an objective."""
    low, high = (None, None) if ratio is None else (ratio - 0.01, ratio + 0.01)
    return Standing(cost_us, 1.25 * cost_us, ratio, low, high)


def make_candidate(
    strategy: str = "index_fill", ratio: float | None = 1.0, *, cost_us: float = 1.0, **changes: Any
) -> CandidateMeasurement:
    """One candidate of a race, the same under every objective."""
    measured = CandidateMeasurement(
        strategy=strategy,
        params={},
        cold_us=cost_us,
        host_us=cost_us,
        device_us=cost_us,
        wall_us=cost_us,
        stall="asynchronous",
        stall_share=0.02,
        stall_us=0.0,
        capturable=True,
        standings=dict.fromkeys(OBJECTIVES, make_standing(ratio, cost_us=cost_us)),
        rounds=64,
        dropped=0,
        state="complete",
    )
    return measured._replace(**changes)


def make_verdict(choice: str = "index_put", ties: tuple[str, ...] = ("scatter",)) -> Verdict:
    """What a race says under an objective."""
    return Verdict(choice=choice, level=(choice,), ties=ties, margin=0.03)


def make_measurement(*candidates: CandidateMeasurement, verdict: Verdict | None = None, **changes: Any) -> Measurement:
    """A race of clears, with the same verdict under every objective."""
    race = Measurement(
        kind=CallKind("clear", "token", "int64"),
        indices=64,
        layout="pages",
        weight=0.5,
        settled=True,
        noise_floor=0.01,
        verdicts=dict.fromkeys(OBJECTIVES, verdict or make_verdict()),
        candidates=candidates,
    )
    return race._replace(**changes)


def make_evidence() -> Evidence:
    """A race that ``index_put`` won, and a candidate that could not take part."""
    race = make_measurement(
        make_candidate("index_put", 0.75), make_candidate("index_fill"), make_candidate("scatter", None)
    )
    out = Ineligible(race.kind, "triton_fill", {"block": 256}, "unavailable", "Triton is not installed")
    return Evidence((race,), (out,))


def make_profile(  # noqa: PLR0913 - each test says what matters to it
    strategy: str = "index_put",
    *,
    size: int = SIZE,
    page_size: int = PAGE_SIZE,
    machine: Fingerprint | None = None,
    decisions: tuple[Decision, ...] | None = None,
    provenance: Provenance | None = None,
    evidence: Evidence | None = None,
    workload: str = "tests",
    missing: tuple[str, ...] = (),
) -> StrategyProfile:
    """A profile for this machine, unless told otherwise, that gives every clear to ``strategy`` for any objective."""
    chosen = decide_all(strategy) if decisions is None else decisions
    return StrategyProfile(
        fingerprint=machine or here(),
        workload=ProfileWorkload(workload, size, page_size, 250.0, "ba9876543210"),
        objective="latency",
        answers=dict.fromkeys(OBJECTIVES, chosen),
        provenance=provenance or make_provenance(),
        evidence=evidence or make_evidence(),
        missing=missing,
    )


def make_document() -> dict[str, Any]:
    """A profile's file as JSON types, every kind of field in it."""
    decisions = (
        decide("index_put", max_indices=8, ties=("index_fill", "scatter")),
        decide("index_copy", max_indices=512, params={"source": "slice"}),
        decide("index_fill"),
        decide("subscript_assign", target="page", index_dtype="int32"),
        decide("read_then_clear", operation="take", target="page", params={"clear": "index_put"}),
    )
    profile = make_profile(decisions=decisions, missing=("set.token.int32 at 384",))
    document: dict[str, Any] = json.loads(json.dumps(profile.document()))
    return document


def make_evidence_document() -> dict[str, Any]:
    """An evidence file as JSON types, every kind of field in it."""
    document: dict[str, Any] = json.loads(json.dumps(make_evidence().document()))
    return document


def save_in(directory: Path, profile: StrategyProfile) -> Path:
    """Save under the name that the stores expect."""
    return profile.save(directory / profile.file_name)


def write_json(path: Path, document: object) -> Path:
    """Write anything as JSON, NaN included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def one_line(error: BaseException) -> str:
    """The error's message, which must be one line: it goes to a log and to stderr."""
    message = str(error)
    assert len(message.splitlines()) == 1, message
    return message


class Operators(TorchDispatchMode):
    """Notes the operators that run, and the largest tensor that one of them makes (views left out)."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.names.add(func.overloadpacket.__name__)
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for out in result if isinstance(result, tuple) else (result,):
            if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, out.numel())
        return result
