"""Two calls: the peers are read, and then the rows are cleared as a clear strategy does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swa_alloc.operations import CLEAR, TOKEN
from swa_alloc.strategies._base import Bound, Strategy, Trial
from swa_alloc.strategies._registry import create

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target

# What else clears in place. Where index_fill is any good it is the default; a mask over the whole table never won.
_CLEARS = ("subscript_assign", "index_put", "index_copy")


class ReadThenClear(Strategy):
    """``index_select`` of the first entry of each row, then a clear strategy. Takes int32 and int64 indices.

    Args:
        clear: Its name; None for the device's default.
    """

    name = "read_then_clear"
    operation = "take"

    def __init__(self, clear: str | None = None) -> None:
        self._clear = clear
        if clear is not None:
            create(CLEAR.name, clear)

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """See ``Strategy.suggest``."""
        return {"clear": trial.suggest_categorical("clear", _CLEARS)}

    def unavailable(self, target: Target) -> str | None:
        """See ``Strategy.unavailable``."""
        return self._clearing(target).unavailable(_to_clear(target))

    def workspace_bytes(self, target: Target) -> int:
        """See ``Strategy.workspace_bytes``."""
        return self._clearing(target).workspace_bytes(_to_clear(target))

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        clear = self._clearing(target).bind(_to_clear(target))
        row_slots = target.row_slots
        # The first entries of the rows, without the sentinel.
        index_select = target.mapping[:-1:row_slots].index_select

        def take_slots(indices: torch.Tensor) -> torch.Tensor:
            peers = index_select(0, indices)
            clear(indices)
            return peers

        def take_pages(indices: torch.Tensor) -> torch.Tensor:
            peers = index_select(0, indices)
            clear(indices)
            return peers.floor_divide_(row_slots)

        return take_slots if target.name == TOKEN else take_pages

    def _clearing(self, target: Target) -> Strategy:
        return create(CLEAR.name, self._clear or CLEAR.default_strategy(target.mapping.device.type))


def _to_clear(target: Target) -> Target:
    return target._replace(operation=CLEAR.name)
