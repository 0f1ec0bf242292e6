"""What a strategy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch

from swa_alloc.operations import OPERATIONS, PAGE, TOKEN, Target

Bound = Callable[..., Any]


class Trial(Protocol):
    """The part of ``optuna.trial.Trial`` that a strategy's ``suggest`` may use."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of ``choices``."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """An integer in ``[low, high]``."""


class Strategy(ABC):
    """One way to carry out an operation on the mapping.

    A subclass sets ``name`` and implements ``bind``. Parameters are the keyword arguments of its ``__init__``; every
    one has a default, and ``suggest`` names the values worth trying.
    """

    name: ClassVar[str]
    operation: ClassVar[str] = "clear"
    targets: ClassVar[frozenset[str]] = frozenset({TOKEN, PAGE})
    # Whether a call passes over the whole table, whatever its indices: timed once, it is not timed again for each kind.
    whole_table: ClassVar[bool] = False

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """Parameters to try in this process, asked from ``trial`` as in an Optuna objective. None by default."""
        del trial
        return {}

    def unavailable(self, target: Target) -> str | None:
        """Why this strategy cannot run on ``target``, in words, or None where it can."""
        del target
        return None

    def workspace_bytes(self, target: Target) -> int:
        """Memory on the target's device, in bytes, that ``bind`` keeps for as long as the result lives."""
        del target
        return 0

    @abstractmethod
    def bind(self, target: Target) -> Bound:
        """The operation on ``target`` as one callable, everything that can be prepared being prepared here.

        It takes ``[k]`` indices of ``target.index_dtype`` on the mapping's device, in any order, strided views
        included, k = 0 included, and duplicates unless the operation says that there are none.

        - ``clear(indices)`` zeroes those rows of ``target.table``.
        - ``set(indices, peers)`` stores the contiguous int64 ``peers``, ``[k]`` or ``[k, page_size]``, in them.
        - ``translate(indices)`` returns ``[k]`` int64 entries, not a view; an index of -1 reads the sentinel.
        - ``take(indices)`` returns ``[k]`` int64 SWA pages, the first entry of each row divided by the slots in a row,
          and zeroes the rows.
        """


def on_int64(target: Target, call: Bound) -> Bound:
    """``call`` where the indices are int64 already, else ``call`` behind the cast; decided here, not at each call."""
    if target.index_dtype is torch.int64:
        return call

    def cast_first(indices: torch.Tensor) -> Any:
        return call(indices.long())

    def cast_first_with_values(indices: torch.Tensor, values: torch.Tensor) -> Any:
        return call(indices.long(), values)

    # Two, since to take any number of values costs 0.1 us.
    return cast_first if OPERATIONS[target.operation].values is None else cast_first_with_values
