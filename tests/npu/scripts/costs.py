"""Prints, as one JSON object, what the script's costs look like to events and to the host's clock, in microseconds."""

from __future__ import annotations

import json
import statistics
import sys
from time import perf_counter
from typing import TYPE_CHECKING

import torch
import torch_npu  # noqa: F401 - registers the device

if TYPE_CHECKING:
    from collections.abc import Callable

table = torch.zeros(100_000, dtype=torch.int64, device="npu")
small = torch.zeros(64, dtype=torch.int64, device="npu")
zero = table.new_zeros(())
few, many = torch.arange(50, device="npu"), torch.arange(150, device="npu")
BACKLOG_US = 20_000
# The shortest of a few counts: another process may have had the processor.
REPEATS = 3


def device_us(call: Callable[[], object], calls: int) -> float:
    """By events, behind a backlog, so that the stream never waits for the host."""
    begin, end = (torch.Event("npu", enable_timing=True) for _ in range(2))
    call()

    def block() -> float:
        torch.npu.synchronize()
        torch.npu._sleep(BACKLOG_US * 1000)  # noqa: SLF001 - the one kernel of a known length - PyTorch's name for it, too
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / calls

    return min(block() for _ in range(REPEATS))


def wall_us(call: Callable[[], object], calls: int) -> float:
    def block() -> float:
        torch.npu.synchronize()
        start = perf_counter()
        for _ in range(calls):
            call()
        torch.npu.synchronize()
        return (perf_counter() - start) * 1e6 / calls

    return min(block() for _ in range(REPEATS))


def host_us(call: Callable[[], object]) -> float:
    times = []
    for _ in range(50):
        torch.npu.synchronize()
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e6)
    return statistics.median(times)


def returned_after_us(call: Callable[[], object], backlog_us: int) -> float:
    def once() -> float:
        torch.npu.synchronize()
        torch.npu._sleep(backlog_us * 1000)  # noqa: SLF001 - the one kernel of a known length
        start = perf_counter()
        call()
        return (perf_counter() - start) * 1e6

    return min(once() for _ in range(REPEATS))


def stall(call: Callable[[], object]) -> float:
    return (returned_after_us(call, 40_000) - returned_after_us(call, 20_000)) / 20_000


def main() -> None:
    result = {
        "event 20 us": device_us(small.zero_, 40),
        "event 1 ms": device_us(lambda: small.fill_(1), 5),
        "event 80 ms": device_us(lambda: small.mul_(2), 2),
        "event 20 us, large table": device_us(table.zero_, 40),
        "wall 1 ms": wall_us(lambda: small.fill_(1), 10),
        "wall 80 ms": wall_us(lambda: small.mul_(2), 1),
        "index_put of 50": device_us(lambda: table.index_put_((few,), zero), 20),
        "index_put of 150": device_us(lambda: table.index_put_((many,), zero), 5),
        "index_fill of 100000 rows": device_us(lambda: table.index_fill_(0, few, 0), 5),
        "host cheap": host_us(small.zero_),
        "host dear": host_us(lambda: small.sub_(1)),
        "stall asynchronous": stall(small.zero_),
        "stall blocking": stall(lambda: small.add_(1)),
        "stall item": stall(small[0].item),
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
