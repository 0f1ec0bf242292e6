"""The candidates: which parameters of which strategies are worth racing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import optuna

from autotune.config import ConfigError
from autotune.screening import brief
from swa_alloc.operations import OPERATIONS
from swa_alloc.strategies import Strategy, candidate_label, create, known_names, names, strategy_class

if TYPE_CHECKING:
    from autotune.config import Strategies

# Up to here every point is raced; beyond, Optuna's TPE proposes. TPE found the best of nine points in 16 of 30 seeds.
SMALL_SPACE = 32


@dataclass(frozen=True)
class Candidate:
    """A strategy with its parameters."""

    operation: str
    name: str
    params: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The candidate in words; equal for equal candidates."""
        return candidate_label(self.name, dict(self.params))

    def strategy(self) -> Strategy:
        """An instance of the strategy."""
        return create(self.operation, self.name, dict(self.params))


@dataclass(frozen=True)
class Space:
    """What an operation's race is over.

    Attributes:
        operation: Name of the operation.
        strategies: Names, in order of preference.
        fixed: Candidates that race from the start.
        broken: Why strategies could not say what is worth racing, by name.
        open: Names whose parameters are too many to race them all; Optuna proposes more of them.
    """

    operation: str
    strategies: tuple[str, ...]
    fixed: tuple[Candidate, ...]
    open: tuple[str, ...]
    broken: Mapping[str, str]

    def claim(self, trial: optuna.Trial, candidate: Candidate) -> None:
        """Take down in a trial, enqueued for it, that it stands for a fixed candidate.

        One without parameters, of a strategy that has some, runs on the strategy's own defaults: nothing is asked.
        """
        trial.suggest_categorical("strategy", self.strategies)
        if candidate.params:
            _suggest(self.operation, candidate.name, trial)

    def propose(self, trial: optuna.Trial) -> Candidate:
        """The candidate that a trial stands for."""
        name = trial.suggest_categorical("strategy", self.strategies)
        return Candidate(self.operation, name, _suggest(self.operation, name, trial))


def make_space(operation: str, default: str, strategies: Sequence[str]) -> Space:
    """The space over these strategies and the default, which comes first."""
    ordered = tuple(dict.fromkeys((default, *strategies)))
    grids: dict[str, list[dict[str, Any]]] = {}
    broken: dict[str, str] = {}
    for name in ordered:
        try:
            grids[name] = _grid(operation, name)
        except Exception as error:  # noqa: BLE001 - somebody else's strategy must not stop the others
            broken[name] = brief(error)
    small = sum(len(grid) for grid in grids.values()) <= SMALL_SPACE
    too_many = () if small else tuple(name for name, grid in grids.items() if len(grid) > 1)
    fixed = [
        Candidate(operation, name, params)
        for name, grid in grids.items()
        for params in ([{}] if name in too_many else grid)
    ]
    # The default races with its own parameters, whatever its grid holds.
    standing = Candidate(operation, default, {})
    fixed = [standing, *(candidate for candidate in fixed if candidate.label != standing.label)]
    return Space(operation, tuple(grids), tuple(fixed), too_many, broken)


def chosen_names(settings: Strategies) -> dict[str, tuple[str, ...]]:
    """The strategies that the configuration admits, by operation. One that is left with none keeps its default unraced.

    Raises:
        ConfigError: it names one that no operation has, or leaves none at all.
    """
    known = {operation: names(operation) for operation in OPERATIONS}
    for key, wanted in (("include", settings.include or []), ("exclude", settings.exclude)):
        for name in wanted:
            if not any(name in of_operation for of_operation in known.values()):
                raise ConfigError(f"strategies.{key} names {name!r}; known: {known_names()}")
    chosen = {
        operation: tuple(
            name
            for name in of_operation
            if (settings.include is None or name in settings.include) and name not in settings.exclude
        )
        for operation, of_operation in known.items()
    }
    if not any(chosen.values()):
        raise ConfigError("strategies.include and strategies.exclude leave no strategy to race")
    return {operation: left for operation, left in chosen.items() if left}


def enqueued(candidate: Candidate) -> dict[str, Any]:
    """The parameters under which ``Space.propose`` gives ``candidate``, for ``Study.enqueue_trial``."""
    own = {_key(candidate.name, key): value for key, value in candidate.params.items()}
    return {"strategy": candidate.name, **own}


class _Prefixed:
    """A trial whose parameter names carry the strategy's, so that two strategies may share one."""

    def __init__(self, trial: optuna.Trial, name: str) -> None:
        self._trial, self._name = trial, name

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._trial.suggest_categorical(_key(self._name, name), choices)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return self._trial.suggest_int(_key(self._name, name), low, high, step=step, log=log)


def _key(strategy: str, parameter: str) -> str:
    return f"{strategy}.{parameter}"


def _suggest(operation: str, name: str, trial: optuna.Trial) -> dict[str, Any]:
    params = strategy_class(operation, name).suggest(_Prefixed(trial, name))
    # As they come back from a profile, which must be able to hold them.
    return dict(json.loads(json.dumps(params, allow_nan=False)))


def _grid(operation: str, name: str) -> list[dict[str, Any]]:
    """Every point of a strategy's parameters, up to one more than make a small space."""
    points: list[dict[str, Any]] = []

    def visit(trial: optuna.Trial) -> float:
        points.append(_suggest(operation, name, trial))
        return 0.0

    with warnings.catch_warnings():
        # Unlike the stable GridSampler it follows a `suggest` whose later questions depend on its earlier answers.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.BruteForceSampler(seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(visit, n_trials=SMALL_SPACE + 1)
    return sorted(points, key=lambda params: candidate_label(name, params))
