"""One calibration: plan, search, decide, and the StrategyProfile that comes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from itertools import groupby
from time import monotonic
from typing import Any, Literal

import optuna
import torch

from autotune.config import Calibration, Workload, load_group
from autotune.contest import Contest
from autotune.decide import Verdict, decisions, judge, worth_refining
from autotune.devices import Device, open_device, open_torch_device
from autotune.plan import Point, make_plan
from autotune.race import OBJECTIVES, Race
from autotune.request import Request
from autotune.search import Budget, Progress, Search
from autotune.workload import trace_of
from swa_alloc.errors import CalibrationError, TraceError
from swa_alloc.evidence import CandidateMeasurement, Evidence, Measurement
from swa_alloc.operations import OPERATIONS, Objective
from swa_alloc.profile import Alternative, Decision, Provenance, StrategyProfile
from swa_alloc.strategies import names

# Environment variables that bear on a run, by prefix.
_RECORDED = ("SWA_ALLOC_", "AUTOTUNE_", "OMP_", "MKL_", "TRITON_", "CUDA_", "ASCEND_", "TASK_QUEUE_ENABLE")
# Sizes halfway between two with different winners are added this often, if the budget has room.
_REFINEMENTS = 2
# Share of the budget that must be left for a refinement to be sound.
_REFINE_SHARE = 0.25


def calibrate(
    device: Device | torch.device | str, workload: Workload | str, *, budget_s: float | None = None
) -> StrategyProfile:
    """Measure every installed strategy on a device and say which serves what.

    Args:
        device: An opened device, a ``torch.device``, or a name as in ``conf/device``.
        workload: A workload, or a name as in ``conf/workload``.
        budget_s: Most seconds spent on measuring; the ``startup`` preset's by default.

    Returns:
        The profile; it is not saved.

    Raises:
        DeviceError: the device cannot be used.
        CalibrationError: nothing could be measured.
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
    trace = trace_of(workload)
    objective = device.default_objective
    return Request(device, workload.name, trace, workload.backlog_us, objective, settings, strategies, config)


def measure(
    request: Request,
    progress: Progress = lambda _used: None,
    studies: optuna.storages.BaseStorage | None = None,
) -> StrategyProfile:
    """Carry out a request.

    Args:
        request: What to measure.
        progress: Told the share of the budget that is used, from 0 to 1.
        studies: Gets a copy of every Optuna study.

    Raises:
        CalibrationError: there is no room for a table, or nothing could be measured in the time.
        TraceError: it holds no call of the operations that race.
    """
    _check_room(request.device, request.trace.size, request.trace.page_size)
    budget = Budget(monotonic(), request.settings.budget_s, progress)
    with _quiet_optuna(), request.device.selected():
        search = Search(request, budget)
        verdicts = _search(request, search, budget)
        measuring_s = monotonic() - budget.start
        if studies is not None:
            search.save_studies(studies)
    if not any(verdict.contest.race.finishers() for verdict in verdicts):
        failures = {entry.detail: entry.strategy for entry in search.ineligible if entry.reason != "unavailable"}
        failed = "; ".join(f"{strategy}: {detail}" for detail, strategy in failures.items())
        raise CalibrationError(
            f"nothing could be measured within {request.settings.budget_s:g} s on {request.device.torch_device}; "
            f"raise calibration.budget_s{f' ({failed})' if failed else ''}"
        )
    contests = [verdict.contest for verdict in verdicts]
    answers = {objective: _answer(contests, request.settings, objective, search) for objective in OBJECTIVES}
    own_decisions, own_evidence = answers[request.objective]
    return StrategyProfile(
        fingerprint=request.fingerprint,
        workload=request.workload,
        objective=request.objective,
        decisions=own_decisions,
        evidence=own_evidence,
        provenance=_provenance(request, "measured", measuring_s),
        # On a CPU all objectives are one.
        alternatives=tuple(
            Alternative(objective, *answer)
            for objective, answer in answers.items()
            if objective != request.objective and answer != answers[request.objective]
        ),
    )


def _answer(
    contests: Sequence[Contest], settings: Calibration, objective: Objective, search: Search
) -> tuple[tuple[Decision, ...], Evidence]:
    """What the races say under an objective."""
    verdicts = _judge(contests, settings, objective)
    decided = tuple(decision for _, group in groupby(verdicts, _kind) for decision in decisions(list(group)))
    return decided, Evidence(tuple(_measurement(verdict) for verdict in verdicts), search.ineligible)


def pin(request: Request, choices: Sequence[Decision]) -> StrategyProfile:
    """A profile that says what somebody decided, with nothing measured."""
    return StrategyProfile(
        fingerprint=request.fingerprint,
        workload=request.workload,
        objective=request.objective,
        decisions=tuple(choices),
        evidence=Evidence(),
        provenance=_provenance(request, "pinned", 0.0),
    )


def _provenance(request: Request, method: Literal["measured", "pinned"], measuring_s: float) -> Provenance:
    """Where a profile made now comes from."""
    return Provenance(
        method=method,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        measuring_s=round(measuring_s, 3),
        request=request.digest,
        effort=request.effort,
        config=dict(request.config),
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


def _search(request: Request, search: Search, budget: Budget) -> list[Verdict]:
    plan = make_plan(request.trace, request.settings.sizes, request.strategies)
    if not plan:
        raise TraceError(
            f"the workload's trace holds no call of {', '.join(request.strategies)}, and nothing else may race"
        )
    contests = search.run(plan)
    verdicts = _judge(contests, request.settings, request.objective)
    for _ in range(_REFINEMENTS):
        points = _between(verdicts)
        if not points or budget.left_s < _REFINE_SHARE * budget.seconds:
            break
        contests += search.run(points)
        verdicts = _judge(contests, request.settings, request.objective)
    return verdicts


def _judge(contests: Sequence[Contest], settings: Calibration, objective: Objective) -> list[Verdict]:
    ordered = sorted(contests, key=lambda contest: (contest.point.kind, contest.point.count))
    by_kind = groupby(ordered, lambda contest: contest.point.kind)
    return [verdict for _, group in by_kind for verdict in judge(list(group), settings, objective)]


def _between(verdicts: Sequence[Verdict]) -> list[Point]:
    """Points to add where neighbours have different winners, laid out as the smaller neighbour."""
    points = []
    for _, group in groupby(verdicts, _kind):
        of_kind = list(group)
        for count in worth_refining(of_kind):
            below = max((v.contest.point for v in of_kind if v.contest.point.count < count), key=lambda p: p.count)
            points.append(replace(below, count=count, weight=0.0))
    return [replace(point, share=1 / len(points)) for point in points]


def _kind(verdict: Verdict) -> Any:
    return verdict.contest.point.kind


def _measurement(verdict: Verdict) -> Measurement:
    contest, race = verdict.contest, verdict.race
    point = contest.point
    took_part = [label for label in contest.candidates if label in race.running or label in contest.pruned]
    measured = [label for label in took_part if race.measured(label)]
    return Measurement(
        *point.kind,
        indices=point.count,
        layout=point.layout,
        weight=_rounded(point.weight),
        margin=_rounded(verdict.margin),
        noise_floor=_rounded(race.noise_floor),
        ties=tuple(sorted(verdict.ties)),
        candidates=tuple(sorted((_candidate(contest, race, label) for label in measured), key=_rank)),
    )


def _candidate(contest: Contest, race: Race, label: str) -> CandidateMeasurement:
    candidate, stall = contest.candidates[label], contest.stalls.get(label)
    series, ratio = race.series[label], race.ratio(label, race.default)
    host_us, device_us, wall_us = series.medians()
    return CandidateMeasurement(
        strategy=candidate.name,
        params=dict(candidate.params),
        host_us=_rounded(host_us),
        device_us=_rounded(device_us),
        wall_us=_rounded(wall_us),
        stall=stall.kind if stall else None,
        stall_low=_rounded(stall.low) if stall else None,
        stall_high=_rounded(stall.high) if stall else None,
        stall_us=_rounded(series.stall_us),
        capturable=contest.capturable.get(label),
        p90_us=_rounded(race.percentile_90(label)),
        ratio=_rounded(ratio.median) if ratio else None,
        ratio_low=_rounded(ratio.low) if ratio else None,
        ratio_high=_rounded(ratio.high) if ratio else None,
        rounds=len(series.figures),
        dropped=series.dropped,
        state="complete" if label in race.running else "pruned",
    )


def _rounded(value: float) -> float:
    """Five significant digits: more than any of these times has, and half the bytes that a start has to read."""
    return float(f"{value:.5g}")


def _rank(measurement: CandidateMeasurement) -> tuple[bool, float]:
    unpaired = measurement.ratio is None
    return unpaired, measurement.cost_us("latency") if measurement.ratio is None else measurement.ratio


def _plain(settings: Any) -> dict[str, Any]:
    return {name: getattr(value, "value", value) for name, value in asdict(settings).items()}


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna from logging a line a study, in a server's log above all."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
