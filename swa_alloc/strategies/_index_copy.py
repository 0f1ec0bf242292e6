"""``index_copy_`` of zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swa_alloc.strategies._base import Bound, Strategy, Trial, on_int64
from swa_alloc.strategies._zero_rows import ZeroRows

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class IndexCopy(Strategy):
    """``table.index_copy_(0, indices, zeros)``. PyTorch takes int64 indices only.

    Args:
        source: Where the zeros come from; see ``ZeroRows``.
    """

    name = "index_copy"

    def __init__(self, source: str = "expand") -> None:
        self._zero_rows = ZeroRows(source)

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """See ``Strategy.suggest``."""
        return ZeroRows.suggest(trial)

    def workspace_bytes(self, target: Target) -> int:
        """See ``Strategy.workspace_bytes``."""
        return self._zero_rows.bytes(target)

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        index_copy_ = target.table.index_copy_
        zeros = self._zero_rows.bind(target)

        def clear(indices: torch.Tensor) -> None:
            index_copy_(0, indices, zeros(indices.numel()))

        return on_int64(target, clear)
