"""The search: in which order what is probed, checked and raced, so that it may be stopped at any time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from autotune.bench.bench import Bench
from autotune.bench.contract import check_sum, number
from autotune.bench.screening import Rejected, Screener, rejecting
from autotune.contest.candidates import Candidate, Entrant, Space, make_space
from autotune.contest.contest import HOPELESS, UNMEASURABLE, Contest, Terms
from autotune.contest.decide import borders, refinements
from autotune.contest.race import OBJECTIVES
from autotune.contest.studies import Studies
from autotune.devices import Sample
from autotune.traffic.plan import Point
from swa_alloc.evidence import Evidence, Ineligible, Measurement
from swa_alloc.operations import CallKind

if TYPE_CHECKING:
    import optuna

    from autotune.request import Request
    from autotune.traffic.plan import Plan

# Of the time that is left, what probing everything may take, then what the checks on the whole table may; and what one
# candidate's stall at one size may, if it is longer than the fewest backlogs take.
_PROBING, _CHECKING, _STALL = 0.25, 0.2, 0.01
# Calls at both ends that take so much longer than the fastest, and so much of the budget, need no second ones. What is
# shorter may be a hiccup.
_DEAR = 0.002
# Half of the time for races follows what is at stake; the other half is spread evenly, since a rare size needs as many
# rounds for a sound decision as a frequent one.
_EVEN = 0.5
# Of the time that is left, what may pass before all races of a group have had a turn; and of what is left then, what
# may go to those that are not settled. The rest is for the borders: sizes between those that are timed are called as
# often.
_FIRST, _SECOND = 0.25, 0.3
# Sizes added to one kind of call, at most.
_REFINEMENTS = 24

Progress = Callable[[float], None]
Found = Callable[[Measurement], None]


@dataclass(frozen=True)
class Budget:
    """The time that a search may take.

    Attributes:
        clock: Seconds that pass.
        start: Its reading at the beginning.
        seconds: How long it may last.
        progress: Told the share that is used, from 0 to 1.
    """

    clock: Callable[[], float]
    start: float
    seconds: float
    progress: Progress

    @property
    def left_s(self) -> float:
        """Seconds left, 0 when it is used up."""
        return max(0.0, self.start + self.seconds - self.clock())

    def soon(self, share: float) -> float:
        """The clock's reading when so much of what is left is used."""
        return self.clock() + share * self.left_s

    def tick(self) -> None:
        """Tell the progress."""
        self.progress(1 - self.left_s / self.seconds)


@dataclass
class _Field:
    """Everything about one kind of call.

    Attributes:
        kind: The kind.
        points: What is to be timed, ascending.
        space: What may take part.
        entrants: What does, the default first.
        probed: Whether all of them were, and none was left out for want of time.
        open: Whether the hopeless are out.
        found: By number of indices, what was measured.
        complete: Numbers of indices at which all that might win have raced.
        contests: By number of indices, the races of this run.
    """

    kind: CallKind
    points: tuple[Point, ...]
    space: Space
    entrants: list[Entrant]
    probed: bool = True
    open: bool = False
    found: dict[int, Measurement] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    contests: dict[int, Contest] = field(default_factory=dict)

    @property
    def called(self) -> bool:
        """Whether the workload calls it at all."""
        return any(point.weight for point in self.points)

    @property
    def ends(self) -> tuple[Point, ...]:
        return tuple(dict.fromkeys((self.points[0], self.points[-1])))

    @property
    def fastest_us(self) -> dict[int, float]:
        """By number of indices, the shortest single call at the ends."""
        found: dict[int, float] = {}
        for entrant in self.racing:
            for count, sample in entrant.probes.items():
                found[count] = min(sample.wall_us, found.get(count, math.inf))
        return found

    @property
    def racing(self) -> list[Entrant]:
        return [entrant for entrant in self.entrants if not entrant.out and (entrant.probes or self.found)]

    def candidates_at(self, point: Point) -> list[Entrant]:
        """What may win there; not what was far too slow at both ends."""
        ends = [self.contests[end.count].ruled_out() for end in self.ends if end.count in self.contests]
        slow = set[Entrant]() if point in self.ends or len(ends) < len(self.ends) else set.intersection(*map(set, ends))
        return [entrant for entrant in self.racing if entrant not in slow]

    @property
    def unraced(self) -> list[Point]:
        """What has not been raced, or not with all that might win."""
        return [point for point in self.points if point.count not in self.complete]

    @property
    def missing(self) -> list[Point]:
        """What an answer lacks.

        A kind that nothing was ever right or fit for has its default; one that all have left half-way is not done.
        """
        return self.unraced if self.racing or self.found else []

    @property
    def unsettled(self) -> list[Point]:
        """What more rounds might decide otherwise."""
        return [p for p in self.points if p.count in self.found and not self.found[p.count].settled]

    @property
    def labels(self) -> list[str]:
        """In the registry's order, the default first."""
        return [entrant.label for entrant in self.entrants]

    @property
    def at_stake_us(self) -> float:
        """By the single calls, what the default may cost too much: the workload's calls, weighted."""
        weight = sum(point.weight for point in self.points)
        gaps = []
        for end in self.ends:
            walls = [e.probes[end.count].wall_us for e in self.entrants if end.count in e.probes and not e.rejected]
            own = self.entrants[0].probes.get(end.count)
            gaps.append(max(own.wall_us - min(walls), 0.05 * own.wall_us) if own and walls else max(walls, default=0.0))
        return weight * max(gaps, default=0.0)


class Search:
    """Finds the fastest candidates at the points of a plan.

    Args:
        request: What to measure.
        plan: What to time.
        budget: The time for it.
        known: What was found before and need not be found again.
        found: Told each measurement as it comes.
    """

    def __init__(self, request: Request, plan: Plan, budget: Budget, known: Evidence, found: Found) -> None:
        self._budget = budget
        self._plan = plan
        self._tell = found
        self._studies = Studies()
        settings, device = request.settings, request.device
        self._require_capturable = request.require_capturable
        screener = Screener(device, settings.call_limit_s, budget.clock)
        self._screener = screener
        self._fields = [_field(kind, plan, request, known) for kind in plan.kinds]
        self._known_ineligible = known.ineligible
        self._request = request
        self._shuffler = random.Random(settings.seed)  # noqa: S311 - orders of a race
        self._hopeless: set[Candidate] = set()  # for one kind of call or another
        self._dear_us = _DEAR * budget.seconds * 1e6
        self._called: set[tuple[str, str]] = set()  # on the full-sized table
        self._finished = False

    def run(self) -> None:
        """Measure until everything is decided or the budget is used up."""
        self._finished = False
        request, settings, budget = self._request, self._request.settings, self._budget
        bench = Bench(request.trace, self._screener, settings.tables, settings.seed)
        deadline = budget.start + budget.seconds
        terms = Terms(
            bench,
            self._studies,
            settings,
            request.backlog_us,
            request.device.spread,
            budget.clock,
            deadline,
            self._shuffler,
        )
        unraced = [f for f in self._fields if f.unraced]
        for group in ([f for f in unraced if f.called], [f for f in unraced if not f.called]):
            self._prepare(group, bench)
            self._race(group, terms)
        self._probe_again(unraced, terms)
        self._refine(terms)
        # Kinds that an earlier run has raced, and not settled.
        self._prepare([f for f in self._fields if f.unsettled and f not in unraced], bench)
        self._race_on(self._fields, terms, deadline)
        self._check_winners(bench)
        for contest in self._contests():
            contest.finish()
        self._finished = True

    @property
    def evidence(self) -> Evidence:
        """What is known by now."""
        measurements = [f.found[count] for f in self._fields for count in sorted(f.found)]
        return Evidence(tuple(measurements), self._ineligible())

    @property
    def missing(self) -> tuple[str, ...]:
        """What a complete answer lacks, in words."""
        # Kinds of call that nothing is left for keep their defaults; without anything decided there is no answer.
        nothing = not any(f.found for f in self._fields)
        points = [f"{f.kind} at {point.count}" for f in self._fields for point in (f.points if nothing else f.missing)]
        # What may still change until the end, borders and winners, has no names.
        return tuple(points) if self._finished or points else ("the last checks",)

    def labels(self, kind: CallKind) -> list[str]:
        """The candidates of a kind in the registry's order, the default first."""
        return next(f.labels for f in self._fields if f.kind == kind)

    def save_studies(self, storage: optuna.storages.BaseStorage) -> None:
        """Copy every Optuna study to ``storage``."""
        self._studies.copy_to(storage)

    def _ineligible(self) -> tuple[Ineligible, ...]:
        """What was rejected; a strategy once a kind where all its parameters failed alike."""
        distinct: dict[tuple[CallKind, str, str], Ineligible] = {}
        verdicts = [entrant.verdict for f in self._fields for entrant in f.entrants]
        broken = [
            Ineligible(f.kind, name, {}, "raised", detail)
            for f in self._fields
            for name, detail in f.space.broken.items()
        ]
        for entry in (*self._known_ineligible, *broken, *(verdict for verdict in verdicts if verdict is not None)):
            distinct[entry.kind, entry.strategy, entry.detail] = entry
        return tuple(distinct.values())

    @property
    def _rounds(self) -> int:
        """Of all races of this run."""
        return sum(contest.race.rounds for contest in self._contests())

    def _contests(self) -> Iterator[Contest]:
        return (contest for f in self._fields for contest in f.contests.values())

    def _prepare(self, fields: list[_Field], bench: Bench) -> None:
        """Probe and check what will race."""
        if fields and self._budget.left_s > 0:
            self._probe(fields, bench)
            self._check_whole(fields, bench)

    # Probing: what do single calls say?

    def _probe(self, fields: list[_Field], bench: Bench) -> None:
        mapping = bench.sandbox(0).mapping
        start = self._budget.clock()
        mapping.sum().item()
        # Of what a pass reads, a mask of the rows is an eighth.
        pass_us = (self._budget.clock() - start) * 1e6 / mapping.element_size()
        deadline = self._budget.soon(_PROBING)
        for i, f in enumerate(fields):
            now = self._budget.clock()
            until = now + max(0.0, deadline - now) / (len(fields) - i)
            passing = [entrant for entrant in f.entrants[1:] if entrant.candidate.strategy().whole_table]
            others = [entrant for entrant in f.entrants if entrant not in passing]
            self._probe_field(f, others, bench, until)
            for entrant in passing:
                # Where one pass over the table is hopeless, that is its figure: to bind it may take as much memory as
                # the table has, and as long as all the races.
                entrant.probes = {point.count: Sample(pass_us, pass_us, pass_us) for point in f.ends}
                if not self._slower(entrant, f.fastest_us, HOPELESS):
                    entrant.probes = {}
            self._probe_field(f, [entrant for entrant in passing if not entrant.probes], bench, until)
            self._budget.tick()

    def _probe_field(self, f: _Field, entrants: list[Entrant], bench: Bench, until: float) -> None:
        called: dict[Entrant, None] = {}
        for turn in range(2):
            for point in f.ends:
                for entrant in entrants:
                    # The default first and in any case, so that there is something to go by in however little time.
                    late = self._budget.clock() >= until and entrant is not f.entrants[0]
                    if entrant.out or late or self._is_known(entrant, f, turn):
                        continue
                    called[entrant] = None
                    self._single(point, entrant, bench, turn)
        for entrant in called:
            if not entrant.probes and not entrant.out:
                entrant.reject(UNMEASURABLE)
        f.probed = f.probed and all(entrant.probes or entrant.out for entrant in entrants)
        for entrant in entrants:
            if self._slower(entrant, f.fastest_us, HOPELESS):
                self._hopeless.add(entrant.candidate)
            if self._is_dear(entrant, f):
                # Its workspace may be as large as the table.
                entrant.bound.clear()

    def _is_known(self, entrant: Entrant, f: _Field, turn: int) -> bool:
        """Whether its calls so far tell enough: two long ones, or one as hopeless as for another kind of call."""
        if not entrant.probes:
            return False
        again = entrant.candidate in self._hopeless and self._slower(entrant, f.fastest_us, HOPELESS)
        long = turn > 0 and min(sample.wall_us for sample in entrant.probes.values()) > self._dear_us
        return again or long or self._is_dear(entrant, f)

    def _single(self, point: Point, entrant: Entrant, bench: Bench, turn: int) -> None:
        try:
            sample = bench.single(point, entrant, turn)
        except Rejected as rejected:
            entrant.reject(rejected)
            return
        known = entrant.probes.get(point.count)
        if 0 < sample.wall_us < (known.wall_us if known else float("inf")):
            entrant.probes[point.count] = sample

    def _is_dear(self, entrant: Entrant, f: _Field) -> bool:
        """Whether its calls so far were long, and many times longer than the fastest: no need for more."""
        return self._slower(entrant, f.fastest_us, HOPELESS) and all(
            sample.wall_us > self._dear_us for sample in entrant.probes.values()
        )

    def _slower(self, entrant: Entrant, than_us: Mapping[int, float], times: float) -> bool:
        """Whether it is so many times slower wherever it was probed."""
        return bool(entrant.probes) and all(
            sample.wall_us > times * than_us.get(count, math.inf) for count, sample in entrant.probes.items()
        )

    # Checking: what is right, and what works in a graph?

    def _check_whole(self, fields: list[_Field], bench: Bench) -> None:
        """Call each strategy once on the full-sized table: with other parameters or indices it addresses the same one.

        What the rows that are looked at do not show, one pass over the table shows for all of them.
        """
        mapping = bench.sandbox(0).mapping
        number(mapping)
        called: list[tuple[Point, Entrant]] = []
        deadline = self._budget.soon(_CHECKING)
        for f in fields:
            for entrant in sorted(f.racing, key=_fastest_first):
                strategy = f.kind.operation, entrant.candidate.name
                hopeless = self._slower(entrant, f.fastest_us, HOPELESS)
                if strategy not in self._called and entrant.probes and not hopeless and self._budget.clock() < deadline:
                    self._called.add(strategy)
                    called.append((f.points[-1], entrant))
                    self._try(entrant, partial(bench.check_full, f.points[-1], entrant))
        if not check_sum(mapping):
            self._find_culprits(called, bench)
        self._budget.tick()

    def _open(self, f: _Field, bench: Bench) -> None:
        """Before the first race of a kind, leave out those that single calls showed to be hopeless.

        That is what is many times slower than the fastest that does not wait and is right.
        """
        if f.open:
            return
        f.open = True
        fastest = f.fastest_us
        if not any(self._slower(entrant, fastest, HOPELESS) for entrant in f.racing):
            return
        for entrant in sorted(f.racing, key=_fastest_first):
            self._admit(f, entrant, bench)
            if not entrant.out and not any(self._waits(point, entrant, bench) for point in f.ends):
                bar = {count: sample.wall_us for count, sample in entrant.probes.items()}
                for other in f.racing:
                    if other is not entrant and self._slower(other, bar, HOPELESS):
                        other.give_up()
                return
            if self._budget.left_s <= 0:
                return

    def _waits(self, point: Point, entrant: Entrant, bench: Bench) -> bool:
        """Whether an entrant waits for work queued ahead of it; known from now on. One that fails at that is out."""
        if point.count not in entrant.stalls:
            host_us = entrant.probes[point.count].host_us if point.count in entrant.probes else 0.0
            until = self._budget.soon(_STALL)

            def ask() -> None:
                entrant.stalls[point.count] = bench.stall(
                    point, entrant, host_us, lambda: self._budget.clock() >= until
                )

            self._try(entrant, ask)
        stall = entrant.stalls.get(point.count)
        return entrant.out or (stall is not None and stall.kind != "asynchronous")

    def _admit(self, f: _Field, entrant: Entrant, bench: Bench) -> None:
        """See that an entrant is right, and that it works in a graph where it must; once, and it is out if not."""
        if entrant.admitted or entrant.out:
            return
        entrant.admitted = True
        self._try(entrant, lambda: self._screener.check(entrant.candidate, bench.sandbox(0).target(f.kind)))
        if self._require_capturable and not entrant.out:
            self._capture(f, entrant, bench)
            if entrant.capturable is False:
                entrant.reject(Rejected("not_capturable", "it does not work in a captured graph, and strategies must"))

    def _capture(self, f: _Field, entrant: Entrant, bench: Bench) -> None:
        """Find out whether an entrant works in a graph, at both ends."""
        for point in f.ends:
            if entrant.capturable is not False and not entrant.out:
                # A call that waits would end the capture with an error, and is known not to work.
                waits = self._waits(point, entrant, bench)
                entrant.capturable = False if waits else bench.capturable(point, entrant)

    def _try(self, entrant: Entrant, action: Callable[[], None]) -> None:
        try:
            with rejecting():
                action()
        except Rejected as rejected:
            entrant.reject(rejected)

    def _find_culprits(self, whole: list[tuple[Point, Entrant]], bench: Bench) -> None:
        """The table does not add up: find out, one by one, which wrote where no index pointed."""
        mapping = bench.sandbox(0).mapping
        for point, entrant in whole:
            if entrant.out:
                continue
            number(mapping)
            self._try(entrant, partial(bench.check_full, point, entrant))
            if not entrant.out and not check_sum(mapping):
                self._expel(entrant, Rejected("wrong_result", "it writes to rows that no index names"))

    def _expel(self, entrant: Entrant, rejected: Rejected) -> None:
        """Take out a strategy that was found wrong where its table is full-sized, with all its parameters."""
        for f in self._fields:
            for other in f.entrants:
                same = f.kind.operation == entrant.kind.operation and other.candidate.name == entrant.candidate.name
                if same and not other.out:
                    other.reject(rejected)

    # Racing.

    def _race(self, fields: list[_Field], terms: Terms) -> None:
        """Race everything a little, the ends of the sizes first, by what is at stake, and then what is not settled."""
        queue = _in_order((f, point) for f in fields if f.racing for point in f.unraced)
        clock, first = self._budget.clock, self._budget.soon(_FIRST)
        for i, (f, point) in enumerate(queue):
            if terms.out_of_time():
                return
            # As few rounds as say anything may take longer: the others lose no more than that by it.
            self._run(f, point, terms, clock() + max(0.0, first - clock()) / (len(queue) - i))
        self._race_on(fields, terms, self._budget.soon(_SECOND))

    def _race_on(self, fields: list[_Field], terms: Terms, until: float) -> None:
        """Go on where it is not settled, for so long; where more is at stake, for longer."""
        clock = self._budget.clock
        while clock() < until:
            unsettled = _in_order((f, point) for f in fields if f.racing for point in f.unsettled)
            before = self._rounds
            for i, (f, point) in enumerate(unsettled):
                rest = unsettled[i:]
                total = sum(g.at_stake_us for g, _ in rest)
                even = 1 / len(rest)
                share = _EVEN * even + (1 - _EVEN) * (f.at_stake_us / total if total else even)
                self._run(f, point, terms, clock() + share * max(0.0, until - clock()))
            if self._rounds == before:
                return

    def _probe_again(self, fields: list[_Field], terms: Terms) -> None:
        """Time those for which there was no time at first; where one might win, race again."""
        late = [f for f in fields if not f.probed and f.racing]
        for i, f in enumerate(late):
            f.probed = True
            unprobed = [entrant for entrant in f.entrants if not entrant.probes and not entrant.out]
            self._probe_field(f, unprobed, terms.bench, self._budget.soon(1 / (len(late) - i)))
            if not f.probed:
                continue
            if any(not entrant.out and not self._slower(entrant, f.fastest_us, HOPELESS) for entrant in unprobed):
                f.contests.clear()
                f.open = False
            else:
                f.complete |= set(f.found)
        self._race(late, terms)

    def _run(
        self, f: _Field, point: Point, terms: Terms, until: float, racing: Sequence[Entrant] | None = None
    ) -> None:
        self._open(f, terms.bench)
        entrants = f.candidates_at(point) if racing is None else [entrant for entrant in racing if not entrant.out]
        if point.count not in f.contests:
            if not entrants:
                return
            f.contests[point.count] = Contest(
                point,
                entrants,
                {e: e.probes[point.count] for e in f.entrants if e.hopeless and point.count in e.probes},
                f.space,
                terms,
                lambda entrant: self._admit(f, entrant, terms.bench),
                lambda candidate: self._welcome(f, candidate, terms),
            )
        contest = f.contests[point.count]
        contest.run(until)
        for entrant in contest.choices():
            if entrant.capturable is None:
                self._capture(f, entrant, terms.bench)
        self._budget.tick()
        self._take_down(f, contest)

    def _take_down(self, f: _Field, contest: Contest) -> None:
        measurement = contest.measurement()
        if measurement is not None:
            count = contest.point.count
            known = f.found.get(count)
            if known is not None and not measurement.settled and _rounds(known) > _rounds(measurement):
                return
            f.found[count] = measurement if f.probed else measurement._replace(settled=False)
            if f.probed:
                f.complete.add(count)
            self._tell(f.found[count])
        elif contest.settled and f.racing:
            # Nothing is left that could be measured there.
            f.complete.add(contest.point.count)

    def _welcome(self, f: _Field, candidate: Candidate, terms: Terms) -> Entrant | None:
        """The entrant of a candidate that Optuna proposes in the middle of a race, if it is right."""
        known = next((e for e in f.entrants if e.candidate == candidate), None)
        if known is not None:
            return None if known.out else known
        entrant = Entrant(f.kind, candidate)
        f.entrants.append(entrant)
        self._admit(f, entrant, terms.bench)
        return None if entrant.out else entrant

    def _refine(self, terms: Terms) -> None:
        """Race between sizes whose winners differ, the dearest borders first, for as long as there is time."""
        added = {f.kind: 0 for f in self._fields}
        while not terms.out_of_time():
            self._ask_neighbours()
            open_borders = [
                (f, refinement)
                for f in self._fields
                if added[f.kind] < _REFINEMENTS
                for refinement in refinements(
                    list(f.found.values()), OBJECTIVES, self._plan.calls.get(f.kind, ()), f.labels
                )
                if refinement.indices not in f.found
            ]
            if not open_borders:
                return
            f, refinement = max(open_borders, key=lambda border: (border[1].stake, -border[1].indices))
            count = refinement.indices
            added[f.kind] += 1
            below = max((p for p in f.points if p.count <= count), key=lambda p: p.count, default=f.points[0])
            point = Point(f.kind, count, below.layout, 0.0)
            racing = [e for e in f.racing if e.label in refinement.labels or e is f.entrants[0]]
            races_left = max(1.0, sum(other.splits for _, other in open_borders))
            self._run(f, point, terms, self._budget.soon(1 / races_left), racing)
            if count not in f.found:
                # Nothing could be raced there: no reason to try it again and again.
                added[f.kind] = _REFINEMENTS

    def _ask_neighbours(self) -> None:
        """Where the choice changes between two sizes, find out whether either choice waits at the other's size."""
        for f in self._fields:
            for border in borders(list(f.found.values()), "serving", f.labels):
                for count, label in ((border.large, border.below), (border.small, border.above)):
                    contest = f.contests.get(count)
                    if contest is not None and contest.ask(label):
                        self._take_down(f, contest)

    def _check_winners(self, bench: Bench) -> None:
        """Take out what has become wrong in the course of the races, and decide those again without it."""
        chosen = {
            entrant: (f, f.points[-1]) for f in self._fields for c in f.contests.values() for entrant in c.choices()
        }
        for entrant, (f, point) in chosen.items():
            try:
                with rejecting():
                    bench.check_full(point, entrant)
            except Rejected as rejected:
                for contest in f.contests.values():
                    if contest.expel(entrant, rejected):
                        self._take_down(f, contest)


def _field(kind: CallKind, plan: Plan, request: Request, known: Evidence) -> _Field:
    default = request.defaults[kind.operation]
    space = make_space(kind.operation, default, request.strategies[kind.operation])
    measured = {m.indices: m for m in known.measurements if m.kind == kind}
    points = tuple(point for point in plan.points if point.kind == kind)
    entrants = [Entrant(kind, candidate) for candidate in space.fixed]
    return _Field(kind, points, space, entrants, found=measured, complete=set(measured))


def _in_order(points: Iterable[tuple[_Field, Point]]) -> list[tuple[_Field, Point]]:
    """The ends of the sizes first, by what is at stake for a kind of call, and then the middle."""

    def rank(entry: tuple[_Field, Point]) -> tuple[bool, float, float]:
        f, point = entry
        return point not in f.ends, -f.at_stake_us, -point.weight

    return sorted(points, key=rank)


def _rounds(measurement: Measurement) -> int:
    return max(candidate.rounds for candidate in measurement.candidates)


def _fastest_first(entrant: Entrant) -> float:
    walls = [sample.wall_us for sample in entrant.probes.values()]
    return min(walls) * max(walls) if walls else float("inf")
