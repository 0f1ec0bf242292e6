"""Selections and profiles in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.errors import ProfileError
from swa_alloc.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from swa_alloc.evidence import CandidateMeasurement, Ineligible, Measurement
    from swa_alloc.operations import CallKind, Objective
    from swa_alloc.profile import Decision, StrategyProfile
    from swa_alloc.selection import Selection

_NO_TIME = "not raced for want of time"


def explain_selection(selection: Selection) -> str:
    """Which strategy serves which number of indices, which layer said so, and on what evidence."""
    lines: list[str] = []
    for choice in selection.choices.values():
        lines.append(f"{choice.operation}.{choice.target}: decided by {choice.layer} ({choice.source})")
        lines += _decisions(choice.decisions, choice.profile)
    lines += [f"note: {note}" for note in (*selection.remarks, selection.miss) if note]
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
    for key in dict.fromkeys(decision.kind[:2] for decision in profile.decisions):
        lines.append(f"{'.'.join(key)}:")
        lines += _decisions([decision for decision in profile.decisions if decision.kind[:2] == key], profile)
    if profile.missing:
        lines.append(f"incomplete, still to be measured: {', '.join(profile.missing)}")
    lines += [f"left out: {line}" for line in left_out(profile.evidence.ineligible)]
    return "\n".join(lines)


def left_out(ineligible: Iterable[Ineligible]) -> list[str]:
    """Each strategy that could not take part, with the operations that had to do without it and the reason, once."""
    failures: dict[tuple[str, str, str], dict[str, None]] = {}
    for out in ineligible:
        failures.setdefault((out.strategy, out.reason, out.detail), {})[out.kind.operation] = None
    return [
        f"{strategy} for {', '.join(operations)} ({reason}: {detail})"
        for (strategy, reason, detail), operations in sorted(failures.items())
    ]


def is_default(profile: StrategyProfile, operation: str, label: str) -> bool:
    """Whether a candidate is what would be used without any profile."""
    return label == OPERATIONS[operation].default_strategy(profile.fingerprint.device_type)


def ranges(decisions: Iterable[Decision]) -> Iterator[tuple[Decision, int]]:
    """Decisions, ascending within their kind, each with the smallest number of indices that it serves."""
    lower: dict[CallKind, int] = {}
    for decision in decisions:
        yield decision, lower.get(decision.kind, 1)
        lower[decision.kind] = (decision.max_indices or 0) + 1


def span(lower: int, upper: int | None) -> str:
    """A range of index counts in words."""
    if upper is None:
        return "any number" if lower == 1 else f"{lower} and more"
    if upper == lower:
        return str(upper)
    return f"up to {upper}" if lower == 1 else f"{lower} to {upper}"


def timed(profile: StrategyProfile, decision: Decision, lower: int) -> list[Measurement]:
    """The races at the sizes that ``decision`` covers, ``lower`` being its smallest."""
    upper = decision.max_indices
    return [
        race
        for race in profile.evidence.measurements
        if race.kind == decision.kind and lower <= race.indices and (upper is None or race.indices <= upper)
    ]


def measured(
    profile: StrategyProfile, decision: Decision, lower: int
) -> list[tuple[Measurement, CandidateMeasurement]]:
    """The measurements of ``decision``'s strategy at the sizes that it covers, ``lower`` being its smallest."""
    return [
        (race, candidate)
        for race in timed(profile, decision, lower)
        for candidate in race.candidates
        if candidate.label == decision.label
    ]


def _decisions(decisions: Iterable[Decision], profile: StrategyProfile | None) -> list[str]:
    return [
        f"  {decision.kind.index_dtype} {span(lower, decision.max_indices)}: {decision.label}"
        f"{_why(profile, decision, lower) if profile else ''}"
        for decision, lower in ranges(decisions)
    ]


def _why(profile: StrategyProfile, decision: Decision, lower: int) -> str:
    if profile.provenance.method == "pinned":
        return ", pinned in the profile"
    try:
        races = timed(profile, decision, lower)
    except ProfileError as error:
        return f" ({error})"
    if not races and not profile.complete:
        return f", {_NO_TIME}"
    if not races:
        return ", not measured" if profile.evidence.measurements else ", its evidence is not kept"
    if is_default(profile, decision.kind.operation, decision.label):
        return f", the default{_unbeaten(races, decision.label)}"
    found = [(race.indices, _ratio(race, profile.objective, decision.label)) for race in races]
    parts = [f"{ratio:.2f} at {indices}" for indices, ratio in found if ratio is not None]
    ties = f"; ties with {', '.join(decision.ties)}" if decision.ties else ""
    return f" (of the default's time: {', '.join(parts)}{ties})" if parts else ", not measured"


def _ratio(race: Measurement, objective: Objective, label: str) -> float | None:
    standings = [candidate.standings.get(objective) for candidate in race.candidates if candidate.label == label]
    return next((standing.ratio for standing in standings if standing), None)


def _unbeaten(races: Sequence[Measurement], label: str) -> str:
    """What a default's races show: where nobody raced against it for want of time, it has not won."""
    alone = [race for race in races if not race.settled and all(c.label == label for c in race.candidates)]
    if not alone:
        return ", which nothing beats"
    sizes = f" at {', '.join(str(race.indices) for race in alone)}" if len(alone) < len(races) else ""
    return f", {_NO_TIME}{sizes}"
