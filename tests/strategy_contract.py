"""What every strategy must do to the table, whoever wrote it.

A third party checks its own strategy by subclassing::

    class TestMyFill(StrategyContract):
        @pytest.fixture
        def strategy(self) -> Strategy:
            return MyFill()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from builders import PROPERTY
from hypothesis import given, settings
from hypothesis import strategies as st

from swa_alloc.operations import OPERATIONS, Target
from swa_alloc.strategies import Strategy

# Rows of a table under test, the padding row included.
ROWS = 24

# Entries before and after the mapping, in the same storage: a write past either end shows.
GUARD_ENTRIES, GUARD = 64, -77


class Layout(NamedTuple):
    """How the table is addressed."""

    target: str
    page_size: int
    index_dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.target}-page{self.page_size}-{str(self.index_dtype).removeprefix('torch.')}"


LAYOUTS = [
    Layout(target, page_size, dtype)
    for target in ("token", "page")
    for page_size in (1, 4, 64)
    for dtype in (torch.int32, torch.int64)
]


class Table:
    """A mapping full of distinct non-zero entries, and a plain list that says what it must hold."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        # At least two pages, and ROWS rows of whichever kind is addressed.
        pages = ROWS if layout.target == "page" else max(2, ROWS // layout.page_size)
        entries = pages * layout.page_size + 1
        self.rows = pages if layout.target == "page" else entries - 1
        self.row_slots = layout.page_size if layout.target == "page" else 1
        self.buffer = torch.full((GUARD_ENTRIES + entries + GUARD_ENTRIES,), GUARD, dtype=torch.int64, device=device)
        mapping = self.buffer[GUARD_ENTRIES : GUARD_ENTRIES + entries]
        self.target = Target("clear", layout.target, layout.index_dtype, mapping, layout.page_size)  # type: ignore[arg-type]  # a plain str where the field is a Literal
        self.expected: list[int] = []
        self.refill()

    def refill(self) -> None:
        """Non-zero everywhere, -1 last."""
        mapping = self.target.mapping
        mapping.copy_(torch.arange(1000, 1000 + mapping.numel()))
        mapping[-1:].fill_(-1)
        self.expected = self.buffer.tolist()

    def expect_cleared(self, rows: Sequence[int]) -> None:
        """The reference: element by element, in plain Python, knowing nothing of PyTorch's indexing."""
        for row in rows:
            for slot in range(row * self.row_slots, (row + 1) * self.row_slots):
                self.expected[GUARD_ENTRIES + slot] = 0

    def check(self) -> None:
        """The mapping, its padding, its sentinel and what lies around it, entry by entry."""
        assert self.buffer.tolist() == self.expected


def _random(rows: int) -> list[int]:
    generator = torch.Generator().manual_seed(20260930)
    return (1 + torch.randperm(rows - 1, generator=generator)[: rows // 2]).tolist()


# Row 0 is padding: no case names it, so it must stay.
CASES: dict[str, Callable[[int], list[int]]] = {
    "random": _random,
    "duplicates": lambda rows: [*_random(rows), *reversed(_random(rows)), 1, 1, 1],
    "empty": lambda _rows: [],
    "single": lambda rows: [rows // 2],
    "reversed": lambda rows: list(range(rows - 1, 0, -1)),
    "every_row": lambda rows: list(range(1, rows)),
    "beside_padding_and_sentinel": lambda rows: [1, rows - 1],
}


def _contiguous(values: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def _strided(values: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # Row 0, the padding, lies between: whoever ignores the stride clears it.
    spaced = torch.zeros(len(values), 3, dtype=dtype, device=device)
    spaced[:, 1] = torch.tensor(values, dtype=dtype, device=device)
    return spaced[:, 1]


def _row_of_request_table(values: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # As SGLang passes them: a slice of one row of its request table.
    table = torch.zeros(3, len(values) + 4, dtype=dtype, device=device)
    table[1, 2 : 2 + len(values)] = torch.tensor(values, dtype=dtype, device=device)
    return table[1, 2 : 2 + len(values)]


FORMS = {"contiguous": _contiguous, "strided": _strided, "row_of_a_table": _row_of_request_table}

# Every case, and the views of those on which a stride or an offset could go wrong.
SHAPES = [
    *((case, "contiguous") for case in CASES),
    *((case, form) for form in FORMS if form != "contiguous" for case in ("random", "empty")),
]


class StrategyContract:
    """Subclass it, and return the strategy under test from ``strategy``."""

    @pytest.fixture
    def strategy(self) -> Strategy:
        raise NotImplementedError

    @pytest.fixture
    def device(self) -> torch.device:
        """Where to test; override it for a strategy that runs elsewhere only."""
        return torch.device("cpu")

    @pytest.fixture(params=LAYOUTS, ids=str)
    def table(self, request: pytest.FixtureRequest, strategy: Strategy, device: torch.device) -> Table:
        layout: Layout = request.param
        if layout.target not in strategy.targets:
            pytest.skip(f"{strategy.name} does not serve the {layout.target} target")
        table = Table(layout, device)
        assert strategy.unavailable(table.target) is None
        return table

    def test_says_what_it_is(self, strategy: Strategy, table: Table) -> None:
        assert strategy.name.isidentifier()
        assert strategy.targets <= set(OPERATIONS[strategy.operation].targets)
        workspace = strategy.workspace_bytes(table.target)
        assert isinstance(workspace, int)
        assert workspace >= 0

    @pytest.mark.parametrize(("case", "form"), SHAPES)
    def test_zeroes_the_rows_that_it_is_given_and_nothing_else(
        self, strategy: Strategy, table: Table, case: str, form: str
    ) -> None:
        clear = strategy.bind(table.target)
        rows = CASES[case](table.rows)
        clear(FORMS[form](rows, table.target.index_dtype, table.target.mapping.device))
        table.expect_cleared(rows)
        table.check()

    @pytest.mark.parametrize("form", FORMS)
    def test_leaves_the_indices_as_they_are(self, strategy: Strategy, table: Table, form: str) -> None:
        rows = CASES["duplicates"](table.rows)
        indices = FORMS[form](rows, table.target.index_dtype, table.target.mapping.device)
        strategy.bind(table.target)(indices)
        assert indices.dtype is table.target.index_dtype
        assert indices.tolist() == rows

    def test_leaves_no_state_behind_between_calls(self, strategy: Strategy, table: Table) -> None:
        clear = strategy.bind(table.target)
        for make in (*CASES.values(), *reversed(CASES.values())):
            # What an earlier call left in a workspace would clear entries that were filled since.
            table.refill()
            rows = make(table.rows)
            clear(_contiguous(rows, table.target.index_dtype, table.target.mapping.device))
            table.expect_cleared(rows)
            table.check()

    def test_clearing_what_is_clear_changes_nothing(self, strategy: Strategy, table: Table) -> None:
        clear = strategy.bind(table.target)
        rows = CASES["random"](table.rows)
        for _ in range(2):
            clear(_contiguous(rows, table.target.index_dtype, table.target.mapping.device))
        table.expect_cleared(rows)
        table.check()

    def test_bindings_to_two_tables_do_not_meddle_with_each_other(self, strategy: Strategy, table: Table) -> None:
        device = table.target.mapping.device
        other = Table(Layout(table.target.name, table.target.page_size, table.target.index_dtype), device)
        clear, clear_other = strategy.bind(table.target), strategy.bind(other.target)
        clear(_contiguous([1], table.target.index_dtype, device))
        clear_other(_contiguous([other.rows - 1], table.target.index_dtype, device))
        table.expect_cleared([1])
        other.expect_cleared([other.rows - 1])
        table.check()
        other.check()

    # Few examples: every layout of every candidate runs them.
    @settings(PROPERTY, max_examples=15)
    @given(data=st.data())
    def test_any_sequence_of_index_sets(self, strategy: Strategy, table: Table, data: st.DataObject) -> None:
        table.refill()
        clear = strategy.bind(table.target)
        for rows in data.draw(st.lists(st.lists(st.integers(1, table.rows - 1), max_size=3 * ROWS), max_size=3)):
            clear(_contiguous(rows, table.target.index_dtype, table.target.mapping.device))
            table.expect_cleared(rows)
            table.check()


class GridTrial:
    """A trial that walks through every combination of the values that ``suggest`` names."""

    def __init__(self, choices: list[int]) -> None:
        self._choices = choices
        self.widths: list[int] = []

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        del name
        position = len(self.widths)
        self.widths.append(len(choices))
        return choices[self._choices[position] if position < len(self._choices) else 0]

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        # Too many to try each: the ends.
        del step, log
        return int(self.suggest_categorical(name, (low, high)))


def every_params(cls: type[Strategy]) -> Iterator[dict[str, Any]]:
    """Each set of parameters that ``cls.suggest`` can ask for; ``{}`` once where it has none."""
    choices: list[int] = []
    while True:
        trial = GridTrial(choices)
        yield cls.suggest(trial)
        choices = [*choices, *[0] * (len(trial.widths) - len(choices))]
        # Count up, the last parameter fastest.
        while choices and choices[-1] == trial.widths[len(choices) - 1] - 1:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1
