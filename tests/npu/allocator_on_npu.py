"""SWATokenToKVPoolAllocator keeps its contract on the npu. test_allocator.py runs these tests over the stand-in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401 - registers the device

from swa_alloc import SWATokenToKVPoolAllocator

# The contract's indices are made where the allocator's are, some of them when it is imported.
torch.set_default_device("npu")
from allocator_contract import AllocatorContract, Make  # noqa: E402 - after the default device, as said above

# torch_npu's remark on its first remainder. It says nothing of us.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot create tensor with internal format")


class TestAllocatorOnNpu(AllocatorContract):
    @pytest.fixture
    def make(self) -> Make:
        def make(size: int, size_swa: int, page_size: int, kvcache: Any = None) -> SWATokenToKVPoolAllocator:
            return SWATokenToKVPoolAllocator(size, size_swa, page_size, torch.bfloat16, "npu", kvcache)

        return make
