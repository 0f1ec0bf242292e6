"""Ascend's NPUs."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from swa_alloc.backends._base import Backend, Facts

if TYPE_CHECKING:
    import torch


class Npu(Backend):
    """An Ascend NPU that PyTorch drives through torch_npu."""

    device_type = "npu"
    # With its task queue a call returns before it is submitted.
    settings = MappingProxyType({"TASK_QUEUE_ENABLE": "1", "ASCEND_LAUNCH_BLOCKING": "0"})
    graph_class = "NPUGraph"

    def facts(self, device: torch.device) -> Facts:
        """See ``Backend.facts``."""
        # An npu device exists only where its package has been imported.
        import torch_npu

        cann = str(torch_npu.npu.utils.get_cann_version())
        return Facts(
            name=torch_npu.npu.get_device_name(device),
            arch=str(torch_npu._C._npu_get_soc_version()),  # noqa: SLF001 - torch_npu 2.13 has no public name for it
            runtime=cann,
            backend=str(torch_npu.__version__),
            # The stand-in for CANN that tests run on names itself so.
            emulated=cann.endswith("-fake"),
        )
