"""``index_put_`` of a zero that lives on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class IndexPut(Strategy):
    """``table.index_put_((indices,), zero)``, the zero on the table's device. Takes int32 and int64 indices."""

    name = "index_put"

    def workspace_bytes(self, target: Target) -> int:
        """See ``Strategy.workspace_bytes``."""
        return target.mapping.element_size()

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        index_put_ = target.table.index_put_
        zero = target.mapping.new_zeros(())

        def clear(indices: torch.Tensor) -> None:
            index_put_((indices,), zero)

        return clear
