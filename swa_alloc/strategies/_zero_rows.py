"""Zeros shaped like k rows of a table, for the strategies that copy zeros instead of filling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from swa_alloc.operations import Target
    from swa_alloc.strategies._base import Trial

# 512 KiB of int64 zeros: beyond as many slots the copy itself dwarfs what a contiguous source saves.
_PREALLOCATED_SLOTS = 1 << 16


class ZeroRows:
    """Where k rows of zeros come from.

    Args:
        source: ``"slice"`` cuts them from preallocated zeros, contiguous; ``"expand"`` repeats one zero with stride 0
            and is what more rows than were preallocated fall back to.
    """

    SOURCES = ("expand", "slice")

    def __init__(self, source: str) -> None:
        if source not in self.SOURCES:
            raise ValueError(f"source must be one of {', '.join(self.SOURCES)}, not {source!r}")
        self._source = source

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """Both sources, as a strategy's ``suggest``."""
        return {"source": trial.suggest_categorical("source", cls.SOURCES)}

    def bytes(self, target: Target) -> int:
        """Memory that ``bind`` allocates, in bytes."""
        rows = self._rows(target) if self._source == "slice" else 0
        return (1 + rows * _row_slots(target)) * target.mapping.element_size()

    def bind(self, target: Target) -> Callable[[int], torch.Tensor]:
        """A function from k to ``[k, *table.shape[1:]]`` zeros on the table's device."""
        row_shape = target.table.shape[1:]
        zero = target.mapping.new_zeros(())

        def expand(count: int) -> torch.Tensor:
            return zero.expand(count, *row_shape)

        if self._source == "expand":
            return expand
        rows = self._rows(target)
        zeros = target.mapping.new_zeros((rows, *row_shape))

        def cut(count: int) -> torch.Tensor:
            return zeros[:count] if count <= rows else expand(count)

        return cut

    @staticmethod
    def _rows(target: Target) -> int:
        return min(target.table.shape[0], max(1, _PREALLOCATED_SLOTS // _row_slots(target)))


def _row_slots(target: Target) -> int:
    return target.table.shape[1] if target.table.dim() > 1 else 1
