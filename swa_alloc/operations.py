"""The operations on the mapping that have more than one possible implementation.

An operation says what its strategies must do; a strategy says how. The registry, the contract check, the race and the
dispatcher know operations only through this interface, so that another operation joins by adding an entry here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import torch

OperationName = Literal["clear", "set", "translate", "take"]
TargetName = Literal["token", "page"]
IndexDtype = Literal["int32", "int64"]
Objective = Literal["serving", "latency"]

TOKEN: Final = "token"  # noqa: S105 - the 1-D mapping, indexed by slot
PAGE: Final = "page"  # its 2-D page view, indexed by page
INDEX_DTYPES: Mapping[IndexDtype, torch.dtype] = MappingProxyType({"int32": torch.int32, "int64": torch.int64})


class CallKind(NamedTuple):
    """What a profile's decisions are grouped by.

    Attributes:
        operation: Name of the operation, a key of ``OPERATIONS``.
        target: What is indexed.
        index_dtype: The indices' dtype.
    """

    operation: OperationName
    target: TargetName
    index_dtype: IndexDtype

    def __str__(self) -> str:
        """As pins, reports and studies spell it, ``clear.token.int32``."""
        return ".".join(self)


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

    @property
    def row_slots(self) -> int:
        """Slots in a row of the table."""
        return 1 if self.name == TOKEN else self.page_size


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

    A call passes ``[k]`` indices of the target's table, and after them the values that go there, if there are any.

    Attributes:
        name: As profiles, pins and traces spell it.
        paged_targets: The targets that calls are made on where a page has more than one slot. Where it has one, pages
            are slots, and every operation has the token target alone.
        reference: What every strategy must do to the table and return, in the plainest PyTorch on a CPU.
        fallback: The default strategy, for device types without an entry in ``defaults``.
        defaults: The default strategy by device type.
        values: Makes up what a call passes after its indices, from the target's table and those ``[k]`` indices; None
            where calls pass indices alone.
        distinct: Whether the indices of a call differ from each other; its result for others is undefined.
        sentinel: Whether an index of -1 is legal.
    """

    name: OperationName
    paged_targets: tuple[TargetName, ...]
    reference: Callable[..., torch.Tensor | None]
    fallback: str
    defaults: Mapping[str, str] = MappingProxyType({})
    values: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    distinct: bool = False
    sentinel: bool = False

    def default_strategy(self, device_type: str) -> str:
        """The strategy that is used where nothing was measured."""
        return self.defaults.get(device_type, self.fallback)

    def targets(self, page_size: int) -> tuple[TargetName, ...]:
        """The targets that calls are made on with pages of so many slots."""
        return self.paged_targets if page_size > 1 else (TOKEN,)

    def arguments(self, table: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A call's arguments: ``[k]`` indices of the table, and made-up values where it takes some."""
        return (indices,) if self.values is None else (indices, self.values(table, indices))


def _peers(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of consecutive SWA slots, equal for equal indices."""
    row_slots = math.prod(table.shape[1:])
    first = (indices.to(torch.int64) * 2 + 1) * row_slots
    return (first.unsqueeze(1) + torch.arange(row_slots, device=first.device)).view(-1, *table.shape[1:])


def _clear_reference(table: torch.Tensor, indices: torch.Tensor) -> None:
    table[indices] = 0


def _set_reference(table: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> None:
    table[indices] = values


def _translate_reference(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return table[indices]


def _take_reference(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    rows = table[indices].flatten(1) if table.dim() > 1 else table[indices].unsqueeze(1)
    _clear_reference(table, indices)
    return rows[:, 0] // rows.shape[1]


CLEAR = Operation(
    name="clear",
    paged_targets=(TOKEN, PAGE),
    reference=_clear_reference,
    # On CUDA the assignment copied a host scalar and blocked until the stream drained (sglang PR 35773).
    fallback="index_fill",
    # aclnnIndexFill rewrites the whole table: 87 ms a token instead of 18 (sglang PR 36759).
    defaults={"npu": "subscript_assign"},
)

# Gives rows their SWA slots, [k, *row] int64.
SET = Operation(
    name="set",
    paged_targets=(TOKEN, PAGE),
    reference=_set_reference,
    values=_peers,
    fallback="subscript_assign",
    # On a CPU an assignment takes 1.5 times as long, from 1 slot to 8192 (torch 2.13). On an NPU it is SGLang's choice
    # for alloc_decode (0.5.23).
    defaults={"cpu": "index_copy", "npu": "npu_scatter_nd_update"},
)

# Reads the SWA slots of full slots, [k] int64. Nothing reads by page without clearing.
TRANSLATE = Operation(
    name="translate",
    paged_targets=(TOKEN,),
    reference=_translate_reference,
    fallback="subscript",
    sentinel=True,
)

# Reads the SWA pages, [k] int64, of full pages, and clears the rows: what every free of a window does. The SWA page is
# the first entry of the row, divided by the slots in a row; 0 where there is none.
TAKE = Operation(
    name="take",
    paged_targets=(PAGE,),
    reference=_take_reference,
    fallback="read_then_clear",
    distinct=True,
)

OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {operation.name: operation for operation in (CLEAR, SET, TRANSLATE, TAKE)}
)
