"""``rows = pages.index_select(0, indices)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class IndexSelect(Strategy):
    """One call, which takes int32 as well."""

    name = "index_select"
    operation = "read"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        table = target.table

        def read(indices: torch.Tensor) -> torch.Tensor:
            return table.index_select(0, indices)

        return read
