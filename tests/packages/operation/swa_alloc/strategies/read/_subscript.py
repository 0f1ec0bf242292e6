"""``rows = pages[indices]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swa_alloc.strategies._base import Bound, Strategy

if TYPE_CHECKING:
    import torch

    from swa_alloc.operations import Target


class Subscript(Strategy):
    """Indexes, as one writes it."""

    name = "subscript"
    operation = "read"

    def bind(self, target: Target) -> Bound:
        """See ``Strategy.bind``."""
        table = target.table

        def read(indices: torch.Tensor) -> torch.Tensor:
            return table[indices]

        return read
