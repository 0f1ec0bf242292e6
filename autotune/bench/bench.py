"""The bench: freshly allocated tables with the candidates bound to them, on which samples are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.bench.sandbox import ROTATION, Sandbox, draw
from autotune.bench.stall import Stall, measure_stall, patience
from swa_alloc.evidence import Figures
from swa_alloc.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.bench.screening import Screener
    from autotune.contest.candidates import Entrant
    from autotune.devices import Arguments, Sample
    from autotune.traffic.plan import Point
    from swa_alloc.strategies import Bound
    from swa_alloc.trace import Trace

# Where memory lies changes the order of finish by some percent, which no number of rounds on one table shows. So rounds
# are spread over several, as far as they fit into this together; of larger ones there is one.
_TABLES_BYTES = 64 << 20
# Of the device's shortest long kernels, what a block of calls may take to return.
_LONG_KERNELS = 8


class Bench:
    """What is allocated together and released together.

    Args:
        trace: Says how large a table is.
        screener: Binds candidates, on its device.
        tables: How many tables rounds are spread over, at most.
        seed: Of the indices.
    """

    def __init__(self, trace: Trace, screener: Screener, tables: int, seed: int) -> None:
        self._screener = screener
        self._device = screener.device
        self._seed = seed
        self._trace = trace
        self._sandboxes = [self._sandbox()]
        table_bytes = self._sandboxes[0].mapping.nbytes
        self.tables = max(1, min(tables, _TABLES_BYTES // table_bytes))
        self._rotations: dict[Point, list[Arguments]] = {}

    def bind(self, entrant: Entrant, table: int = 0) -> Bound:
        """The entrant's candidate bound to a table; once for each.

        Raises:
            Rejected: it cannot be bound.
        """
        if table not in entrant.bound:
            target = self.sandbox(table).target(entrant.kind)
            entrant.bound[table] = self._screener.bind(entrant.candidate, target)
        return entrant.bound[table]

    def sandbox(self, table: int) -> Sandbox:
        """One of the tables; allocated when it is first asked for."""
        while len(self._sandboxes) <= table:
            self._sandboxes.append(self._sandbox())
        return self._sandboxes[table]

    def single(self, point: Point, entrant: Entrant, turn: int) -> Sample:
        """One call of a bound entrant, waited for.

        Raises:
            Rejected: it failed, or took too long.
        """
        return self._screener.single(self.bind(entrant), self._rotation(point)[turn % ROTATION])

    def figures(self, point: Point, entrant: Entrant, calls: int, turn: int) -> Figures:
        """One round's sample on the turn's table: a single cold call, and then a block of hot ones.

        Of calls that are long and not the host's, one hot call is all: with ``calls`` 0.

        Raises:
            Rejected: there is no room for it on this table.
        """
        call = self.bind(entrant, turn % self.tables)
        rotation = self._rotation(point)
        arguments = rotation[turn % ROTATION]
        if calls == 0:
            # The device takes so long that neither the host's share nor the way to the device matters.
            alone = self._device.single(call, arguments)
            return Figures(alone.host_us, alone.host_us, alone.device_us, alone.wall_us)
        cold_us = self._device.cold_us(call, arguments)
        hot = self._device.time(call, rotation * (calls // ROTATION) if calls >= ROTATION else [arguments])
        return Figures(cold_us, hot.host_us, hot.device_us, hot.wall_us)

    def stall(self, point: Point, entrant: Entrant, host_us: float, out_of_time: Callable[[], bool]) -> Stall | None:
        """Whether an entrant's calls wait for work queued ahead of them; None where nothing can be.

        Args:
            point: The calls.
            entrant: Its candidate makes them.
            host_us: What a call takes to return on an idle stream.
            out_of_time: Asked now and then.
        """
        # A block, since a device with a task queue on the host returns early from one call; but not of calls so long
        # that their backlogs would take all the time.
        calls = ROTATION if host_us * ROTATION < _LONG_KERNELS * self._device.kernel_us else 1
        block = self._rotation(point)[:calls]
        never = patience(entrant.stalls.values())
        return measure_stall(self._device, self.bind(entrant), block, host_us * calls, out_of_time, never)

    def check_full(self, point: Point, entrant: Entrant) -> None:
        """See that an entrant is right on a full-sized table, which must be numbered.

        Raises:
            Rejected: it is not.
        """
        target = self.sandbox(0).target(entrant.kind)
        self._screener.check_full(self.bind(entrant), target, self._rotation(point)[0])

    def capturable(self, point: Point, entrant: Entrant) -> bool | None:
        """Whether an entrant is right in a captured graph; None where the device has no graphs."""
        target = self.sandbox(0).target(entrant.kind)
        return self._screener.capturable(self.bind(entrant), target, self._rotation(point)[0])

    def _sandbox(self) -> Sandbox:
        return Sandbox(self._trace.size, self._trace.page_size, self._device)

    def _rotation(self, point: Point) -> list[Arguments]:
        if point not in self._rotations:
            target = self._sandboxes[0].target(point.kind)
            arguments = OPERATIONS[point.kind.operation].arguments
            self._rotations[point] = [arguments(target.table, rows) for rows in draw(point, target, self._seed)]
        return self._rotations[point]
