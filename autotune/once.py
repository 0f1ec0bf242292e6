"""Once a machine: of several processes that want the same profile one measures, and the others take what it found."""

from __future__ import annotations

import errno
import logging
import os
import socket
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from autotune.journal import Journal, discard
from swa_alloc.errors import CalibrationError, ProfileError
from swa_alloc.evidence import Evidence
from swa_alloc.profile import FILE_SUFFIX, StrategyProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from autotune.calibrate import Keep
    from autotune.request import Request
    from swa_alloc.evidence import Measurement

logger = logging.getLogger(__name__)

Answer = tuple[StrategyProfile, Path]

# What file systems without locks answer.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
# A profile of what is decided so far is saved this often, in seconds; a line of the journal, for each race, costs less.
_SAVE_EVERY_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """A profile.

    Attributes:
        profile: The profile.
        path: Where it is saved; None where it could not be.
        reused: Whether it was there before.
        replaced: How and when the profile was made that it took the place of, if it did.
        unsaved: Why it could not be saved, if it was not.
    """

    profile: StrategyProfile
    path: Path | None
    reused: bool
    replaced: str | None = None
    unsaved: str | None = None


class Interrupted(KeyboardInterrupt):
    """A calibration that was broken off; says in one line what of it is left."""


def calibrate_once(
    directory: Path | None,
    device: torch.device,
    wait_s: float,
    saved: Callable[[], Answer | None],
    serving: Callable[[], Answer | None],
    make: Callable[[Path | None], StrategyProfile],
) -> Outcome:
    """The profile that ``saved`` finds, else the one that ``make`` makes, saved to ``directory`` where it can be.

    Args:
        directory: The store; None where there is none.
        device: What is measured; one process at a time measures it, since two would disturb each other.
        wait_s: Seconds to wait for another process.
        saved: Looks for a profile that makes measuring unnecessary.
        serving: Looks for one that would serve, complete or not: a process that has waited for another takes that.
        make: Gives a profile; passed the store, where it can be written.

    Raises:
        CalibrationError: another process has held the lock for too long, or nothing could be measured.
    """
    if (found := saved()) is not None:
        return _reused(*found)
    unwritable = "there is no store to save it to" if directory is None else _unwritable(directory)
    if directory is None or unwritable is not None:
        profile = make(None)
        _check_decided(profile)
        return Outcome(profile, None, reused=False, unsaved=unwritable)
    with _lock(directory, device, wait_s) as waited:
        if (found := serving() if waited else saved()) is not None:
            return _reused(*found)
        profile = make(directory)
        path = directory / profile.file_name
        standing = _standing(path)
        if not profile.complete and standing is not None:
            _check_decided(profile)
            stands = f"it is incomplete, and the earlier profile in {path} is not; the same command goes on from here"
            return Outcome(profile, None, reused=False, unsaved=stands)
        try:
            profile.save(path)
        except ProfileError as error:
            _check_decided(profile)
            return Outcome(profile, None, reused=False, unsaved=str(error))
        if profile.complete:
            discard(_journal_path(path))
        _check_decided(profile)
        return Outcome(profile, path, reused=False, replaced=_how_made(standing))


def measure_into(
    directory: Path | None,
    request: Request,
    measure: Callable[[Evidence, Keep], StrategyProfile],
    *,
    from_start: bool = False,
) -> StrategyProfile:
    """Measure, keeping in ``directory`` what is decided as it comes; goes on where an interrupted run broke off.

    Args:
        directory: The store; None keeps nothing.
        request: What is measured.
        measure: Measures it, given what is known already, and told of each measurement.
        from_start: Whether what an interrupted run has left is thrown away.

    Raises:
        Interrupted: Ctrl-C or its like, with a line that says what is kept.
    """
    path = None if directory is None else directory / request.file_name
    journal = Journal(None if path is None else _journal_path(path), request.subject)
    known = Evidence() if from_start else journal.begun()
    standing = path is not None and _standing(path) is not None
    last_s = monotonic()
    latest: Callable[[], StrategyProfile] | None = None

    def keep(measurement: Measurement, so_far: Callable[[], StrategyProfile]) -> None:
        nonlocal last_s, latest
        latest = so_far
        journal.append(measurement)
        if path is not None and not standing and monotonic() - last_s > _SAVE_EVERY_S:
            with suppress(ProfileError):
                so_far().save(path)
            last_s = monotonic()

    journal.start(known)
    try:
        profile = measure(known, keep)
    except KeyboardInterrupt as error:
        if path is not None and not standing and latest is not None:
            with suppress(ProfileError):
                latest().save(path)
        raise Interrupted(_what_is_left(path, standing=standing, kept=latest is not None)) from error
    finally:
        journal.close()
    return profile if profile.complete or latest is not None else profile.in_vain()


def _what_is_left(path: Path | None, *, standing: bool, kept: bool) -> str:
    earlier = f"the earlier profile stands in {path}" if standing else "nothing is saved"
    if path is None or not kept:
        return f"interrupted; {earlier}"
    whole = f"; {earlier}" if standing else f", and serves from {path}"
    return f"interrupted; what was decided so far is kept{whole}; the same command goes on from there"


def _reused(profile: StrategyProfile, path: Path) -> Outcome:
    _check_decided(profile)
    return Outcome(profile, path, reused=True)


def _journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix(FILE_SUFFIX)}.journal-2.jsonl")


def _check_decided(profile: StrategyProfile) -> None:
    """See that there is anything to serve. A profile without is saved all the same, so that nobody tries again.

    Raises:
        CalibrationError: nothing could be measured.
    """
    if not profile.decisions:
        budget_s = profile.provenance.effort.get("budget_s", 0.0)
        failures = {
            entry.detail: entry.strategy for entry in profile.evidence.ineligible if entry.reason != "unavailable"
        }
        failed = "; ".join(f"{strategy}: {detail}" for detail, strategy in failures.items())
        raise CalibrationError(
            f"nothing could be measured within {budget_s:g} s on {profile.fingerprint.device_type}; "
            f"raise calibration.budget_s{f' ({failed})' if failed else ''}"
        )


def _standing(path: Path) -> StrategyProfile | None:
    """The complete profile that is there; an incomplete one, or what is unusable, gives way."""
    try:
        profile = StrategyProfile.load(path)
    except ProfileError:
        return None
    return profile if profile.complete else None


def _how_made(profile: StrategyProfile | None) -> str | None:
    return None if profile is None else f"{profile.provenance.method} on {profile.provenance.created}"


@contextmanager
def _lock(directory: Path, device: torch.device, wait_s: float) -> Iterator[bool]:
    """Hold what is measured, this host's device; gives whether another process had it first."""
    # Several hosts may share a store, and none of them disturbs another.
    name = "-".join([socket.gethostname(), device.type, *([] if device.index is None else [str(device.index)])])
    path = directory / f".{name}.lock"
    # The operating system drops the lock when its holder dies, however it dies. Other users of the store need it, too.
    lock = FileLock(path, mode=0o666)
    waited = False
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waited = True
            logger.info("waiting for another process that measures this device")
            lock.acquire(timeout=wait_s)
        with suppress(OSError):
            path.chmod(0o666)  # whatever the umask is
    except Timeout as error:
        raise CalibrationError(
            f"another process has been measuring for more than {wait_s:g} s (it holds {lock.lock_file})"
        ) from error
    except (OSError, NotImplementedError) as error:
        # filelock turns ENOSYS into NotImplementedError.
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise ProfileError(f"profile folder {directory} cannot be locked: {error.strerror or error}") from error
        logger.warning("%s has no locks: if other processes calibrate now, they disturb this one", directory)
    try:
        yield waited
    finally:
        lock.release()


def _unwritable(directory: Path) -> str | None:
    """Why no file can be made in ``directory``, found out before measuring; None where one can."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=directory, prefix=".probe.")
        os.close(handle)
        os.unlink(name)  # noqa: PTH108 - the name that mkstemp gave
    except OSError as error:
        return (
            f"profile folder {directory} cannot be written: {error.strerror or error}; "
            "choose another with profile.dir=... or SWA_ALLOC_PROFILE_DIR"
        )
    return None
