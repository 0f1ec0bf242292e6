"""Who may race: a candidate that is unavailable, wrong, failing, too slow or too large is left out with the reason."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from autotune.contract import violation, violation_of
from swa_alloc._stdio import one_line
from swa_alloc.dispatch import bind
from swa_alloc.errors import StrategyUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.devices import Device
    from autotune.space import Candidate
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
    """

    device: Device
    call_limit_s: float

    def bind(self, candidate: Candidate, target: Target) -> Bound:
        """The candidate bound to a target, where it is available and its workspace fits.

        Raises:
            Rejected: it is not, or does not.
        """
        # An unavailable strategy may have no answer to how much it would need.
        self.check_available(candidate, target)
        with rejecting():
            strategy = candidate.strategy()
            self._check_room(strategy, target)
            return bind(strategy, target)

    def check_available(self, candidate: Candidate, target: Target) -> None:
        """See that a candidate can run here at all.

        Raises:
            Rejected: it cannot.
        """
        with rejecting():
            reason = candidate.strategy().unavailable(target)
        if not (reason is None or isinstance(reason, str)):
            raise Rejected("raised", f"its unavailable() gave {reason!r}, and not a reason in words or None")
        if reason is not None:
            raise Rejected("unavailable", reason)

    def admit(self, candidate: Candidate, target: Target, indices: torch.Tensor) -> Bound:
        """The candidate bound to a target, once it has been right in every case, and on the full-sized table.

        Args:
            candidate: Who.
            target: What it will race on; its mapping is overwritten.
            indices: ``[k]`` for the check on the full-sized table.

        Raises:
            Rejected: it failed.
        """
        call = self.bind(candidate, target)
        with rejecting():
            found = violation(candidate.strategy(), target, self._within_limit())
        if found is not None:
            raise Rejected("wrong_result", found)
        self.check(call, target, indices)
        return call

    def check(self, call: Bound, target: Target, indices: torch.Tensor) -> None:
        """Call a bound candidate once on the full-sized table, and compare.

        Raises:
            Rejected: it failed.
        """
        with rejecting():
            found = violation_of(call, target, indices, self._run)
        if found is not None:
            raise Rejected("wrong_result", found)

    def capturable(self, call: Bound, target: Target, arguments: tuple[torch.Tensor, ...]) -> bool | None:
        """Whether a bound candidate can be captured in a graph, and is right when that is replayed.

        None where the device has no graphs.
        """
        try:
            replay = self.device.capture(lambda: call(*arguments))
            if replay is None:
                return None
            # Each replay gives the same tensor.
            return violation_of(lambda *_: _copied(replay()), target, arguments[0], self._run) is None
        except Exception as error:  # noqa: BLE001 - devices refuse in ways of their own
            logger.info("not capturable: %s", brief(error))
            return False

    def _check_room(self, strategy: Strategy, target: Target) -> None:
        need, free = strategy.workspace_bytes(target), self.device.free_bytes()
        if free is not None and need > free:
            raise Rejected("out_of_memory", f"its workspace needs {need} bytes and {free} are free")

    def _within_limit(self) -> Callable[..., Any]:
        """``_run`` for calls that may take no longer together than one of them may alone."""
        spent_s = 0.0

        def run(call: Bound, *arguments: torch.Tensor) -> Any:
            nonlocal spent_s
            start = perf_counter()
            result = self._run(call, *arguments)
            spent_s += perf_counter() - start
            if spent_s > self.call_limit_s:
                raise Rejected("timed_out", f"a few small calls took {spent_s:.2f} s, as long as one large one may")
            return result

        return run

    def _run(self, call: Bound, *arguments: torch.Tensor) -> Any:
        start = perf_counter()
        result = call(*arguments)
        self.device.synchronize()
        seconds = perf_counter() - start
        if seconds > self.call_limit_s:
            raise Rejected("timed_out", f"one call took {seconds:.2f} s and may take {self.call_limit_s:g} s")
        return result


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
