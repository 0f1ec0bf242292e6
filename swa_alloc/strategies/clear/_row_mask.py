"""A boolean mask over a table's rows, set for one call and reset after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from swa_alloc.operations import Target
    from swa_alloc.strategies._base import Bound


def row_mask_bytes(target: Target) -> int:
    """Memory of the mask, in bytes: one a row."""
    return target.table.shape[0]


def through_row_mask(target: Target, write: Callable[[torch.Tensor], object]) -> Bound:
    """A clear that marks the rows in a persistent mask, calls ``write(mask)``, and unmarks them.

    The mask is ``[rows]`` for the token target and ``[rows, 1]``, to broadcast over the slots, for the page target.
    """
    table = target.table
    marks = table.new_zeros(table.shape[0], dtype=torch.bool)
    mask = marks.view(-1, *(1 for _ in table.shape[1:]))
    yes, no = marks.new_ones(()), marks.new_zeros(())

    def clear(indices: torch.Tensor) -> None:
        # index_put_ and not index_fill_: the devices that need a mask have no index_fill_ (vllm-ascend PR 11337).
        marks.index_put_((indices,), yes)
        write(mask)
        marks.index_put_((indices,), no)

    return clear
