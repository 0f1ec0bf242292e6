"""The devices that can be measured, by name: how to open one, and how to time a call on it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from autotune.config import ConfigError
from autotune.devices._base import Arguments, Call, Device, Sample
from autotune.devices.accelerator import CUDA, ROCM, XPU, open_accelerator, open_gpu
from autotune.devices.auto import open_auto
from autotune.devices.cpu import open_cpu
from autotune.devices.npu import open_npu
from swa_alloc.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["Arguments", "Call", "Device", "Sample", "open_device", "open_torch_device", "register_device"]

_OPENERS: dict[str, Callable[[int], Device]] = {
    "auto": open_auto,
    "cpu": open_cpu,
    "cuda": partial(open_gpu, CUDA),
    "npu": open_npu,
    "rocm": partial(open_gpu, ROCM),
    "xpu": partial(open_gpu, XPU),
}


def register_device(kind: str, opener: Callable[[int], Device]) -> None:
    """Make ``device.kind=<kind>`` call ``opener(index)``.

    Raises:
        DeviceError: the name is taken.
    """
    if kind in _OPENERS:
        raise DeviceError(f"a device named {kind!r} is registered already; choose another name")
    _OPENERS[kind] = opener


def open_device(kind: str, index: int) -> Device:
    """The device of that name.

    Raises:
        ConfigError: there is no such name.
        DeviceError: the device cannot be used on this machine, with the mending.
    """
    if kind not in _OPENERS:
        raise ConfigError(f"unknown device.kind {kind!r}; known: {', '.join(_OPENERS)}")
    return _OPENERS[kind](index)


def open_torch_device(device: torch.device) -> Device:
    """The device behind a ``torch.device`` whose backend is loaded already, as in a running server."""
    return open_cpu(0) if device.type == "cpu" else open_accelerator(device)
