"""Accelerators, through PyTorch's neutral interface: one implementation for cuda, rocm, xpu and npu."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from autotune.devices._base import Arguments, Call, Device, Sample
from swa_alloc.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from swa_alloc.profile import Objective


class Accelerator(Device):
    """A device that works asynchronously on a stream.

    Args:
        device: With its index.
    """

    default_objective: Objective = "serving"

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device
        self._begin = torch.Event(device, enable_timing=True)
        self._end = torch.Event(device, enable_timing=True)

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
        """See ``Device.time``. One block gives host and device time, one more call the wall time."""
        self.synchronize()
        start = perf_counter_ns()
        self._begin.record()
        for arguments in block:
            call(*arguments)
        returned = perf_counter_ns()
        self._end.record()
        self._end.synchronize()
        device_us = self._begin.elapsed_time(self._end) * 1e3 / len(block)
        self.synchronize()
        single = perf_counter_ns()
        call(*block[0])
        self.synchronize()
        wall_us = (perf_counter_ns() - single) / 1e3
        return Sample((returned - start) / 1e3 / len(block), device_us, wall_us)

    def free_bytes(self) -> int | None:
        """See ``Device.free_bytes``."""
        module = torch.get_device_module(self.torch_device)
        return int(module.mem_get_info(self.torch_device)[0]) if hasattr(module, "mem_get_info") else None


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


def open_cuda(index: int) -> Device:
    """An NVIDIA GPU.

    Raises:
        DeviceError: PyTorch or the machine has none.
    """
    if torch.version.cuda is None:
        raise DeviceError(f"device=cuda needs a CUDA build of PyTorch, and this is {torch.__version__}; {_INSTALL}")
    return _open("cuda", "NVIDIA GPU", "nvidia-smi", index)


def open_rocm(index: int) -> Device:
    """An AMD GPU; PyTorch calls its device type cuda.

    Raises:
        DeviceError: PyTorch or the machine has none.
    """
    if torch.version.hip is None:
        raise DeviceError(f"device=rocm needs a ROCm build of PyTorch, and this is {torch.__version__}; {_INSTALL}")
    return _open("cuda", "AMD GPU", "rocm-smi", index)


def open_xpu(index: int) -> Device:
    """An Intel GPU.

    Raises:
        DeviceError: PyTorch or the machine has none.
    """
    if torch.version.xpu is None:
        raise DeviceError(f"device=xpu needs an XPU build of PyTorch, and this is {torch.__version__}; {_INSTALL}")
    return _open("xpu", "Intel GPU", "xpu-smi", index)


_INSTALL = "install one, or use device=cpu"


def _open(device_type: str, product: str, tool: str, index: int) -> Device:
    if not torch.get_device_module(device_type).is_available():
        raise DeviceError(
            f"PyTorch finds no {product} on this machine; check that `{tool}` lists one, or use device=cpu"
        )
    return open_accelerator(torch.device(device_type, index))
