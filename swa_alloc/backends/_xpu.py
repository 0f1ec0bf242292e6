"""Intel's GPUs."""

from swa_alloc.backends._base import Backend


class Xpu(Backend):
    """A GPU that PyTorch drives through SYCL; it tells of itself what any accelerator does."""

    device_type = "xpu"
    graph_class = "XPUGraph"
