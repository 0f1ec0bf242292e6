"""What machine and software this is, as far as it decides which strategy is fastest."""

import os
import platform
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch

from swa_alloc._version import __version__
from swa_alloc.backends import backend_of
from swa_alloc.backends._cpu import cpu_model

Tier = Literal["exact", "compatible", "mismatch"]

# Leading version components that must agree for "compatible": what comes after them is a patch. Fields that are not
# here must be equal. Drivers number their branch in the first component only (NVIDIA: 580.65.06).
_SAME_COMPONENTS: Mapping[str, int] = {"driver": 1, "runtime": 2, "torch": 2, "backend": 2, "swa_alloc": 2}
# Fields that are empty where they cannot be read, as in a container without /proc/driver.
_MAY_BE_UNKNOWN = {"driver"}


class Match(NamedTuple):
    """How far a profile's fingerprint fits this machine.

    Attributes:
        tier: ``exact``; ``compatible`` (patch-level differences only); ``mismatch``.
        differences: One phrase for each field that differs, the deciding ones first.
    """

    tier: Tier
    differences: tuple[str, ...] = ()


class Fingerprint(NamedTuple):
    """The machine and software that a profile was measured on.

    Attributes:
        device_type: PyTorch's name: cpu, cuda, npu, xpu.
        device_name: The product.
        device_arch: Its architecture, stepping or SoC number.
        units: Multiprocessors or compute units, which partitions of a GPU differ in and their names do not; 0 where
            there are none.
        host: The host's CPU: the time that a call takes on it decides on any device.
        driver: Kernel driver version, empty where there is none or it cannot be read.
        runtime: CUDA, ROCm or CANN version, empty on a CPU.
        torch: PyTorch's version, with its local tag.
        backend: Version of the PyTorch backend package (torch_npu), empty where PyTorch has its own.
        python: Major and minor version; dispatch is Python.
        machine: The host's instruction set.
        threads: Intra-op threads on a CPU; 0 elsewhere, where they do not matter.
        settings: Environment variables that change how calls reach the device.
        swa_alloc: This package's version: strategies change with it.
        emulated: Whether the device is a stand-in; such a profile is never taken for a real one.
    """

    device_type: str
    device_name: str
    device_arch: str
    units: int
    host: str
    driver: str
    runtime: str
    torch: str
    backend: str
    python: str
    machine: str
    threads: int
    settings: dict[str, str]
    swa_alloc: str
    emulated: bool

    def match(self, other: "Fingerprint") -> Match:
        """How far ``other``, a profile's, fits this machine."""
        decisive: list[str] = []
        patch: list[str] = []
        for name in self._fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                phrase = f"{name} is {mine!r} here and {theirs!r} in the profile"
                (patch if _may_differ(name, mine, theirs) else decisive).append(phrase)
        tier: Tier = "mismatch" if decisive else "compatible" if patch else "exact"
        return Match(tier, (*decisive, *patch))


def fingerprint(device: torch.device) -> Fingerprint:
    """The fingerprint of ``device`` on this machine, in under a millisecond on a CPU."""
    backend = backend_of(device.type)
    facts = backend.facts(device)
    settings = {name: os.environ.get(name, unset) for name, unset in backend.settings.items()}
    return Fingerprint(
        device_type=device.type,
        device_name=facts.name,
        device_arch=facts.arch,
        units=facts.units,
        host=cpu_model(),
        driver=facts.driver,
        runtime=facts.runtime,
        torch=str(torch.__version__),
        backend=facts.backend,
        python=".".join(platform.python_version_tuple()[:2]),
        machine=platform.machine(),
        threads=facts.threads,
        settings=settings,
        swa_alloc=__version__,
        emulated=facts.emulated,
    )


def _may_differ(name: str, mine: Any, theirs: Any) -> bool:
    """Whether two values of a field are patches of each other, or one of them could not be found out."""
    if name in _MAY_BE_UNKNOWN and not (mine and theirs):
        return True
    return name in _SAME_COMPONENTS and _release(mine, name) == _release(theirs, name) != ()


def _release(version: str, name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", version)[: _SAME_COMPONENTS[name]])
