"""The built-in strategies keep their contract, and the registry knows them and those of others."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from swa_alloc.errors import StrategyError
from swa_alloc.operations import OPERATIONS, Target
from swa_alloc.strategies import (
    Bound,
    Strategy,
    Trial,
    builtin_names,
    candidate_label,
    create,
    names,
    parse_label,
    register_strategy,
    split_labels,
    strategy_class,
)
from swa_alloc.testing import (
    LAYOUTS,
    Layout,
    SetContract,
    StrategyContract,
    Table,
    TakeContract,
    TranslateContract,
    candidates_of,
    every_params,
)

if TYPE_CHECKING:
    from conftest import Run

TESTS = Path(__file__).resolve().parent

# What a CPU cannot run, and a word that its reason must hold.
UNAVAILABLE_ON_CPU = {
    ("clear", "npu_scatter_nd_update"): "Ascend",
    ("clear", "int32_view"): "Ascend",
    ("clear", "triton_fill"): "Triton",
    ("set", "npu_scatter_nd_update"): "Ascend",
    ("set", "int32_view"): "Ascend",
    ("take", "triton_take"): "Triton",
}

BUILT_IN = [(operation, name) for operation in OPERATIONS for name in builtin_names(operation)]

# What a CPU is not offered, and computes all the same.
FOR_ACCELERATORS = {
    "clear": [f"int32_view(call={call})" for call in ("index_put", "index_copy", "index_fill", "scatter")],
    "set": [f"int32_view(call={call})" for call in ("index_put", "index_copy", "scatter")],
    "take": [
        "read_then_clear(clear=index_copy(source=slice), read=rows)",
        "read_then_clear(clear=int32_view(call=scatter), read=subscript)",
        "read_then_clear(clear=masked_fill)",
    ],
}


def candidates(operation: str) -> dict[str, Strategy]:
    """Every candidate of an operation that can be bound on a CPU."""
    here = [name for name in builtin_names(operation) if (operation, name) not in UNAVAILABLE_ON_CPU]
    forced = {label: create(operation, *parse_label(label)) for label in FOR_ACCELERATORS.get(operation, ())}
    for strategy in forced.values():
        strategy.unavailable = lambda _target: None  # type: ignore[method-assign]  # as if the CPU were an NPU
    return candidates_of(*(strategy_class(operation, name) for name in here)) | forced


CANDIDATES = {operation: candidates(operation) for operation in OPERATIONS}


class TestBuiltInClear(StrategyContract):
    candidates = CANDIDATES["clear"]


class TestBuiltInSet(SetContract):
    candidates = CANDIDATES["set"]


class TestBuiltInTranslate(TranslateContract):
    candidates = CANDIDATES["translate"]


class TestBuiltInTake(TakeContract):
    candidates = CANDIDATES["take"]


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
    check, call = StrategyContract(), _ForgetsDuplicates().bind(table.target)
    check.carry_out(call, table, check.rows(table, "random"))
    table.refill()
    with pytest.raises(AssertionError, match="left something else in the table"):
        check.carry_out(call, table, check.rows(table, "duplicates"))
    with pytest.raises(AssertionError, match="left something else in the table"):
        check.test_does_what_it_must_to_the_rows_that_it_is_given_and_nothing_else(_ForgetsDuplicates(), table)


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
        "int32_view",
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
    assert (cls.operation, cls.name) == (operation, name)
    tried = list(every_params(cls))
    assert all(isinstance(create(operation, name, params), cls) for params in tried)
    # Each combination once.
    assert len({candidate_label(name, params) for params in tried}) == len(tried)


def test_the_grid_of_parameters_holds_every_combination() -> None:
    blocks_and_warps = [tuple(params.values()) for params in every_params(strategy_class("clear", "triton_fill"))]
    assert len(blocks_and_warps) == len(set(blocks_and_warps)) == 2
    assert [params["source"] for params in every_params(strategy_class("clear", "index_copy"))] == ["expand", "slice"]
    assert [params["n"] for params in every_params(_Ranged)] == [3, 9]


class _Ranged(Strategy):
    @classmethod
    def suggest(cls, trial: Trial) -> dict[str, Any]:
        return {"n": trial.suggest_int("n", 3, 9)}


@pytest.mark.parametrize(("strategy", "word"), UNAVAILABLE_ON_CPU.items())
def test_a_strategy_that_a_cpu_cannot_run_says_why_in_words(strategy: tuple[str, str], word: str) -> None:
    for layout in LAYOUTS:
        reason = create(*strategy).unavailable(Table(layout, torch.device("cpu"), strategy[0]).target)
        assert reason is not None
        assert word in reason
        assert " " in reason


@pytest.mark.parametrize("clear", ["npu_scatter_nd_update", "int32_view", "int32_view(call=scatter)"])
def test_a_take_in_two_steps_is_available_where_its_clear_is(clear: str) -> None:
    target = Table(LAYOUTS[0], torch.device("cpu"), "take").target
    assert create("take", "read_then_clear").unavailable(target) is None
    why_not = create("clear", *parse_label(clear)).unavailable(target._replace(operation="clear"))
    reason = create("take", "read_then_clear", {"clear": clear}).unavailable(target)
    assert reason == f"it clears by {clear}, and {why_not}"


def test_a_take_is_offered_what_the_process_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    take = strategy_class("take", "read_then_clear")

    def offered() -> tuple[set[str], set[str]]:
        tried = list(every_params(take))
        return {params["clear"] for params in tried}, {params.get("read", "") for params in tried}

    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    assert offered() == ({"index_put", "index_copy", "scatter"}, {""})
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    everywhere = {"index_fill", "index_put", "index_copy", "scatter"}
    assert offered() == (everywhere, {"index_select", "rows", "subscript"})
    monkeypatch.setitem(sys.modules, "torch_npu", object())  # type: ignore[arg-type]  # it is only looked for
    assert offered() == (everywhere | {"npu_scatter_nd_update", "int32_view"}, {"index_select", "rows", "subscript"})


@pytest.mark.parametrize("read", ["index_select", "rows", "subscript"])
def test_what_a_take_returns_is_contiguous_and_holds_no_more_than_its_pages(read: str) -> None:
    # What is strided may be copied by its next user, whose time no race sees.
    target = Table(Layout("page", 64, torch.int64), torch.device("cpu"), "take").target
    taken = create("take", "read_then_clear", {"read": read}).bind(target)(torch.tensor([3, 7]))
    assert taken.is_contiguous()
    assert taken.untyped_storage().nbytes() == taken.nbytes


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


@pytest.mark.parametrize(
    ("operation", "label"), [(operation, label) for operation, found in CANDIDATES.items() for label in found]
)
def test_the_declared_workspace_covers_what_bind_keeps(operation: str, label: str) -> None:
    strategy = CANDIDATES[operation][label]
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


# --- labels

WORD = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
VALUE = WORD | st.text(max_size=12) | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
LABEL = st.builds(candidate_label, WORD, st.dictionaries(WORD, VALUE, max_size=3))


@PROPERTY
@given(name=WORD, params=st.dictionaries(WORD, VALUE | LABEL, max_size=4))
def test_a_label_is_read_as_what_was_written(name: str, params: dict[str, Any]) -> None:
    label = candidate_label(name, params)
    read_name, read = parse_label(label)
    assert (read_name, read) == (name, params)
    assert {key: type(value) for key, value in read.items()} == {key: type(value) for key, value in params.items()}
    assert split_labels(f"{label}, clear.token={label}") == [label, f"clear.token={label}"]


def test_labels_have_their_parameters_in_one_order_and_words_without_quotes() -> None:
    assert candidate_label("index_fill", {}) == "index_fill"
    assert candidate_label("f", {"b": 2, "a": 1}) == candidate_label("f", {"a": 1, "b": 2}) == "f(a=1, b=2)"
    nested = {"clear": candidate_label("int32_view", {"call": "scatter"}), "read": "rows"}
    assert candidate_label("take", nested) == "take(clear=int32_view(call=scatter), read=rows)"
    # What reads as something else is quoted.
    assert candidate_label("f", {"a": "1", "b": "True", "c": "x, y"}) == "f(a='1', b='True', c='x, y')"


def test_a_label_is_read_however_it_is_spaced() -> None:
    assert parse_label(" f ( a = 1 ,b= word, ) ") == ("f", {"a": 1, "b": "word"})
    assert parse_label("f()") == parse_label("f") == ("f", {})


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("f(a=1", "what begins with f( must end with )"),
        ("f(a=g(1)", "a parenthesis is without its other half"),
        ("f(a=1))", "a parenthesis is without its other half"),
        ("f(a=1) g", "what begins with f( must end with )"),
        ("f(a)", "'a' gives no parameter a value"),
        ("f(1=a)", "'1=a' gives no parameter a value"),
        ("f(a=1, a=2)", "a is given twice"),
        ("f(a=)", "'' is neither a word nor a Python literal"),
        ("f(a=x-y)", "'x-y' is neither a word nor a Python literal"),
        ("f(a='x)", "is neither a word nor a Python literal"),
    ],
)
def test_what_is_no_label_is_refused_with_what_one_looks_like(label: str, reason: str) -> None:
    with pytest.raises(StrategyError, match="write NAME or NAME") as error:
        parse_label(label)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


# --- other packages

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


def _of_contributing() -> tuple[str, str]:
    """The example of a strategy, and that of its test."""
    text = (TESTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    strategy, test, *_others = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return strategy, test


@pytest.mark.parametrize("factor", [0, 1])
def test_a_package_of_ones_own_tests_its_strategy_with_what_is_installed(
    factor: int, tmp_path: Path, run_python: Run
) -> None:
    strategy, test = _of_contributing()
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "multiply.py").write_text(strategy.replace("* 0", f"* {factor}"), encoding="utf-8")
    (tmp_path / "test_multiply.py").write_text(test, encoding="utf-8")
    # Nothing of this checkout but what a wheel carries.
    installed = tmp_path / "site" / "swa_alloc"
    shutil.copytree(TESTS.parent / "swa_alloc", installed, ignore=shutil.ignore_patterns("__pycache__"))
    ran = run_python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "test_multiply.py"),
        env={"PYTHONPATH": os.pathsep.join((str(tmp_path), str(installed.parent)))},
        cwd=tmp_path,
    )
    assert "skipped" not in ran.stdout
    if factor:
        assert ran.returncode == 1
        # Told as in a test module: what was compared, and for which call.
        assert "left something else in the table" in ran.stdout
        assert "At index " in ran.stdout
    else:
        assert ran.returncode == 0, ran.stdout[-3000:]
        assert " passed" in ran.stdout


def test_the_contracts_say_that_they_need_pytest(run_python: Run) -> None:
    ran = run_python("-c", "import sys; sys.modules['pytest'] = None; import swa_alloc.testing")
    assert ran.stderr.splitlines()[-1] == "ImportError: swa_alloc.testing needs pytest; pip install pytest"


@pytest.mark.parametrize(
    "candidates", [{}, {"only_pages": type("OnlyPages", (Strategy,), {"targets": frozenset({"page"})})}]
)
def test_a_contract_that_would_test_nothing_is_an_error(candidates: Any) -> None:
    contract = type("TestNothing", (TranslateContract,), {"candidates": candidates})
    asked = SimpleNamespace(fixturenames=["strategy", "layout"])
    with pytest.raises(pytest.UsageError, match=r"TestNothing\.candidates holds nothing that serves translate"):
        contract().pytest_generate_tests(asked)


# --- Triton, under its own interpreter

# A block that page calls fill several times over, so that programs share a call, and that token calls do not fill.
TRITON_CONTRACT = """
from swa_alloc.strategies import create
from swa_alloc.testing import StrategyContract, TakeContract

class TestTritonFill(StrategyContract):
    candidates = {"triton_fill": create("clear", "triton_fill", {"block": 32, "num_warps": 1})}

class TestTritonTake(TakeContract):
    test_any_sequence_of_index_sets = None  # the fill's kernel reads its indices in the same way
    candidates = {"triton_take": create("take", "triton_take", {"block": 32, "num_warps": 1})}
"""


def test_triton_strategies_keep_the_contract_under_tritons_interpreter(tmp_path: Path, run_python: Run) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed (it is in the dev extra, on Linux)")
    script = tmp_path / "test_triton.py"
    script.write_text(TRITON_CONTRACT, encoding="utf-8")
    path = os.pathsep.join((str(TESTS.parent), *sys.path[1:]))
    # Triton decides when its kernels are defined whether to interpret them: hence a process of its own.
    ran = run_python(
        *("-W", "default", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(script)),
        env={"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path / "triton"), "PYTHONPATH": path},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
