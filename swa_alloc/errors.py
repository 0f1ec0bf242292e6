"""The exceptions that this project raises, and how they relate.

::

    SWAAllocError
    ├── PoolError (ValueError)        a pool, a page size or a set of indices that cannot be served
    ├── StrategyError (ValueError)    a strategy that does not exist, or does not fit
    │   └── StrategyUnavailable       it exists, and cannot run on this device
    ├── TraceError (ValueError)       a trace that is missing, corrupt or of another version
    ├── ProfileError (ValueError)     a profile that is missing, corrupt, foreign or not writable
    ├── OutputError                   a result cannot be written to stdout
    └── CalibrationError (RuntimeError)   measuring failed
        └── DeviceError               the device that was asked for cannot be used
"""

from __future__ import annotations


class SWAAllocError(Exception):
    """Root of everything that this project raises on purpose."""


class PoolError(SWAAllocError, ValueError):
    """A pool size, page size or set of indices that cannot be served."""


class StrategyError(SWAAllocError, ValueError):
    """A strategy name or parameter that does not exist or does not fit."""


class StrategyUnavailable(StrategyError):  # noqa: N818 - an answer about a machine, not a fault
    """A strategy that exists but cannot run on this device."""


class TraceError(SWAAllocError, ValueError):
    """A trace file that is missing, corrupt or of another version."""


class ProfileError(SWAAllocError, ValueError):
    """A profile that is missing, corrupt, made elsewhere, or cannot be written."""


class OutputError(SWAAllocError):
    """A result that cannot be written to stdout."""


class CalibrationError(SWAAllocError, RuntimeError):
    """Measuring could not be done."""


class DeviceError(CalibrationError):
    """The device that was asked for cannot be used on this machine."""
