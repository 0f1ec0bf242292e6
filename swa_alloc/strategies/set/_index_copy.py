"""``index_copy_`` of the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy, on_int64

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class IndexCopy(Strategy):
    """``table.index_copy_(0, indices, peers)``. PyTorch takes int64 indices only."""

    name = "index_copy"
    operation = "set"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        index_copy_ = target.table.index_copy_

        def copy(indices: torch.Tensor, peers: torch.Tensor) -> None:
            index_copy_(0, indices, peers)

        return on_int64(target, copy)
