"""What the calibrator asks of a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from swa_alloc.operations import Objective

Call = Callable[..., Any]
Arguments = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Sample:
    """What one block of calls cost, in microseconds a call.

    Attributes:
        host_us: Until the call returns, in a block that begins on an idle stream.
        device_us: What the device spends on it.
        wall_us: The call and a synchronization.
    """

    host_us: float
    device_us: float
    wall_us: float


class Device(ABC):
    """One device that strategies are timed on.

    Attributes:
        torch_device: PyTorch's name for it.
        default_objective: What ``objective=auto`` minimizes. Servers call cold, on a CPU as elsewhere.
        budget_s: Most seconds spent on measuring, where nothing else is configured.
    """

    torch_device: torch.device
    default_objective: Objective = "serving"
    budget_s: float

    def spread(self, indices: int) -> float:
        """Fraction by which ratios differ more between fresh processes than the configured margin allows for."""
        del indices
        return 0.0

    def selected(self) -> AbstractContextManager[None]:
        """Make this the current device, where there are several, and put back what was current before."""
        return nullcontext()

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything submitted to the device is done."""

    @abstractmethod
    def time(self, call: Call, block: Sequence[Arguments]) -> Sample:
        """Call ``call(*arguments)`` for each of ``block``, and say what a call cost."""

    def single(self, call: Call, arguments: Arguments) -> Sample:
        """What one call costs, waited for; the device's share need not be told apart from the wait."""
        return self.time(call, [arguments])

    @abstractmethod
    def cold_us(self, call: Call, arguments: Arguments) -> float:
        """Microseconds until one call has returned, made right after a stand-in for a model's step has run."""

    def return_us(self, call: Call, block: Sequence[Arguments], backlog_us: float) -> tuple[float, float] | None:
        """Microseconds until ``block``'s calls have returned behind a backlog of a few long kernels, and its length.

        The backlog is about as long as asked for. None where a call is done when it returns, and nothing can be queued
        ahead of it.
        """
        del call, block, backlog_us
        return None

    @property
    def step(self) -> Mapping[str, float]:
        """The footprint of what runs before a cold call, for the record."""
        return {}

    @property
    def kernel_us(self) -> float:
        """Microseconds that the shortest of the long kernels takes; 0 where nothing can be queued."""
        return 0.0

    def capture(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        """``call`` as a graph that can be replayed, None where the device has no graphs.

        Raises:
            Exception: whatever the device raises where the call cannot be captured.
        """
        del call
        return None

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Free memory in bytes, None where it cannot be told."""
