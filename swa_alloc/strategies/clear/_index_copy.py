"""``index_copy_`` of zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, on_int64
from swa_alloc.strategies.clear._zero_rows import CopyZeros

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class IndexCopy(CopyZeros):
    """``table.index_copy_(0, indices, zeros)``. PyTorch takes int64 indices only."""

    name = "index_copy"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        index_copy_ = target.table.index_copy_
        zeros = self.zero_rows(target)

        def clear(indices: torch.Tensor) -> None:
            index_copy_(0, indices, zeros(indices.numel()))

        return on_int64(target, clear)
