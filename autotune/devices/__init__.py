"""The devices that can be measured, by name: the built-in ones, those registered, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING

from autotune.config import ConfigError
from autotune.devices._base import Arguments, Call, Device, Sample
from autotune.devices.accelerator import CUDA, ROCM, XPU, open_accelerator, open_gpu
from autotune.devices.auto import open_auto
from autotune.devices.cpu import open_cpu
from autotune.devices.npu import open_npu
from autotune.devices.step import Step
from swa_alloc.errors import DeviceError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Arguments",
    "Call",
    "Device",
    "Sample",
    "Step",
    "known_devices",
    "open_accelerator",
    "open_device",
    "open_torch_device",
    "register_device",
]

ENTRY_POINT_GROUP = "autotune.devices"

Opener = Callable[[int], Device]

_BUILTIN: Mapping[str, Opener] = MappingProxyType(
    {
        "auto": open_auto,
        "cpu": open_cpu,
        "cuda": partial(open_gpu, CUDA),
        "npu": open_npu,
        "rocm": partial(open_gpu, ROCM),
        "xpu": partial(open_gpu, XPU),
    }
)
_registered: dict[str, Opener] = {}


def register_device(kind: str, opener: Opener) -> None:
    """Make ``device=<kind>`` call ``opener(index)``.

    Raises:
        DeviceError: the name is taken, or the opener cannot be called.
    """
    if not callable(opener):
        raise DeviceError(f"the opener of device {kind!r} must be callable, not {opener!r}")
    if kind in _BUILTIN or _registered.get(kind, opener) is not opener:
        raise DeviceError(f"a device named {kind!r} is registered already; choose another name")
    _registered[kind] = opener


def known_devices() -> tuple[str, ...]:
    """Every name that ``open_device`` takes; the packages that installed some are not imported for it."""
    installed = sorted(entry_point.name for entry_point in entry_points(group=ENTRY_POINT_GROUP))
    return tuple(dict.fromkeys((*_BUILTIN, *sorted(_registered), *installed)))


def open_device(kind: str, index: int) -> Device:
    """The device of that name.

    Raises:
        ConfigError: there is no such name.
        DeviceError: the device cannot be used on this machine, with the mending.
    """
    opener = _BUILTIN.get(kind) or _additional(kind)
    if opener is None:
        raise ConfigError(f"unknown device.kind {kind!r}; known: {', '.join(known_devices())}")
    return opener(index)


def open_torch_device(device: torch.device) -> Device:
    """The device behind a ``torch.device`` whose backend is loaded already, as in a running server.

    A device type without a device named like it is taken for an accelerator as PyTorch knows them.

    Raises:
        DeviceError: the device cannot be used on this machine, with the mending.
    """
    if device.type == "cpu":
        return open_cpu(0)
    opener = None if device.type in _BUILTIN else _additional(device.type)
    return open_accelerator(device) if opener is None else opener(device.index or 0)


def _additional(kind: str) -> Opener | None:
    """The opener that was registered for a name, else that of an installed package, which is imported now.

    Raises:
        DeviceError: the package's does not load.
    """
    if kind in _registered:
        return _registered[kind]
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=kind):
        try:
            opener: Opener = entry_point.load()
            register_device(kind, opener)
        except (Exception, SystemExit) as error:
            raise DeviceError(
                f"device {kind!r} of entry point {entry_point.value!r} does not load "
                f"({type(error).__name__}: {error}); mend or uninstall its package, or use device=auto"
            ) from error
        return opener
    return None
