"""``torch_npu.npu_scatter_nd_update_``: Ascend's own in-place scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy
from swa_alloc.strategies._npu import without_torch_npu

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class NpuScatterNdUpdate(Strategy):
    """``npu_scatter_nd_update_(table, indices[:, None], peers)``. Takes int32 and int64 indices.

    SGLang's ``alloc_decode`` sets its mapping so on Ascend (sglang/srt/mem_cache/allocator/swa.py, 0.5.23).
    """

    name = "npu_scatter_nd_update"
    operation = "set"

    def unavailable(self, target: Target) -> str | None:
        """See ``Strategy.unavailable``."""
        return without_torch_npu(target, "an Ascend operator")

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        # Importable on Ascend machines only.
        import torch_npu

        npu_scatter_nd_update_ = torch_npu.npu_scatter_nd_update_
        table = target.table

        def update(indices: torch.Tensor, peers: torch.Tensor) -> None:
            if indices.numel():
                npu_scatter_nd_update_(table, indices.unsqueeze(1), peers)

        return update
