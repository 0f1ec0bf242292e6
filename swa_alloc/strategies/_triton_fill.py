"""A Triton kernel that stores zeros, one program a block of slots."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from swa_alloc.operations import TOKEN
from swa_alloc.strategies._base import Bound, Strategy, Trial

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class TritonFill(Strategy):
    """Stores zeros from a Triton kernel. Takes int32 and int64 indices.

    Args:
        block: Slots that one program clears.
        num_warps: Warps a program.
    """

    name = "triton_fill"

    def __init__(self, block: int = 256, num_warps: int = 4) -> None:
        if block < 1 or block & (block - 1):
            raise ValueError(f"block must be a power of two, not {block}")
        self._block, self._num_warps = block, num_warps

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """See ``Strategy.suggest``."""
        return {
            # Few, since each is compiled, for each index dtype and target, within the budget.
            "block": trial.suggest_categorical("block", (256, 1024)),
            "num_warps": trial.suggest_categorical("num_warps", (1, 4)),
        }

    def unavailable(self, target: Target) -> str | None:
        """See ``Strategy.unavailable``."""
        if find_spec("triton") is None:
            return "Triton is not installed"
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        device = target.mapping.device.type
        return f"Triton does not drive {device}" if device == "cpu" else _missing_driver(device)

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        # Triton is optional, and its import takes half a second.
        from swa_alloc.strategies._triton_kernels import fill_zero

        mapping, block, num_warps = target.mapping, self._block, self._num_warps
        row_slots = 1 if target.name == TOKEN else target.page_size

        def fill(table: torch.Tensor, indices: torch.Tensor) -> None:
            slots = indices.numel() * row_slots
            if slots:
                fill_zero[((slots + block - 1) // block,)](
                    table, indices, slots, indices.stride(0), ROW_SLOTS=row_slots, BLOCK=block, num_warps=num_warps
                )

        def clear(indices: torch.Tensor) -> None:
            fill(mapping, indices)

        # Compiles, now and not at the first clear.
        fill(mapping.new_zeros(row_slots), mapping.new_zeros(1, dtype=target.index_dtype))
        return clear


def _missing_driver(device: str) -> str | None:
    """Why Triton cannot launch on an accelerator, or None. Intel's and Ascend's drivers are packages of their own."""
    # Half a second, spent only where there is an accelerator.
    from triton.runtime import driver

    try:
        driver.active.get_current_target()
    except Exception as error:  # noqa: BLE001 - whatever it is, Triton cannot be used
        return f"Triton has no driver for {device} ({error})"
    return None
