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

# Rows of the small table: so few that whole tables are compared.
_ROWS = 24
# Of the full-sized table, rows beside those that a call names, and others, that are looked at around a call.
_GUARDS = 64

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
    number(small.mapping)
    call, numbered = bind(strategy, small), small.mapping.clone()
    for name, case in _cases(OPERATIONS[target.operation]).items():
        indices = _laid_out_alike(case(*_usable_rows(small)), target)
        small.mapping.copy_(numbered)
        found = _fault_of(call, small, indices, run)
        if found is not None:
            return f"{name} indices: {found}"
    return None


def fault(call: Bound, target: Target, arguments: tuple[torch.Tensor, ...], run: Run) -> str | None:
    """The way in which a bound strategy is wrong on a full-sized table, or None; the table is then as before.

    Looks at the rows that the ``[k]`` indices name, at rows beside them and at others, and not at the whole table: a
    pass over it for each candidate would take longer than the race. ``check_sum`` sees the rest, for all of them.

    Args:
        call: The strategy.
        target: What it is bound to.
        arguments: A call's.
        run: Makes the call.
    """
    operation, device = OPERATIONS[target.operation], target.mapping.device
    # An index of -1 means the last row, as in Python.
    named = arguments[0].cpu().remainder(target.table.shape[0])
    rows, positions = torch.unique(named, return_inverse=True)
    guards = _guards(rows, target.table.shape[0])
    looked_at = torch.cat((rows, guards)).to(device)
    before = target.table.index_select(0, looked_at)
    # What earlier calls have left there may be just what this one should leave.
    expected = _numbers(looked_at, before).cpu()
    target.table.index_copy_(0, looked_at, expected.to(device))
    after_call = expected[: len(rows)]  # a view: what happens to it happens to what is expected
    wanted = operation.reference(after_call, positions, *(values.cpu() for values in arguments[1:]))
    try:
        result = run(call, *arguments)
        after = target.table.index_select(0, looked_at).cpu()
    finally:
        target.table.index_copy_(0, looked_at, before)
    wrong = (after != expected).reshape(len(looked_at), -1).any(1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        return f"row {int(looked_at[row])} became {_brief(after[row])} and should be {_brief(expected[row])}"
    return None if wanted is None or _same(result, wanted) else "the result is wrong"


def number(mapping: torch.Tensor) -> None:
    """Make every entry differ from its neighbours and from whatever an operation writes."""
    torch.arange(1, mapping.numel() + 1, out=mapping, device=mapping.device)
    mapping[-1:].fill_(-1)


def _numbers(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """What ``number`` writes to these ``[k]`` rows, shaped like those of ``table``; the sentinel has one as well."""
    slots = table[0].numel()
    numbers = rows[:, None] * slots + torch.arange(1, slots + 1, device=rows.device)
    return numbers.reshape(table.shape).to(table.dtype)


def check_sum(mapping: torch.Tensor) -> bool:
    """Whether a numbered mapping adds up: one pass, after whatever was called on it was undone."""
    last = mapping.numel()
    return int(mapping.sum()) == last * (last - 1) // 2 - 1


def _fault_of(call: Bound, target: Target, indices: torch.Tensor, run: Run) -> str | None:
    """The way in which a bound strategy is wrong for these ``[k]`` indices on a small, numbered table, or None."""
    operation = OPERATIONS[target.operation]
    right = target._replace(mapping=target.mapping.cpu().clone())
    arguments = operation.arguments(target.table, indices)
    kept = [argument.cpu().clone() for argument in arguments]
    wanted = operation.reference(right.table, *kept)
    result = run(call, *arguments)
    after = target.mapping.cpu()
    if int(after[-1]) != -1:
        return f"the sentinel became {int(after[-1])}"
    if not torch.equal(after, right.mapping):
        wrong = int((after != right.mapping).nonzero()[0])
        return f"entry {wrong} became {int(after[wrong])} and should be {int(right.mapping[wrong])}"
    if not all(torch.equal(argument.cpu(), was) for argument, was in zip(arguments, kept, strict=True)):
        return f"the {'values' if torch.equal(indices.cpu(), kept[0]) else 'indices'} were changed"
    if wanted is None:
        return None
    if not _same(result, wanted):
        return "the result is wrong"
    # Whoever keeps it must not see what becomes of the table, or what the next call returns.
    target.mapping.zero_()
    run(call, *arguments)
    return None if _same(result, wanted) else "the result changed afterwards"


def _guards(rows: torch.Tensor, end: int) -> torch.Tensor:
    """``[at most _GUARDS]`` rows that are not among ``rows``: neighbours of theirs, the table's ends, and others."""
    near = torch.cat((rows[: _GUARDS // 4] - 1, rows[: _GUARDS // 4] + 1))
    anywhere = torch.randint(0, end, (_GUARDS // 4,), generator=_generator(), device=_CPU)
    ends = torch.tensor([0, end - 1], device=_CPU)
    found = torch.unique(torch.cat((near, anywhere, ends)).clamp(0, end - 1))
    others: torch.Tensor = found[~torch.isin(found, rows)]
    return others


def _brief(row: torch.Tensor) -> str:
    return str(row.flatten()[:4].tolist())


def _cases(operation: Operation) -> dict[str, Case]:
    """Those that are calls of this operation at all."""
    skipped = {"duplicate": operation.distinct, "sentinel": not operation.sentinel}
    return {name: case for name, case in CASES.items() if not skipped.get(name)}


def _same(result: object, wanted: torch.Tensor) -> bool:
    return isinstance(result, torch.Tensor) and result.dtype is wanted.dtype and torch.equal(result.cpu(), wanted)


def _usable_rows(target: Target) -> tuple[int, int]:
    # Padding, page 0, is left alone; so is the sentinel behind the last slot.
    return (target.page_size, target.mapping.numel() - 1) if target.name == TOKEN else (1, target.table.shape[0])


def _laid_out_alike(indices: torch.Tensor, target: Target) -> torch.Tensor:
    """The same indices with the same stride, in the target's index dtype and on its device."""
    step = max(1, indices.stride(0))
    backing = torch.zeros(max(1, indices.numel() * step), dtype=target.index_dtype, device=_CPU)
    backing[: indices.numel() * step : step] = indices
    return backing.to(target.mapping.device)[: indices.numel() * step : step]
