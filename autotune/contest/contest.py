"""A contest: the race at one number of indices, from single calls to a measurement for the record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.bench.sandbox import ROTATION
from autotune.bench.screening import Rejected, rejecting
from autotune.contest.candidates import Entrant
from autotune.contest.decide import judge
from autotune.contest.intervals import MIN_ROUNDS
from autotune.contest.race import EARLY_ROUNDS, OBJECTIVES, Race
from autotune.contest.record import record

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from autotune.bench.bench import Bench
    from autotune.bench.stall import Stall
    from autotune.config import Calibration
    from autotune.contest.candidates import Candidate, Space
    from autotune.contest.studies import Studies, Study
    from autotune.devices import Sample
    from autotune.traffic.plan import Point
    from swa_alloc.evidence import Figures, Measurement

# Rounds between two looks at a race.
_LOOK = 8
# Single calls decide what races at all: out is what is this much slower by its best so far than the fastest, after each
# of them. One call alone may have met a hiccup.
_SCREEN_FACTORS = (math.inf, 8.0, 3.0)
# The default, which all are compared with, leaves for nothing less.
HOPELESS = 8.0
# Rounds in which the default is timed twice, to see how far it differs from itself.
_CONTROL_ROUNDS = 8
# Most calls in a sample, however short they are.
_MAX_BLOCK = 256
# A call that is so many times longer than a block should be, and than the host's share of it, is timed alone and hot.
_LONG = 20.0
# Candidates that Optuna proposes at a look, and to a contest, where there are too many to race them all.
_PROPOSALS, _MOST_PROPOSALS = 4, 32


@dataclass(frozen=True)
class Terms:
    """What the contests of one calibration have in common.

    Attributes:
        bench: Takes the samples.
        studies: Takes them down.
        settings: How much is measured.
        backlog_us: Device work queued ahead of a call, in microseconds.
        spread: Added to the margin, by number of indices.
        clock: Seconds that pass.
        deadline: When everything must be over, by that clock.
        shuffler: Of the orders within rounds.
        sporadic: By candidate and the indices' dtype, what calls were seen to wait for now and then at one size or
            another: that is believed of them where there was no time to see whether it is so.
    """

    bench: Bench
    studies: Studies
    settings: Calibration
    backlog_us: float
    spread: Callable[[int], float]
    clock: Callable[[], float]
    deadline: float
    shuffler: random.Random
    sporadic: dict[tuple[Candidate, str], Stall] = field(default_factory=dict)

    def margin(self, point: Point) -> float:
        """Fraction by which another must beat the default, before what fresh memory is seen to change."""
        return self.settings.switch_margin + self.spread(point.count)

    def out_of_time(self) -> bool:
        """Whether everything must be over."""
        return self.clock() >= self.deadline


class Contest:
    """One decision.

    Args:
        point: What is timed.
        entrants: What takes part, the default first.
        hopeless: The single calls here of what they ruled out before.
        space: What they are from.
        terms: What all contests have in common.
        admit: Checks whether an entrant is right, if it was not checked before, and rejects it if not.
        welcome: Checks a proposed candidate; gives its entrant, or None if it may not race.
    """

    def __init__(
        self,
        point: Point,
        entrants: Sequence[Entrant],
        hopeless: Mapping[Entrant, Sample],
        space: Space,
        terms: Terms,
        admit: Callable[[Entrant], None],
        welcome: Callable[[Candidate], Entrant | None],
    ) -> None:
        self.point = point
        self.race = Race(list(entrants), terms.bench.tables, terms.margin(point))
        self.settled = False
        self._proposals_left = _MOST_PROPOSALS if space.open else 0
        self._terms = terms
        self._admit = admit
        self._welcome = welcome
        self._standing_default = entrants[0]
        self._singles: dict[Entrant, Sample] = {}
        self._hopeless = hopeless
        self._until = math.inf
        self._asked: set[Entrant] = set()  # in this run
        self._ruled_out: list[Entrant] = []  # by single calls
        self._pruned: list[Entrant] = []
        self._calls: dict[Entrant, int] = {}
        name = f"{point.kind}.{point.count}"
        self._study: Study = terms.studies.open(
            name, space, [entrant.candidate for entrant in entrants], self._is_beaten, terms.settings.seed
        )

    def run(self, until: float) -> None:
        """Race until the decision is settled, the rounds are used up, or, with rounds enough, it is ``until``."""
        self._until = until
        self._asked.clear()
        if not self._calls:
            self._screen()
        for entrant in self.race.running:
            # Some were asked before this race began.
            self._charge(entrant)
        terms = self._terms
        while self.race.running and not self.settled and self.race.rounds < terms.settings.rounds:
            now = terms.clock()
            if now >= terms.deadline or (now >= until and self.race.rounds >= MIN_ROUNDS):
                break
            if self._proposals_left > 0:
                self._propose()
            self._look()
            self.settled = self._is_settled()
        # What has been given all its rounds has been raced, however the race stands.
        self.settled = self.settled or not self.race.running or self.race.rounds >= terms.settings.rounds

    def expel(self, entrant: Entrant, rejected: Rejected) -> bool:
        """Take out what has turned out to be wrong; whether it was in."""
        if entrant not in self.race.running:
            return False
        self._fail(entrant, rejected)
        return True

    def ruled_out(self) -> list[Entrant]:
        """What was far too slow here by single calls."""
        return list(self._ruled_out)

    def ask(self, label: str) -> bool:
        """Find out whether one that has raced here waits, if it is not known; whether it has become known."""
        for entrant in self.race.series:
            if entrant.label == label and not entrant.out and self.point.count not in entrant.stalls:
                self._ask(entrant)
                return True
        return False

    def choices(self) -> list[Entrant]:
        """What wins as things stand, under one objective or another."""
        chosen = (judge(self.race, objective) for objective in OBJECTIVES)
        return list(dict.fromkeys(verdict.entrant for verdict in chosen if verdict is not None))

    def measurement(self) -> Measurement | None:
        """What is known by now, for the record; None where nothing had rounds enough."""
        singles = {**self._hopeless, **{entrant: self._singles[entrant] for entrant in self._ruled_out}}
        return record(self.point, self.race, self._pruned, singles, self._standing_default, settled=self.settled)

    def finish(self) -> None:
        """Close the study: nothing more will come."""
        for entrant in self.race.running:
            cost = self.race.series[entrant].median_cost("serving")
            if math.isfinite(cost) and entrant in self.race.finishers():
                self._study.complete(entrant.label, cost)
            else:
                # Out of time before there was anything to tell.
                self._study.prune(entrant.label)

    def _screen(self) -> None:
        """Give everyone a few single calls, and rule out the hopeless. Then a block's calls are known, too."""
        for turn, factor in enumerate(self._screening()):
            for entrant in self._shuffled():
                try:
                    sample = self._terms.bench.single(self.point, entrant, turn)
                except Rejected as rejected:
                    self._fail(entrant, rejected)
                    continue
                if _possible(sample):
                    self._singles[entrant] = _better(self._singles.get(entrant), sample)
            if self._terms.out_of_time():
                break
            self._rule_out(factor)
        self._admit_all()
        self._calls = {entrant: self._block(single) for entrant, single in self._singles.items()}

    def _admit_all(self) -> None:
        """Take out what is wrong or could not be timed. Of what was hopeless this is not asked."""
        for entrant in list(self.race.running):
            if self._terms.out_of_time():
                # There will be no round.
                return
            self._admit(entrant)
            if entrant.rejected is not None:
                self._fail(entrant, entrant.rejected)
            elif entrant not in self._singles:
                self._fail(entrant, UNMEASURABLE)

    def _screening(self) -> tuple[float, ...]:
        """The rounds of single calls, each with the factor that rules out after it."""
        # At the ends of the sizes there were single calls already.
        count = self.point.count
        self._singles = {entrant: entrant.probes[count] for entrant in self.race.running if count in entrant.probes}
        if len(self._singles) < len(self.race.running):
            return _SCREEN_FACTORS
        self._rule_out(_SCREEN_FACTORS[-1])
        return ()

    def _block(self, single: Sample) -> int:
        """How many calls make a sample."""
        block_us = self._terms.settings.block_us
        if single.wall_us > _LONG * block_us and single.wall_us > _LONG * single.host_us:
            return 0
        calls = block_us / max(single.wall_us, 1e-3)
        # Whole rotations, where there is time for one.
        return min(math.ceil(calls / ROTATION) * ROTATION, _MAX_BLOCK) if calls > 1 else 1

    def _rule_out(self, factor: float) -> None:
        """Take out what is so many times slower than the fastest of those that are known not to wait."""
        measured = [entrant for entrant in self.race.running if entrant in self._singles]
        if not math.isfinite(factor) or not measured:
            return
        bar_us = math.inf
        for entrant in sorted(measured, key=lambda e: self._singles[e].wall_us):
            stall = self._ask(entrant)
            if stall == 0.0:
                bar_us = self._singles[entrant].wall_us
                break
        for entrant in measured:
            limit = max(factor, HOPELESS) if entrant is self.race.default else factor
            if self._singles[entrant].wall_us > limit * bar_us:
                self._ruled_out.append(entrant)
                self.race.leave(entrant)
                self._study.prune(entrant.label)

    def _ask(self, entrant: Entrant) -> float:
        """What an entrant's calls wait for the workload's backlog, in microseconds; measured at this size, once."""
        count = self.point.count
        if not self._is_asked(entrant):
            self._asked.add(entrant)
            # One that Optuna has proposed in the middle of the race had no single calls.
            known = self.race.series[entrant].medians() or self._singles.get(entrant) or entrant.probes.get(count)
            host_us = known.host_us if known else 0.0
            try:
                with rejecting():
                    entrant.stalls[count] = self._terms.bench.stall(self.point, entrant, host_us, self._is_late)
            except Rejected as rejected:
                entrant.stalls[count] = None
                if entrant in self.race.running:
                    self._fail(entrant, rejected)
                return math.inf
        return self._charge(entrant)

    def _is_asked(self, entrant: Entrant) -> bool:
        """Whether it is known what an entrant waits for here, as well as it can be in this run."""
        if self.point.count not in entrant.stalls:
            return False
        stall = entrant.stalls[self.point.count]
        return stall is None or stall.sure or entrant in self._asked

    def _is_late(self) -> bool:
        """Whether this run is over, but for what it began."""
        return self._terms.clock() >= min(self._until, self._terms.deadline)

    def _charge(self, entrant: Entrant) -> float:
        """Have the race know what is known of an entrant's waits at this size, in microseconds."""
        stall, key = entrant.stalls.get(self.point.count), (entrant.candidate, entrant.kind.index_dtype)
        if stall is not None and stall.kind == "partial":
            self._terms.sporadic[key] = stall
        elif stall is not None and not stall.sure:
            stall = self._terms.sporadic.get(key, stall)
        waits_us = 0.0 if stall is None else stall.cost_us(self._terms.backlog_us)
        if self.race.series[entrant].stall_us != waits_us:
            self.race.stall(entrant, waits_us)
        return waits_us

    def _look(self) -> None:
        """Run a few rounds, report them to the study, and let go what is beaten."""
        # The first look comes early, for those that are far behind.
        rounds = EARLY_ROUNDS if self.race.rounds == 0 else _LOOK - self.race.rounds % _LOOK
        for _ in range(min(rounds, self._terms.settings.rounds - self.race.rounds)):
            self._round()
            if self._terms.out_of_time() or not self.race.running:
                break
        for entrant in list(self.race.running):
            if self.race.series[entrant].unmeasurable:
                self._fail(entrant, UNMEASURABLE)
        self._ask_leaders()
        for entrant in list(self.race.running):
            cost = self.race.series[entrant].median_cost("serving")
            if math.isfinite(cost) and self._study.report(entrant.label, cost, self.race.rounds):
                self._pruned.append(entrant)
                self.race.leave(entrant)
                self._study.prune(entrant.label)

    def _ask_leaders(self) -> None:
        """Find out of what leads whether it waits, before others leave for being slower."""
        count = self.point.count
        while self.race.running and not self._is_asked(self.race.leader("serving")):
            self._ask(self.race.leader("serving"))
        self.race.asked = count in self.race.default.stalls

    def _round(self) -> None:
        race, turn = self.race, self.race.rounds
        order = self._shuffled()
        subjects: list[Entrant | None] = [*order]
        if turn < _CONTROL_ROUNDS:
            # The default's second sample comes somewhere among the others.
            subjects.insert(self._terms.shuffler.randrange(len(order) + 1), None)
        found: dict[Entrant, Figures] = {}
        again: Figures | None = None
        failed: dict[Entrant, Rejected] = {}
        for subject in subjects:
            entrant = subject or race.default
            try:
                with rejecting():
                    figures = self._terms.bench.figures(self.point, entrant, self._calls[entrant], turn)
            except Rejected as rejected:
                failed[entrant] = rejected
                continue
            if subject is None:
                again = figures
            else:
                found[entrant] = figures
        race.add_round(found, again if race.default not in failed else None)
        for entrant, failure in failed.items():
            self._fail(entrant, failure)

    def _propose(self) -> None:
        for _ in range(_PROPOSALS):
            self._proposals_left -= 1
            candidate = self._study.propose()
            if candidate is None:
                continue
            entrant = self._welcome(candidate)
            if entrant is None:
                self._study.prune(candidate.label)
                continue
            self.race.join(entrant)
            self._calls[entrant] = self._calls[self.race.default]

    def _is_settled(self) -> bool:
        """Whether more rounds would not change what wins; under every objective, the winner's waits being known."""
        if not self.race.running:
            return True
        for objective in OBJECTIVES:
            verdict = judge(self.race, objective)
            if verdict is None:
                return False
            while objective == "serving" and not self._is_asked(verdict.entrant):
                self._ask(verdict.entrant)
                verdict = judge(self.race, objective)
                if verdict is None:
                    return False
            stall = verdict.entrant.stalls.get(self.point.count)
            if not verdict.settled or (objective == "serving" and stall is not None and not stall.sure):
                return False
        return self._proposals_left <= 0

    def _is_beaten(self, label: str) -> bool:
        return any(self.race.beaten(entrant) for entrant in self.race.running if entrant.label == label)

    def _shuffled(self) -> list[Entrant]:
        order = list(self.race.running)
        self._terms.shuffler.shuffle(order)
        return order

    def _fail(self, entrant: Entrant, rejected: Rejected) -> None:
        self.race.leave(entrant)
        self._study.fail(entrant.label, rejected)
        entrant.reject(rejected)


UNMEASURABLE = Rejected("unmeasurable", "too many of its times were zero, negative or not finite")


def _possible(sample: Sample) -> bool:
    return all(math.isfinite(us) and us > 0 for us in (sample.host_us, sample.device_us, sample.wall_us))


def _better(one: Sample | None, other: Sample) -> Sample:
    return other if one is None or other.wall_us < one.wall_us else one
