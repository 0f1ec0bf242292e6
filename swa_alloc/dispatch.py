"""From decisions to one callable: which strategy is called for which number of indices, resolved once."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import torch

from swa_alloc.errors import PoolError, StrategyUnavailable
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, Target
from swa_alloc.strategies import Bound, Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swa_alloc.selection import Choice


def bind_choice(choice: Choice, mapping: torch.Tensor, page_size: int) -> Bound:
    """What ``choice`` decided, bound to ``mapping``: one callable for any number of int32 or int64 indices.

    Raises:
        StrategyError: a strategy does not exist, or cannot run on the mapping's device.
    """
    operation = OPERATIONS[choice.operation]
    dispatch: Bound = _refuse
    # int64 outermost: its clears are the faster ones, and lose more on a lookup.
    for name in ("int32", "int64"):
        target = Target(choice.operation, choice.target, INDEX_DTYPES[name], mapping, page_size)
        bound: dict[str, Bound] = {}  # one workspace for a strategy, however many ranges it serves
        sizes: list[tuple[int | None, Bound]] = []
        for decision in (decision for decision in choice.decisions if decision.kind.index_dtype == name):
            if decision.label not in bound:
                bound[decision.label] = bind(choice.strategy(decision), target)
            call = bound[decision.label]
            sizes.append((decision.max_indices, call if operation.values is None else _constant(call)))
        dispatch = by_size(target.index_dtype, sizes, dispatch)
    return dispatch if operation.values is None else _with_values(dispatch)


def bind(strategy: Strategy, target: Target) -> Bound:
    """``strategy`` bound to ``target``.

    Raises:
        StrategyUnavailable: it cannot run there, with its reason.
    """
    if target.name not in strategy.targets:
        raise StrategyUnavailable(f"{strategy.name} does not serve the {target.name} target")
    reason = strategy.unavailable(target)
    if reason is not None:
        raise StrategyUnavailable(f"{strategy.name} is unavailable: {reason}")
    return strategy.bind(target)


def by_size(index_dtype: torch.dtype, sizes: Sequence[tuple[int | None, Bound]], otherwise: Bound) -> Bound:
    """A callable of one argument that picks by the number of indices, and hands other dtypes to ``otherwise``.

    Args:
        index_dtype: Of the indices that it serves.
        sizes: The largest number of indices of each callable, ascending, the last one None.
        otherwise: Serves the other dtypes.
    """
    *closed, (_, largest) = sizes

    def always(indices: torch.Tensor) -> Any:
        if indices.dtype is index_dtype:
            return largest(indices)
        return otherwise(indices)

    if not closed:
        return always
    # In bytes, which are an attribute, where the number of indices is a method call: 45 ns less.
    bounds = [bound * index_dtype.itemsize for bound, _ in closed if bound is not None]
    calls = [call for _, call in closed]
    highest = bounds[-1]

    def dispatch(indices: torch.Tensor) -> Any:
        if indices.dtype is index_dtype:
            size = indices.nbytes
            if size > highest:
                return largest(indices)
            return calls[bisect_left(bounds, size)](indices)
        return otherwise(indices)

    return dispatch


def _constant(call: Bound) -> Bound:
    return lambda _indices: call


def _with_values(pick: Bound) -> Bound:
    """A call with values, by the callable that ``pick`` gives for its indices."""
    return lambda indices, values: pick(indices)(indices, values)


def _refuse(indices: torch.Tensor) -> None:
    raise PoolError(f"indices must be int32 or int64, not {indices.dtype}; cast them where they are made")
