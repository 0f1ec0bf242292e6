"""Where profiles are looked for on disk, in which order, and which of several is taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from swa_alloc.errors import ProfileError
from swa_alloc.fingerprint import Fingerprint, Match
from swa_alloc.profile import StrategyProfile

PROFILE_VARIABLE = "SWA_ALLOC_PROFILE"
USER_VARIABLE = "SWA_ALLOC_PROFILE_DIR"
SYSTEM_VARIABLE = "SWA_ALLOC_SYSTEM_PROFILE_DIR"


class Store(NamedTuple):
    """A folder of profiles, and the layer that it stands for."""

    layer: str
    directory: Path

    def files(self, device_type: str = "*") -> list[Path]:
        """Its profiles for a device type, by name; none where the folder is absent or cannot be read."""
        try:
            return sorted(self.directory.glob(f"{device_type}-*.json"))
        except OSError:
            return []


class Hit(NamedTuple):
    """A profile that fits this machine and mapping."""

    profile: StrategyProfile
    path: Path
    layer: str
    match: Match


class Search(NamedTuple):
    """What a look through the stores gave.

    Attributes:
        hit: The profile to use, or None.
        ignored: One line for each profile that was seen and does not fit, with the reason.
        unusable: The errors of files that are not profiles.
    """

    hit: Hit | None
    ignored: tuple[str, ...]
    unusable: tuple[ProfileError, ...]


def user_directory() -> Path:
    """The folder that profiles are saved to: ``SWA_ALLOC_PROFILE_DIR``, else the user's cache."""
    chosen = os.environ.get(USER_VARIABLE)
    if chosen:
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 - unlike Path.expanduser it never raises
    cache = os.environ.get("XDG_CACHE_HOME")
    # The base directory specification says that a relative XDG path is to be ignored.
    base = Path(cache) if cache and Path(cache).is_absolute() else Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111 - unlike Path.home() it never raises
    return base / "swa_alloc" / "profiles"


def stores() -> tuple[Store, ...]:
    """The stores, in the order in which they are searched."""
    system = Path(os.path.expanduser(os.environ.get(SYSTEM_VARIABLE) or "/etc/swa_alloc/profiles"))  # noqa: PTH111 - as above
    return (Store("user store", user_directory()), Store("system store", system))


def find(here: Fingerprint, size: int, page_size: int) -> Search:
    """The best profile for a mapping over ``size`` full slots.

    The first store with a fitting one wins. Within a store an exact one beats a compatible one; then the nearest pool
    size, then the newest.
    """
    ignored: list[str] = []
    unusable: list[ProfileError] = []
    for store in stores():
        hits: list[Hit] = []
        for path in store.files(here.device_type):
            try:
                profile = StrategyProfile.load(path)
            except ProfileError as error:
                unusable.append(error)
                continue
            match = profile.match(here, size, page_size)
            if match.tier == "mismatch":
                ignored.append(f"{path}: {match.differences[0]}")
            else:
                hits.append(Hit(profile, path, store.layer, match))
        if hits:
            # Newest first, then a stable sort by fit.
            hits.sort(key=lambda hit: hit.profile.provenance.created, reverse=True)
            hits.sort(key=lambda hit: (hit.match.tier != "exact", abs(hit.profile.workload.size - size)))
            return Search(hits[0], tuple(ignored), tuple(unusable))
    return Search(None, tuple(ignored), tuple(unusable))
