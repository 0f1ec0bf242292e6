"""Races whose every sample is given, for the tests of what may be concluded from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autotune.contest.candidates import Candidate, Entrant
from autotune.contest.intervals import Interval
from autotune.contest.race import Race
from swa_alloc.evidence import Figures
from swa_alloc.operations import CallKind, Objective

KIND = CallKind("clear", "token", "int32")
MARGIN = 0.03

Column = Iterable[float | Figures]


def entrant(label: str) -> Entrant:
    """Somebody who takes part."""
    return Entrant(KIND, Candidate("clear", label, {}))


def flat(us: float) -> Figures:
    """A call that costs the same however one looks at it."""
    return Figures(us, us, us, us)


def add(race: Race, rows: Iterable[Mapping[Entrant, float | Figures]]) -> Race:
    """Run rounds, and give the race."""
    for row in rows:
        race.add_round({who: cost if isinstance(cost, Figures) else flat(cost) for who, cost in row.items()}, None)
    return race


class Raced:
    """A race of which every round is given, its entrants by label, the first one being the default."""

    def __init__(self, columns: Mapping[str, Column], *, tables: int = 1, margin: float = MARGIN) -> None:
        self.entrants = {label: entrant(label) for label in columns}
        self.race = Race(list(self.entrants.values()), tables, margin)
        rows = zip(*columns.values(), strict=True)
        add(self.race, (dict(zip(self.entrants.values(), row, strict=True)) for row in rows))

    def __getitem__(self, label: str) -> Entrant:
        return self.entrants[label]

    def ratio(self, one: str, other: str, objective: Objective = "latency") -> Interval:
        """An interval that must be there."""
        found = self.race.ratio(self[one], self[other], objective)
        assert found is not None
        return found

    def beaten(self, label: str) -> bool:
        """Whether the race is over for somebody."""
        return self.race.beaten(self[label])
