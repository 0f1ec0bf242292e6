"""Prints, as one JSON object, the ACL calls that an allocator with the profile in argv[1] makes for clears."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch_npu  # noqa: F401 - registers the device
from acl_calls import acl_calls

from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.operations import INDEX_DTYPES
from swa_alloc.profile import StrategyProfile


def main() -> None:
    profile = StrategyProfile.load(Path(sys.argv[1]))
    size = profile.workload.size
    allocator = SWATokenToKVPoolAllocator(
        size, size, 1, torch.bfloat16, "npu", None, profile=profile, strict_profile=True
    )
    slots = allocator.alloc(1024)
    assert slots is not None
    calls = {}
    for name, dtype in INDEX_DTYPES.items():
        for count in map(int, sys.argv[2:]):
            indices = slots[:count].to(dtype)
            calls[f"{name} {count}"] = acl_calls(lambda i=indices: allocator.clear_full_to_swa_mapping(i))
    calls["left"] = int(allocator.full_to_swa_index_mapping[:-1].cpu().count_nonzero())
    sys.stdout.write(json.dumps(calls))


if __name__ == "__main__":
    main()
