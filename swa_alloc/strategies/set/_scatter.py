"""``scatter_`` of the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.operations import TOKEN
from swa_alloc.strategies._base import Bound, Strategy, on_int64

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class Scatter(Strategy):
    """``table.scatter_(0, indices, peers)``. PyTorch takes int64 indices only."""

    name = "scatter"
    operation = "set"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        scatter_ = target.table.scatter_
        row_slots = target.row_slots

        def set_tokens(indices: torch.Tensor, peers: torch.Tensor) -> None:
            scatter_(0, indices, peers)

        def set_pages(indices: torch.Tensor, peers: torch.Tensor) -> None:
            # scatter_ wants one index an element: the same row for each slot of its page.
            scatter_(0, indices.unsqueeze(1).expand(-1, row_slots), peers)

        return on_int64(target, set_tokens if target.name == TOKEN else set_pages)
