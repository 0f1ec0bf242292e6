"""Another strategy on an int32 view of the table, and of the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from swa_alloc.operations import TOKEN
from swa_alloc.strategies._int32_view import Int32ViewStrategy, as_int32

if TYPE_CHECKING:
    from swa_alloc.operations import Target
    from swa_alloc.strategies._base import Bound


class Int32View(Int32ViewStrategy):
    """Sets ``[rows, 2 * row_slots]`` int32 by the strategy that ``call`` names. For Ascend."""

    name = "int32_view"
    operation = "set"
    calls = ("index_put", "index_copy", "scatter", "npu_scatter_nd_update")

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        write = self.inner.bind(as_int32(target))

        def set_tokens(indices: torch.Tensor, peers: torch.Tensor) -> None:
            write(indices, peers.unsqueeze(1).view(torch.int32))

        def set_pages(indices: torch.Tensor, peers: torch.Tensor) -> None:
            write(indices, peers.view(torch.int32))

        return set_tokens if target.name == TOKEN else set_pages
