"""What strategies that write the table as int32 have in common: the view, and the strategy that writes through it.

On Ascend int64 is what sends operators from the AI core to the AICPU: by CANN's public sources index_put above 100
indices or 5.4 M elements, and scatter always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from swa_alloc.operations import PAGE
from swa_alloc.strategies._base import Strategy, Trial
from swa_alloc.strategies._npu import without_torch_npu
from swa_alloc.strategies._registry import create

if TYPE_CHECKING:
    from swa_alloc.operations import Target


class Int32ViewStrategy(Strategy):
    """A strategy that is another one of its operation on an int32 view of the table. For Ascend.

    Args:
        call: Name of the other one.
    """

    calls: ClassVar[tuple[str, ...]]

    def __init__(self, call: str = "index_put") -> None:
        if call not in self.calls:
            raise ValueError(f"call must be one of {', '.join(self.calls)}, not {call!r}")
        self.inner = create(self.operation, call)

    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        """See ``Strategy.suggest``."""
        return {"call": trial.suggest_categorical("call", cls.calls)}

    def unavailable(self, target: Target) -> str | None:
        """See ``Strategy.unavailable``."""
        return without_torch_npu(target, "for Ascend, where int64 is slow") or self.inner.unavailable(as_int32(target))

    def workspace_bytes(self, target: Target) -> int:
        """See ``Strategy.workspace_bytes``."""
        return self.inner.workspace_bytes(as_int32(target))


def as_int32(target: Target) -> Target:
    """The rows of ``target``, without the sentinel, as pages of int32, twice as many entries in each."""
    # Whatever the page size, a last entry is left over for the page view to leave out, as the sentinel is.
    halves = target.mapping.view(torch.int32)[:-1]
    return target._replace(name=PAGE, mapping=halves, page_size=2 * target.row_slots)
