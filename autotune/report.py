"""What a run found, for people and for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from autotune.config import Format
from swa_alloc.explain import measured, ranges, span
from swa_alloc.operations import OPERATIONS

if TYPE_CHECKING:
    from autotune.once import Outcome
    from swa_alloc.evidence import CandidateMeasurement, Measurement
    from swa_alloc.profile import Decision, StrategyProfile

# Wide enough for every column: a file or a pipe has no width of its own.
_PLAIN_WIDTH = 240


def print_report(outcome: Outcome, form: Format) -> None:
    """The result on stdout."""
    _PRINT[form](outcome)


def write_report(outcome: Outcome, path: Path) -> None:
    """The table as plain text in a file."""
    with path.open("w", encoding="utf-8") as file:
        _write(outcome, Console(file=file, width=_PLAIN_WIDTH))


def _print_table(outcome: Outcome) -> None:
    console = Console(file=sys.stdout)
    _write(outcome, console if console.is_terminal else Console(file=sys.stdout, width=_PLAIN_WIDTH))


def _print_json(outcome: Outcome) -> None:
    document = {"path": str(outcome.path), "reused": outcome.reused, "profile": outcome.profile.document()}
    sys.stdout.write(json.dumps(document, sort_keys=True, indent=1) + "\n")


_PRINT: Mapping[Format, Callable[[Outcome], None]] = MappingProxyType(
    {Format.table: _print_table, Format.json: _print_json}
)


def _write(outcome: Outcome, console: Console) -> None:
    for line in _heading(outcome.profile):
        console.print(line, highlight=False, markup=False)
    console.print(_table(outcome.profile, box.SIMPLE if console.is_terminal else None))
    for line in (*_summary(outcome.profile), _whereabouts(outcome)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


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


def _table(profile: StrategyProfile, style: box.Box | None) -> Table:
    table = Table(box=style, pad_edge=False)
    for name in ("clears", "indices", "serves", "strategy"):
        table.add_column(name)
    for name in ("time", "default's", "ratio (99 % interval)"):
        table.add_column(name, justify="right")
    table.add_column("ties with")
    for decision, lower in _ranges(profile):
        what = f"{decision.operation}.{decision.target} {decision.index_dtype}"
        serves = span(lower, decision.max_indices)
        found = measured(profile, decision, lower)
        if not found:
            table.add_row(what, "", serves, decision.label)
        for measurement, candidate in found:
            table.add_row(
                what,
                str(measurement.indices),
                serves,
                decision.label,
                f"{candidate.wall_us:.2f} us",
                _default_time(profile, measurement),
                _ratio(candidate),
                ", ".join(measurement.ties),
            )
            what = serves = ""
    return table


def _ranges(profile: StrategyProfile) -> Iterator[tuple[Decision, int]]:
    for operation in OPERATIONS.values():
        for target in operation.targets:
            of_target = [d for d in profile.decisions if (d.operation, d.target) == (operation.name, target)]
            yield from ranges(of_target)


def _default_time(profile: StrategyProfile, measurement: Measurement) -> str:
    default = OPERATIONS[measurement.operation].default_strategy(profile.fingerprint.device_type)
    times = [c.wall_us for c in measurement.candidates if c.strategy == default]
    return f"{times[0]:.2f} us" if times else ""


def _ratio(candidate: CandidateMeasurement) -> str:
    if candidate.ratio is None or candidate.ratio_low is None or candidate.ratio_high is None:
        return "not measured"
    if candidate.ratio_low == candidate.ratio_high:
        return "the default"
    return f"{candidate.ratio:.3f} ({candidate.ratio_low:.3f} to {candidate.ratio_high:.3f})"


def _summary(profile: StrategyProfile) -> Iterator[str]:
    tuned = default = 0.0
    for decision, lower in _ranges(profile):
        for measurement, candidate in measured(profile, decision, lower):
            if candidate.ratio is not None:
                tuned += measurement.weight * candidate.wall_us
                default += measurement.weight * candidate.wall_us / candidate.ratio
    if default:
        yield f"over the workload's clears, {tuned / default:.3f} of the default's time"
    left_out = {f"{entry.strategy} ({entry.reason}: {entry.detail})" for entry in profile.evidence.ineligible}
    if left_out:
        yield f"not raced: {'; '.join(sorted(left_out))}"


def _whereabouts(outcome: Outcome) -> str:
    if outcome.reused:
        return f"reused    {outcome.path} (nothing measured; calibration.force=true measures again)"
    return f"saved     {outcome.path}"
