"""``torch_npu.npu_scatter_nd_update_``: Ascend's own in-place scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound
from swa_alloc.strategies._npu import without_torch_npu
from swa_alloc.strategies.clear._zero_rows import CopyZeros

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class NpuScatterNdUpdate(CopyZeros):
    """``npu_scatter_nd_update_(table, indices[:, None], zeros)``. Takes int32 and int64 indices.

    SGLang sets its mapping with it on Ascend (sglang/srt/mem_cache/allocator/swa.py, 0.5.23).
    """

    name = "npu_scatter_nd_update"

    def unavailable(self, target: Target) -> str | None:
        """See ``Strategy.unavailable``."""
        return without_torch_npu(target, "an Ascend operator")

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        # Importable on Ascend machines only.
        import torch_npu

        npu_scatter_nd_update_ = torch_npu.npu_scatter_nd_update_
        table = target.table
        zeros = self.zero_rows(target)

        def clear(indices: torch.Tensor) -> None:
            count = indices.numel()
            if count:
                npu_scatter_nd_update_(table, indices.unsqueeze(1), zeros(count))

        return clear
