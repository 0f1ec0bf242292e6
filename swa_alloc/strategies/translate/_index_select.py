"""``index_select`` behind a remainder that turns -1 into the sentinel's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.operations import TOKEN
from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class IndexSelect(Strategy):
    """``table.index_select(0, indices % len(table))``. Takes int32 and int64 indices; alone it does not take -1."""

    name = "index_select"
    operation = "translate"
    targets = frozenset({TOKEN})

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        index_select = target.table.index_select
        entries = target.table.numel()

        def read(indices: torch.Tensor) -> torch.Tensor:
            return index_select(0, indices.remainder(entries))

        return read
