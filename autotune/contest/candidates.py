"""The candidates: which parameters of which strategies are worth racing, and what became of each for a kind of call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.bench.screening import Rejected, brief
from autotune.config import ConfigError
from swa_alloc.evidence import Ineligible
from swa_alloc.operations import OPERATIONS, CallKind
from swa_alloc.strategies import Strategy, candidate_label, create, known_names, names, strategy_class

if TYPE_CHECKING:
    from autotune.bench.stall import Stall
    from autotune.config import Strategies
    from autotune.devices import Sample
    from swa_alloc.strategies import Bound, Trial

# Up to here every point is raced; beyond, Optuna's TPE proposes. TPE found the best of nine points in 16 of 30 seeds.
SMALL_SPACE = 32


@dataclass(frozen=True, eq=False)
class Candidate:
    """A strategy with its parameters. Equal to another of the same operation and label."""

    operation: str
    name: str
    params: Mapping[str, Any]

    @cached_property
    def label(self) -> str:
        """The candidate in words."""
        return candidate_label(self.name, dict(self.params))

    def strategy(self) -> Strategy:
        """An instance of the strategy."""
        return create(self.operation, self.name, dict(self.params))

    def __eq__(self, other: object) -> bool:
        """Whether both are the same strategy with the same parameters."""
        return isinstance(other, Candidate) and (self.operation, self.label) == (other.operation, other.label)

    def __hash__(self) -> int:
        return hash((self.operation, self.label))


@dataclass(eq=False)
class Entrant:
    """A candidate for one kind of call, and what was found out of it.

    Attributes:
        kind: The kind of call.
        candidate: The candidate.
        bound: By table of the bench, what is called.
        probes: By number of indices, the better of its single calls.
        stalls: By number of indices, whether its calls wait; None where nothing can be queued ahead of them.
        admitted: Whether its contract was checked.
        capturable: Whether it works in a captured graph; None on a device that has none, or unasked.
        rejected: Why it is out, if it is.
        hopeless: Whether single calls ruled it out.
    """

    kind: CallKind
    candidate: Candidate
    bound: dict[int, Bound] = field(default_factory=dict)
    probes: dict[int, Sample] = field(default_factory=dict)
    stalls: dict[int, Stall | None] = field(default_factory=dict)
    admitted: bool = False
    capturable: bool | None = None
    rejected: Rejected | None = None
    hopeless: bool = False

    @property
    def label(self) -> str:
        """The candidate in words."""
        return self.candidate.label

    @property
    def out(self) -> bool:
        """Whether it takes no part in any race from here on."""
        return self.hopeless or self.rejected is not None

    def reject(self, rejected: Rejected) -> None:
        """Take it out because it failed, and release what it holds."""
        self.rejected = rejected
        self.bound.clear()

    def give_up(self) -> None:
        """Take it out because it is far too slow, and release what it holds."""
        self.hopeless = True
        self.bound.clear()

    @property
    def verdict(self) -> Ineligible | None:
        """Why it is out, for the record."""
        if self.rejected is None:
            return None
        params = dict(self.candidate.params)
        return Ineligible(self.kind, self.candidate.name, params, self.rejected.reason, self.rejected.detail)


@dataclass(frozen=True)
class Space:
    """What an operation's race is over.

    Attributes:
        operation: Name of the operation.
        strategies: Names, in order of preference.
        fixed: Candidates that race from the start, the default first.
        broken: Why strategies could not say what is worth racing, by name.
        open: Names whose parameters are too many to race them all; Optuna proposes more of them.
    """

    operation: str
    strategies: tuple[str, ...]
    fixed: tuple[Candidate, ...]
    open: tuple[str, ...]
    broken: Mapping[str, str]

    def claim(self, trial: Trial, candidate: Candidate) -> None:
        """Take down in a trial, enqueued for it, that it stands for a fixed candidate.

        One without parameters, of a strategy that has some, runs on the strategy's own defaults: nothing is asked.
        """
        trial.suggest_categorical("strategy", self.strategies)
        if candidate.params:
            _suggest(self.operation, candidate.name, trial)

    def propose(self, trial: Trial) -> Candidate:
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
    fixed = [standing, *(candidate for candidate in fixed if candidate != standing)]
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
    """The parameters under which ``Space.propose`` gives ``candidate``, for a study's next trial."""
    own = {_key(candidate.name, key): value for key, value in candidate.params.items()}
    return {"strategy": candidate.name, **own}


class _Prefixed:
    """A trial whose parameter names carry the strategy's, so that two strategies may share one."""

    def __init__(self, trial: Trial, name: str) -> None:
        self._trial, self._name = trial, name

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._trial.suggest_categorical(_key(self._name, name), choices)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return self._trial.suggest_int(_key(self._name, name), low, high, step=step, log=log)


class _Walk:
    """A trial that, asked again and again, gives every combination of answers once.

    It follows a ``suggest`` whose later questions depend on its earlier answers. Optuna's samplers for that do their
    work inside an ``assert``, which ``python -O`` leaves out.
    """

    def __init__(self) -> None:
        self._path: list[tuple[int, int]] = []  # of each question, the answer's number and how many there are
        self._asked: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        if name not in self._asked:
            depth = len(self._asked)
            if depth == len(self._path):
                self._path.append((0, len(choices)))
            self._asked[name] = choices[self._path[depth][0]]
        return self._asked[name]

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        del log
        return int(self.suggest_categorical(name, range(low, high + 1, step)))

    def next(self) -> bool:
        """Go on to the next combination; False when there is none."""
        self._asked.clear()
        while self._path:
            number, choices = self._path.pop()
            if number + 1 < choices:
                self._path.append((number + 1, choices))
                return True
        return False


def _key(strategy: str, parameter: str) -> str:
    return f"{strategy}.{parameter}"


def _suggest(operation: str, name: str, trial: Trial) -> dict[str, Any]:
    params = strategy_class(operation, name).suggest(_Prefixed(trial, name))
    # As they come back from a profile, which must be able to hold them.
    return dict(json.loads(json.dumps(params, allow_nan=False)))


def _grid(operation: str, name: str) -> list[dict[str, Any]]:
    """Every point of a strategy's parameters, up to one more than make a small space."""
    points: list[dict[str, Any]] = []
    walk = _Walk()
    more = True
    while more and len(points) <= SMALL_SPACE:
        points.append(_suggest(operation, name, walk))
        more = walk.next()
    return sorted(points, key=lambda params: candidate_label(name, params))
