"""What a strategy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch

from swa_alloc.operations import PAGE, TOKEN, Target

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

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """Parameters to try, asked from ``trial`` as in an Optuna objective. None by default."""
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

        For ``clear`` it takes ``[k]`` indices of ``target.index_dtype`` on the mapping's device, in any order,
        duplicates and strided views included, k = 0 included, and zeroes those rows of ``target.table``.
        """


def on_int64(target: Target, call: Callable[[torch.Tensor], Any]) -> Bound:
    """``call`` where the indices are int64 already, else ``call`` behind the cast; decided here, not at each call."""
    if target.index_dtype is torch.int64:
        return call
    int64 = torch.int64

    def cast_first(indices: torch.Tensor) -> Any:
        return call(indices.to(int64))

    return cast_first
