"""What measuring and serving must know of a PyTorch device type, and what holds for any accelerator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch

from swa_alloc.errors import PoolError


class Facts(NamedTuple):
    """What a device says of itself; the fields of a ``Fingerprint`` that only its backend knows."""

    name: str
    arch: str = ""
    driver: str = ""
    runtime: str = ""
    backend: str = ""
    threads: int = 0
    emulated: bool = False
    units: int = 0


class Backend:
    """One PyTorch device type. A subclass sets ``device_type`` and says what differs.

    Attributes:
        device_type: PyTorch's name: cpu, cuda, npu, xpu.
        settings: Environment variables that change how a call reaches the device, with the value that applies where
            they are unset. Part of the fingerprint.
        graph_class: Name of the device module's graph, ``CUDAGraph`` for one; None where calls cannot be captured.
    """

    device_type: ClassVar[str]
    settings: ClassVar[Mapping[str, str]] = MappingProxyType({})
    graph_class: ClassVar[str | None] = None

    def facts(self, device: torch.device) -> Facts:
        """What the device says of itself.

        Raises:
            PoolError: PyTorch has no such device.
        """
        try:
            module = torch.get_device_module(device)
        except RuntimeError:
            raise PoolError(f"{device.type} is no device that a mapping can be cleared on") from None
        properties = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
        return Facts(
            name=str(getattr(properties, "name", device.type)),
            arch=str(getattr(properties, "architecture", "")),
            driver=str(getattr(properties, "driver_version", "")),
            units=int(getattr(properties, "max_compute_units", 0)),
        )

    def capturing(self) -> bool:
        """Whether a graph is being captured on the current stream."""
        if self.graph_class is None:
            return False
        return bool(torch.get_device_module(self.device_type).is_current_stream_capturing())

    def capture(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """``call`` as a graph: a function that replays it, and returns what it returned when it was captured.

        Raises:
            Exception: whatever the device raises where the call cannot be captured.
        """
        if self.graph_class is None:
            raise NotImplementedError(f"{self.device_type} has no graphs")
        module = torch.get_device_module(self.device_type)
        graph = getattr(module, self.graph_class)()
        with module.graph(graph):
            result = call()

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def long_kernel(self, device: torch.device, scale: int) -> Callable[[], Any]:
        """A function that queues one kernel that ends by itself and lasts in proportion to ``scale``, from 1.

        It zeroes memory, ``scale`` times 64 KiB of it, which every accelerator does in one kernel.
        """
        return torch.empty(scale << 16, dtype=torch.uint8, device=device).zero_
