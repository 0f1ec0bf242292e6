"""``index_fill_``: the zero travels as a kernel argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy, on_int64

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class IndexFill(Strategy):
    """``table.index_fill_(0, indices, 0)``. PyTorch takes int64 indices only."""

    name = "index_fill"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        index_fill_ = target.table.index_fill_

        def clear(indices: torch.Tensor) -> None:
            index_fill_(0, indices, 0)

        return on_int64(target, clear)
