"""``table[indices] = peers``: the plain assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class SubscriptAssign(Strategy):
    """``table[indices] = peers``. Takes int32 and int64 indices."""

    name = "subscript_assign"
    operation = "set"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        table = target.table

        def assign(indices: torch.Tensor, peers: torch.Tensor) -> None:
            table[indices] = peers

        return assign
