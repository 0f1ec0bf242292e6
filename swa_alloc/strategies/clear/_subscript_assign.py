"""``table[indices] = 0``: the plain assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class SubscriptAssign(Strategy):
    """``table[indices] = 0``. Takes int32 and int64 indices; where the 0 lives is PyTorch's affair."""

    name = "subscript_assign"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        table = target.table

        def clear(indices: torch.Tensor) -> None:
            table[indices] = 0

        return clear
