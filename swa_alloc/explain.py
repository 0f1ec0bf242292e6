"""Selections and profiles in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.errors import ProfileError
from swa_alloc.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from swa_alloc.evidence import CandidateMeasurement, Measurement
    from swa_alloc.profile import Decision, StrategyProfile
    from swa_alloc.selection import Selection


def explain_selection(selection: Selection) -> str:
    """Which strategy serves which number of indices, which layer said so, and on what evidence."""
    lines: list[str] = []
    for choice in selection.choices.values():
        lines.append(f"{choice.operation}.{choice.target}: decided by {choice.layer} ({choice.source})")
        lines += _decisions(choice.decisions, choice.profile)
    lines += [f"note: {remark}" for remark in selection.remarks]
    lines += [f"trouble: {trouble}" for trouble in selection.troubles]
    return "\n".join(lines)


def explain_profile(profile: StrategyProfile) -> str:
    """What a profile was made on and for, and what it decides."""
    here, workload, made = profile.fingerprint, profile.workload, profile.provenance
    emulated = ", EMULATED" if here.emulated else ""
    lines = [
        f"{made.method} on {made.created}: {here.device_type}, {here.device_name}{emulated}, torch {here.torch}",
        f"for {workload.name}: {workload.size} slots in pages of {workload.page_size}, objective {profile.objective}",
    ]
    for kind in dict.fromkeys((d.operation, d.target) for d in profile.decisions):
        lines.append(f"{'.'.join(kind)}:")
        lines += _decisions([d for d in profile.decisions if (d.operation, d.target) == kind], profile)
    lines += [f"left out: {line}" for line in left_out(profile)]
    return "\n".join(lines)


def left_out(profile: StrategyProfile) -> list[str]:
    """Each strategy that could not take part, with the operations that had to do without it and the reason, once."""
    failures: dict[tuple[str, str, str], dict[str, None]] = {}
    for out in profile.evidence.ineligible:
        failures.setdefault((out.strategy, out.reason, out.detail), {})[out.operation] = None
    return [
        f"{strategy} for {', '.join(operations)} ({reason}: {detail})"
        for (strategy, reason, detail), operations in sorted(failures.items())
    ]


def is_default(profile: StrategyProfile, operation: str, label: str) -> bool:
    """Whether a candidate is what would be used without any profile."""
    return label == OPERATIONS[operation].default_strategy(profile.fingerprint.device_type)


def ranges(decisions: Iterable[Decision]) -> Iterator[tuple[Decision, int]]:
    """Decisions, ascending within their kind, each with the smallest number of indices that it serves."""
    lower: dict[tuple[str, str, str], int] = {}
    for decision in decisions:
        kind = decision.operation, decision.target, decision.index_dtype
        yield decision, lower.get(kind, 1)
        lower[kind] = (decision.max_indices or 0) + 1


def span(lower: int, upper: int | None) -> str:
    """A range of index counts in words."""
    if upper is None:
        return "any number" if lower == 1 else f"{lower} and more"
    if upper == lower:
        return str(upper)
    return f"up to {upper}" if lower == 1 else f"{lower} to {upper}"


def measured(
    profile: StrategyProfile, decision: Decision, lower: int
) -> list[tuple[Measurement, CandidateMeasurement]]:
    """The measurements of ``decision``'s strategy at the sizes that it covers, ``lower`` being its smallest."""
    upper = decision.max_indices
    return [
        (measurement, candidate)
        for measurement in profile.evidence.measurements
        if (measurement.operation, measurement.target, measurement.index_dtype)
        == (decision.operation, decision.target, decision.index_dtype)
        and lower <= measurement.indices
        and (upper is None or measurement.indices <= upper)
        for candidate in measurement.candidates
        if candidate.label == decision.label
    ]


def _decisions(decisions: Iterable[Decision], profile: StrategyProfile | None) -> list[str]:
    return [
        f"  {decision.index_dtype} {span(lower, decision.max_indices)}: {decision.label}"
        f"{_why(profile, decision, lower) if profile else ''}"
        for decision, lower in ranges(decisions)
    ]


def _why(profile: StrategyProfile, decision: Decision, lower: int) -> str:
    if profile.provenance.method == "pinned":
        return ", pinned in the profile"
    try:
        found = measured(profile, decision, lower)
    except ProfileError as error:
        return f" ({error})"
    if is_default(profile, decision.operation, decision.label) and any(c.ratio is not None for _, c in found):
        return ", the default, which nothing beats"
    parts = [f"{candidate.ratio:.2f} at {m.indices}" for m, candidate in found if candidate.ratio is not None]
    ties = f"; ties with {', '.join(decision.ties)}" if decision.ties else ""
    return f" (of the default's time: {', '.join(parts)}{ties})" if parts else ", not measured"
