"""``masked_fill_``: a pass over the whole table, through a mask of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy
from swa_alloc.strategies.clear._row_mask import row_mask_bytes, through_row_mask

if TYPE_CHECKING:
    from swa_alloc.operations import Target


class MaskedFill(Strategy):
    """``table.masked_fill_(mask, 0)``. O(table); for devices that lack indexed writes. Any index dtype."""

    name = "masked_fill"
    whole_table = True

    def workspace_bytes(self, target: Target) -> int:
        """See ``Strategy.workspace_bytes``."""
        return row_mask_bytes(target)

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        table = target.table
        return through_row_mask(target, lambda mask: table.masked_fill_(mask, 0))
