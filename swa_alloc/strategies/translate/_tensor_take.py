"""``Tensor.take``: a read by flat index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.operations import TOKEN
from swa_alloc.strategies._base import Bound, Strategy, on_int64

if TYPE_CHECKING:
    from swa_alloc.operations import Target


class TensorTake(Strategy):
    """``table.take(indices)``, which wraps -1. PyTorch takes int64 indices only."""

    name = "tensor_take"
    operation = "translate"
    targets = frozenset({TOKEN})

    def unavailable(self, target: Target) -> str | None:
        """See ``Strategy.unavailable``."""
        # Seen in torch_npu 2.13: it is none of the aclnn operators there, but one that CANN compiles at its first use.
        return "Ascend compiles it while serving" if target.mapping.device.type == "npu" else None

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        return on_int64(target, target.table.take)
