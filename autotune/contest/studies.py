"""Optuna behind one door: a study for each contest, a trial for each of its entrants, the race as the pruner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import optuna
from optuna.trial import TrialState

from autotune.contest.candidates import Candidate, Space, enqueued
from swa_alloc.profile import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.bench.screening import Rejected

_LABEL = "candidate"  # the trial's user attribute that names its candidate


class Studies:
    """The studies of one calibration, in memory."""

    def __init__(self) -> None:
        self._storage = optuna.storages.InMemoryStorage()

    def open(
        self, name: str, space: Space, fixed: Sequence[Candidate], beaten: Callable[[str], bool], seed: int
    ) -> Study:
        """A study with a trial for each fixed candidate.

        Args:
            name: For people.
            space: Whose candidates take part.
            fixed: What has a trial from the start.
            beaten: Whether the race is over for a label.
            seed: Of what is proposed.
        """
        # A persisted study must not meet another set of candidates, so the set is part of the name; and a contest that
        # was taken up again is another study.
        members = digest([[candidate.label for candidate in fixed], space.open])
        known = len(optuna.get_all_study_names(self._storage))
        study = optuna.create_study(
            study_name=f"{name}-{members}-{known}",
            storage=self._storage,
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=_RacingPruner(beaten),
        )
        return Study(study, space, fixed)

    def copy_to(self, storage: optuna.storages.BaseStorage) -> None:
        """Copy every study to ``storage``."""
        for name in optuna.get_all_study_names(self._storage):
            optuna.copy_study(from_study_name=name, from_storage=self._storage, to_storage=storage)


class Study:
    """One Optuna study; see ``Studies.open``."""

    def __init__(self, study: optuna.Study, space: Space, fixed: Sequence[Candidate]) -> None:
        self._study = study
        self._space = space
        self._trials: dict[str, optuna.Trial] = {}
        for candidate in fixed:
            study.enqueue_trial(enqueued(candidate))
            trial = study.ask()
            space.claim(trial, candidate)
            self._take_down(trial, candidate)

    def propose(self) -> Candidate | None:
        """A candidate of Optuna's choice; None if it has a trial already."""
        trial = self._study.ask()
        candidate = self._space.propose(trial)
        if candidate.label in self._trials:
            self._study.tell(trial, state=TrialState.PRUNED)
            return None
        self._take_down(trial, candidate)
        return candidate

    def report(self, label: str, cost_us: float, rounds: int) -> bool:
        """Take down what a candidate costs after so many rounds; whether it should leave."""
        trial = self._trials[label]
        trial.report(cost_us, rounds)
        return trial.should_prune()

    def complete(self, label: str, cost_us: float) -> None:
        """End a trial with what its candidate costs."""
        self._study.tell(self._trials[label], cost_us)

    def prune(self, label: str) -> None:
        """End the trial of a candidate that was too slow, or that saw a part of the work only."""
        self._study.tell(self._trials[label], state=TrialState.PRUNED)

    def fail(self, label: str, rejected: Rejected) -> None:
        """End the trial of a candidate that failed."""
        trial = self._trials[label]
        trial.set_user_attr("reason", rejected.reason)
        trial.set_user_attr("detail", rejected.detail)
        self._study.tell(trial, state=TrialState.FAIL)

    def _take_down(self, trial: optuna.Trial, candidate: Candidate) -> None:
        trial.set_user_attr(_LABEL, candidate.label)
        self._trials[candidate.label] = trial


class _RacingPruner(optuna.pruners.BasePruner):
    """Prunes a trial once the race says so.

    Optuna's WilcoxonPruner needs a complete trial to compare with, and interleaved trials complete together.
    """

    def __init__(self, beaten: Callable[[str], bool]) -> None:
        self._beaten = beaten

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """See ``BasePruner.prune``."""
        del study
        return self._beaten(trial.user_attrs[_LABEL])


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna from logging a line a study, in a server's log above all."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
