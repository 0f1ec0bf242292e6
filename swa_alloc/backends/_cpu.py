"""The host."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from swa_alloc.backends._base import Backend, Facts


class Cpu(Backend):
    """The host's CPU, told by its model and by PyTorch's intra-op threads."""

    device_type = "cpu"

    def facts(self, device: torch.device) -> Facts:
        """See ``Backend.facts``."""
        del device
        info = _first_cpu()
        name = info.get("model name") or platform.machine()
        # x86 numbers its parts one way, Arm another.
        parts = [info[key] for key in ("cpu family", "model", "stepping", "CPU implementer", "CPU part") if key in info]
        return Facts(name, "-".join(parts), threads=torch.get_num_threads())


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
