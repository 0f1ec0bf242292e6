"""Prints, as one JSON object, what becomes of an allocator that would calibrate while a graph is being captured."""

from __future__ import annotations

import json
import logging
import sys

import torch
import torch_npu  # noqa: F401 - registers the device

from swa_alloc import SWATokenToKVPoolAllocator


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    kept = Kept()
    logging.getLogger("swa_alloc").addHandler(kept)
    table = torch.arange(1, 101, device="npu")
    indices = torch.tensor([3, 5], device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        allocator = SWATokenToKVPoolAllocator(256, 256, 4, torch.bfloat16, "npu", None, on_missing="calibrate")
        table[indices] = 0
    graph.replay()
    # What the allocator made in the capture was made by the replay.
    slots = allocator.alloc(8)
    allocator.free_segment(slots, start_pos=0)
    result = {
        "warnings": kept.lines,
        "explained": allocator.explain(),
        "replayed": table[:6].tolist(),
        "available": allocator.available_size(),
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
