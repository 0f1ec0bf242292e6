"""Is this strategy right at all? Checked before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from swa_alloc.dispatch import bind
from swa_alloc.operations import OPERATIONS, TOKEN, Operation, Target, empty_mapping

if TYPE_CHECKING:
    from swa_alloc.strategies import Bound, Strategy

# Rows of the table that the cases run on: small, so that eight comparisons of the whole of it cost nothing.
_ROWS = 24
# Entries that are compared at a time: 8 MiB beside the table, and not another table. On a CPU as many as stay in the
# cache and on one thread: half of the time, and no wait for other threads to get their cores.
_CHUNK = 1 << 20
_CPU_CHUNK = 1 << 15

Run = Callable[..., Any]  # run(call, *arguments) makes the call and returns its result


Case = Callable[[int, int], torch.Tensor]  # first usable row, end of the rows -> [k] int64 rows

_CPU = torch.device("cpu")  # spelled out, since a server may have set another default device

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "random": lambda first, end: torch.randperm(end - first, generator=_generator(), device=_CPU)[::3] + first,
        "duplicate": lambda first, end: torch.tensor([first, end - 1, first, first + 2, end - 1], device=_CPU),
        "empty": lambda _first, _end: torch.empty(0, dtype=torch.int64, device=_CPU),
        "single": lambda _first, end: torch.tensor([end - 1], device=_CPU),
        "reversed": lambda first, end: torch.arange(first, end, device=_CPU).flip(0),
        "strided": lambda first, end: torch.arange(first, end, device=_CPU)[1::3],
        "first": lambda first, _end: torch.tensor([first], device=_CPU),
        "after empty": lambda first, end: torch.arange(first + 1, end, 5, device=_CPU),
        "sentinel": lambda first, end: torch.tensor([first, -1, end - 1, -1], device=_CPU),
    }
)


def _generator() -> torch.Generator:
    """One of its own, since a server's random numbers must not depend on whether it calibrated."""
    return torch.Generator(device=_CPU).manual_seed(0)


def violation(strategy: Strategy, target: Target, run: Run) -> str | None:
    """The first way in which ``strategy`` breaks the contract on a small table like ``target``'s, in words, or None.

    One binding goes through all cases, so that what a call leaves behind in its workspace shows in the next. ``run``
    makes each call, and may refuse to make more.
    """
    page_size = target.page_size
    pages = max(2, _ROWS // page_size) if target.name == TOKEN else _ROWS
    small = target._replace(mapping=empty_mapping(pages * page_size, page_size, target.mapping.device))
    call = bind(strategy, small)
    for name, case in _cases(OPERATIONS[target.operation]).items():
        indices = _laid_out_alike(case(*_usable_rows(small)), target)
        found = violation_of(call, small, indices, run)
        if found is not None:
            return f"{name} indices: {found}"
    return None


def violation_of(call: Bound, target: Target, indices: torch.Tensor, run: Run) -> str | None:
    """The way in which a bound strategy is wrong for these ``[k]`` indices, or None. Overwrites the whole mapping.

    Only the rows that the indices name leave the device; of the others it is counted there how many have changed. A
    copy of a large table for each candidate would take longer than the race.
    """
    operation = OPERATIONS[target.operation]
    _number(target.mapping)
    # An index of -1 means the last row, as in Python.
    named = indices.cpu().remainder(target.table.shape[0])
    rows, positions = torch.unique(named, return_inverse=True)
    arguments = operation.arguments(target.table, indices)
    before, kept = _read(target, rows), [argument.clone() for argument in arguments]
    result = run(call, *arguments)
    after, expected = _read(target, rows), before.clone()
    wanted = operation.reference(expected, positions, *(values.cpu() for values in kept[1:]))
    if int(target.mapping[-1]) != -1:
        return f"the sentinel became {int(target.mapping[-1])}"
    if not torch.equal(after, expected) or _changed(target.mapping) != int(torch.count_nonzero(after != before)):
        return _first_fault(target, rows, expected)
    if not all(map(torch.equal, arguments, kept)):
        return f"the {'values' if torch.equal(indices, kept[0]) else 'indices'} were changed"
    if wanted is None:
        return None
    if not _same(result, wanted):
        return "the result is wrong"
    # Who keeps it must not see what becomes of the table, or what the next call returns.
    target.mapping.zero_()
    run(call, *arguments)
    return None if _same(result, wanted) else "the result changed afterwards"


def _cases(operation: Operation) -> dict[str, Case]:
    """Those that are calls of this operation at all."""
    skipped = {"duplicate": operation.distinct, "sentinel": not operation.sentinel}
    return {name: case for name, case in CASES.items() if not skipped.get(name)}


def _same(result: object, wanted: torch.Tensor) -> bool:
    return isinstance(result, torch.Tensor) and result.dtype is wanted.dtype and torch.equal(result.cpu(), wanted)


def _number(mapping: torch.Tensor) -> None:
    """Make every entry differ from its neighbours and from whatever an operation writes."""
    torch.arange(1, mapping.numel() + 1, out=mapping, device=mapping.device)
    mapping[-1:].fill_(-1)


def _changed(mapping: torch.Tensor) -> int:
    """How many entries of a numbered mapping, the sentinel aside, have another number now."""
    changed = mapping.new_zeros(())
    chunk = _CPU_CHUNK if mapping.device.type == "cpu" else _CHUNK
    for start in range(0, mapping.numel() - 1, chunk):
        part = mapping[start : min(start + chunk, mapping.numel() - 1)]
        numbers = torch.arange(start + 1, start + 1 + part.numel(), device=mapping.device)
        changed += torch.count_nonzero(part != numbers)
    return int(changed)


def _first_fault(target: Target, rows: torch.Tensor, expected: torch.Tensor) -> str:
    """Which entry is wrong, found at leisure on a copy, since this ends a candidate's race."""
    right = target._replace(mapping=torch.empty_like(target.mapping, device=_CPU))
    _number(right.mapping)
    right.table[rows] = expected
    actual = target.mapping.cpu()
    wrong = int((actual != right.mapping).nonzero()[0])
    return f"entry {wrong} became {int(actual[wrong])} and should be {int(right.mapping[wrong])}"


def _read(target: Target, rows: torch.Tensor) -> torch.Tensor:
    """``[k, ...]`` copy of these rows of the target's table, on the host."""
    return target.table.index_select(0, rows.to(target.mapping.device)).cpu()


def _usable_rows(target: Target) -> tuple[int, int]:
    # Padding, page 0, is left alone; so is the sentinel behind the last slot.
    return (target.page_size, target.mapping.numel() - 1) if target.name == TOKEN else (1, target.table.shape[0])


def _laid_out_alike(indices: torch.Tensor, target: Target) -> torch.Tensor:
    """The same indices with the same stride, in the target's index dtype and on its device."""
    step = max(1, indices.stride(0))
    backing = torch.zeros(max(1, indices.numel() * step), dtype=target.index_dtype, device=_CPU)
    backing[: indices.numel() * step : step] = indices
    return backing.to(target.mapping.device)[: indices.numel() * step : step]
