"""From decisions to one callable: which strategy is called for which number of indices, resolved once."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import torch

from swa_alloc.errors import PoolError, StrategyUnavailable
from swa_alloc.operations import INDEX_DTYPES, Target
from swa_alloc.strategies import Bound, Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swa_alloc.selection import Choice


def bind_choice(choice: Choice, mapping: torch.Tensor, page_size: int) -> Bound:
    """What ``choice`` decided, bound to ``mapping``: one callable for any number of int32 or int64 indices.

    Raises:
        StrategyError: a strategy does not exist, or cannot run on the mapping's device.
    """
    by_dtype = {}
    for name, dtype in INDEX_DTYPES.items():
        target = Target(choice.operation, choice.target, dtype, mapping, page_size)
        bound: dict[str, Bound] = {}  # one workspace for a strategy, however many size ranges it serves
        sizes: list[tuple[int | None, Bound]] = []
        for decision in (d for d in choice.decisions if d.index_dtype == name):
            if decision.label not in bound:
                bound[decision.label] = bind(choice.strategy(decision), target)
            sizes.append((decision.max_indices, bound[decision.label]))
        by_dtype[name] = by_size(sizes)
    return by_index_dtype(by_dtype["int32"], by_dtype["int64"])


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


def by_size(sizes: Sequence[tuple[int | None, Bound]]) -> Bound:
    """A callable that picks by the number of indices; ``sizes`` ascends and ends with None."""
    *closed, (_, largest) = sizes
    if not closed:
        return largest
    bounds = [bound for bound, _ in closed if bound is not None]
    calls = [call for _, call in closed]
    highest = bounds[-1]

    def dispatch(indices: torch.Tensor) -> None:
        count = indices.numel()
        # The largest calls first: theirs is the smallest share to lose on a lookup.
        if count > highest:
            largest(indices)
        else:
            calls[bisect_left(bounds, count)](indices)

    return dispatch


def by_index_dtype(int32_call: Bound, int64_call: Bound) -> Bound:
    """A callable that picks by the indices' dtype, and refuses any other."""
    int32, int64 = torch.int32, torch.int64

    def dispatch(indices: torch.Tensor) -> None:
        dtype = indices.dtype
        if dtype is int64:
            int64_call(indices)
        elif dtype is int32:
            int32_call(indices)
        else:
            raise PoolError(f"indices must be int32 or int64, not {dtype}; cast them where they are made")

    return dispatch
