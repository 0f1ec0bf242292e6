"""The built-in strategies keep their contract, and the registry knows them and those of others."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from strategy_contract import (
    LAYOUTS,
    GridTrial,
    Layout,
    SetContract,
    StrategyContract,
    Table,
    TakeContract,
    TranslateContract,
    every_params,
)

from swa_alloc.errors import StrategyError
from swa_alloc.operations import OPERATIONS, Target
from swa_alloc.strategies import (
    Bound,
    Strategy,
    builtin_names,
    candidate_label,
    create,
    names,
    register_strategy,
    strategy_class,
)

if TYPE_CHECKING:
    from conftest import Run

TESTS = Path(__file__).resolve().parent

# What a CPU cannot run, and a word that its reason must hold.
UNAVAILABLE_ON_CPU = {
    ("clear", "npu_scatter_nd_update"): "Ascend",
    ("clear", "triton_fill"): "Triton",
    ("set", "npu_scatter_nd_update"): "Ascend",
    ("take", "triton_take"): "Triton",
}

BUILT_IN = [(operation, name) for operation in OPERATIONS for name in builtin_names(operation)]

CANDIDATES = [
    (operation, name, params)
    for operation, name in BUILT_IN
    if (operation, name) not in UNAVAILABLE_ON_CPU
    for params in every_params(strategy_class(operation, name))
]


def candidates(operation: str) -> Any:
    """A fixture that is each candidate of an operation in turn."""
    own = [candidate[1:] for candidate in CANDIDATES if candidate[0] == operation]

    @pytest.fixture(params=own, ids=[candidate_label(*candidate) for candidate in own])
    def strategy(_self: object, request: pytest.FixtureRequest) -> Strategy:
        return create(operation, *request.param)

    return strategy


class TestBuiltInClear(StrategyContract):
    strategy = candidates("clear")


class TestBuiltInSet(SetContract):
    strategy = candidates("set")


class TestBuiltInTranslate(TranslateContract):
    strategy = candidates("translate")


class TestBuiltInTake(TakeContract):
    strategy = candidates("take")


class _ForgetsDuplicates(Strategy):
    """Wrong on purpose: clears the first row only, once it sees a duplicate."""

    name = "forgets_duplicates"

    def bind(self, target: Target) -> Bound:
        table = target.table

        def clear(indices: torch.Tensor) -> None:
            rows = indices.tolist()
            table[rows if len(set(rows)) == len(rows) else rows[:1]] = 0

        return clear


def test_the_contract_catches_a_strategy_that_is_wrong_on_one_kind_of_input() -> None:
    table = Table(Layout("token", 4, torch.int64), torch.device("cpu"))
    check = StrategyContract().test_does_what_it_must_to_the_rows_that_it_is_given_and_nothing_else
    check(_ForgetsDuplicates(), table, "random", "contiguous")
    table.refill()
    with pytest.raises(AssertionError):
        check(_ForgetsDuplicates(), table, "duplicates", "contiguous")


def test_every_strategy_of_the_brief_is_built_in_and_the_default_leads() -> None:
    assert set(builtin_names("clear")) == {
        "index_fill",
        "subscript_assign",
        "masked_scatter",
        "masked_fill",
        "index_put",
        "scatter",
        "index_copy",
        "npu_scatter_nd_update",
        "triton_fill",
    }
    # Registry order breaks ties.
    assert builtin_names("clear")[0] == "index_fill"


def test_every_operation_has_a_default_that_is_built_in_and_plain() -> None:
    for operation in OPERATIONS.values():
        for device in ("npu", "cuda", "cpu", "xpu"):
            assert operation.default_strategy(device) in builtin_names(operation.name)
    clear, settings = OPERATIONS["clear"], OPERATIONS["set"]
    # sglang PR 36759, and sglang 0.5.23's alloc_decode.
    assert clear.default_strategy("npu") == "subscript_assign"
    assert settings.default_strategy("npu") == "npu_scatter_nd_update"
    assert {clear.default_strategy(device) for device in ("cuda", "cpu", "xpu")} == {"index_fill"}


@pytest.mark.parametrize(("operation", "name"), BUILT_IN)
def test_every_suggested_parameter_is_one_that_the_strategy_takes(operation: str, name: str) -> None:
    cls = strategy_class(operation, name)
    tried = list(every_params(cls))
    assert all(isinstance(create(operation, name, params), cls) for params in tried)
    # Each combination once.
    assert len({candidate_label(name, params) for params in tried}) == len(tried)


def test_the_grid_of_parameters_holds_every_combination() -> None:
    blocks_and_warps = [tuple(params.values()) for params in every_params(strategy_class("clear", "triton_fill"))]
    assert len(blocks_and_warps) == len(set(blocks_and_warps)) == 2
    assert [params["source"] for params in every_params(strategy_class("clear", "index_copy"))] == ["expand", "slice"]
    assert GridTrial([1]).suggest_int("any", 3, 9) == 9


@pytest.mark.parametrize(("strategy", "word"), UNAVAILABLE_ON_CPU.items())
def test_a_strategy_that_a_cpu_cannot_run_says_why_in_words(strategy: tuple[str, str], word: str) -> None:
    for layout in LAYOUTS:
        reason = create(*strategy).unavailable(Table(layout, torch.device("cpu"), strategy[0]).target)
        assert reason is not None
        assert word in reason
        assert " " in reason


def test_a_take_in_two_steps_is_available_where_its_clear_is() -> None:
    target = Table(LAYOUTS[0], torch.device("cpu"), "take").target
    assert create("take", "read_then_clear").unavailable(target) is None
    reason = create("take", "read_then_clear", {"clear": "npu_scatter_nd_update"}).unavailable(target)
    assert reason is not None
    assert "Ascend" in reason


def test_triton_is_asked_for_by_the_device_as_well_as_by_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swa_alloc.strategies._triton.find_spec", lambda _name: object())
    for operation, name in (("clear", "triton_fill"), ("take", "triton_take")):
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        target = Table(LAYOUTS[0], torch.device("cpu"), operation).target
        assert create(operation, name).unavailable(target) == "Triton does not drive cpu"
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        assert create(operation, name).unavailable(target) is None


@pytest.mark.parametrize("source", ["expand", "slice"])
def test_zero_rows_serve_more_rows_than_they_preallocated(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Duplicates can make a call longer than the table, and a big table longer than what is preallocated.
    monkeypatch.setattr("swa_alloc.strategies.clear._zero_rows._PREALLOCATED_SLOTS", 8)
    for layout in LAYOUTS:
        table = Table(layout, torch.device("cpu"))
        rows = [1, 2] * 50
        create("clear", "index_copy", {"source": source}).bind(table.target)(torch.tensor(rows, dtype=layout[2]))
        table.expect_cleared(rows)
        table.check()


@pytest.mark.parametrize(("operation", "name", "params"), CANDIDATES)
def test_the_declared_workspace_covers_what_bind_keeps(operation: str, name: str, params: dict[str, Any]) -> None:
    strategy = create(operation, name, params)
    for layout in LAYOUTS:
        if layout.target in strategy.targets:
            table = Table(layout, torch.device("cpu"), operation)
            kept = _tensor_bytes(strategy.bind(table.target), besides=table.buffer)
            # Sums of scalars are not worth declaring.
            assert kept <= strategy.workspace_bytes(table.target) + 64


def _tensor_bytes(function: Any, *, besides: torch.Tensor) -> int:
    """Bytes of the distinct storages that a closure holds, without that of ``besides``."""
    storages: dict[int, int] = {}
    pending, seen = [function], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        pending.extend(cell.cell_contents for cell in getattr(item, "__closure__", None) or ())
        if isinstance(bound_to := getattr(item, "__self__", None), torch.Tensor):
            pending.append(bound_to)
    storages.pop(besides.untyped_storage().data_ptr(), None)
    return sum(storages.values())


# --- the registry


def _strategy(name: Any, operation: str = "clear") -> type[Strategy]:
    def bind(_self: Strategy, target: Target) -> Bound:
        return lambda indices: target.table.index_fill_(0, indices.long(), 0)

    return type("Mine", (Strategy,), {"name": name, "operation": operation, "bind": bind})


@pytest.mark.usefixtures("empty_registry")
class TestRegistry:
    def test_a_registered_strategy_can_be_created_and_comes_after_the_built_in_ones(self) -> None:
        late, early = register_strategy(_strategy("z_fill")), register_strategy(_strategy("a_fill"))
        assert names("clear") == (*builtin_names("clear"), "a_fill", "z_fill")
        assert type(create("clear", "z_fill")) is late
        assert strategy_class("clear", "a_fill") is early
        assert "a_fill" not in builtin_names("clear")

    def test_registering_works_as_a_decorator(self) -> None:
        cls = _strategy("decorated")
        assert register_strategy(cls) is cls

    @pytest.mark.parametrize("taken", ["index_fill", "triton_fill"])
    def test_a_built_in_name_is_refused(self, taken: str) -> None:
        with pytest.raises(StrategyError, match=f"'{taken}' exists already"):
            register_strategy(_strategy(taken))

    def test_a_second_class_of_one_name_is_refused_and_the_first_stays(self) -> None:
        first = register_strategy(_strategy("mine"))
        with pytest.raises(StrategyError, match="'mine' exists already"):
            register_strategy(_strategy("mine"))
        assert strategy_class("clear", "mine") is first

    def test_registering_the_same_class_twice_is_harmless(self) -> None:
        # As when an entry point leads to a module that registers on import.
        cls = register_strategy(_strategy("mine"))
        assert register_strategy(cls) is cls
        assert names("clear").count("mine") == 1

    @pytest.mark.parametrize("name", ["", "my-fill", "a.b", "a=b", "a,b", "1st", None, 7])
    def test_a_name_that_could_not_be_written_in_a_pin_is_refused(self, name: Any) -> None:
        with pytest.raises(StrategyError, match="must be an identifier"):
            register_strategy(_strategy(name))

    def test_a_strategy_without_a_name_is_refused(self) -> None:
        nameless = type("Nameless", (Strategy,), {"bind": lambda _self, _target: print})
        with pytest.raises(StrategyError, match="must be an identifier"):
            register_strategy(nameless)

    def test_an_unknown_operation_is_refused_and_the_known_ones_listed(self) -> None:
        with pytest.raises(StrategyError, match=r"'translat'; operations are clear, set, translate, take"):
            register_strategy(_strategy("mine", "translat"))

    @pytest.mark.parametrize("thing", [object, type("NoStrategy", (), {"name": "mine", "operation": "clear"})])
    def test_what_is_no_strategy_is_refused(self, thing: Any) -> None:
        with pytest.raises(StrategyError):
            register_strategy(thing)
        assert names("clear") == builtin_names("clear")

    def test_an_unknown_name_is_answered_with_the_known_ones(self) -> None:
        register_strategy(_strategy("mine"))
        with pytest.raises(StrategyError) as error:
            create("clear", "index_fil")
        assert "'index_fil'" in str(error.value)
        assert all(name in str(error.value) for name in (*builtin_names("clear"), "mine"))

    @pytest.mark.parametrize(
        ("name", "params"),
        [
            ("index_fill", {"block": 4}),
            ("index_copy", {"source": "thin air"}),
            ("triton_fill", {"block": 100}),
            ("triton_fill", {"block": 0}),
            ("triton_fill", {"block": "256"}),
        ],
    )
    def test_parameters_that_a_strategy_does_not_take_are_refused_by_name(
        self, name: str, params: dict[str, Any]
    ) -> None:
        with pytest.raises(StrategyError, match=f"'{name}' does not take the parameters"):
            create("clear", name, params)

    def test_candidates_are_written_with_their_parameters_in_one_order(self) -> None:
        assert candidate_label("index_fill", {}) == "index_fill"
        assert candidate_label("f", {"b": 2, "a": 1}) == candidate_label("f", {"a": 1, "b": 2}) == "f(a=1, b=2)"


THIRD_PARTY_MODULE = """
from swa_alloc import Strategy, register_strategy

class TheirFill(Strategy):
    name = "their_fill"

    def bind(self, target):
        table = target.table
        return lambda indices: table.index_fill_(0, indices.long(), 0)
"""

LOOK_UP = """
import json
import torch
from swa_alloc import FullToSWAMapping, Overrides
from swa_alloc.strategies import names

found = names("clear")
names("clear")
mapping = FullToSWAMapping.allocate(8, 1, torch.device("cpu"), Overrides(strategy="their_fill", strict_profile=True))
mapping.set(torch.tensor([3]), torch.tensor([5]))
mapping.clear(torch.tensor([3]))
print(json.dumps({"names": found, "left": mapping.tensor.sum().item()}))
"""


def _install(site: Path, distribution: str, entry_point: str) -> None:
    folder = site / f"{distribution}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(f"[swa_alloc.strategies]\n{entry_point}\n", encoding="utf-8")


def test_an_installed_package_adds_a_strategy_and_a_broken_one_only_warns(tmp_path: Path, run_python: Run) -> None:
    site = tmp_path / "site"
    _install(site, "a_broken_fill", "broken_fill = no_such_module:Fill")
    _install(site, "their_fill", "their_fill = their_module:TheirFill")
    _install(site, "z_taken_fill", "taken_fill = taken_module:Taken")
    (site / "their_module.py").write_text(THIRD_PARTY_MODULE, encoding="utf-8")
    (site / "taken_module.py").write_text(
        THIRD_PARTY_MODULE.replace("their_fill", "index_fill").replace("TheirFill", "Taken"), encoding="utf-8"
    )
    ran = run_python("-c", LOOK_UP, env={"PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(site)))})
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["names"] == [*builtin_names("clear"), "their_fill"]
    assert seen["left"] == -1
    broken, taken = sorted(ran.stderr.splitlines())
    assert "broken_fill" in broken
    assert "no_such_module" in broken
    assert "taken_fill" in taken
    assert "exists already" in taken


# --- Triton, under its own interpreter

# A block that page calls fill several times over, so that programs share a call, and that token calls do not fill.
TRITON_CONTRACT = """
import pytest
from strategy_contract import StrategyContract, TakeContract
from swa_alloc.strategies import create

class TestTritonFill(StrategyContract):
    @pytest.fixture
    def strategy(self):
        return create("clear", "triton_fill", {"block": 32, "num_warps": 1})

class TestTritonTake(TakeContract):
    test_any_sequence_of_index_sets = None  # the fill's kernel reads its indices in the same way

    @pytest.fixture
    def strategy(self):
        return create("take", "triton_take", {"block": 32, "num_warps": 1})
"""


def test_triton_strategies_keep_the_contract_under_tritons_interpreter(tmp_path: Path, run_python: Run) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed (it is in the dev extra, on Linux)")
    script = tmp_path / "test_triton.py"
    script.write_text(TRITON_CONTRACT, encoding="utf-8")
    path = os.pathsep.join((str(TESTS.parent), str(TESTS), *sys.path[1:]))
    # Triton decides when its kernels are defined whether to interpret them: hence a process of its own.
    ran = run_python(
        *("-W", "default", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(script)),
        env={"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path / "triton"), "PYTHONPATH": path},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
