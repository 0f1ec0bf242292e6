"""Which backends exist: the built-in ones, those registered at run time, and those of installed packages."""

from __future__ import annotations

import importlib
import logging
from typing import TypeVar

from swa_alloc.backends._base import Backend
from swa_alloc.errors import PoolError

logger = logging.getLogger("swa_alloc")

ENTRY_POINT_GROUP = "swa_alloc.backends"

# Imported on first use: a start needs one of them.
_BUILTIN = {"cpu": ("_cpu", "Cpu"), "cuda": ("_cuda", "Cuda"), "npu": ("_npu", "Npu"), "xpu": ("_xpu", "Xpu")}
_registered: dict[str, type[Backend]] = {}

AnyBackend = TypeVar("AnyBackend", bound=type[Backend])


def register_backend(cls: AnyBackend) -> AnyBackend:
    """Add a ``Backend`` subclass for a device type that is not built in; usable as a class decorator.

    Raises:
        PoolError: it is no such class, or there is one for its device type already.
    """
    name = getattr(cls, "device_type", None)
    if not (isinstance(cls, type) and issubclass(cls, Backend) and isinstance(name, str)):
        raise PoolError(f"{cls!r} is no subclass of swa_alloc.backends.Backend with a device_type")
    if name in _BUILTIN or _registered.get(name, cls) is not cls:
        raise PoolError(f"there is a backend for {name!r} already")
    _registered[name] = cls
    return cls


def backend_of(device_type: str) -> Backend:
    """The backend of a device type; of one that nobody knows, what holds for any accelerator."""
    if device_type in _BUILTIN:
        module, attribute = _BUILTIN[device_type]
        found: Backend = getattr(importlib.import_module(f"swa_alloc.backends.{module}"), attribute)()
        return found
    if device_type not in _registered:
        _load_entry_point(device_type)
    known = _registered.get(device_type)
    return known() if known else type("Unknown", (Backend,), {"device_type": device_type})()


def _load_entry_point(device_type: str) -> None:
    from importlib.metadata import entry_points  # 10 ms that no device of ours pays

    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=device_type):
        try:
            found = register_backend(entry_point.load())
            if found.device_type != device_type:
                raise PoolError(f"its device_type is {found.device_type!r}")  # noqa: TRY301 - left out as the others are
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's package must not stop a server
            logger.warning("backend %r of entry point %r is left out: %s", device_type, entry_point.value, error)
