"""A contest: the Optuna study and the race of one decision."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import optuna
from optuna.trial import TrialState

from autotune.pruner import LABEL, RacingPruner
from autotune.race import CONTROL, OBJECTIVES, Race
from autotune.sandbox import ROTATION
from autotune.screening import Rejected, rejecting
from autotune.space import Candidate, Space, enqueued
from swa_alloc.profile import digest

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from autotune.bench import Bench
    from autotune.plan import Point
    from autotune.stall import Stall

# Rounds between two looks at a race.
_LOOK = 8
# A race whose every interval is this narrow on either side needs no more rounds on this sandbox.
_SETTLED = 0.01
# Single calls decide who races at all: whose best so far is this much slower than the fastest after each of them. One
# call alone may have met a hiccup.
_SCREEN_FACTORS = (math.inf, 8.0, 3.0)
# Most calls in a sample, however short they are.
_MAX_BLOCK = 256


@dataclass
class Contest:
    """One decision.

    Attributes:
        point: What is timed.
        space: Who may take part.
        race: The samples.
        study: The Optuna study; one trial a candidate.
        candidates: By label, everyone who was considered.
        pruned: Labels of those who were too slow.
        stalls: By label, whether calls wait for work queued ahead of them, where it was measured.
        capturable: By label, whether it works in a captured graph; None on a device that has none.
        spent_s: Time that its rounds took.
    """

    point: Point
    space: Space
    race: Race
    study: optuna.Study
    candidates: dict[str, Candidate] = field(default_factory=dict)
    pruned: set[str] = field(default_factory=set)
    stalls: dict[str, Stall] = field(default_factory=dict)
    capturable: dict[str, bool | None] = field(default_factory=dict)
    spent_s: float = 0.0
    _trials: dict[str, optuna.Trial] = field(default_factory=dict)
    _calls: dict[str, int] = field(default_factory=dict)
    _rounds_left: int = 0

    @classmethod
    def open(
        cls,
        point: Point,
        space: Space,
        fixed: Sequence[Candidate],
        race: Race,
        storage: optuna.storages.BaseStorage,
        seed: int,
    ) -> Contest:
        """A contest in which every ``fixed`` candidate has a trial, and nobody races yet."""
        # A persisted study must not meet another set of candidates, so the set is part of the name.
        members = digest([[candidate.label for candidate in fixed], space.open])
        study = optuna.create_study(
            study_name=f"{'.'.join(point.kind)}.{point.count}-{members}",
            storage=storage,
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=RacingPruner(race),
        )
        contest = cls(point, space, race, study)
        for candidate in fixed:
            study.enqueue_trial(enqueued(candidate))
            trial = study.ask()
            space.claim(trial, candidate)
            contest._consider(trial, candidate)
        return contest

    def ask(self) -> Candidate | None:
        """The candidate of the study's next trial; None if it was considered before."""
        trial = self.study.ask()
        candidate = self.space.propose(trial)
        if candidate.label in self.candidates:
            self.study.tell(trial, state=TrialState.PRUNED)
            return None
        self._consider(trial, candidate)
        return candidate

    def reject(self, label: str, rejected: Rejected) -> None:
        """Take a candidate out because it failed."""
        trial = self._withdraw(label)
        trial.set_user_attr("reason", rejected.reason)
        trial.set_user_attr("detail", rejected.detail)
        self.study.tell(trial, state=TrialState.FAIL)

    def enter(self, labels: Iterable[str]) -> None:
        """Let candidates take part."""
        for label in labels:
            self.race.join(label)

    def screen(self, bench: Bench, block_us: float, shuffler: random.Random) -> dict[str, Rejected]:
        """Give each candidate that takes part a few single calls, and drop the hopeless. Returns who failed."""
        failed: dict[str, Rejected] = {}
        for factor in _SCREEN_FACTORS:
            failed |= self._round(bench, dict.fromkeys(self.race.running, 1), shuffler)
            for label in self.race.trailing(factor):
                self._prune(label)
        failed |= self._reject_unmeasurable(label for label in self.race.running if not self.race.measured(label))
        for label in self.race.running:
            rotations = math.ceil(block_us / ROTATION / max(self.race.best_wall(label), 1e-3))
            self._calls[label] = min(max(1, rotations), _MAX_BLOCK // ROTATION) * ROTATION
        # Single calls are not comparable with blocks.
        self.race.restart()
        return failed

    def join(self, label: str) -> None:
        """Let a proposed candidate race, in blocks like the default's."""
        self.race.join(label)
        self._calls[label] = self._calls[self.race.default]

    def know_stall(self, label: str, stall: Stall, backlog_us: float) -> None:
        """Charge a candidate what its calls wait for a backlog of so many microseconds."""
        self.stalls[label] = stall
        self.race.stall(label, stall.cost_us(backlog_us))

    def begin_pass(self, rounds: int) -> None:
        """Start over on another sandbox."""
        self.race.begin_pass()
        self._rounds_left = rounds

    @property
    def wants_rounds(self) -> bool:
        """Whether there is anything left to find out on this sandbox."""
        return self._rounds_left > 0 and bool(self.race.running)

    def look(self, bench: Bench, shuffler: random.Random) -> dict[str, Rejected]:
        """Run a few rounds, report them to Optuna, and drop who is beaten. Returns who failed."""
        start = monotonic()
        failed: dict[str, Rejected] = {}
        rounds = min(_LOOK, self._rounds_left)
        for _ in range(rounds):
            calls = {label: self._calls[label] for label in self.race.running}
            failed |= self._round(bench, calls, shuffler)
        failed |= self._reject_unmeasurable(
            label for label in self.race.running if self.race.series[label].unmeasurable
        )
        for label in list(self.race.running):
            trial = self._trials[label]
            trial.report(self.race.median_cost(label), self.race.rounds)
            if trial.should_prune():
                self._prune(label)
        self._rounds_left = 0 if self._settled() else self._rounds_left - rounds
        self.spent_s += monotonic() - start
        return failed

    def close(self) -> None:
        """Complete the trials of those who still race."""
        for label in list(self._trials):
            cost = self.race.median_cost(label) if label in self.race.running else math.inf
            # Out of time before a single sample, there is nothing to tell.
            finished = math.isfinite(cost)
            self.study.tell(
                self._trials.pop(label),
                cost if finished else None,
                state=TrialState.COMPLETE if finished else TrialState.PRUNED,
            )

    def _round(self, bench: Bench, calls: dict[str, int], shuffler: random.Random) -> dict[str, Rejected]:
        calls = calls | {CONTROL: calls[self.race.default]} if self.race.default in calls else calls
        order = list(calls)
        shuffler.shuffle(order)
        samples, failed = {}, {}
        for label in order:
            try:
                with rejecting():
                    subject = self.race.default if label == CONTROL else label
                    samples[label] = bench.sample(self.point, subject, calls[label])
            except Rejected as rejected:
                failed[self.race.default if label == CONTROL else label] = rejected
        self.race.add_round(samples)
        for label, reason in failed.items():
            self.reject(label, reason)
        return failed

    def _reject_unmeasurable(self, labels: Iterable[str]) -> dict[str, Rejected]:
        rejected = Rejected("unmeasurable", "too many of its times were zero, negative or not finite")
        failed = dict.fromkeys(list(labels), rejected)
        for label in failed:
            self.reject(label, rejected)
        return failed

    def _settled(self) -> bool:
        intervals = [
            self.race.ratio(label, self.race.default, objective)
            for label in self.race.running
            for objective in OBJECTIVES
        ]
        return all(interval and (interval.high - interval.low) / 2 <= _SETTLED for interval in intervals)

    def _consider(self, trial: optuna.Trial, candidate: Candidate) -> None:
        trial.set_user_attr(LABEL, candidate.label)
        self.candidates[candidate.label] = candidate
        self._trials[candidate.label] = trial

    def _prune(self, label: str) -> None:
        self.pruned.add(label)
        self.study.tell(self._withdraw(label), state=TrialState.PRUNED)

    def _withdraw(self, label: str) -> optuna.Trial:
        if label in self.race.running:
            self.race.leave(label)
        return self._trials.pop(label)
