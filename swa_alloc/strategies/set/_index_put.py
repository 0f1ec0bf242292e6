"""``index_put_``: what an assignment becomes, without Python's way there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class IndexPut(Strategy):
    """``table.index_put_((indices,), peers)``. Takes int32 and int64 indices."""

    name = "index_put"
    operation = "set"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        index_put_ = target.table.index_put_

        def put(indices: torch.Tensor, peers: torch.Tensor) -> None:
            index_put_((indices,), peers)

        return put
