"""The search: every decision's contest, interleaved with the others, sandbox after sandbox, within a budget of time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import optuna

from autotune.bench import Bench
from autotune.contest import Contest
from autotune.race import Race
from autotune.sandbox import Sandbox
from autotune.screening import Rejected, Screener, rejecting
from autotune.space import Candidate, make_space
from swa_alloc.evidence import Ineligible
from swa_alloc.operations import OPERATIONS

if TYPE_CHECKING:
    from autotune.plan import Kind, Point
    from autotune.request import Request
    from autotune.stall import Stall

# Candidates that Optuna proposes to a contest on each fresh sandbox, where there are too many to race them all.
_PROPOSALS = 4
# To check a candidate takes about as long as to screen it at so many sizes.
_CHECK = 10

# Sizes at which it is measured whether a candidate waits for a backlog; those between take the nearer one's answer.
_STALL_SIZES = 2

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Budget:
    """The time that a search may take.

    Attributes:
        start: ``time.monotonic()`` at its beginning.
        seconds: How long it may last.
        progress: Told the share that is used, from 0 to 1.
    """

    start: float
    seconds: float
    progress: Progress

    @property
    def left_s(self) -> float:
        """Seconds left, 0 when it is used up."""
        return max(0.0, self.start + self.seconds - monotonic())

    def tick(self) -> None:
        """Tell the progress."""
        self.progress(1 - self.left_s / self.seconds)


class Search:
    """Finds the fastest candidates at the points of a plan.

    Args:
        request: What to measure.
        budget: The time for it.
    """

    def __init__(self, request: Request, budget: Budget) -> None:
        self._request = request
        self._budget = budget
        self._spaces = {
            operation: make_space(
                operation, OPERATIONS[operation].default_strategy(request.device.torch_device.type), who
            )
            for operation, who in request.strategies.items()
        }
        self._screener = Screener(request.device, request.settings.call_limit_s)
        self._shuffler = random.Random(request.settings.seed)  # noqa: S311 - orders of a race
        self._storage = optuna.storages.InMemoryStorage()
        self._contests: list[Contest] = []
        self._admitted: dict[tuple[Kind, str], float] = {}  # to how long the check took, in seconds
        self._rejected: dict[tuple[Kind, str], Ineligible] = {}
        # By number of indices: once at the smallest size of a kind, once at the largest.
        self._stalls: dict[tuple[Kind, str], dict[int, Stall | None]] = {}
        self._capturable: dict[tuple[Kind, str], bool | None] = {}

    @property
    def ineligible(self) -> tuple[Ineligible, ...]:
        """Who was rejected; a strategy once a kind where all its parameters failed alike."""
        distinct: dict[tuple[Kind, str, str], Ineligible] = {}
        for (kind, _), ineligible in self._rejected.items():
            distinct.setdefault((kind, ineligible.strategy, ineligible.detail), ineligible)
        return tuple(distinct.values())

    def run(self, points: Sequence[Point]) -> list[Contest]:
        """A closed contest for each point at which anything works; some without rounds where time ran out."""
        settings = self._request.settings
        contests: list[Contest] = []
        by_kind: dict[Kind, list[Point]] = {}
        for point in points:
            by_kind.setdefault(point.kind, []).append(point)
        # As much time is kept for the race as the screening may take, and every kind has its part of that.
        racing_s = self._budget.left_s / 2
        parts = {kind: self._candidates(kind[0]) * (_CHECK + len(found)) for kind, found in by_kind.items()}
        for kind, found in by_kind.items():
            share_s = (self._budget.left_s - racing_s) * parts[kind] / sum(parts.values())
            del parts[kind]
            contests += self._screen(found, monotonic() + share_s)
        bench: Bench | None = None
        racing_until = monotonic() + self._budget.left_s - self._checking_s(contests)
        for number in range(settings.passes):
            share_s = (racing_until - monotonic()) / (settings.passes - number)
            if share_s <= 0:
                break
            bench = None  # released before the next one is allocated
            bench = self._bench()
            self._pass(contests, bench, monotonic() + share_s)
        if bench is not None:
            self._check_again(contests, bench)
        for contest in contests:
            contest.close()
        self._contests += contests
        self._expel()
        return contests

    def save_studies(self, storage: optuna.storages.BaseStorage) -> None:
        """Copy every study to ``storage``."""
        for name in optuna.get_all_study_names(self._storage):
            optuna.copy_study(from_study_name=name, from_storage=self._storage, to_storage=storage)

    def _candidates(self, operation: str) -> int:
        """How many there are to screen, and 1 where there is none."""
        unavailable = self._request.unavailable
        here = [c for c in self._spaces[operation].fixed if (operation, c.name) not in unavailable]
        return max(1, len(here))

    def _bench(self) -> Bench:
        trace, device = self._request.trace, self._request.device
        sandbox = Sandbox(trace.size, trace.page_size, device, self._request.settings.seed)
        return Bench(sandbox, device, self._screener)

    def _screen(self, points: list[Point], until: float) -> list[Contest]:
        """Contests for the points of one kind, each with the candidates that are right and not hopeless.

        Where the time runs out, the later candidates and points are left out.
        """
        request, space = self._request, self._spaces[points[0].operation]
        bench = self._bench()
        for name, detail in space.broken.items():
            self._note(points[0].kind, Candidate(space.operation, name, {}), Rejected("raised", detail))
        for candidate in space.fixed:
            self._budget.tick()
            # Checked with the most indices: what is too small for them serves few.
            self._admit(points[-1], candidate, bench, until)
        for candidate in space.fixed:
            if (points[0].kind, candidate.label) in self._admitted:
                self._characterize(points, candidate, bench, until)
        entrants, failures = self._sort_out(points[0].kind, space.fixed)
        racing = [candidate.label for candidate in entrants if candidate.label not in failures]
        if not racing:
            return []
        contests: list[Contest] = []
        for point in points:
            if contests and monotonic() >= until:
                break
            race = Race(racing[0], request.objective)
            contest = Contest.open(point, space, entrants, race, self._storage, request.settings.seed)
            for label, ineligible in failures.items():
                contest.reject(label, Rejected(ineligible.reason, ineligible.detail))
            contest.enter(racing)
            for label in racing:
                self._inform(contest, label)
            self._note_all(contest, contest.screen(bench, request.settings.block_us, self._shuffler))
            contests.append(contest)
        return contests

    def _characterize(self, points: Sequence[Point], candidate: Candidate, bench: Bench, until: float) -> None:
        """Find out, at the ends of a kind's sizes, who waits for a backlog, and who works in a captured graph.

        A candidate is noted if it fails at that, or if it must be capturable and is not.
        """
        kind, label = points[0].kind, candidate.label
        stalls = self._stalls.setdefault((kind, label), {})
        try:
            for point in (points[0], points[-1]):
                if len(stalls) < _STALL_SIZES and point.count not in stalls and (monotonic() < until or not stalls):
                    with rejecting():
                        stall = stalls[point.count] = bench.stall(point, label)
                    # A call that waits would end the capture with an error, and is known not to work.
                    waits = stall is not None and stall.kind == "blocking"
                    works = False if waits else bench.capturable(point, label)
                    self._capturable[kind, label] = works and self._capturable.get((kind, label), True)
            if self._request.require_capturable and self._capturable[kind, label] is False:
                raise Rejected("not_capturable", "it does not work in a captured graph, and strategies must")  # noqa: TRY301 - noted as the other failures are
        except Rejected as error:
            self._note(kind, candidate, error)

    def _inform(self, contest: Contest, label: str) -> None:
        """Have a contest know what was found out of a candidate; sizes in between take the nearer end's answer."""
        point = contest.point
        stalls = self._stalls[point.kind, label]
        nearest = stalls[min(stalls, key=lambda count: abs(math.log(count / point.count)))]
        if nearest is not None:
            contest.know_stall(label, nearest, self._request.backlog_us)
        contest.capturable[label] = self._capturable[point.kind, label]

    def _admit(self, point: Point, candidate: Candidate, bench: Bench, until: float) -> None:
        """Check a candidate, unless its kind was screened before; bind it if it is right."""
        key = point.kind, candidate.label
        if key in self._rejected:
            return
        try:
            if key in self._admitted:
                bench.bind(point, candidate)
            elif monotonic() < until:
                start = monotonic()
                bench.admit(point, candidate)
                self._admitted[key] = monotonic() - start
            else:
                bench.refuse(point, candidate)
        except Rejected as error:
            self._note(point.kind, candidate, error)

    def _sort_out(self, kind: Kind, candidates: Sequence[Candidate]) -> tuple[list[Candidate], dict[str, Ineligible]]:
        """Who gets a trial, and who of them has failed. What cannot run on this machine gets none."""
        verdicts = {candidate.label: self._rejected.get((kind, candidate.label)) for candidate in candidates}
        failures = {label: verdict for label, verdict in verdicts.items() if verdict is not None}
        absent = {label for label, verdict in failures.items() if verdict.reason == "unavailable"}
        entrants = [candidate for candidate in candidates if candidate.label not in absent]
        return entrants, {label: verdict for label, verdict in failures.items() if label not in absent}

    def _pass(self, contests: list[Contest], bench: Bench, until: float) -> None:
        """Race on one fresh sandbox, serving first whoever has had the least of its share."""
        for contest in contests:
            for label in list(contest.race.running):
                self._try(contest, contest.candidates[label], bench.bind)
            if contest.space.open and contest.race.running:
                self._propose(contest, bench)
            contest.begin_pass(self._request.settings.rounds)
        while monotonic() < until and (waiting := [contest for contest in contests if contest.wants_rounds]):
            contest = min(waiting, key=lambda c: c.spent_s / c.point.share)
            self._note_all(contest, contest.look(bench, self._shuffler))
            self._budget.tick()

    def _checking_s(self, contests: list[Contest]) -> float:
        """The part of the time left that is kept for checking again those who still race: half of it at most."""
        racing = {(contest.point.kind, label) for contest in contests for label in contest.race.running}
        return min(sum(self._admitted.get(who, 0.0) for who in racing), self._budget.left_s / 2)

    def _check_again(self, contests: list[Contest], bench: Bench) -> None:
        """Take out who has become wrong in the course of the race, kind by kind."""
        largest = {contest.point.kind: contest.point for contest in contests}
        checked: dict[tuple[Kind, str], Rejected | None] = {}
        for contest in contests:
            for label in list(contest.race.running):
                key = contest.point.kind, label
                if key not in checked:
                    checked[key] = bench.fault(largest[contest.point.kind], label)
                fault = checked[key]
                if fault is not None:
                    contest.reject(label, fault)
                    self._note(contest.point.kind, contest.candidates[label], fault)

    def _expel(self) -> None:
        """Take who has turned out to be wrong out of every race of that kind, those of an earlier run among them."""
        for contest in self._contests:
            for label in list(contest.race.running):
                ineligible = self._rejected.get((contest.point.kind, label))
                if ineligible is not None and ineligible.reason == "wrong_result":
                    contest.race.leave(label)

    def _propose(self, contest: Contest, bench: Bench) -> None:
        for _ in range(_PROPOSALS):
            candidate = contest.ask()
            if candidate is not None and self._try(contest, candidate, bench.admit):
                self._characterize((contest.point,), candidate, bench, monotonic())
                failure = self._rejected.get((contest.point.kind, candidate.label))
                if failure is not None:
                    contest.reject(candidate.label, Rejected(failure.reason, failure.detail))
                    continue
                contest.join(candidate.label)
                self._inform(contest, candidate.label)

    def _try(self, contest: Contest, candidate: Candidate, action: Callable[[Point, Candidate], None]) -> bool:
        try:
            action(contest.point, candidate)
        except Rejected as error:
            contest.reject(candidate.label, error)
            self._note(contest.point.kind, candidate, error)
            return False
        return True

    def _note_all(self, contest: Contest, failed: Mapping[str, Rejected]) -> None:
        for label, error in failed.items():
            self._note(contest.point.kind, contest.candidates[label], error)

    def _note(self, kind: Kind, candidate: Candidate, error: Rejected) -> None:
        self._rejected[kind, candidate.label] = Ineligible(
            *kind, candidate.name, dict(candidate.params), error.reason, error.detail
        )
