"""The bench: one fresh sandbox with the candidates bound to it, on which samples are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.sandbox import ROTATION, Sandbox
from autotune.screening import Rejected
from autotune.stall import Stall, measure_stall
from swa_alloc.operations import OPERATIONS

if TYPE_CHECKING:
    import torch

    from autotune.devices import Device, Sample
    from autotune.plan import Kind, Point
    from autotune.screening import Screener
    from autotune.space import Candidate
    from swa_alloc.strategies import Bound


class Bench:
    """What is allocated together and released together.

    Args:
        sandbox: The mapping.
        device: Where it lives.
        screener: Binds candidates.
    """

    def __init__(self, sandbox: Sandbox, device: Device, screener: Screener) -> None:
        self._sandbox = sandbox
        self._device = device
        self._screener = screener
        self._bound: dict[tuple[Kind, str], Bound] = {}
        self._rotations: dict[Point, list[tuple[torch.Tensor, ...]]] = {}

    def admit(self, point: Point, candidate: Candidate) -> None:
        """Check a candidate for a point's kind, and bind it.

        Raises:
            Rejected: it failed.
        """
        target = self._sandbox.target(point.kind)
        call = self._screener.admit(candidate, target, self._rotation(point)[0][0])
        self._bound[point.kind, candidate.label] = call

    def refuse(self, point: Point, candidate: Candidate) -> None:
        """Leave a candidate unchecked for want of time.

        Raises:
            Rejected: always; where it is unavailable anyway, with that reason.
        """
        self._screener.check_available(candidate, self._sandbox.target(point.kind))
        raise Rejected("timed_out", "the budget left no time to check it")

    def bind(self, point: Point, candidate: Candidate) -> None:
        """Bind a candidate that was admitted before, once for all points of a kind.

        Raises:
            Rejected: there is no room for it any more.
        """
        if (point.kind, candidate.label) not in self._bound:
            target = self._sandbox.target(point.kind)
            self._bound[point.kind, candidate.label] = self._screener.bind(candidate, target)

    def fault(self, point: Point, label: str) -> Rejected | None:
        """What a bound candidate does wrong by now, or None."""
        target = self._sandbox.target(point.kind)
        try:
            self._screener.check(self._bound[point.kind, label], target, self._rotation(point)[0][0])
        except Rejected as rejected:
            return rejected
        return None

    def sample(self, point: Point, label: str, calls: int) -> Sample:
        """Time ``calls`` calls of a bound candidate, the indices in rotation."""
        rotation = self._rotation(point)
        block = rotation * (calls // ROTATION) if calls >= ROTATION else rotation[:calls]
        return self._device.time(self._bound[point.kind, label], block)

    def stall(self, point: Point, label: str) -> Stall | None:
        """Whether the calls of a bound candidate wait for work queued ahead of them; None where nothing can be."""
        return measure_stall(self._device, self._bound[point.kind, label], self._rotation(point))

    def capturable(self, point: Point, label: str) -> bool | None:
        """Whether a bound candidate is right in a captured graph; None where the device has no graphs."""
        arguments = self._rotation(point)[0]
        target = self._sandbox.target(point.kind)
        return self._screener.capturable(self._bound[point.kind, label], target, arguments)

    def _rotation(self, point: Point) -> list[tuple[torch.Tensor, ...]]:
        if point not in self._rotations:
            arguments = OPERATIONS[point.operation].arguments
            table = self._sandbox.target(point.kind).table
            self._rotations[point] = [arguments(table, indices) for indices in self._sandbox.indices(point)]
        return self._rotations[point]
