"""Prints, as one JSON object, what capturing graphs on the npu comes to."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import torch
import torch_npu  # noqa: F401 - registers the device

if TYPE_CHECKING:
    from collections.abc import Callable

table = torch.arange(1, 101, device="npu")
other = torch.zeros(4, device="npu")
indices = torch.tensor([3, 5], device="npu")


def clear() -> None:
    table.index_fill_(0, indices, 0)
    table[indices + 1] = 7


def raised(call: Callable[[], object]) -> str:
    torch.npu.synchronize()
    try:
        with torch.npu.graph(torch.npu.NPUGraph()):
            call()
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    clear()
    table.copy_(torch.arange(1, 101))
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        clear()
    result = {"captured": table[:8].tolist()}
    graph.replay()
    result["replayed"] = table[:8].tolist()
    # A replay reads the memory as it is by then.
    indices.copy_(torch.tensor([0, 6]))
    table.copy_(torch.arange(1, 101))
    graph.replay()
    result["replayed on other indices"] = table[:8].tolist()
    result["item"] = raised(table[0].item)
    result["operator that waits"] = raised(lambda: other.add_(1))
    result["asynchronous"] = raised(lambda: other.mul_(2))
    clear()
    result["afterwards"] = table[:8].tolist()
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
