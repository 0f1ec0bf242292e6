"""From a trace to a plan: which numbers of indices are timed, and which share of the calls each stands for."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType

from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, PAGE, TOKEN, CallKind
from swa_alloc.trace import Layout, Trace, TraceEntry

# The fewest sizes that a kind borrows: the ends, and one between them.
_FEWEST = 3
# A gap between two timed sizes is split while more than this is at risk, in octaves times share of the kind's calls:
# a tenth of the calls in a tenth of an octave. The calls at 63, between 62 and 64, are seldom worth a race.
_NEGLIGIBLE = 0.01

# Numbers of indices, ascending, each with the weight of its calls.
_Calls = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Point:
    """One number of indices to time for one kind of call.

    Attributes:
        kind: What is called.
        count: Indices in a call.
        layout: How they lie in the table.
        weight: Share of the trace's calls that it stands for: those nearer to it than to the others of its kind.
    """

    kind: CallKind
    count: int
    layout: Layout
    weight: float


@dataclass(frozen=True)
class Plan:
    """What is timed, and what is called.

    Attributes:
        points: Ascending within a kind.
        calls: For each kind that the trace holds, every number of indices with its share of the trace's calls,
            ascending.
    """

    points: tuple[Point, ...]
    calls: Mapping[CallKind, tuple[tuple[int, float], ...]]

    @property
    def kinds(self) -> tuple[CallKind, ...]:
        """The kinds that have points, in their order."""
        return tuple(dict.fromkeys(point.kind for point in self.points))


def make_plan(trace: Trace, sizes: int, operations: Collection[str] = tuple(OPERATIONS)) -> Plan:
    """At most ``sizes`` (3 or more) numbers of indices for each kind of call of these operations.

    A kind that the trace holds is timed at its smallest size, at its largest and at 1, since a call of one index or
    page may come whatever was recorded; and between them where many calls would lie in a wide gap. More ``sizes`` time
    what fewer do, and others besides.

    A kind that the trace lacks borrows half of the sizes of its nearest relative, with weight 0: a profile made for
    callers who pass int32 slots also decides for those who pass int64 pages. An operation that the trace lacks has no
    relative and is left out.
    """
    # Sorted, so that the order of the entries makes no difference, not even to a rounding error.
    entries = sorted(trace.entries)
    total = sum(entry.weight for entry in entries)
    recorded: dict[CallKind, list[TraceEntry]] = defaultdict(list)
    for entry in entries:
        recorded[entry.kind].append(entry._replace(weight=entry.weight / total))
    points: list[Point] = []
    calls: dict[CallKind, tuple[tuple[int, float], ...]] = {}
    for kind in _kinds(trace.page_size, operations):
        if kind in recorded:
            calls[kind] = _by_count(recorded[kind])
            timed = _timed(calls[kind], {1, calls[kind][0][0], calls[kind][-1][0]}, sizes)
            points += _points(kind, timed, recorded[kind], _nearest(calls[kind], timed))
        elif lent := _by_kin(kind, recorded, trace.page_size):
            borrowed = _by_count(lent)
            timed = _timed(borrowed, {1, borrowed[-1][0]}, max(_FEWEST, sizes // 2))
            points += _points(kind, timed, lent, dict.fromkeys(timed, 0.0))
    return Plan(tuple(points), MappingProxyType(calls))


def _kinds(page_size: int, operations: Collection[str]) -> list[CallKind]:
    return [
        CallKind(operation.name, target, dtype)
        for operation in OPERATIONS.values()
        if operation.name in operations
        for target in operation.targets(page_size)
        for dtype in INDEX_DTYPES
    ]


def _by_kin(kind: CallKind, recorded: Mapping[CallKind, list[TraceEntry]], page_size: int) -> list[TraceEntry]:
    """The calls of the same operation with the other index dtype, else with the other target, as this kind's own."""
    kin = [other for other in recorded if other.operation == kind.operation]
    if not kin:
        return []
    nearest = min(kin, key=lambda other: (other.target != kind.target, other.index_dtype != kind.index_dtype))
    return [_as_kind(entry, kind, page_size) for entry in recorded[nearest]]


def _as_kind(entry: TraceEntry, kind: CallKind, page_size: int) -> TraceEntry:
    count, layout = entry.count, entry.layout
    if entry.target == TOKEN and kind.target == PAGE:
        count, layout = -(-count // page_size), "run" if layout == "run" else "scattered"
    elif entry.target == PAGE and kind.target == TOKEN:
        count, layout = count * page_size, "run" if layout == "run" else "pages"
    return TraceEntry(*kind, count, layout, entry.weight)


def _by_count(entries: Iterable[TraceEntry]) -> tuple[tuple[int, float], ...]:
    weights: dict[int, float] = defaultdict(float)
    for entry in entries:
        weights[entry.count] += entry.weight
    return tuple(sorted(weights.items()))


def _timed(calls: _Calls, fixed: Collection[int], most: int) -> list[int]:
    """The fixed sizes, and called ones between them until there are ``most``, ascending.

    At risk are the calls inside a gap between timed sizes: a strategy may change its pace anywhere in it, the likelier
    the more octaves it spans. The gap with the most at risk is split where least remains, which is at a size that many
    calls have, at the largest where they crowd, and in the middle where all have equally many.
    """
    timed = sorted(fixed)
    total = sum(weight for _, weight in calls)
    while len(timed) < most:
        gaps = [(small, large, [c for c in calls if small < c[0] < large]) for small, large in pairwise(timed)]
        small, large, inside = max(gaps, key=_risk, default=(1, 1, []))
        if _risk((small, large, inside)) <= _NEGLIGIBLE * total:
            break
        timed = sorted([*timed, _split(small, large, inside)])
    return timed


def _risk(gap: tuple[int, int, _Calls]) -> float:
    small, large, inside = gap
    return math.log2(large / small) * sum(weight for _, weight in inside)


def _split(small: int, large: int, inside: _Calls) -> int:
    """The size inside a gap at which least remains at risk on both sides of it."""
    below = accumulate((weight for _, weight in inside), initial=0.0)
    whole = sum(weight for _, weight in inside)
    remaining = [
        (math.log2(count / small) * before + math.log2(large / count) * (whole - before - weight), count)
        for (count, weight), before in zip(inside, below, strict=False)
    ]
    return min(remaining)[1]


def _nearest(calls: _Calls, timed: Sequence[int]) -> dict[int, float]:
    """By timed size, the weight of the calls that are nearest to it by ratio; halfway they are the lower one's."""
    weights = dict.fromkeys(timed, 0.0)
    for count, weight in calls:
        above = bisect_left(timed, count)
        low, high = timed[max(0, above - 1)], timed[above]
        weights[low if count * count <= low * high else high] += weight
    return weights


def _points(
    kind: CallKind, timed: Iterable[int], entries: Sequence[TraceEntry], weights: Mapping[int, float]
) -> list[Point]:
    """The points of one kind, each in the commonest layout that was recorded for its size."""
    # One index that nobody recorded is a run, as a recorder would call it.
    layouts: dict[int, Layout] = {1: "run"}
    layouts |= {entry.count: entry.layout for entry in sorted(entries, key=lambda entry: entry.weight)}
    return [Point(kind, count, layouts[count], weights[count]) for count in timed]
