"""What the Triton strategies have in common: their parameters, and what must be there before they can run."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from swa_alloc.strategies._base import Strategy, Trial

if TYPE_CHECKING:
    from swa_alloc.operations import Target


class TritonStrategy(Strategy):
    """A strategy that is a Triton kernel, one program a block of slots.

    Args:
        block: Slots that one program serves.
        num_warps: Warps a program.
    """

    def __init__(self, block: int = 256, num_warps: int = 4) -> None:
        if block < 1 or block & (block - 1):
            raise ValueError(f"block must be a power of two, not {block}")
        self.block, self.num_warps = block, num_warps

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """See ``Strategy.suggest``."""
        # Two, since each is compiled, for each index dtype and target, within the budget.
        return {"block": trial.suggest_categorical("block", (256, 1024))}

    def unavailable(self, target: Target) -> str | None:
        """See ``Strategy.unavailable``."""
        if find_spec("triton") is None:
            return "Triton is not installed"
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        device = target.mapping.device.type
        return f"Triton does not drive {device}" if device == "cpu" else _missing_driver(device)

    def grid(self, slots: int) -> tuple[int]:
        """As many programs as it takes to serve so many slots."""
        return ((slots + self.block - 1) // self.block,)


def _missing_driver(device: str) -> str | None:
    """Why Triton cannot launch on an accelerator, or None. Intel's and Ascend's drivers are packages of their own."""
    # Half a second, spent only where there is an accelerator.
    from triton.runtime import driver

    try:
        driver.active.get_current_target()
    except Exception as error:  # noqa: BLE001 - whatever it is, Triton cannot be used
        return f"Triton has no driver for {device} ({error})"
    return None
