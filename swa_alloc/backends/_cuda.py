"""NVIDIA's and AMD's GPUs, which are both cuda to PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from swa_alloc.backends._base import Backend, Facts

# Clock cycles of a sleep of scale 1, about 50 us.
_CYCLES = 100_000


class Cuda(Backend):
    """A GPU that PyTorch drives through CUDA or ROCm."""

    device_type = "cuda"
    settings = MappingProxyType({"CUDA_LAUNCH_BLOCKING": "0"})
    graph_class = "CUDAGraph"

    def facts(self, device: torch.device) -> Facts:
        """See ``Backend.facts``."""
        properties = torch.cuda.get_device_properties(device)
        arch = getattr(properties, "gcnArchName", "") or f"sm_{properties.major}{properties.minor}"
        runtime = torch.version.cuda or torch.version.hip or ""
        return Facts(properties.name, arch, _nvidia_driver(), runtime, units=properties.multi_processor_count)

    def long_kernel(self, device: torch.device, scale: int) -> Callable[[], Any]:
        """See ``Backend.long_kernel``. A sleep needs no memory, which a starting server is short of."""
        sleep: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001 - PyTorch's own tests keep a GPU busy so
        cycles = _CYCLES * scale

        def launch() -> None:
            with torch.cuda.device(device):
                sleep(cycles)

        return launch


def _nvidia_driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return found.group() if found else ""
