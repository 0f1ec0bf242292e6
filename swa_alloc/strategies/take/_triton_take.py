"""A Triton kernel that reads and clears at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._triton import TritonStrategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target
    from swa_alloc.strategies._base import Bound


class TritonTake(TritonStrategy):
    """Reads and clears in one Triton kernel, as SGLang does on CUDA. Takes int32 and int64 indices."""

    name = "triton_take"
    operation = "take"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        # Triton is optional, and its import takes half a second.
        from swa_alloc.strategies._triton_kernels import take_pages

        mapping, row_slots = target.mapping, target.row_slots
        grid, block, num_warps = self.grid, self.block, self.num_warps

        def take_from(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
            count = indices.numel()
            taken = table.new_empty(count)
            if count:
                slots, stride = count * row_slots, indices.stride(0)
                take_pages[grid(slots)](
                    table, indices, taken, slots, stride, ROW_SLOTS=row_slots, BLOCK=block, num_warps=num_warps
                )
            return taken

        def take(indices: torch.Tensor) -> torch.Tensor:
            return take_from(mapping, indices)

        # Compiles, now and not at the first free.
        take_from(mapping.new_zeros(row_slots), mapping.new_zeros(1, dtype=target.index_dtype))
        return take
