"""Another strategy on an int32 view of the table: an int64 of 0 is two zeros of int32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._int32_view import Int32ViewStrategy, as_int32

if TYPE_CHECKING:
    from swa_alloc.operations import Target
    from swa_alloc.strategies._base import Bound


class Int32View(Int32ViewStrategy):
    """Clears ``[rows, 2 * row_slots]`` int32 by the strategy that ``call`` names. For Ascend."""

    name = "int32_view"
    calls = ("index_put", "index_copy", "index_fill", "scatter", "npu_scatter_nd_update")

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        return self.inner.bind(as_int32(target))
