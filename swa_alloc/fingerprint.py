"""What machine and software this is, as far as it decides which strategy is fastest."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from swa_alloc._version import __version__
from swa_alloc.errors import PoolError

Tier = Literal["exact", "compatible", "mismatch"]

# Leading version components that must agree for "compatible": what comes after them is a patch. Fields that are not
# here must be equal. Drivers number their branch in the first component only (NVIDIA: 580.65.06).
_SAME_COMPONENTS: Mapping[str, int] = {"driver": 1, "runtime": 2, "torch": 2, "backend": 2, "swa_alloc": 2}

# Variables that change how a call reaches the device, with the value that applies where they are unset.
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "cuda": {"CUDA_LAUNCH_BLOCKING": "0"},
    "npu": {"TASK_QUEUE_ENABLE": "1", "ASCEND_LAUNCH_BLOCKING": "0"},
}


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

    def match(self, other: Fingerprint) -> Match:
        """How far ``other``, a profile's, fits this machine."""
        decisive: list[str] = []
        patch: list[str] = []
        for name in self._fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                same_release = name in _SAME_COMPONENTS and _release(mine, name) == _release(theirs, name) != ()
                phrase = f"{name} is {mine!r} here and {theirs!r} in the profile"
                (patch if same_release else decisive).append(phrase)
        tier: Tier = "mismatch" if decisive else "compatible" if patch else "exact"
        return Match(tier, (*decisive, *patch))


def fingerprint(device: torch.device) -> Fingerprint:
    """The fingerprint of ``device`` on this machine, in under a millisecond on a CPU."""
    facts = _FACTS.get(device.type, _other)(device)
    settings = {name: os.environ.get(name, unset) for name, unset in _SETTINGS.get(device.type, {}).items()}
    return Fingerprint(
        device_type=device.type,
        device_name=facts.name,
        device_arch=facts.arch,
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


def _release(version: str, name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", version)[: _SAME_COMPONENTS[name]])


class _Facts(NamedTuple):
    name: str
    arch: str = ""
    driver: str = ""
    runtime: str = ""
    backend: str = ""
    threads: int = 0
    emulated: bool = False


def _cpu(_device: torch.device) -> _Facts:
    info = _first_cpu()
    name = info.get("model name") or platform.machine()
    # x86 numbers its parts one way, Arm another.
    parts = [info[key] for key in ("cpu family", "model", "stepping", "CPU implementer", "CPU part") if key in info]
    return _Facts(name, "-".join(parts), threads=torch.get_num_threads())


def _first_cpu() -> dict[str, str]:
    info: dict[str, str] = {}
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            for line in file:
                if not line.strip():
                    break
                key, _, value = line.partition(":")
                info[key.strip()] = value.strip()
    except OSError:
        pass
    return info


def _cuda(device: torch.device) -> _Facts:
    properties = torch.cuda.get_device_properties(device)
    arch = getattr(properties, "gcnArchName", "") or f"sm_{properties.major}{properties.minor}"
    return _Facts(properties.name, arch, _nvidia_driver(), torch.version.cuda or torch.version.hip or "")


def _nvidia_driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return found.group() if found else ""


def _npu(device: torch.device) -> _Facts:
    # An npu device exists only where its package has been imported.
    import torch_npu

    cann = str(torch_npu.npu.utils.get_cann_version())
    return _Facts(
        name=torch_npu.npu.get_device_name(device),
        arch=str(torch_npu._C._npu_get_soc_version()),  # noqa: SLF001 - torch_npu 2.13 has no public name for it
        runtime=cann,
        backend=str(torch_npu.__version__),
        # The stand-in for CANN that tests run on names itself so.
        emulated=cann.endswith("-fake"),
    )


def _other(device: torch.device) -> _Facts:
    try:
        module = torch.get_device_module(device)
    except RuntimeError:
        raise PoolError(f"{device.type} is no device that a mapping can be cleared on") from None
    properties = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
    return _Facts(
        name=str(getattr(properties, "name", device.type)),
        arch=str(getattr(properties, "architecture", "")),
        driver=str(getattr(properties, "driver_version", "")),
    )


_FACTS: Mapping[str, Callable[[torch.device], _Facts]] = {"cpu": _cpu, "cuda": _cuda, "npu": _npu}
