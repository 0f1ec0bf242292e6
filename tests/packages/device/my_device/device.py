from time import perf_counter_ns

import torch
from torch._lazy import mark_step, wait_device_ops

from autotune.devices import Device, Sample, Step
from my_device.backend import start
from swa_alloc.errors import DeviceError


class LazyDevice(Device):
    """The host, behind lazy tensors."""

    torch_device = torch.device("lazy", 0)
    budget_s = 5.0

    def __init__(self):
        self._step = Step(self.torch_device)

    def synchronize(self):
        mark_step()
        wait_device_ops()

    def time(self, call, block):
        self.synchronize()
        start = perf_counter_ns()
        for arguments in block:
            call(*arguments)
        returned = perf_counter_ns()
        self.synchronize()
        calls = 1e3 * len(block)
        host_us, wall_us = (returned - start) / calls, (perf_counter_ns() - start) / calls
        return Sample(host_us, device_us=wall_us - host_us, wall_us=wall_us)

    def cold_us(self, call, arguments):
        self._step.run()
        self.synchronize()
        start = perf_counter_ns()
        call(*arguments)
        return (perf_counter_ns() - start) / 1e3

    def free_bytes(self):
        return None


def open_lazy(index):
    if index != 0:
        raise DeviceError(f"there is one lazy device, 0, not {index}; drop device.index")
    start()
    # PyTorch imports a second's worth of Python at the first operator, which is no strategy's fault.
    torch.zeros(1, dtype=torch.int64, device="lazy").index_fill_(0, torch.tensor([0], device="lazy"), 0)
    return LazyDevice()
