"""The host: a call is done when it returns, so that host, device and wall time are one."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from autotune.devices._base import Arguments, Call, Device, Sample
from autotune.devices.step import Step
from swa_alloc.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Where memory lies shows beyond so many indices: between fresh processes ratios differ by 1.5 % up to there, and by 4 %
# above (two shared cores, torch 2.13).
_LARGE, _LARGE_SPREAD = 128, 0.02


class Cpu(Device):
    """The host's CPU, with PyTorch's intra-op threads."""

    torch_device = torch.device("cpu")
    budget_s = 5.0

    def __init__(self) -> None:
        self._step = Step(self.torch_device)

    def spread(self, indices: int) -> float:
        """See ``Device.spread``."""
        return _LARGE_SPREAD if indices > _LARGE else 0.0

    def synchronize(self) -> None:
        """See ``Device.synchronize``."""

    def time(self, call: Call, block: Sequence[Arguments]) -> Sample:
        """See ``Device.time``."""
        start = perf_counter_ns()
        for arguments in block:
            call(*arguments)
        microseconds = (perf_counter_ns() - start) / 1e3 / len(block)
        return Sample(microseconds, microseconds, microseconds)

    @property
    def step(self) -> Mapping[str, float]:
        """See ``Device.step``."""
        return self._step.footprint

    def cold_us(self, call: Call, arguments: Arguments) -> float:
        """See ``Device.cold_us``."""
        self._step.run()
        start = perf_counter_ns()
        call(*arguments)
        return (perf_counter_ns() - start) / 1e3

    def free_bytes(self) -> int | None:
        """See ``Device.free_bytes``."""
        try:
            lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            return None
        # MemFree leaves out the page cache, which gives way.
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def open_cpu(index: int) -> Device:
    """The host.

    Raises:
        DeviceError: ``index`` is not 0.
    """
    if index != 0:
        raise DeviceError(f"there is one CPU device, 0, not {index}; drop device.index")
    return Cpu()
