"""What every strategy must do to the table, whoever wrote it.

A third party checks its own clear strategy by subclassing ``StrategyContract``, and those of other operations by
subclassing ``SetContract``, ``TranslateContract`` or ``TakeContract``::

    class TestMyFill(StrategyContract):
        @pytest.fixture
        def strategy(self) -> Strategy:
            return MyFill()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from builders import PROPERTY
from hypothesis import given, settings
from hypothesis import strategies as st

from swa_alloc.operations import OPERATIONS, PAGE, TOKEN, Target
from swa_alloc.strategies import Bound, Strategy

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

# Each target with each dtype, and pages of one, few and many slots: enough where strategies hardly prepare anything.
TOKEN_LAYOUTS = [Layout("token", 1, torch.int64), Layout("token", 4, torch.int32)]
FEW_LAYOUTS = [*TOKEN_LAYOUTS, Layout("page", 4, torch.int64), Layout("page", 64, torch.int32)]


class Table:
    """A mapping full of distinct non-zero entries, and a plain list that says what it must hold."""

    def __init__(self, layout: Layout, device: torch.device, operation: str = "clear") -> None:
        # At least two pages, and ROWS rows of whichever kind is addressed.
        pages = ROWS if layout.target == "page" else max(2, ROWS // layout.page_size)
        self.entries = pages * layout.page_size + 1
        self.rows = pages if layout.target == "page" else self.entries - 1
        self.row_slots = layout.page_size if layout.target == "page" else 1
        length = GUARD_ENTRIES + self.entries + GUARD_ENTRIES
        self.buffer = torch.full((length,), GUARD, dtype=torch.int64, device=device)
        mapping = self.buffer[GUARD_ENTRIES : GUARD_ENTRIES + self.entries]
        self.target = Target(operation, layout.target, layout.index_dtype, mapping, layout.page_size)  # type: ignore[arg-type]  # plain strs where the fields are Literals
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
    # Row 0, the padding, lies between: whoever ignores the stride uses it.
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

    operation: ClassVar[str] = "clear"

    @pytest.fixture
    def strategy(self) -> Strategy:
        raise NotImplementedError

    @pytest.fixture
    def device(self) -> torch.device:
        """Where to test; override it for a strategy that runs elsewhere only."""
        return torch.device("cpu")

    @pytest.fixture(params=LAYOUTS, ids=str)
    def table(self, request: pytest.FixtureRequest, strategy: Strategy, device: torch.device) -> Table:
        return self.table_for(strategy, request.param, device)

    def table_for(self, strategy: Strategy, layout: Layout, device: torch.device) -> Table:
        if layout.target not in strategy.targets:
            pytest.skip(f"{strategy.name} does not serve the {layout.target} target")
        table = Table(layout, device, self.operation)
        assert strategy.unavailable(table.target) is None
        return table

    def values(self, table: Table, rows: list[int]) -> list[Any] | None:
        """What a call passes after its indices."""
        del table, rows

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> list[int] | None:
        """Make ``table.expected`` what it must be after a call, and return what the call must return."""
        del values
        table.expect_cleared(rows)

    def carry_out(self, call: Bound, table: Table, rows: list[int], form: str = "contiguous") -> Any:
        """Make a call, and check whatever there is to see of it."""
        device = table.target.mapping.device
        indices, values = FORMS[form](rows, table.target.index_dtype, device), self.values(table, rows)
        arguments = [indices]
        if values is not None:
            row = table.target.table.shape[1:]
            arguments.append(torch.tensor(values, dtype=torch.int64, device=device).view(len(rows), *row))
        expected = self.expect(table, rows, values)
        result = call(*arguments)
        table.check()
        assert indices.dtype is table.target.index_dtype
        assert indices.tolist() == rows
        assert [argument.tolist() for argument in arguments[1:]] == ([] if values is None else [values])
        if expected is not None:
            assert result.dtype is torch.int64
            assert result.tolist() == expected
        return result

    def rows(self, table: Table, case: str) -> list[int]:
        """The rows of a case, each once where the operation says so."""
        rows = CASES[case](table.rows)
        return list(dict.fromkeys(rows)) if OPERATIONS[self.operation].distinct else rows

    def test_says_what_it_is(self, strategy: Strategy, table: Table) -> None:
        assert strategy.name.isidentifier()
        assert strategy.operation == self.operation
        assert strategy.targets <= {TOKEN, PAGE}
        assert strategy.targets & {TOKEN, *OPERATIONS[self.operation].paged_targets}
        workspace = strategy.workspace_bytes(table.target)
        assert isinstance(workspace, int)
        assert workspace >= 0

    @pytest.mark.parametrize(("case", "form"), SHAPES)
    def test_does_what_it_must_to_the_rows_that_it_is_given_and_nothing_else(
        self, strategy: Strategy, table: Table, case: str, form: str
    ) -> None:
        self.carry_out(strategy.bind(table.target), table, self.rows(table, case), form)

    def test_leaves_no_state_behind_between_calls(self, strategy: Strategy, table: Table) -> None:
        call = strategy.bind(table.target)
        for case in (*CASES, *reversed(CASES)):
            # What an earlier call left in a workspace would reach entries that were filled since.
            table.refill()
            self.carry_out(call, table, self.rows(table, case))

    def test_a_second_call_finds_what_the_first_one_left(self, strategy: Strategy, table: Table) -> None:
        call = strategy.bind(table.target)
        for _ in range(2):
            self.carry_out(call, table, self.rows(table, "random"))

    def test_bindings_to_two_tables_do_not_meddle_with_each_other(self, strategy: Strategy, table: Table) -> None:
        target = table.target
        other = Table(Layout(target.name, target.page_size, target.index_dtype), target.mapping.device, self.operation)
        call, call_other = strategy.bind(table.target), strategy.bind(other.target)
        self.carry_out(call, table, [1])
        self.carry_out(call_other, other, [other.rows - 1])
        table.check()

    # Few examples: every layout of every candidate runs them.
    @settings(PROPERTY, max_examples=15)
    @given(data=st.data())
    def test_any_sequence_of_index_sets(self, strategy: Strategy, table: Table, data: st.DataObject) -> None:
        table.refill()
        call = strategy.bind(table.target)
        operation = OPERATIONS[self.operation]
        row = st.sampled_from([*range(1, table.rows), *([-1] if operation.sentinel else [])])
        some_rows = st.lists(row, max_size=3 * ROWS, unique=operation.distinct)
        for rows in data.draw(st.lists(some_rows, max_size=3)):
            self.carry_out(call, table, rows)


class _Reads:
    """What holds for operations that return something."""

    def test_a_result_stays_what_it_was(self: Any, strategy: Strategy, table: Table) -> None:
        call = strategy.bind(table.target)
        rows = self.rows(table, "random")
        result = self.carry_out(call, table, rows)
        kept = result.tolist()
        # Neither the table's own entries nor a buffer that the next call uses again.
        table.target.mapping.fill_(table.row_slots)
        call(_contiguous(rows, table.target.index_dtype, table.target.mapping.device))
        assert result.tolist() == kept


class _FewLayouts(StrategyContract):
    @pytest.fixture(params=FEW_LAYOUTS, ids=str)
    def table(self, request: pytest.FixtureRequest, strategy: Strategy, device: torch.device) -> Table:
        return self.table_for(strategy, request.param, device)


class SetContract(_FewLayouts):
    """The same for ``set``."""

    operation = "set"

    def values(self, table: Table, rows: list[int]) -> list[Any]:
        # Equal for equal rows: which one of two wins is nobody's business.
        peers = [[5000 + row * table.row_slots + slot for slot in range(table.row_slots)] for row in rows]
        return [peer for (peer,) in peers] if table.target.name == TOKEN else peers

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> None:
        assert values is not None
        for row, value in zip(rows, values, strict=True):
            for place, entry in zip(table.places(row), value if isinstance(value, list) else [value], strict=True):
                table.expected[place] = entry


class TranslateContract(_Reads, StrategyContract):
    """The same for ``translate``, which nothing calls on pages."""

    operation = "translate"

    @pytest.fixture(params=TOKEN_LAYOUTS, ids=str)
    def table(self, request: pytest.FixtureRequest, strategy: Strategy, device: torch.device) -> Table:
        return self.table_for(strategy, request.param, device)

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> list[int]:
        del values
        return [table.expected[place] for row in rows for place in table.places(row)]

    @pytest.mark.parametrize("form", FORMS)
    def test_minus_one_is_the_sentinel(self, strategy: Strategy, table: Table, form: str) -> None:
        assert self.carry_out(strategy.bind(table.target), table, [-1, 1, -1], form)[0] == -1


class TakeContract(_Reads, _FewLayouts):
    """The same for ``take``."""

    operation = "take"

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> list[int]:
        del values
        pages = [table.expected[table.places(row)[0]] // table.row_slots for row in rows]
        table.expect_cleared(rows)
        return pages


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
