from functools import cache

from torch._lazy import ts_backend

from swa_alloc.backends import Backend, Facts


class Lazy(Backend):
    """PyTorch's lazy tensors: calls are recorded, and TorchScript carries them out when somebody waits for them."""

    device_type = "lazy"
    settings = {"LTC_TS_CUDA": "0"}

    def facts(self, device):
        return Facts(name="TorchScript", arch="host", driver="1.0")


@cache
def start():
    """What a server does before it makes its tensors; PyTorch stands it once a process."""
    ts_backend.init()
