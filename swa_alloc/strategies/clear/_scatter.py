"""``scatter_`` of a scalar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.operations import TOKEN
from swa_alloc.strategies._base import Bound, Strategy, on_int64

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class Scatter(Strategy):
    """``table.scatter_(0, indices, 0)``; vllm-ascend's choice on A5. PyTorch takes int64 indices only."""

    name = "scatter"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        scatter_ = target.table.scatter_
        page_size = target.page_size

        def clear_tokens(indices: torch.Tensor) -> None:
            scatter_(0, indices, 0)

        def clear_pages(indices: torch.Tensor) -> None:
            # scatter_ wants one index an element: the same row for each slot of its page.
            scatter_(0, indices.unsqueeze(1).expand(-1, page_size), 0)

        return on_int64(target, clear_tokens if target.name == TOKEN else clear_pages)
