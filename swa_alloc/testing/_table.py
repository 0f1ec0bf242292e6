"""The table that a strategy is tested on, and the plain list that says what it must hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from swa_alloc.operations import PAGE, TOKEN, OperationName, Target, TargetName

# Rows of a table under test, the padding row included.
ROWS = 24

# Entries before and after the mapping, in the same storage: a write past either end shows.
GUARD_ENTRIES, GUARD = 64, -77


class Layout(NamedTuple):
    """How the table is addressed.

    Attributes:
        target: What is indexed.
        page_size: Slots in a page.
        index_dtype: Of the indices.
    """

    target: TargetName
    page_size: int
    index_dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.target}-page{self.page_size}-{str(self.index_dtype).removeprefix('torch.')}"


_TARGETS: tuple[TargetName, ...] = (TOKEN, PAGE)
LAYOUTS = tuple(
    Layout(target, page_size, dtype)
    for target in _TARGETS
    for page_size in (1, 4, 64)
    for dtype in (torch.int32, torch.int64)
)

# Each target with each dtype, and pages of one, few and many slots: enough where strategies hardly prepare anything.
TOKEN_LAYOUTS = (Layout(TOKEN, 1, torch.int64), Layout(TOKEN, 4, torch.int32))
FEW_LAYOUTS = (*TOKEN_LAYOUTS, Layout(PAGE, 4, torch.int64), Layout(PAGE, 64, torch.int32))


class Table:
    """A mapping full of distinct non-zero entries, and a plain list that says what it must hold.

    Attributes:
        target: What a strategy is bound to.
        expected: What the mapping must hold, with what lies around it in memory.
        entries: Entries of the mapping, the sentinel included.
        rows: Rows that may be indexed, the padding row, 0, included.
        row_slots: Slots in a row.
    """

    def __init__(self, layout: Layout, device: torch.device, operation: OperationName = "clear") -> None:
        # At least two pages, and ROWS rows of whichever kind is addressed.
        pages = ROWS if layout.target == PAGE else max(2, ROWS // layout.page_size)
        self.entries = pages * layout.page_size + 1
        self.rows = pages if layout.target == PAGE else self.entries - 1
        length = GUARD_ENTRIES + self.entries + GUARD_ENTRIES
        self.buffer = torch.full((length,), GUARD, dtype=torch.int64, device=device)
        mapping = self.buffer[GUARD_ENTRIES : GUARD_ENTRIES + self.entries]
        self.target = Target(operation, layout.target, layout.index_dtype, mapping, layout.page_size)
        self.row_slots = self.target.row_slots
        self.expected: list[int] = []
        self.refill()

    def refill(self) -> None:
        """Non-zero everywhere, -1 last."""
        mapping = self.target.mapping
        mapping.copy_(torch.arange(1000, 1000 + mapping.numel()))
        mapping[-1:].fill_(-1)
        self.expected = self.buffer.tolist()

    def places(self, row: int) -> range:
        """Where the entries of a row lie in ``expected``; -1 is the last row of all, the sentinel's."""
        first = GUARD_ENTRIES + (row % self.entries if row < 0 else row) * self.row_slots
        return range(first, first + self.row_slots)

    def expect_cleared(self, rows: Sequence[int]) -> None:
        """The reference: element by element, in plain Python, knowing nothing of PyTorch's indexing."""
        for row in rows:
            for place in self.places(row):
                self.expected[place] = 0

    def check(self, call: str = "the call") -> None:
        """Compare the mapping, its padding, its sentinel and what lies around it, entry by entry."""
        assert self.buffer.tolist() == self.expected, f"{call} left something else in the table"
