"""Which candidates race, and what becomes of them."""

from __future__ import annotations

import itertools
import subprocess
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import optuna
import pytest

from autotune.bench.screening import Rejected
from autotune.config import ConfigError, Strategies
from autotune.contest.candidates import SMALL_SPACE, Candidate, Entrant, Space, chosen_names, enqueued, make_space
from swa_alloc.operations import OPERATIONS, CallKind, Target
from swa_alloc.strategies import Bound, Strategy, Trial, builtin_names, register_strategy

pytestmark = pytest.mark.usefixtures("empty_registry")

KIND = CallKind("clear", "token", "int32")
Suggest = Callable[[Trial], dict[str, Any]]


def register(suggest: Suggest, name: str = "tunable") -> None:
    """A strategy with parameters."""

    class Tunable(Strategy):
        def __init__(self, **params: Any) -> None:
            self.params = params

        @classmethod
        def suggest(cls, trial: Trial) -> dict[str, Any]:
            return suggest(trial)

        def bind(self, target: Target) -> Bound:
            return target.table.__getitem__

    Tunable.name = name
    register_strategy(Tunable)


def space(*names: str) -> Space:
    return make_space("clear", "index_fill", names)


def grid(name: str = "tunable") -> list[dict[str, Any]]:
    """The parameters with which a strategy races."""
    return [dict(candidate.params) for candidate in space(name).fixed if candidate.name == name]


# Every point of a small grid


def flat(trial: Trial) -> dict[str, Any]:
    return {"block": trial.suggest_categorical("block", [64, 128]), "warps": trial.suggest_int("warps", 1, 4)}


def stepped(trial: Trial) -> dict[str, Any]:
    # No step ends at the upper bound.
    return {"odd": trial.suggest_int("odd", 1, 6, step=2), "even": trial.suggest_int("even", 0, 4, step=2)}


def logarithmic(trial: Trial) -> dict[str, Any]:
    return {"width": trial.suggest_int("width", 1, 8, log=True)}


def conditional(trial: Trial) -> dict[str, Any]:
    layout = trial.suggest_categorical("layout", ["rows", "columns", "none"])
    if layout == "none":
        return {"layout": layout}
    if layout == "rows":
        return {"layout": layout, "rows": trial.suggest_int("rows", 1, 3)}
    wide = trial.suggest_categorical("wide", [False, True])
    return {"layout": layout, "wide": wide} | ({"by": trial.suggest_int("by", 1, 2)} if wide else {})


def asked_twice(trial: Trial) -> dict[str, Any]:
    first = trial.suggest_categorical("block", [1, 2])
    return {"block": first, "again": trial.suggest_categorical("block", [1, 2])}


def fixed(trial: Trial) -> dict[str, Any]:
    return {"only": trial.suggest_categorical("only", ["choice"]), "one": trial.suggest_int("one", 7, 7)}


def none(trial: Trial) -> dict[str, Any]:
    del trial
    return {}


def as_optuna_enumerates(suggest: Suggest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def objective(trial: optuna.Trial) -> float:
        found.append(suggest(trial))
        return 0.0

    with warnings.catch_warnings():
        # Of a step that does not end at the upper bound, and of the sampler being an experiment.
        warnings.simplefilter("ignore")
        optuna.create_study(sampler=optuna.samplers.BruteForceSampler(seed=0)).optimize(objective, SMALL_SPACE)
    return found


def in_order(points: list[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    return sorted((sorted(point.items()) for point in points), key=repr)


@pytest.mark.parametrize("suggest", [flat, stepped, logarithmic, conditional, asked_twice, fixed, none])
def test_a_small_grid_holds_what_optuna_would_try_each_once(suggest: Suggest) -> None:
    register(suggest)
    assert in_order(grid()) == in_order(as_optuna_enumerates(suggest))


def test_questions_that_depend_on_answers_make_every_point_once() -> None:
    register(conditional)
    assert in_order(grid()) == in_order(
        [
            {"layout": "none"},
            *({"layout": "rows", "rows": rows} for rows in (1, 2, 3)),
            {"layout": "columns", "wide": False},
            *({"layout": "columns", "wide": True, "by": by} for by in (1, 2)),
        ]
    )


def test_a_grid_has_one_order_whatever_the_questions_order() -> None:
    register(lambda trial: {"a": trial.suggest_categorical("a", [2, 1])}, "one")
    register(lambda trial: {"a": trial.suggest_categorical("a", [1, 2])}, "other")
    assert grid("one") == grid("other")


WITHOUT_ASSERTIONS = """
from autotune.contest.candidates import make_space
from autotune.contest.studies import Studies, quiet_optuna
from swa_alloc.strategies import Strategy, register_strategy

assert False, "assertions are on"

@register_strategy
class Tunable(Strategy):
    name = "tunable"

    def __init__(self, **params):
        self.params = params

    @classmethod
    def suggest(cls, trial):
        wide = trial.suggest_categorical("wide", [False, True])
        return {"wide": wide, "by": trial.suggest_int("by", 1, 3)} if wide else {"wide": wide}

    def bind(self, target):
        return target.table.__getitem__

space = make_space("clear", "index_fill", ["tunable"])
with quiet_optuna():
    study = Studies().open("contest", space, space.fixed, lambda label: False, 0)
    for candidate in space.fixed:
        study.complete(candidate.label, 1.0)
print(*(candidate.label for candidate in space.fixed), *space.broken, sep="; ")
"""


def test_a_grid_is_whole_without_assertions(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python("-O", "-c", WITHOUT_ASSERTIONS)
    assert done.stderr == ""
    assert done.stdout.strip().split("; ") == [
        "index_fill",
        *(f"tunable(by={by}, wide=True)" for by in (1, 2, 3)),
        "tunable(wide=False)",
    ]


# Small and large


def of_size(points: int) -> Suggest:
    return lambda trial: {"point": trial.suggest_int("point", 1, points)}


def test_a_space_is_small_up_to_its_limit() -> None:
    # The default is a point of it, too.
    register(of_size(SMALL_SPACE - 1))
    found = space("tunable")
    assert len(found.fixed) == SMALL_SPACE
    assert found.open == ()


def test_of_a_large_space_the_strategys_own_defaults_race_and_the_rest_is_open() -> None:
    register(of_size(SMALL_SPACE))
    register(none, "plain")
    found = space("tunable", "plain")
    assert [candidate.label for candidate in found.fixed] == ["index_fill", "tunable", "plain"]
    assert found.open == ("tunable",)


def test_a_vast_space_costs_no_more_than_a_large_one() -> None:
    asked = itertools.count()

    def vast(trial: Trial) -> dict[str, Any]:
        next(asked)
        return {name: trial.suggest_int(name, 0, 10**12) for name in ("a", "b", "c")}

    register(vast)
    assert space("tunable").open == ("tunable",)
    assert next(asked) <= SMALL_SPACE + 1


def test_the_default_comes_first_and_once() -> None:
    found = make_space("clear", "scatter", ["index_fill", "scatter", "index_put"])
    assert [candidate.label for candidate in found.fixed] == ["scatter", "index_fill", "index_put"]
    assert found.strategies == ("scatter", "index_fill", "index_put")


def test_a_default_with_parameters_races_as_it_is_called_without_a_profile() -> None:
    found = make_space("take", "read_then_clear", builtin_names("take"))
    assert found.fixed[0] == Candidate("take", "read_then_clear", {})
    assert len([candidate for candidate in found.fixed if candidate.name == "read_then_clear"]) > 1


@pytest.mark.parametrize(
    ("suggest", "detail"),
    [
        (lambda trial: {"block": trial.suggest_float("block", 0, 1)}, "AttributeError"),
        (lambda _trial: {"block": float("nan")}, "ValueError"),
        (lambda _trial: {"block": object()}, "TypeError"),
        (lambda trial: {"block": trial.suggest_categorical("block", [])}, "IndexError"),
        (lambda _trial: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_a_strategy_that_cannot_say_what_to_try_is_left_out_with_the_reason(suggest: Suggest, detail: str) -> None:
    register(suggest)
    register(flat, "sound")
    found = space("tunable", "sound")
    assert list(found.broken) == ["tunable"]
    assert found.broken["tunable"].startswith(detail)
    assert "tunable" not in found.strategies
    assert {candidate.name for candidate in found.fixed} == {"index_fill", "sound"}


# Trials


@pytest.mark.parametrize("suggest", [flat, conditional, none])
def test_a_trial_that_is_enqueued_for_a_candidate_stands_for_it(suggest: Suggest) -> None:
    register(suggest)
    register(flat, "other")  # asks for a block, too
    found = space("tunable", "other")
    study = optuna.create_study()
    for candidate in found.fixed:
        study.enqueue_trial(enqueued(candidate))
        assert found.propose(study.ask()) == candidate


def test_a_strategy_on_its_own_defaults_is_asked_for_no_parameters() -> None:
    register(of_size(SMALL_SPACE))
    found = space("tunable")
    study = optuna.create_study()
    (candidate,) = [candidate for candidate in found.fixed if candidate.name == "tunable"]
    study.enqueue_trial(enqueued(candidate))
    trial = study.ask()
    found.claim(trial, candidate)
    assert trial.params == {"strategy": "tunable"}


# Names


def test_all_strategies_race_unless_the_configuration_says_otherwise() -> None:
    assert chosen_names(Strategies()) == {operation: builtin_names(operation) for operation in OPERATIONS}


def test_an_operation_that_is_left_with_no_strategy_keeps_its_default_unraced() -> None:
    chosen = chosen_names(Strategies(include=["index_fill", "scatter"], exclude=["index_fill"]))
    assert chosen == {"clear": ("scatter",), "set": ("scatter",)}


@pytest.mark.parametrize("key", ["include", "exclude"])
def test_a_name_that_no_operation_has_is_refused_with_those_that_exist(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^strategies.{key} names 'nothing'; known: for clear index_fill, "):
        chosen_names(Strategies(**{key: ["nothing"]}))


def test_a_configuration_that_leaves_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"leave no strategy to race$"):
        chosen_names(Strategies(include=["scatter"], exclude=["scatter"]))


# Candidates and entrants


def test_candidates_are_equal_when_operation_strategy_and_parameters_are() -> None:
    one = Candidate("clear", "index_put", {"a": 1, "b": 2})
    assert one == Candidate("clear", "index_put", {"b": 2, "a": 1})
    assert len({one, Candidate("clear", "index_put", {"b": 2, "a": 1})}) == 1
    assert one != Candidate("set", "index_put", {"a": 1, "b": 2})
    assert one != Candidate("clear", "index_put", {"a": 1})
    assert one != "index_put(a=1, b=2)"


class _Workspace:
    """What a bound strategy keeps."""

    kept: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).kept += 1

    def __del__(self) -> None:
        type(self).kept -= 1

    def __call__(self, *_arguments: Any) -> None: ...


@pytest.mark.parametrize(
    "leave", [Entrant.give_up, lambda entrant: entrant.reject(Rejected("raised", "device says no"))]
)
def test_who_is_out_holds_no_workspace(leave: Callable[[Entrant], None]) -> None:
    entrant = Entrant(KIND, Candidate("clear", "index_put", {}))
    entrant.bound[0] = _Workspace()
    assert (entrant.out, _Workspace.kept) == (False, 1)
    leave(entrant)
    assert (entrant.out, _Workspace.kept) == (True, 0)


def test_the_record_says_why_one_was_rejected_and_nothing_of_the_slow() -> None:
    failed, slow = (Entrant(KIND, Candidate("clear", "index_put", {"a": 1})) for _ in range(2))
    assert failed.verdict is None
    failed.reject(Rejected("raised", "device says no"))
    slow.give_up()
    assert failed.verdict == (KIND, "index_put", {"a": 1}, "raised", "device says no")
    assert slow.verdict is None


def test_entrants_are_told_apart_however_alike_they_are() -> None:
    one, other = (Entrant(KIND, Candidate("clear", "index_put", {})) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2
