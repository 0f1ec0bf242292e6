"""``device=auto``: the accelerator that this machine has, else its CPU."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from autotune.devices.accelerator import open_accelerator
from autotune.devices.cpu import open_cpu
from autotune.devices.npu import open_npu
from swa_alloc.errors import DeviceError

if TYPE_CHECKING:
    from autotune.devices._base import Device

logger = logging.getLogger(__name__)


def open_auto(index: int) -> Device:
    """An accelerator if PyTorch finds one, an NPU if torch_npu is installed and works, else the host.

    Raises:
        DeviceError: there is no device of that index.
    """
    if find_spec("torch_npu") is not None:
        try:
            return open_npu(index)
        except DeviceError as error:
            logger.info("no NPU: %s", error)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    # An NPU that torch_npu cannot use is still there.
    if found is not None and found.type != "npu":
        return open_accelerator(torch.device(found.type, index))
    return open_cpu(index)
