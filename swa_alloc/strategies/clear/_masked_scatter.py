"""``masked_scatter_``: zeros scattered over the whole table, through a mask of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy
from swa_alloc.strategies.clear._row_mask import row_mask_bytes, through_row_mask

if TYPE_CHECKING:
    from swa_alloc.operations import Target


class MaskedScatter(Strategy):
    """``table.masked_scatter_(mask, zeros)``. O(table) in time and memory. Any index dtype."""

    name = "masked_scatter"
    whole_table = True

    def workspace_bytes(self, target: Target) -> int:
        """See ``Strategy.workspace_bytes``."""
        return row_mask_bytes(target) + target.table.numel() * target.mapping.element_size()

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        table = target.table
        # As many zeros as the mask may ever select: the whole table.
        zeros = table.new_zeros(table.shape)
        return through_row_mask(target, lambda mask: table.masked_scatter_(mask, zeros))
