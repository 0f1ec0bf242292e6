"""The host."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from swa_alloc.backends._base import Backend, Facts


class Cpu(Backend):
    """The host's CPU, told by its model and by PyTorch's intra-op threads."""

    device_type = "cpu"

    def facts(self, device: torch.device) -> Facts:
        """See ``Backend.facts``."""
        del device
        return Facts(cpu_model(), _part(), threads=torch.get_num_threads())


def cpu_model() -> str:
    """The host's CPU as it names itself; an Arm core, which has no name, by its maker and part."""
    return _first_cpu().get("model name") or f"{platform.machine()} {_part()}".strip()


def _part() -> str:
    # x86 numbers its parts one way, Arm another.
    names = ("cpu family", "model", "stepping", "CPU implementer", "CPU part")
    return "-".join(_first_cpu()[name] for name in names if name in _first_cpu())


@cache
def _first_cpu() -> Mapping[str, str]:
    """What Linux says of the first CPU; read once, since some kernels measure its frequency for this."""
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
