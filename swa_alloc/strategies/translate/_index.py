"""``aten.index``: what a plain read becomes, without Python's way there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from swa_alloc.operations import TOKEN
from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    from swa_alloc.operations import Target


class Index(Strategy):
    """``torch.ops.aten.index(table, [indices])``. Takes int32 and int64 indices; PyTorch wraps -1."""

    name = "index"
    operation = "translate"
    targets = frozenset({TOKEN})

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        table = target.table
        index = torch.ops.aten.index.Tensor

        def read(indices: torch.Tensor) -> torch.Tensor:
            read: torch.Tensor = index(table, [indices])
            return read

        return read
