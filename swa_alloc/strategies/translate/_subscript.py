"""``table[indices]``: the plain read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.operations import TOKEN
from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class Subscript(Strategy):
    """``table[indices]``. Takes int32 and int64 indices; PyTorch wraps -1."""

    name = "subscript"
    operation = "translate"
    targets = frozenset({TOKEN})

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        table = target.table

        def read(indices: torch.Tensor) -> torch.Tensor:
            return table[indices]

        return read
