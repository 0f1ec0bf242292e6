"""A Triton kernel that stores zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._triton import TritonStrategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target
    from swa_alloc.strategies._base import Bound


class TritonFill(TritonStrategy):
    """Stores zeros from a Triton kernel. Takes int32 and int64 indices."""

    name = "triton_fill"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        # Triton is optional, and its import takes half a second.
        from swa_alloc.strategies._triton_kernels import fill_zero

        mapping, row_slots = target.mapping, target.row_slots
        grid, block, num_warps = self.grid, self.block, self.num_warps

        def fill(table: torch.Tensor, indices: torch.Tensor) -> None:
            slots = indices.numel() * row_slots
            if slots:
                fill_zero[grid(slots)](
                    table, indices, slots, indices.stride(0), ROW_SLOTS=row_slots, BLOCK=block, num_warps=num_warps
                )

        def clear(indices: torch.Tensor) -> None:
            fill(mapping, indices)

        # Compiles, now and not at the first clear.
        fill(mapping.new_zeros(row_slots), mapping.new_zeros(1, dtype=target.index_dtype))
        return clear
