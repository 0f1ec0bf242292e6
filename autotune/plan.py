"""From a trace to a plan: which numbers of indices are timed, and which share of the budget each gets."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, PAGE, TOKEN, IndexDtype, OperationName, TargetName
from swa_alloc.trace import Layout, Trace, TraceEntry

# Half of the budget follows the trace's weights; the other half is spread evenly, since a rare size needs as many
# rounds for a sound decision as a frequent one.
_EVEN_SHARE = 0.5
# The ends, and one between them.
_FEWEST = 3

Kind = tuple[OperationName, TargetName, IndexDtype]


@dataclass(frozen=True)
class Point:
    """One number of indices to time for one operation, target and index dtype.

    Attributes:
        operation: Name of the operation.
        target: What is indexed.
        index_dtype: The indices' dtype.
        count: Indices in a call.
        layout: How they lie in the table.
        weight: Share of the trace's calls that it stands for.
        share: Share of the budget.
    """

    operation: OperationName
    target: TargetName
    index_dtype: IndexDtype
    count: int
    layout: Layout
    weight: float
    share: float

    @property
    def kind(self) -> Kind:
        """What a profile's decisions are grouped by."""
        return self.operation, self.target, self.index_dtype


def make_plan(trace: Trace, sizes: int, operations: Collection[str] = tuple(OPERATIONS)) -> tuple[Point, ...]:
    """At most ``sizes`` numbers of indices for each kind of call of these operations, ascending within a kind.

    A kind that the trace lacks borrows half of the sizes of its nearest relative, with weight 0: a profile made for
    callers who pass int32 slots also decides for those who pass int64 pages. An operation that the trace lacks has no
    relative and is left out.
    """
    total = sum(entry.weight for entry in trace.entries)
    by_kind = _by_kind(trace, sizes)
    picked = [entry for kind, entries in by_kind.items() if kind[0] in operations for entry in entries]
    overall = sum(entry.weight for entry in picked)
    return tuple(
        Point(
            entry.operation,
            entry.target,
            entry.index_dtype,
            entry.count,
            entry.layout,
            entry.weight / total,
            _EVEN_SHARE / len(picked) + (1 - _EVEN_SHARE) * (entry.weight / overall if overall else 1 / len(picked)),
        )
        for entry in picked
    )


def _by_kind(trace: Trace, sizes: int) -> dict[Kind, list[TraceEntry]]:
    recorded: dict[Kind, list[TraceEntry]] = defaultdict(list)
    for entry in trace.entries:
        recorded[entry.operation, entry.target, entry.index_dtype].append(entry)
    chosen = {kind: _representatives(entries, sizes) for kind, entries in recorded.items()}
    by_kind: dict[Kind, list[TraceEntry]] = {}
    for operation in OPERATIONS.values():
        for target in operation.targets(trace.page_size):
            for dtype in INDEX_DTYPES:
                kind: Kind = (operation.name, target, dtype)
                lent = _thinned(_relatives(kind, chosen), max(_FEWEST, sizes // 2))
                borrowed = [_as_kind(entry, kind, trace) for entry in lent]
                by_kind[kind] = chosen.get(kind) or list({entry.count: entry for entry in borrowed}.values())
    return {kind: entries for kind, entries in by_kind.items() if entries}


def _relatives(kind: Kind, chosen: dict[Kind, list[TraceEntry]]) -> list[TraceEntry]:
    """The sizes of the other index dtype, else those of the other target."""
    related = sorted((k for k in chosen if k[0] == kind[0]), key=lambda other: other[1] != kind[1])
    return chosen[related[0]] if related else []


def _as_kind(entry: TraceEntry, kind: Kind, trace: Trace) -> TraceEntry:
    _, target, dtype = kind
    count, layout = entry.count, entry.layout
    if entry.target == TOKEN and target == PAGE:
        count, layout = -(-count // trace.page_size), "run" if layout == "run" else "scattered"
    elif entry.target == PAGE and target == TOKEN:
        count, layout = count * trace.page_size, "run" if layout == "run" else "pages"
    return TraceEntry(entry.operation, target, dtype, count, layout, 0.0)


def _representatives(entries: Iterable[TraceEntry], sizes: int) -> list[TraceEntry]:
    """One entry an octave, with the octave's weight: the ends, and the heaviest between them."""
    octaves: dict[int, list[TraceEntry]] = defaultdict(list)
    for entry in entries:
        octaves[round(math.log2(entry.count))].append(entry)
    return _thinned([_heaviest(octaves[octave]) for octave in sorted(octaves)], sizes)


def _thinned(ascending: list[TraceEntry], sizes: int) -> list[TraceEntry]:
    """The ends, and the heaviest between them."""
    if len(ascending) <= sizes:
        return ascending
    middle = sorted(ascending[1:-1], key=lambda entry: -entry.weight)[: sizes - 2]
    return [ascending[0], *sorted(middle, key=lambda entry: entry.count), ascending[-1]]


def _heaviest(entries: list[TraceEntry]) -> TraceEntry:
    # Counts first: one count may come in several layouts.
    weights: dict[int, float] = defaultdict(float)
    for entry in entries:
        weights[entry.count] += entry.weight
    count = max(weights, key=lambda count: (weights[count], -count))
    entry = max((e for e in entries if e.count == count), key=lambda e: e.weight)
    total = sum(weights.values())
    return TraceEntry(entry.operation, entry.target, entry.index_dtype, count, entry.layout, total)
