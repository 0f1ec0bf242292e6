"""Once a machine: of several processes that want the same profile one measures, and the others load what it saved."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from swa_alloc.errors import CalibrationError, ProfileError
from swa_alloc.profile import StrategyProfile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

Answer = tuple[StrategyProfile, "Path"]


@dataclass(frozen=True)
class Outcome:
    """A profile.

    Attributes:
        profile: The profile.
        path: Where it is saved.
        reused: Whether it was there before.
        replaced: How and when the profile was made that it took the place of, if it did.
    """

    profile: StrategyProfile
    path: Path
    reused: bool
    replaced: str | None = None


def calibrate_once(
    directory: Path,
    device_type: str,
    wait_s: float,
    saved: Callable[[], Answer | None],
    make: Callable[[], tuple[str, StrategyProfile]],
) -> Outcome:
    """The profile that ``saved`` finds, else the one that ``make`` makes, saved to ``directory``.

    Args:
        directory: The store.
        device_type: What is measured; one process at a time measures it, since two would disturb each other.
        wait_s: Seconds to wait for another process.
        saved: Looks for a profile that will do.
        make: Gives a file name without suffix, and the profile.

    Raises:
        CalibrationError: another process has held the lock for too long.
        ProfileError: ``directory`` cannot be written.
    """
    if (found := saved()) is not None:
        return Outcome(*found, reused=True)
    with _lock(directory, device_type, wait_s):
        # Whoever held the lock before may have made it.
        if (found := saved()) is not None:
            return Outcome(*found, reused=True)
        name, profile = make()
        path = directory / f"{name}.json"
        replaced = _how_made(path)
        return Outcome(profile, profile.save(path), reused=False, replaced=replaced)


def _how_made(path: Path) -> str | None:
    try:
        standing = StrategyProfile.load(path).provenance
    except ProfileError:
        return None
    return f"{standing.method} on {standing.created}"


@contextmanager
def _lock(directory: Path, device_type: str, wait_s: float) -> Iterator[None]:
    _check_writable(directory)
    # The operating system drops the lock when its holder dies, however it dies.
    lock = FileLock(directory / f".{device_type}.lock")
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("waiting for another process that measures this device")
            lock.acquire(timeout=wait_s)
    except Timeout as error:
        raise CalibrationError(
            f"another process has been measuring for more than {wait_s:g} s (it holds {lock.lock_file})"
        ) from error
    except OSError as error:
        raise ProfileError(f"profile folder {directory} cannot be locked: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def _check_writable(directory: Path) -> None:
    """Find out before measuring, not after.

    Raises:
        ProfileError: no file can be made in ``directory``.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=directory, prefix=".probe.")
        os.close(handle)
        os.unlink(name)  # noqa: PTH108 - the name that mkstemp gave
    except OSError as error:
        raise ProfileError(
            f"profile folder {directory} cannot be written: {error.strerror or error}; "
            "choose another with profile.dir=... or SWA_ALLOC_PROFILE_DIR"
        ) from error
