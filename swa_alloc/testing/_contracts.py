"""What every strategy must do to the table, whoever wrote it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
import torch

from swa_alloc.operations import OPERATIONS, PAGE, TOKEN, OperationName
from swa_alloc.strategies import Bound, Strategy
from swa_alloc.testing._table import FEW_LAYOUTS, LAYOUTS, ROWS, TOKEN_LAYOUTS, Layout, Table


def _random(rows: int) -> list[int]:
    generator = torch.Generator().manual_seed(20260930)
    return (1 + torch.randperm(rows - 1, generator=generator)[: rows // 2]).tolist()


# Row 0 is padding: no case names it, so it must stay.
CASES: Mapping[str, Callable[[int], list[int]]] = {
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
    # Row 0, the padding, lies between: what ignores the stride uses it.
    spaced = torch.zeros(len(values), 3, dtype=dtype, device=device)
    spaced[:, 1] = torch.tensor(values, dtype=dtype, device=device)
    return spaced[:, 1]


def _row_of_request_table(values: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # As SGLang passes them: a slice of one row of its request table.
    table = torch.zeros(3, len(values) + 4, dtype=dtype, device=device)
    table[1, 2 : 2 + len(values)] = torch.tensor(values, dtype=dtype, device=device)
    return table[1, 2 : 2 + len(values)]


FORMS: Mapping[str, Callable[[list[int], torch.dtype, torch.device], torch.Tensor]] = {
    "contiguous": _contiguous,
    "strided": _strided,
    "row_of_a_table": _row_of_request_table,
}

# Every case, and the views of those on which a stride or an offset could go wrong.
SHAPES = [
    *((case, "contiguous") for case in CASES),
    *((case, form) for form in FORMS if form != "contiguous" for case in ("random", "empty")),
]


class StrategyContract:
    """The contract of ``clear``, and what it shares with the others.

    Attributes:
        candidates: The strategies under test, by the names that the tests get.
        layouts: How tables are addressed; a candidate is tested on those of its own targets.
    """

    candidates: ClassVar[Mapping[str, Strategy]] = MappingProxyType({})
    layouts: ClassVar[Sequence[Layout]] = LAYOUTS
    operation: ClassVar[OperationName] = "clear"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each candidate on each of its layouts, for every test that asks for a strategy."""
        if "strategy" not in metafunc.fixturenames:
            return
        tests = [
            pytest.param(strategy, layout, id=f"{label}-{layout}")
            for label, strategy in self.candidates.items()
            for layout in self.layouts
            if layout.target in strategy.targets
        ]
        if not tests:
            # Nothing would be skipped, which looks like success.
            raise pytest.UsageError(f"{type(self).__name__}.candidates holds nothing that serves {self.operation}")
        metafunc.parametrize(("strategy", "layout"), tests)

    @pytest.fixture
    def device(self) -> torch.device:
        """Where to test; override it for a strategy that runs elsewhere only."""
        return torch.device("cpu")

    @pytest.fixture
    def table(self, layout: Layout, device: torch.device) -> Table:
        """A table of its own for each test."""
        return Table(layout, device, self.operation)

    def values(self, table: Table, rows: list[int]) -> list[Any] | None:
        """What a call passes after its indices, nested as the row is; None where it passes nothing."""
        del table, rows
        return None

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> list[int] | None:
        """Make ``table.expected`` what it must be after a call, and return what the call must return."""
        del values
        table.expect_cleared(rows)
        return None

    def carry_out(self, call: Bound, table: Table, rows: list[int], form: str = "contiguous") -> Any:
        """Make a call, and check whatever there is to see of it."""
        device = table.target.mapping.device
        indices, values = FORMS[form](rows, table.target.index_dtype, device), self.values(table, rows)
        arguments = [indices]
        if values is not None:
            row = table.target.table.shape[1:]
            arguments.append(torch.tensor(values, dtype=torch.int64, device=device).view(len(rows), *row))
        expected = self.expect(table, rows, values)
        told = f"a call with {form} indices {rows}"
        result = call(*arguments)
        table.check(told)
        assert indices.dtype is table.target.index_dtype, told
        assert indices.tolist() == rows, f"{told} changed them"
        assert [argument.tolist() for argument in arguments[1:]] == ([] if values is None else [values]), told
        if expected is not None:
            assert result.dtype is torch.int64, told
            assert result.tolist() == expected, told
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
        assert strategy.unavailable(table.target) is None
        workspace = strategy.workspace_bytes(table.target)
        assert isinstance(workspace, int)
        assert workspace >= 0

    def test_does_what_it_must_to_the_rows_that_it_is_given_and_nothing_else(
        self, strategy: Strategy, table: Table
    ) -> None:
        for case, form in SHAPES:
            table.refill()
            self.carry_out(strategy.bind(table.target), table, self.rows(table, case), form)

    def test_leaves_no_state_behind_between_calls(self, strategy: Strategy, table: Table) -> None:
        call = strategy.bind(table.target)
        for case in (*CASES, *reversed([*CASES])):
            # What an earlier call left in a workspace would reach entries that were filled since.
            table.refill()
            self.carry_out(call, table, self.rows(table, case))

    def test_a_second_call_finds_what_the_first_one_left(self, strategy: Strategy, table: Table) -> None:
        call = strategy.bind(table.target)
        for _ in range(2):
            self.carry_out(call, table, self.rows(table, "random"))

    def test_bindings_to_two_tables_do_not_meddle_with_each_other(
        self, strategy: Strategy, table: Table, layout: Layout, device: torch.device
    ) -> None:
        other = Table(layout, device, self.operation)
        call, call_other = strategy.bind(table.target), strategy.bind(other.target)
        self.carry_out(call, table, [1])
        self.carry_out(call_other, other, [other.rows - 1])
        table.check()

    def test_any_sequence_of_index_sets(self, strategy: Strategy, table: Table) -> None:
        call = strategy.bind(table.target)
        draw = random.Random(0)
        operation = OPERATIONS[self.operation]
        rows = [*range(1, table.rows), *([-1] if operation.sentinel else [])]
        for _ in range(5):
            table.refill()
            for _ in range(3):
                size = draw.randrange(3 * ROWS)
                drawn = draw.sample(rows, min(size, len(rows))) if operation.distinct else draw.choices(rows, k=size)
                self.carry_out(call, table, drawn, draw.choice([*FORMS]))


class _Reads(StrategyContract):
    """What holds for operations that return something."""

    def test_a_result_stays_what_it_was(self, strategy: Strategy, table: Table) -> None:
        call = strategy.bind(table.target)
        rows = self.rows(table, "random")
        result = self.carry_out(call, table, rows)
        kept = result.tolist()
        # Neither the table's own entries nor a buffer that the next call uses again.
        table.target.mapping.fill_(table.row_slots)
        call(_contiguous(rows, table.target.index_dtype, table.target.mapping.device))
        assert result.tolist() == kept


class SetContract(StrategyContract):
    """The same for ``set``."""

    layouts = FEW_LAYOUTS
    operation = "set"

    def values(self, table: Table, rows: list[int]) -> list[Any]:
        """Rows of slots, equal for equal rows: which one of two wins is nobody's business."""
        peers = [[5000 + row * table.row_slots + slot for slot in range(table.row_slots)] for row in rows]
        return [peer for (peer,) in peers] if table.target.name == TOKEN else peers

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> None:
        """See ``StrategyContract.expect``."""
        assert values is not None
        for row, value in zip(rows, values, strict=True):
            for place, entry in zip(table.places(row), value if isinstance(value, list) else [value], strict=True):
                table.expected[place] = entry


class TranslateContract(_Reads):
    """The same for ``translate``, which nothing calls on pages."""

    layouts = TOKEN_LAYOUTS
    operation = "translate"

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> list[int]:
        """See ``StrategyContract.expect``."""
        del values
        return [table.expected[place] for row in rows for place in table.places(row)]

    def test_minus_one_is_the_sentinel(self, strategy: Strategy, table: Table) -> None:
        for form in FORMS:
            assert self.carry_out(strategy.bind(table.target), table, [-1, 1, -1], form)[0] == -1


class TakeContract(_Reads):
    """The same for ``take``."""

    layouts = FEW_LAYOUTS
    operation = "take"

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> list[int]:
        """See ``StrategyContract.expect``."""
        del values
        pages = [table.expected[table.places(row)[0]] // table.row_slots for row in rows]
        table.expect_cleared(rows)
        return pages
