"""What a run found, for people and for machines."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from autotune.config import Format
from swa_alloc._stdio import printing
from swa_alloc.explain import is_default, left_out, measured, ranges, span, timed
from swa_alloc.operations import OPERATIONS

if TYPE_CHECKING:
    from autotune.once import Outcome
    from swa_alloc.evidence import CandidateMeasurement, Measurement
    from swa_alloc.operations import Objective
    from swa_alloc.profile import Decision, StrategyProfile

    # From a race and the candidate that serves its size to what stands in the column.
    Column = Callable[[Measurement, CandidateMeasurement], str]

_DECIDES: Final[Mapping[Objective, str]] = MappingProxyType(
    {
        "serving": "the longer of a cold call and the device's time, plus the wait behind queued work",
        "latency": "the wall time of a call in a hot loop",
    }
)
# The columns, all of which are flush right. The operation's name shares the first one. With what may follow them a row
# has the 80 columns of a terminal.
_WIDTHS: Final[Mapping[str, int]] = MappingProxyType(
    {"at": 17, "cold": 7, "hot": 7, "device": 7, "default": 9, "ratio": 15}
)
# Phrases for what is missing, at most; the rest is counted.
_PHRASES = 3
# Microseconds from which on nobody looks at the decimals.
_LONG_US = 1000.0


def print_report(outcome: Outcome, form: Format) -> None:
    """The result on stdout.

    Raises:
        OutputError: stdout cannot be written.
        ProfileError: the profile's evidence is not what it should be.
    """
    with printing():
        _PRINT[form](outcome)


def write_report(outcome: Outcome, path: Path) -> None:
    """The tables as plain text in a file; of a path that is no UTF-8 the bytes stand there escaped, as on stdout."""
    path.write_text(_text(_lines(outcome)), encoding="utf-8", errors="backslashreplace")


def _print_table(outcome: Outcome) -> None:
    lines = _lines(outcome)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        lines = (part for line in lines for part in _wrapped(line, width))
    sys.stdout.write(_text(lines))


def _print_json(outcome: Outcome) -> None:
    profile = outcome.profile
    document = {
        "path": None if outcome.path is None else str(outcome.path),
        "reused": outcome.reused,
        "profile": profile.document(),
        "evidence": profile.evidence.document(),
    }
    sys.stdout.write(json.dumps(document, sort_keys=True, indent=1) + "\n")


_PRINT: Mapping[Format, Callable[[Outcome], None]] = MappingProxyType(
    {Format.table: _print_table, Format.json: _print_json}
)


def _text(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _wrapped(line: str, width: int) -> list[str]:
    """A line in pieces that a terminal need not break; what is one word, as a path may be, stays one."""
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _lines(outcome: Outcome) -> Iterator[str]:
    profile = outcome.profile
    yield from _heading(profile)
    yield from _missing(outcome)
    yield ""
    yield from _operations(profile)
    yield from _not_raced(profile)
    yield _whereabouts(outcome)


def _heading(profile: StrategyProfile) -> Iterator[str]:
    here, workload, made = profile.fingerprint, profile.workload, profile.provenance
    threads = f", {here.threads} threads" if here.threads else ""
    runtime = f", {here.runtime}" if here.runtime else ""
    emulated = " [EMULATED DEVICE: its times mean nothing elsewhere]" if here.emulated else ""
    yield f"device    {here.device_type}: {here.device_name}{threads}, torch {here.torch}{runtime}{emulated}"
    yield f"workload  {workload.name}: {workload.size} slots in pages of {workload.page_size}"
    if made.method == "pinned":
        yield "pinned    by hand, nothing was measured"
        return
    completeness = "complete" if profile.complete else "incomplete"
    yield f"measured  in {made.measuring_s:.1f} s, {made.rounds} rounds, {completeness}"
    yield f"decides   {profile.objective}: {_DECIDES[profile.objective]}"
    if profile.evidence.measurements:
        footprint = _footprint(made.config.get("step"))
        yield f"cold      one call right after a stand-in for a model's step{footprint}; hot: calls in a loop"
    elif profile.decisions:
        yield "evidence  is not kept, there are the decisions alone"


def _footprint(step: object) -> str:
    """What the stand-in takes and touches, where the device has put that on record."""
    match step:
        case {"us": int() | float() as taken_us, "data_bytes": int() | float() as written}:
            return f" ({taken_us:g} us, {written / 2**20:.3g} MiB written)"
        case _:
            return ""


def _missing(outcome: Outcome) -> Iterator[str]:
    profile = outcome.profile
    if profile.complete:
        return
    more = len(profile.missing) - _PHRASES
    rest = f" and {more} more" if more > 0 else ""
    # A profile that is incomplete is only reused where as much time would add nothing.
    taker = "more calibration.budget_s" if outcome.reused else "the next calibration"
    goes_on = f"; {taker} goes on from there" if outcome.path is not None else ""
    yield f"missing   {', '.join(profile.missing[:_PHRASES])}{rest}{goes_on}"
    if not profile.decisions:
        yield "decided   nothing: the defaults serve"


def _operations(profile: StrategyProfile) -> Iterator[str]:
    """A table for each operation that anything was decided for, and what there is to say about its race."""
    for operation in OPERATIONS:
        decisions = [decision for decision in profile.decisions if decision.kind.operation == operation]
        if decisions:
            races = [race for race in profile.evidence.measurements if race.kind.operation == operation]
            yield from _table(profile, operation, decisions, races)
            yield from _gain(profile, decisions)
            yield from _ties(profile, decisions)
            yield from _took_part(races)
            yield ""


def _table(
    profile: StrategyProfile, operation: str, decisions: Sequence[Decision], races: Sequence[Measurement]
) -> Iterator[str]:
    """A line for each decision, and under it one for each size that was timed in its range."""
    columns = _columns(profile, races)
    title = f"{operation}, us"
    headings = {name: name for name in columns} | {"at": title + f"{'at':>{_WIDTHS['at'] - len(title)}}"}
    yield _row(headings) if races else operation
    for decision, lower in ranges(decisions):
        kind = f"{decision.kind.target} {decision.kind.index_dtype}"
        choice = f"{kind}, {span(lower, decision.max_indices)}: {decision.label}"
        yield choice + (_untimed(profile, decision, lower) if races else "")
        for race, chosen in measured(profile, decision, lower):
            notes = [note for note, applies in _NOTES.items() if applies(race, chosen)]
            row = _row({name: cell(race, chosen) for name, cell in columns.items()})
            yield f"{row}  {', '.join(notes)}" if notes else row


def _row(cells: Mapping[str, str]) -> str:
    return "".join(f"{text:>{_WIDTHS[name]}}" for name, text in cells.items())


def _columns(profile: StrategyProfile, races: Sequence[Measurement]) -> dict[str, Column]:
    """The columns by their headings, from the race at a size and what serves there."""
    columns: dict[str, Column] = {
        "at": lambda race, _chosen: str(race.indices),
        "cold": lambda _race, chosen: _us(chosen.cold_us),
        "hot": lambda _race, chosen: _us(chosen.wall_us),
    }
    # Where a call is done when it returns, this is the hot time once more.
    if any(candidate.device_us != candidate.wall_us for race in races for candidate in race.candidates):
        columns["device"] = lambda _race, chosen: _us(chosen.device_us)
    columns["default"] = lambda race, _chosen: _default(profile, race)
    columns["ratio"] = lambda race, chosen: _ratio(profile, race, chosen)
    return columns


_NOTES: Final[Mapping[str, Callable[[Measurement, CandidateMeasurement], bool]]] = MappingProxyType(
    {
        "waits": lambda _race, chosen: chosen.stall in ("blocking", "partial"),
        "unsettled": lambda race, _chosen: not race.settled,
    }
)


def _us(time_us: float | None) -> str:
    """Two decimals, none where they would be noise; nothing where it was not measured."""
    if time_us is None:
        return "-"
    return f"{time_us:.2f}" if time_us < _LONG_US else f"{time_us:.0f}"


def _default(profile: StrategyProfile, race: Measurement) -> str:
    """What the default costs, by what the profile minimizes."""
    defaults = (c for c in race.candidates if is_default(profile, race.kind.operation, c.label))
    standings = (candidate.standings.get(profile.objective) for candidate in defaults)
    return next((_us(standing.cost_us) for standing in standings if standing), "")


def _ratio(profile: StrategyProfile, race: Measurement, chosen: CandidateMeasurement) -> str:
    """The ratio to the default, give or take half of its 99 % interval, where it has one."""
    if is_default(profile, race.kind.operation, chosen.label):
        return "default"
    standing = chosen.standings.get(profile.objective)
    if standing is None or standing.ratio is None:
        return ""
    if standing.ratio_low is None or standing.ratio_high is None:
        return f"{standing.ratio:.3f}"
    return f"{standing.ratio:.3f} +-{(standing.ratio_high - standing.ratio_low) / 2:.3f}"


def _untimed(profile: StrategyProfile, decision: Decision, lower: int) -> str:
    """What of a decision's range rests on no measurement: all of it, or what lies above the largest timed size."""
    sizes = [race.indices for race in timed(profile, decision, lower)]
    if not sizes:
        return "; not timed"
    return f"; above {max(sizes)}: not timed" if decision.max_indices is None else ""


def _gain(profile: StrategyProfile, decisions: Sequence[Decision]) -> Iterator[str]:
    tuned = default = 0.0
    for decision, lower in ranges(decisions):
        for race, chosen in measured(profile, decision, lower):
            standing = chosen.standings.get(profile.objective)
            if standing is not None and standing.ratio:
                tuned += race.weight * standing.cost_us
                default += race.weight * standing.cost_us / standing.ratio
    if default:
        yield f"the workload's calls take {tuned / default:.3f} of the default's time"


def _ties(profile: StrategyProfile, decisions: Sequence[Decision]) -> Iterator[str]:
    """What could not be told from the choice where the race is settled; sizes with the same ties together."""
    sizes: dict[tuple[str, str], list[str]] = {}
    for decision, lower in ranges(decisions):
        for race in timed(profile, decision, lower):
            verdict = race.verdicts.get(profile.objective)
            if verdict is not None and race.settled:
                alike = dict.fromkeys((verdict.choice, *verdict.level, *verdict.ties))
                others = ", ".join(label for label in alike if label != decision.label)
                kind = f"{decision.kind.target} {decision.kind.index_dtype}"
                sizes.setdefault((kind, others), []).append(str(race.indices))
    told = [f"{kind} at {', '.join(at)}: {others}" for (kind, others), at in sizes.items() if others]
    if told:
        yield f"not told apart from the choice: {'; '.join(told)}"


def _took_part(races: Sequence[Measurement]) -> Iterator[str]:
    """What raced, and what single calls ruled out wherever it might have, with the first figure."""
    raced = dict.fromkeys(c.label for race in races for c in race.candidates if c.state != "probed")
    ruled_out: dict[str, str] = {}
    for race in races:
        for candidate in race.candidates:
            if candidate.label not in raced:
                ruled_out.setdefault(candidate.label, f"{_us(candidate.wall_us)} us at {race.indices}")
    if raced:
        yield f"raced: {', '.join(raced)}"
    if ruled_out:
        yield f"ruled out by single calls: {', '.join(f'{label} {figure}' for label, figure in ruled_out.items())}"


def _not_raced(profile: StrategyProfile) -> Iterator[str]:
    """What failed, with the reason; what this machine does not have is counted, and ``show`` has the reasons."""
    failed = [entry for entry in profile.evidence.ineligible if entry.reason != "unavailable"]
    unavailable = sorted({entry.strategy for entry in profile.evidence.ineligible if entry.reason == "unavailable"})
    told = left_out(failed)
    if unavailable:
        told.append(f"{len(unavailable)} unavailable here ({', '.join(unavailable)})")
    if told:
        yield f"not raced: {'; '.join(told)}"


def _whereabouts(outcome: Outcome) -> str:
    if outcome.unsaved is not None:
        return f"not saved {outcome.unsaved} (kept in the run folder)"
    if outcome.reused:
        return f"reused    {outcome.path} (nothing measured; profile.reuse=never measures again)"
    replaced = f", in place of one {outcome.replaced}" if outcome.replaced else ""
    return f"saved     {outcome.path}{replaced}"
