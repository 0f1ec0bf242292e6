"""One calibration: plan, search, decide, and the StrategyProfile that comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import torch

from autotune.config import Calibration, Workload, load_group
from autotune.contest.decide import decisions
from autotune.contest.race import OBJECTIVES
from autotune.contest.search import Budget, Progress, Search
from autotune.contest.studies import quiet_optuna
from autotune.devices import Device, open_device, open_torch_device
from autotune.request import Request
from autotune.traffic.plan import Plan, make_plan
from autotune.traffic.workload import trace_of
from swa_alloc.errors import CalibrationError, TraceError
from swa_alloc.evidence import Evidence, Measurement
from swa_alloc.operations import OPERATIONS, Objective
from swa_alloc.profile import Decision, Provenance, StrategyProfile
from swa_alloc.strategies import names

if TYPE_CHECKING:
    import optuna

Clock = Callable[[], float]
Keep = Callable[[Measurement, Callable[[], StrategyProfile]], None]

# Environment variables that bear on a run, by prefix.
_RECORDED = ("SWA_ALLOC_", "AUTOTUNE_", "OMP_", "MKL_", "TRITON_", "CUDA_", "ASCEND_", "TASK_QUEUE_ENABLE")


def calibrate(
    device: Device | torch.device | str, workload: Workload | str, *, budget_s: float | None = None
) -> StrategyProfile:
    """Measure every installed strategy on a device and say which serves what.

    Args:
        device: An opened device, a ``torch.device``, or a name as in ``conf/device``.
        workload: A workload, or a name as in ``conf/workload``.
        budget_s: Most seconds spent on measuring; the device's own by default.

    Returns:
        The profile; it is not saved.

    Raises:
        DeviceError: the device cannot be used.
        CalibrationError: there is no room for a table.
        TraceError: the workload's trace cannot be used.
    """
    if isinstance(device, str):
        device = open_device(device, 0)
    opened = open_torch_device(device) if isinstance(device, torch.device) else device
    load: Workload = load_group(Workload, "workload", workload) if isinstance(workload, str) else workload
    settings: Calibration = load_group(Calibration, "calibration", "startup")
    settings = settings if budget_s is None else replace(settings, budget_s=budget_s)
    strategies = {operation: names(operation) for operation in OPERATIONS}
    return measure(make_request(opened, load, settings, strategies))


def make_request(
    device: Device, workload: Workload, settings: Calibration, strategies: Mapping[str, tuple[str, ...]]
) -> Request:
    """The request that a workload stands for, with the device's own objective; plays the workload.

    Raises:
        TraceError: its trace cannot be used.
        CalibrationError: there is no room for its mapping.
    """
    if workload.path is None:
        _check_room(device, workload.size, workload.page_size)
    config = {"workload": _plain(workload), "calibration": _plain(settings)}
    defaults = {operation: OPERATIONS[operation].default_strategy(device.torch_device.type) for operation in strategies}
    trace = trace_of(workload)
    objective = device.default_objective
    return Request(device, workload.name, trace, workload.backlog_us, objective, settings, strategies, defaults, config)


def measure(
    request: Request,
    *,
    clock: Clock = monotonic,
    progress: Progress = lambda _used: None,
    studies: optuna.storages.BaseStorage | None = None,
    known: Evidence = Evidence(),  # noqa: B008 - immutable
    keep: Keep = lambda _measurement, _so_far: None,
) -> StrategyProfile:
    """Carry out a request, as far as its budget goes; what then is still unmeasured the profile says.

    Args:
        request: What to measure.
        clock: Seconds that pass.
        progress: Told the share of the budget that is used, from 0 to 1.
        studies: Gets a copy of every Optuna study.
        known: What was measured before and need not be measured again.
        keep: Told each measurement as it comes, with a function that gives the profile as it stands then.

    Raises:
        CalibrationError: there is no room for a table.
        TraceError: it holds no call of the operations that race.
    """
    start = clock()
    _check_room(request.device, request.trace.size, request.trace.page_size)
    plan = make_plan(request.trace, request.settings.sizes, request.strategies)
    if not plan.points:
        raise TraceError(
            f"the workload's trace holds no call of {', '.join(request.strategies)}, and nothing else may race"
        )
    budget = Budget(clock, start, request.budget_s, progress)

    def so_far() -> StrategyProfile:
        return _profile(request, plan, search, clock() - start)

    search = Search(request, plan, budget, known, lambda measurement: keep(measurement, so_far))
    # A mode of the caller's, such as `with torch.device(...)`, would be on the way of every call that is timed.
    # Nor may its tables be inference tensors, which an allocator's are not.
    suspended = torch._C.DisableTorchFunction()  # noqa: SLF001 - PyTorch's own way to leave them out
    with quiet_optuna(), suspended, torch.inference_mode(mode=False), request.device.selected():
        search.run()
        if studies is not None:
            search.save_studies(studies)
    return so_far()


def _profile(request: Request, plan: Plan, search: Search, measuring_s: float) -> StrategyProfile:
    """What is known by now, decided under every objective."""
    evidence = search.evidence
    rounds = sum(max((c.rounds for c in found.candidates), default=0) for found in evidence.measurements)
    return StrategyProfile(
        fingerprint=request.fingerprint,
        workload=request.workload,
        objective=request.objective,
        answers={objective: _answer(request, plan, search, evidence, objective) for objective in OBJECTIVES},
        evidence=evidence,
        provenance=_provenance(request, "measured", measuring_s, rounds),
        missing=search.missing,
    )


def _answer(
    request: Request, plan: Plan, search: Search, evidence: Evidence, objective: Objective
) -> tuple[Decision, ...]:
    """What the races say under an objective."""
    decided: list[Decision] = []
    for kind in plan.kinds:
        found = [measurement for measurement in evidence.measurements if measurement.kind == kind]
        planned = [point.count for point in plan.points if point.kind == kind]
        decided += decisions(found, objective, planned, request.defaults[kind.operation], search.labels(kind))
    return tuple(decided)


def pin(request: Request, choices: Sequence[Decision]) -> StrategyProfile:
    """A profile that says what somebody decided, with nothing measured."""
    return StrategyProfile(
        fingerprint=request.fingerprint,
        workload=request.workload,
        objective=request.objective,
        answers=dict.fromkeys(OBJECTIVES, tuple(choices)),
        evidence=Evidence(),
        provenance=_provenance(request, "pinned", 0.0, 0),
    )


def _provenance(request: Request, method: Literal["measured", "pinned"], measuring_s: float, rounds: int) -> Provenance:
    """Where a profile made now comes from."""
    return Provenance(
        method=method,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        measuring_s=round(measuring_s, 3),
        request=request.digest,
        effort=request.effort,
        rounds=rounds,
        config={**request.config, "step": dict(request.device.step)},
        overrides=request.overrides,
        environment={name: value for name, value in sorted(os.environ.items()) if name.startswith(_RECORDED)},
    )


def _check_room(device: Device, size: int, page_size: int) -> None:
    """See that a copy of the mapping fits.

    Raises:
        CalibrationError: it does not.
    """
    table_bytes = (size + page_size + 1) * torch.int64.itemsize
    free = device.free_bytes()
    if free is not None and table_bytes > free:
        raise CalibrationError(
            f"measuring needs a copy of the mapping, {table_bytes} bytes, and {free} are free on "
            f"{device.torch_device}; lower workload.size"
        )


def _plain(settings: Any) -> dict[str, Any]:
    return {name: getattr(value, "value", value) for name, value in asdict(settings).items()}
