"""Prints, as one JSON object, how long a simulated decode step lasts on the device with each clear, by its events.

A step is a kernel of argv[2] ns, which stands for the model, and the clears that its requests ask for. The profile in
argv[1] is the tuned one. The stream never waits for the host: the clears are queued while the model runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch_npu  # noqa: F401 - registers the device

from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.profile import StrategyProfile

STEPS = 4
# The shortest of a few loops: another process may have had the processor for longer than the model runs.
REPEATS = 3
# Indices of a step's clears: windows move on, and one request ends.
CLEARS = (64,) * 9 + (512,)

FIXED = (
    "index_fill",
    "subscript_assign",
    "index_put",
    "index_copy",
    "scatter",
    "masked_fill",
    "masked_scatter",
    "npu_scatter_nd_update",
)


def step_ms(allocator: SWATokenToKVPoolAllocator, model_ns: int) -> float:
    slots = allocator.alloc(max(CLEARS))
    assert slots is not None
    clears = [slots[:count] for count in CLEARS]
    clear = allocator.clear_full_to_swa_mapping
    begin, end = (torch.Event("npu", enable_timing=True) for _ in range(2))

    def steps(count: int) -> None:
        for _ in range(count):
            torch.npu._sleep(model_ns)  # noqa: SLF001 - PyTorch's name for it, too
            for indices in clears:
                clear(indices)

    def loop() -> float:
        torch.npu.synchronize()
        begin.record()
        steps(STEPS)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / STEPS

    steps(1)
    return min(loop() for _ in range(REPEATS))


def main() -> None:
    profile = StrategyProfile.load(Path(sys.argv[1]))
    model_ns = int(sys.argv[2])
    size = profile.workload.size

    def measure(**how: object) -> float:
        allocator = SWATokenToKVPoolAllocator(size, size, 1, torch.bfloat16, "npu", None, strict_profile=True, **how)
        return step_ms(allocator, model_ns)

    steps = {name: measure(strategy=name) for name in FIXED}
    steps["tuned"] = measure(profile=profile)
    sys.stdout.write(json.dumps({"emulated": profile.fingerprint.emulated, "step_ms": steps}))


if __name__ == "__main__":
    main()
