"""Accelerators, through PyTorch's neutral interface: one implementation for cuda, rocm, xpu and npu."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from autotune.devices._base import Arguments, Call, Device, Sample
from autotune.devices.step import Step
from swa_alloc.backends import backend_of
from swa_alloc.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


# A long kernel lasts at least so many microseconds: a backlog of four is then far longer than any jitter.
_KERNEL_US = 125.0
# A backlog is made of about so many, and of so many at most: more would fill the launch queue, and the host waits for
# a free place there, whatever it calls.
_KERNELS, _MOST_KERNELS = 4, 8
# A kernel of that scale works on 256 MiB where it works on memory at all; more would be too much to ask of a server.
_MAX_SCALE = 4096


class Accelerator(Device):
    """A device that works asynchronously on a stream.

    Args:
        device: With its index.
    """

    budget_s = 15.0

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device
        self._backend = backend_of(device.type)
        self._begin = torch.Event(device, enable_timing=True)
        self._end = torch.Event(device, enable_timing=True)
        self._step = Step(device)
        self._kernels: list[tuple[Callable[[], Any], float]] = []  # in the order of their lengths
        self._scale = 1

    @contextmanager
    def selected(self) -> Iterator[None]:
        """See ``Device.selected``."""
        before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(self.torch_device.index)
        try:
            yield
        finally:
            torch.accelerator.set_device_index(before)

    def synchronize(self) -> None:
        """See ``Device.synchronize``."""
        torch.accelerator.synchronize(self.torch_device)

    def time(self, call: Call, block: Sequence[Arguments]) -> Sample:
        """See ``Device.time``. One block gives host and device time, one more call the wall time.

        A call goes ahead of the block, so that the first event is passed when the device has begun to work: else a
        short block would count the way to the device as time on it.
        """
        self.synchronize()
        call(*block[-1])
        self._begin.record()
        start = perf_counter_ns()
        for arguments in block:
            call(*arguments)
        returned = perf_counter_ns()
        device_us = self._elapsed_us() / len(block)
        single = perf_counter_ns()
        call(*block[0])
        self.synchronize()
        wall_us = (perf_counter_ns() - single) / 1e3
        return Sample((returned - start) / 1e3 / len(block), device_us, wall_us)

    def single(self, call: Call, arguments: Arguments) -> Sample:
        """See ``Device.single``. No events: half of the calls, where one may take as long as a race."""
        self.synchronize()
        start = perf_counter_ns()
        call(*arguments)
        returned = perf_counter_ns()
        self.synchronize()
        wall_us = (perf_counter_ns() - start) / 1e3
        return Sample((returned - start) / 1e3, wall_us, wall_us)

    @property
    def step(self) -> Mapping[str, float]:
        """See ``Device.step``."""
        return self._step.footprint

    def cold_us(self, call: Call, arguments: Arguments) -> float:
        """See ``Device.cold_us``. The stream is idle by then: what a call waits for is the stall's affair."""
        self._step.run()
        self.synchronize()
        start = perf_counter_ns()
        call(*arguments)
        return (perf_counter_ns() - start) / 1e3

    def return_us(self, call: Call, block: Sequence[Arguments], backlog_us: float) -> tuple[float, float] | None:
        """See ``Device.return_us``. A whole block, since a device with a task queue on the host returns early from one.

        The backlog is finite: a call that waits for it waits no longer than that.
        """
        launch, kernel_us = self._long_kernel(backlog_us / _KERNELS)
        if kernel_us < _KERNEL_US:
            return None
        kernels = min(max(1, math.ceil(backlog_us / kernel_us)), _MOST_KERNELS)
        self.synchronize()
        for _ in range(kernels):
            launch()
        start = perf_counter_ns()
        for arguments in block:
            call(*arguments)
        returned = perf_counter_ns()
        self.synchronize()
        return (returned - start) / 1e3, kernels * kernel_us

    @property
    def kernel_us(self) -> float:
        """See ``Device.kernel_us``."""
        launchable_us = self._long_kernel(_KERNEL_US)[1]
        return launchable_us if launchable_us >= _KERNEL_US else 0.0

    def capture(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        """See ``Device.capture``."""
        return None if self._backend.graph_class is None else self._backend.capture(call)

    def free_bytes(self) -> int | None:
        """See ``Device.free_bytes``."""
        module = torch.get_device_module(self.torch_device)
        return int(module.mem_get_info(self.torch_device)[0]) if hasattr(module, "mem_get_info") else None

    def _long_kernel(self, wanted_us: float) -> tuple[Callable[[], Any], float]:
        """What queues a kernel of at least so many microseconds, or the longest there is, and its own microseconds.

        As the device's own events see them; found once for each length.
        """
        for launch, kernel_us in self._kernels:
            if kernel_us >= wanted_us:
                return launch, kernel_us
        while self._scale <= _MAX_SCALE:
            launch = self._backend.long_kernel(self.torch_device, self._scale)
            launch()
            kernel_us = min(self._timed_us(launch) for _ in range(3))
            self._scale *= 2
            self._kernels.append((launch, kernel_us))
            if kernel_us >= max(wanted_us, _KERNEL_US):
                break
        return self._kernels[-1]

    def _timed_us(self, launch: Callable[[], Any]) -> float:
        self.synchronize()
        self._begin.record()
        launch()
        return self._elapsed_us()

    def _elapsed_us(self) -> float:
        self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e3


def open_accelerator(device: torch.device) -> Device:
    """An accelerator whose backend is loaded.

    Raises:
        DeviceError: there is no such device.
    """
    count = torch.accelerator.device_count()
    index = device.index if device.index is not None else torch.accelerator.current_device_index()
    if index >= count:
        raise DeviceError(f"there is no {device.type} device {index}: this machine has {count}; set device.index below")
    return Accelerator(torch.device(device.type, index))


@dataclass(frozen=True)
class Gpu:
    """A make of GPU, as PyTorch is built for it.

    Attributes:
        kind: Its name in ``conf/device``.
        device_type: PyTorch's name; AMD's GPUs are cuda to it.
        product: For people.
        build: The build of PyTorch that drives it.
        version: That build's version of the make's software; None in another build.
        tool: Lists the GPUs of a machine.
    """

    kind: str
    device_type: str
    product: str
    build: str
    version: str | None
    tool: str


CUDA = Gpu("cuda", "cuda", "NVIDIA GPU", "a CUDA", torch.version.cuda, "nvidia-smi")
ROCM = Gpu("rocm", "cuda", "AMD GPU", "a ROCm", torch.version.hip, "rocm-smi")
XPU = Gpu("xpu", "xpu", "Intel GPU", "an XPU", torch.version.xpu, "xpu-smi")


def open_gpu(gpu: Gpu, index: int) -> Device:
    """A GPU of that make.

    Raises:
        DeviceError: PyTorch or the machine has none.
    """
    if gpu.version is None:
        raise DeviceError(
            f"device={gpu.kind} needs {gpu.build} build of PyTorch, and this is {torch.__version__}; "
            "install one, or use device=cpu"
        )
    if not torch.get_device_module(gpu.device_type).is_available():
        raise DeviceError(
            f"PyTorch finds no {gpu.product} on this machine; check that `{gpu.tool}` lists one, or use device=cpu"
        )
    return open_accelerator(torch.device(gpu.device_type, index))
