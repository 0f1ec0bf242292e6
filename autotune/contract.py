"""Is this strategy right at all? Checked before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from swa_alloc.dispatch import bind
from swa_alloc.operations import OPERATIONS, TOKEN, Target, empty_mapping

if TYPE_CHECKING:
    from swa_alloc.strategies import Bound, Strategy

# Rows of the table that the cases run on: small, so that eight comparisons of the whole of it cost nothing.
_ROWS = 24

Run = Callable[..., Any]  # run(call, *arguments) makes the call and returns its result


# Its own, since a server's random numbers must not depend on whether it calibrated.
def _generator() -> torch.Generator:
    return torch.Generator(device=_CPU).manual_seed(0)


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
    }
)


def violation(strategy: Strategy, target: Target, run: Run) -> str | None:
    """The first way in which ``strategy`` breaks the contract on a small table like ``target``'s, in words, or None.

    One binding goes through all cases, so that what a call leaves behind in its workspace shows in the next. ``run``
    makes each call, and may refuse to make more.
    """
    page_size = target.page_size
    pages = max(2, _ROWS // page_size) if target.name == TOKEN else _ROWS
    small = target._replace(mapping=empty_mapping(pages * page_size, page_size, target.mapping.device))
    call = bind(strategy, small)
    for name, case in CASES.items():
        indices = _laid_out_alike(case(*_usable_rows(small)), target)
        found = violation_of(call, small, indices, run)
        if found is not None:
            return f"{name} indices: {found}"
    return None


def violation_of(call: Bound, target: Target, indices: torch.Tensor, run: Run) -> str | None:
    """The way in which a bound strategy is wrong for these ``[k]`` indices, or None. Overwrites the whole mapping."""
    operation = OPERATIONS[target.operation]
    # Every entry differs from its neighbours and from whatever an operation writes.
    torch.arange(1, target.mapping.numel() + 1, out=target.mapping, device=target.mapping.device)
    target.mapping[-1:].fill_(-1)
    expected = target._replace(mapping=target.mapping.to("cpu", copy=True))
    before = indices.clone()
    result = run(call, *operation.arguments(target.table, indices))
    wanted = operation.reference(expected.table, *operation.arguments(expected.table, indices.cpu()))
    actual = target.mapping.cpu()
    if int(actual[-1]) != -1:
        return f"the sentinel became {int(actual[-1])}"
    if not torch.equal(actual, expected.mapping):
        wrong = int((actual != expected.mapping).nonzero()[0])
        return f"entry {wrong} became {int(actual[wrong])} and should be {int(expected.mapping[wrong])}"
    if not torch.equal(indices, before):
        return "the indices were changed"
    if wanted is not None and not (isinstance(result, torch.Tensor) and torch.equal(result.cpu(), wanted)):
        return "the result is wrong"
    return None


def _usable_rows(target: Target) -> tuple[int, int]:
    # Padding, page 0, is left alone; so is the sentinel behind the last slot.
    return (target.page_size, target.mapping.numel() - 1) if target.name == TOKEN else (1, target.table.shape[0])


def _laid_out_alike(indices: torch.Tensor, target: Target) -> torch.Tensor:
    """The same indices with the same stride, in the target's index dtype and on its device."""
    step = max(1, indices.stride(0))
    backing = torch.zeros(max(1, indices.numel() * step), dtype=target.index_dtype, device=target.mapping.device)
    view = backing[: indices.numel() * step : step]
    view.copy_(indices)
    return view
