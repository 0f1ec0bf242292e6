"""What may race: a candidate that is unavailable, wrong, failing, too slow or too large is left out with the reason."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from autotune.bench.contract import fault, violation
from swa_alloc._stdio import one_line
from swa_alloc.dispatch import bind
from swa_alloc.errors import StrategyUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.contest.candidates import Candidate
    from autotune.devices import Arguments, Device, Sample
    from swa_alloc.evidence import Reason
    from swa_alloc.operations import Target
    from swa_alloc.strategies import Bound, Strategy


logger = logging.getLogger(__name__)


class Rejected(Exception):  # noqa: N818 - an answer about a candidate, caught where candidates are gathered
    """A candidate that may not race.

    Attributes:
        reason: The kind of failure.
        detail: The failure in words.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Screener:
    """Checks candidates on one device.

    Attributes:
        device: Where.
        call_limit_s: Seconds beyond which one call, waited for, rules a candidate out.
        clock: Seconds that pass.
    """

    device: Device
    call_limit_s: float
    clock: Callable[[], float]

    def bind(self, candidate: Candidate, target: Target) -> Bound:
        """The candidate bound to a target, where it is available and its workspace fits.

        Raises:
            Rejected: it is not, or does not.
        """
        with rejecting():
            strategy = candidate.strategy()
            # An unavailable strategy may have no answer to how much it would need.
            reason = strategy.unavailable(target)
            if not (reason is None or isinstance(reason, str)):
                raise Rejected("raised", f"its unavailable() gave {reason!r}, and not a reason in words or None")
            if reason is not None:
                raise Rejected("unavailable", reason)
            self._check_room(strategy, target)
            return bind(strategy, target)

    def check(self, candidate: Candidate, target: Target) -> None:
        """See that a candidate is right in every case, on a small table like the target's.

        Raises:
            Rejected: it is not.
        """
        with rejecting():
            found = violation(candidate.strategy(), target, self._within_limit())
        if found is not None:
            raise Rejected("wrong_result", found)

    def check_full(self, call: Bound, target: Target, arguments: Arguments) -> None:
        """See that a bound candidate is right once on a full-sized table.

        Raises:
            Rejected: it is not.
        """
        with rejecting():
            found = fault(call, target, arguments, self.run)
        if found is not None:
            raise Rejected("wrong_result", found)

    def capturable(self, call: Bound, target: Target, arguments: Arguments) -> bool | None:
        """Whether a bound candidate can be captured in a graph, and is right when that is replayed.

        None where the device has no graphs.
        """
        try:
            replay = self.device.capture(lambda: call(*arguments))
            if replay is None:
                return None
            # Each replay gives the same tensor.
            return fault(lambda *_: _copied(replay()), target, arguments, self.run) is None
        except Exception as error:  # noqa: BLE001 - devices refuse in ways of their own
            logger.info("not capturable: %s", brief(error))
            return False

    def single(self, call: Bound, arguments: Arguments) -> Sample:
        """What one call costs, waited for.

        Raises:
            Rejected: it failed, or took too long.
        """
        start = self.clock()
        with rejecting():
            sample = self.device.single(call, arguments)
        self._limit(self.clock() - start)
        return sample

    def run(self, call: Bound, *arguments: torch.Tensor) -> Any:
        """Make a call and wait for it.

        Raises:
            Rejected: it took too long.
        """
        start = self.clock()
        result = call(*arguments)
        self.device.synchronize()
        self._limit(self.clock() - start)
        return result

    def _limit(self, seconds: float) -> None:
        if seconds > self.call_limit_s:
            raise Rejected("timed_out", f"one call took {seconds:.2f} s and may take {self.call_limit_s:g} s")

    def _check_room(self, strategy: Strategy, target: Target) -> None:
        need, free = strategy.workspace_bytes(target), self.device.free_bytes()
        if free is not None and need > free:
            raise Rejected("out_of_memory", f"its workspace needs {need} bytes and {free} are free")

    def _within_limit(self) -> Callable[..., Any]:
        """``run`` for calls that may take no longer together than one of them may alone."""
        spent_s = 0.0

        def run(call: Bound, *arguments: torch.Tensor) -> Any:
            nonlocal spent_s
            start = self.clock()
            result = self.run(call, *arguments)
            spent_s += self.clock() - start
            if spent_s > self.call_limit_s:
                raise Rejected("timed_out", f"a few small calls took {spent_s:.2f} s, as long as one large one may")
            return result

        return run


def _copied(result: torch.Tensor | None) -> torch.Tensor | None:
    return None if result is None else result.clone()


@contextmanager
def rejecting() -> Iterator[None]:
    """Turn whatever a strategy raises into a ``Rejected``: one strategy's fault is not the calibration's."""
    try:
        yield
    except Rejected:
        raise
    except StrategyUnavailable as error:
        raise Rejected("unavailable", str(error)) from error
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise Rejected("out_of_memory", brief(error)) from error
    except (Exception, SystemExit) as error:
        # The CPU allocator raises a plain RuntimeError.
        reason: Reason = "out_of_memory" if "not enough memory" in str(error) else "raised"
        raise Rejected(reason, brief(error)) from error


def brief(error: BaseException) -> str:
    """An exception as one line of at most 300 characters."""
    return one_line(f"{type(error).__name__}: {error}")[:300]
