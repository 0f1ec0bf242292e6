"""Two calls: the peers are read, and then the rows are cleared as a clear strategy does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from swa_alloc.operations import CLEAR, TOKEN, page_view
from swa_alloc.strategies._base import Bound, Strategy, Trial
from swa_alloc.strategies._label import parse_label
from swa_alloc.strategies._npu import torch_npu_is_imported
from swa_alloc.strategies._registry import create

if TYPE_CHECKING:
    from swa_alloc.operations import Target


class _Read(NamedTuple):
    """A way to read the first entries of rows.

    Attributes:
        bind: From a target to what gives the ``[k]`` entries. It is called as ``index_select`` is, with a 0 before the
            indices, so that the plainest read has nothing around it, which would cost 60 ns.
        divide: Makes pages of slots; in place where the entries have memory of their own.
    """

    bind: Callable[[Target], Bound]
    divide: Callable[[torch.Tensor, int], torch.Tensor]


def _index_select(target: Target) -> Bound:
    # The first entries of the rows, without the sentinel.
    return target.mapping[: -1 : target.row_slots].index_select


def _rows(target: Target) -> Bound:
    index_select = page_view(target.mapping, target.row_slots).index_select

    def read(dim: int, indices: torch.Tensor) -> torch.Tensor:
        return index_select(dim, indices)[:, 0]

    return read


def _subscript(target: Target) -> Bound:
    pages = page_view(target.mapping, target.row_slots)

    def read(_dim: int, indices: torch.Tensor) -> torch.Tensor:
        return pages[indices, 0]

    return read


_READS: Mapping[str, _Read] = MappingProxyType(
    {
        "index_select": _Read(_index_select, torch.Tensor.floor_divide_),
        # Not in place: the pages would keep the rows alive, and be strided to whatever uses them next.
        "rows": _Read(_rows, torch.Tensor.floor_divide),
        "subscript": _Read(_subscript, torch.Tensor.floor_divide_),
    }
)

# What else clears in place. A mask over the whole table never won, and an assignment is index_put the long way round.
_CLEARS = ("index_put", "index_copy", "scatter")
_ASCEND_CLEARS = ("npu_scatter_nd_update", "int32_view")


class ReadThenClear(Strategy):
    """A read of the first entry of each row, then a clear strategy. Takes int32 and int64 indices.

    Args:
        clear: Label of the clear strategy, such as ``"int32_view(call=scatter)"``; None for the device's default.
        read: ``"index_select"`` of the strided view of all first entries, which some devices copy first;
            ``"rows"`` selects whole rows and then their first entries; ``"subscript"`` is ``pages[indices, 0]``.
    """

    name = "read_then_clear"
    operation = "take"

    def __init__(self, clear: str | None = None, read: str = "index_select") -> None:
        if read not in _READS:
            raise ValueError(f"read must be one of {', '.join(_READS)}, not {read!r}")
        self._clear, self._read = clear, _READS[read]
        if clear is not None:
            create(CLEAR.name, *parse_label(clear))

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """See ``Strategy.suggest``."""
        if not torch.accelerator.is_available():
            # On a CPU the other reads take 2 to 10 times as long (torch 2.13), and index_fill is the default.
            return {"clear": trial.suggest_categorical("clear", _CLEARS)}
        clears = ("index_fill", *_CLEARS, *(_ASCEND_CLEARS if torch_npu_is_imported() else ()))
        return {
            "clear": trial.suggest_categorical("clear", clears),
            "read": trial.suggest_categorical("read", tuple(_READS)),
        }

    def unavailable(self, target: Target) -> str | None:
        """See ``Strategy.unavailable``."""
        reason = self._clearing(target).unavailable(_to_clear(target))
        return reason and f"it clears by {self._clear}, and {reason}"

    def workspace_bytes(self, target: Target) -> int:
        """See ``Strategy.workspace_bytes``."""
        return self._clearing(target).workspace_bytes(_to_clear(target))

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        clear = self._clearing(target).bind(_to_clear(target))
        read, divide = self._read.bind(target), self._read.divide
        row_slots = target.row_slots

        def take_slots(indices: torch.Tensor) -> torch.Tensor:
            peers: torch.Tensor = read(0, indices)
            clear(indices)
            return peers

        def take_pages(indices: torch.Tensor) -> torch.Tensor:
            peers = read(0, indices)
            clear(indices)
            return divide(peers, row_slots)

        return take_slots if target.name == TOKEN else take_pages

    def _clearing(self, target: Target) -> Strategy:
        if self._clear is None:
            return create(CLEAR.name, CLEAR.default_strategy(target.mapping.device.type))
        return create(CLEAR.name, *parse_label(self._clear))


def _to_clear(target: Target) -> Target:
    return target._replace(operation=CLEAR.name)
