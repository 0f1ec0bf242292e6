"""Where profiles are looked for on disk, in which order, and which of several is taken."""

import os
import time
from datetime import datetime, timezone
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from swa_alloc.errors import ProfileError
from swa_alloc.fingerprint import Fingerprint, Match
from swa_alloc.profile import FILE_SUFFIX, ProfileHead, StrategyProfile

PROFILE_VARIABLE = "SWA_ALLOC_PROFILE"
USER_VARIABLE = "SWA_ALLOC_PROFILE_DIR"
SYSTEM_VARIABLE = "SWA_ALLOC_SYSTEM_PROFILE_DIR"

# Clocks of machines that share a store differ; by more than this, a date is no date.
_CLOCK_SKEW_S = 24 * 60 * 60


class Store(NamedTuple):
    """A folder of profiles, and the layer that it stands for."""

    layer: str
    directory: Path

    def files(self, device_type: str | None = None) -> list[Path]:
        """Its profiles, or those for a device type, by name; none where the folder is absent or cannot be read."""
        try:
            names = os.listdir(self.directory)  # noqa: PTH208 - a third of the time of Path.iterdir
        except OSError:
            return []
        begin = "" if device_type is None else f"{device_type}-"
        return [
            self.directory / name for name in sorted(names) if name.startswith(begin) and name.endswith(FILE_SUFFIX)
        ]


class Hit(NamedTuple):
    """A profile that fits this machine and mapping."""

    profile: StrategyProfile
    path: Path
    layer: str
    match: Match


class Miss(NamedTuple):
    """A profile for this device type that does not fit this machine and mapping, and where it differs."""

    path: Path
    size: int
    differences: tuple[str, ...]


class Search(NamedTuple):
    """What a look through the stores gave.

    Attributes:
        hit: The profile to use, or None.
        misses: The profiles that were seen and do not fit, the nearest first.
        unusable: The errors of files that are not profiles.
        remarks: One line for each store that does not exist.
    """

    hit: Hit | None
    misses: tuple[Miss, ...] = ()
    unusable: tuple[ProfileError, ...] = ()
    remarks: tuple[str, ...] = ()


def user_directory() -> Path:
    """The folder that profiles are saved to: ``SWA_ALLOC_PROFILE_DIR``, else the user's cache.

    Raises:
        ProfileError: the user has no home folder for it to lie in.
    """
    chosen = os.environ.get(USER_VARIABLE)
    if chosen:
        return _expanded(chosen, USER_VARIABLE)
    cache = os.environ.get("XDG_CACHE_HOME")
    # The base directory specification says that a relative XDG path is to be ignored.
    base = Path(cache) if cache and Path(cache).is_absolute() else _expanded("~/.cache", "the user's cache")
    return base / "swa_alloc" / "profiles"


def system_directory() -> Path:
    """The folder that serves every user: ``SWA_ALLOC_SYSTEM_PROFILE_DIR``, else one under ``/etc``.

    Raises:
        ProfileError: the variable names a home folder that does not exist.
    """
    return _expanded(os.environ.get(SYSTEM_VARIABLE) or "/etc/swa_alloc/profiles", SYSTEM_VARIABLE)


# In the order in which they are searched.
_STORES = {"user store": user_directory, "system store": system_directory}


def stores() -> tuple[Store, ...]:
    """The stores that there are, in the order in which they are searched."""
    return _stores()[0]


def missing_stores() -> tuple[str, ...]:
    """One line for each store that there is not, with the reason."""
    return _stores()[1]


def find(here: Fingerprint, size: int, page_size: int) -> Search:
    """The best profile for a mapping over ``size`` full slots, in whichever store.

    One that holds decisions beats one that remembers only that nothing could be measured, and that counts only where it
    fits exactly. Then an exact fit beats a compatible one; then the nearest pool size; then what a person pinned, a
    complete profile, more rounds, a later date, and the store that is searched first.
    """
    there, remarks = _stores()
    fits: list[tuple[Any, Path, str, Match]] = []
    misses: list[Miss] = []
    unusable: list[ProfileError] = []
    for store in there:
        for path in store.files(here.device_type):
            try:
                head = ProfileHead.load(path)
            except ProfileError as error:
                unusable.append(error)
                continue
            match = head.match(here, size, page_size)
            if match.tier == "mismatch":
                misses.append(Miss(path, head.workload.size, match.differences))
            elif match.tier == "exact" or not head.empty:
                fits.append((_rank(head, match, size), path, store.layer, match))
    fits.sort(key=itemgetter(0))
    misses.sort(key=lambda miss: (len(miss.differences), _distance(miss.size, size)))
    hit = None
    # Only the decisions of the one that is taken are read.
    for _, path, layer, match in fits:
        try:
            hit = Hit(StrategyProfile.load(path), path, layer, match)
            break
        except ProfileError as error:
            unusable.append(error)
    return Search(hit, tuple(misses), tuple(unusable), remarks)


def _stores() -> tuple[tuple[Store, ...], tuple[str, ...]]:
    """The stores that there are, and a line for each one that there is not."""
    found: list[Store] = []
    remarks: list[str] = []
    for layer, directory in _STORES.items():
        try:
            found.append(Store(layer, directory()))
        except ProfileError as error:
            remarks.append(f"there is no {layer}: {error}")
    return tuple(found), tuple(remarks)


def _expanded(folder: str, name: str) -> Path:
    expanded = os.path.expanduser(folder)  # noqa: PTH111 - unlike Path.expanduser it never raises
    # Without HOME and an entry for the user a tilde stays, and would become a folder's name.
    if expanded.startswith("~"):
        home = folder.partition("/")[0]
        raise ProfileError(f"{name} is {folder}, and there is no home folder {home}; set {USER_VARIABLE} to a folder")
    return Path(expanded)


def _rank(head: ProfileHead, match: Match, size: int) -> tuple[bool, bool, float, bool, bool, int, float]:
    """Smaller is better."""
    made = head.provenance
    return (
        head.empty,
        match.tier != "exact",
        _distance(head.workload.size, size),
        made.method != "pinned",
        bool(head.missing),
        -made.rounds,
        -_timestamp(made.created),
    )


def _distance(size: int, other: int) -> float:
    return max(size, other) / min(size, other)


def _timestamp(created: str) -> float:
    """Seconds since 1970; 0 for what is no date, or one that is still to come."""
    try:
        # Python 3.10 reads no Z.
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return seconds if seconds < time.time() + _CLOCK_SKEW_S else 0.0
