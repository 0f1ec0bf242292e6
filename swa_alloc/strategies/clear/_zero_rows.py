"""What the strategies that copy zeros, instead of filling, have in common: zeros shaped like k rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swa_alloc.strategies._base import Strategy, Trial

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target

# 512 KiB of int64 zeros: beyond as many slots the copy itself dwarfs what a contiguous source saves.
_PREALLOCATED_SLOTS = 1 << 16

ZeroRows = Callable[[int], "torch.Tensor"]  # from k to [k, *table.shape[1:]] zeros


class CopyZeros(Strategy):
    """A strategy that copies rows of zeros into the table.

    Args:
        source: Where they come from. ``"slice"`` cuts them from preallocated zeros, contiguous; ``"expand"`` repeats
            one zero with stride 0, and is what more rows than were preallocated fall back to.
    """

    _SOURCES = ("expand", "slice")

    def __init__(self, source: str = "expand") -> None:
        if source not in self._SOURCES:
            raise ValueError(f"source must be one of {', '.join(self._SOURCES)}, not {source!r}")
        self._source = source

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """See ``Strategy.suggest``."""
        return {"source": trial.suggest_categorical("source", cls._SOURCES)}

    def workspace_bytes(self, target: Target) -> int:
        """See ``Strategy.workspace_bytes``."""
        rows = _preallocated_rows(target) if self._source == "slice" else 0
        return (1 + rows * _row_slots(target)) * target.mapping.element_size()

    def zero_rows(self, target: Target) -> ZeroRows:
        """A function that gives k rows of zeros on the table's device."""
        row_shape = target.table.shape[1:]
        zero = target.mapping.new_zeros(())

        def expand(count: int) -> torch.Tensor:
            return zero.expand(count, *row_shape)

        if self._source == "expand":
            return expand
        rows = _preallocated_rows(target)
        zeros = target.mapping.new_zeros((rows, *row_shape))

        def cut(count: int) -> torch.Tensor:
            return zeros[:count] if count <= rows else expand(count)

        return cut


def _preallocated_rows(target: Target) -> int:
    return min(target.table.shape[0], max(1, _PREALLOCATED_SLOTS // _row_slots(target)))


def _row_slots(target: Target) -> int:
    return target.table.shape[1] if target.table.dim() > 1 else 1
