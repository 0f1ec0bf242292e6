"""What a run found, for people and for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from autotune.config import Format
from swa_alloc._stdio import printing
from swa_alloc.explain import is_default, left_out, measured, ranges, span
from swa_alloc.operations import OPERATIONS

if TYPE_CHECKING:
    from autotune.once import Outcome
    from swa_alloc.evidence import CandidateMeasurement, Measurement
    from swa_alloc.profile import Decision, StrategyProfile

# Wide enough for every column: a file or a pipe has no width of its own.
_PLAIN_WIDTH = 240


def print_report(outcome: Outcome, form: Format) -> None:
    """The result on stdout.

    Raises:
        OutputError: stdout cannot be written.
    """
    with printing():
        _PRINT[form](outcome)


def write_report(outcome: Outcome, path: Path) -> None:
    """The table as plain text in a file."""
    with path.open("w", encoding="utf-8") as file:
        _write(outcome, Console(file=file, width=_PLAIN_WIDTH))


def _print_table(outcome: Outcome) -> None:
    console = Console(file=sys.stdout)
    console = console if console.is_terminal else Console(file=sys.stdout, width=_PLAIN_WIDTH)
    with console.capture() as report:
        _write(outcome, console)
    # Not printed by rich, which would end the process where the reader has gone.
    sys.stdout.write(report.get())


def _print_json(outcome: Outcome) -> None:
    document = {"path": str(outcome.path), "reused": outcome.reused, "profile": outcome.profile.document()}
    sys.stdout.write(json.dumps(document, sort_keys=True, indent=1) + "\n")


_PRINT: Mapping[Format, Callable[[Outcome], None]] = MappingProxyType(
    {Format.table: _print_table, Format.json: _print_json}
)


def _write(outcome: Outcome, console: Console) -> None:
    profile = outcome.profile
    for part in (*_heading(profile), *_operations(profile), *_left_out(profile), _whereabouts(outcome)):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))


def _heading(profile: StrategyProfile) -> Iterator[str]:
    here, workload = profile.fingerprint, profile.workload
    threads = f", {here.threads} threads" if here.threads else ""
    runtime = f", {here.runtime}" if here.runtime else ""
    emulated = " [EMULATED DEVICE: its times mean nothing elsewhere]" if here.emulated else ""
    yield f"device    {here.device_type}: {here.device_name}{threads}, torch {here.torch}{runtime}{emulated}"
    yield f"workload  {workload.name}: {workload.size} slots in pages of {workload.page_size}"
    if profile.provenance.method == "measured":
        yield f"measured  in {profile.provenance.measuring_s:.1f} s, for {profile.objective}"
    else:
        yield "pinned    by hand, nothing was measured"


def _operations(profile: StrategyProfile) -> Iterator[Table | str]:
    """A table for each operation that anything was decided for, and what there is to say about its race."""
    for operation in OPERATIONS:
        decisions = [decision for decision in profile.decisions if decision.operation == operation]
        if decisions:
            measurements = [found for found in profile.evidence.measurements if found.operation == operation]
            yield _table(profile, operation, decisions, timed=bool(measurements))
            yield from _summary(profile, decisions, measurements)
            yield ""


def _table(profile: StrategyProfile, operation: str, decisions: list[Decision], *, timed: bool) -> Table:
    """A row for each measured size, under the decision that serves it."""
    # Without lines it fits the 80 columns of a terminal.
    table = Table(box=None, pad_edge=False)
    table.add_column(operation, no_wrap=True)
    table.add_column("strategy", overflow="fold")
    if timed:
        for name in ("at", "us", "default", "ratio"):
            table.add_column(name, justify="right", no_wrap=True)
    for decision, lower in ranges(decisions):
        serves = f"{decision.target} {decision.index_dtype}, {span(lower, decision.max_indices)}"
        label = decision.label
        found = measured(profile, decision, lower)
        if not found:
            table.add_row(serves, label)
        for measurement, candidate in found:
            default = _default_us(profile, measurement)
            table.add_row(
                serves,
                label,
                str(measurement.indices),
                _us(profile, candidate),
                default,
                _ratio(profile, measurement, candidate),
            )
            serves = label = ""
    return table


def _default_us(profile: StrategyProfile, measurement: Measurement) -> str:
    candidates = measurement.candidates
    return next((_us(profile, c) for c in candidates if is_default(profile, measurement.operation, c.label)), "")


def _us(profile: StrategyProfile, candidate: CandidateMeasurement) -> str:
    return f"{candidate.cost_us(profile.objective):.2f}"


def _ratio(profile: StrategyProfile, measurement: Measurement, candidate: CandidateMeasurement) -> str:
    """The ratio to the default, give or take half of its 99 % interval."""
    if candidate.ratio is None or candidate.ratio_low is None or candidate.ratio_high is None:
        return ""
    if is_default(profile, measurement.operation, candidate.label):
        return "default"
    return f"{candidate.ratio:.3f} +-{(candidate.ratio_high - candidate.ratio_low) / 2:.3f}"


def _summary(profile: StrategyProfile, decisions: list[Decision], measurements: list[Measurement]) -> Iterator[str]:
    tuned = default = 0.0
    for decision, lower in ranges(decisions):
        for measurement, candidate in measured(profile, decision, lower):
            if candidate.ratio is not None:
                cost_us = candidate.cost_us(profile.objective)
                tuned += measurement.weight * cost_us
                default += measurement.weight * cost_us / candidate.ratio
    if default:
        yield f"the workload's calls take {tuned / default:.3f} of the default's time"
    ties: dict[tuple[str, str], list[str]] = {}
    for found in measurements:
        if found.ties:
            ties.setdefault((f"{found.target} {found.index_dtype}", ", ".join(found.ties)), []).append(
                str(found.indices)
            )
    if ties:
        words = [f"{kind} at {', '.join(sizes)}: {labels}" for (kind, labels), sizes in ties.items()]
        yield f"not told apart from the choice: {'; '.join(words)}"
    raced = {candidate.label: None for found in measurements for candidate in found.candidates}
    if raced:
        yield f"raced: {', '.join(raced)}"


def _left_out(profile: StrategyProfile) -> Iterator[str]:
    if missing := left_out(profile):
        yield f"not raced: {'; '.join(missing)}"


def _whereabouts(outcome: Outcome) -> str:
    if outcome.reused:
        return f"reused    {outcome.path} (nothing measured; calibration.force=true measures again)"
    replaced = f", in place of one {outcome.replaced}" if outcome.replaced else ""
    return f"saved     {outcome.path}{replaced}"
