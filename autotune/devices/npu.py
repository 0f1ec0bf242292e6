"""Ascend NPUs: what must be there before torch_npu works, and which part of it is missing."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from autotune.devices.accelerator import open_accelerator
from swa_alloc.errors import DeviceError

if TYPE_CHECKING:
    from autotune.devices._base import Device


def open_npu(index: int) -> Device:
    """An Ascend NPU. Imports torch_npu, which the command keeps PyTorch from loading by itself.

    Raises:
        DeviceError: torch_npu, CANN or the device is missing, with the mending.
    """
    if find_spec("torch_npu") is None:
        release = torch.__version__.split("+")[0]
        raise DeviceError(
            f"device=npu needs torch_npu, which is not installed; pip install torch_npu=={release} (its version must "
            "be PyTorch's)"
        )
    # It tells each variable that it reads, in INFO lines among ours.
    logging.getLogger("torch_npu").setLevel(logging.WARNING)
    try:
        import torch_npu  # noqa: F401 - its import registers the npu device with PyTorch
    except Exception as error:
        # ImportError where CANN's libraries are not found, a bare Exception where its environment is half set.
        reason = " ".join(str(error).split())
        home = os.environ.get("ASCEND_HOME_PATH")
        where = f"ASCEND_HOME_PATH is {home}" if home else "ASCEND_HOME_PATH is not set"
        raise DeviceError(
            f"torch_npu does not load, so CANN is missing, half set up or of another version ({reason}; {where}); "
            "install CANN and source its set_env.sh"
        ) from error
    npu = torch.get_device_module("npu")
    if not npu.is_available():
        raise DeviceError(
            "torch_npu and CANN are there, but no NPU is; check that `npu-smi info` lists one and that "
            "ASCEND_RT_VISIBLE_DEVICES does not hide it"
        )
    try:
        device = open_accelerator(torch.device("npu", index))
        device.free_bytes()
    except RuntimeError as error:
        # The device is there, and torch_npu knows no such chip, or cannot start it.
        if isinstance(error, DeviceError):
            raise
        reason = " ".join(str(error).split("\n")[0].split())
        raise DeviceError(f"torch_npu cannot use NPU {index} ({reason}); check that it supports this chip") from error
    return device
