"""The operations on the mapping that have more than one possible implementation.

An operation says what its strategies must do; a strategy says how. The registry, the contract check, the race and the
dispatcher know operations only through this interface, so that another operation joins by adding an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import torch

OperationName = Literal["clear"]
TargetName = Literal["token", "page"]
IndexDtype = Literal["int32", "int64"]
Objective = Literal["serving", "latency"]

TOKEN: Final = "token"  # noqa: S105 - the 1-D mapping, indexed by slot
PAGE: Final = "page"  # its 2-D page view, indexed by page
INDEX_DTYPES: Mapping[IndexDtype, torch.dtype] = MappingProxyType({"int32": torch.int32, "int64": torch.int64})


class Target(NamedTuple):
    """What a strategy is bound to: one tensor, and the kind of indices that will address it.

    Attributes:
        operation: Name of the operation, a key of ``OPERATIONS``.
        name: ``"token"`` or ``"page"``.
        index_dtype: ``torch.int32`` or ``torch.int64``; a strategy that needs another one casts, and is timed with it.
        mapping: ``[size + page_size + 1]`` int64, the last entry being the sentinel.
        page_size: Slots in a page.
    """

    operation: OperationName
    name: TargetName
    index_dtype: torch.dtype
    mapping: torch.Tensor
    page_size: int

    @property
    def table(self) -> torch.Tensor:
        """The tensor whose first dimension the indices address.

        ``[size + page_size + 1]`` for the token target; ``[pages, page_size]``, a view without the sentinel, for the
        page target.
        """
        return self.mapping if self.name == TOKEN else page_view(self.mapping, self.page_size)


def empty_mapping(size: int, page_size: int, device: torch.device) -> torch.Tensor:
    """``[size + page_size + 1]`` int64: 0 for every slot, and the sentinel, -1, which a ``last_loc`` of -1 indexes."""
    mapping = torch.zeros(size + page_size + 1, dtype=torch.int64, device=device)
    mapping[-1:].fill_(-1)
    return mapping


def page_view(mapping: torch.Tensor, page_size: int) -> torch.Tensor:
    """``[pages, page_size]`` view of a ``[size + page_size + 1]`` mapping, without its sentinel."""
    return mapping[:-1].view(-1, page_size)


class Operation(NamedTuple):
    """One operation on the mapping.

    Attributes:
        name: As profiles, pins and traces spell it.
        targets: The targets that it can be tuned for.
        arguments: Builds the call's arguments from ``[k]`` indices of the target's table.
        reference: What every strategy must do to the table and return, in the plainest PyTorch; defines correctness.
        fallback: The default strategy, for device types without an entry in ``defaults``.
        defaults: The default strategy by device type.
    """

    name: OperationName
    targets: tuple[TargetName, ...]
    arguments: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
    reference: Callable[..., torch.Tensor | None]
    fallback: str
    defaults: Mapping[str, str] = MappingProxyType({})

    def default_strategy(self, device_type: str) -> str:
        """The strategy that is used where nothing was measured."""
        return self.defaults.get(device_type, self.fallback)


def _clear_arguments(_table: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (indices,)


def _clear_reference(table: torch.Tensor, indices: torch.Tensor) -> None:
    for row in indices.tolist():
        table[row].zero_()


CLEAR = Operation(
    name="clear",
    targets=(TOKEN, PAGE),
    arguments=_clear_arguments,
    reference=_clear_reference,
    # On CUDA the assignment copied a host scalar and blocked until the stream drained (sglang PR 35773).
    fallback="index_fill",
    # aclnnIndexFill rewrites the whole table: 87 ms a token instead of 18 (sglang PR 36759).
    defaults={"npu": "subscript_assign"},
)

OPERATIONS: Mapping[str, Operation] = MappingProxyType({CLEAR.name: CLEAR})
