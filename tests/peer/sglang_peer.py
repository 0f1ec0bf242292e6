"""SGLang 0.5.23's own SWA allocator on a CPU, and ours beside it. Run it to see whether a rig has both."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from types import ModuleType
from typing import Any

import torch

from swa_alloc import SWATokenToKVPoolAllocator


class KVCache:
    """Stands in for ``sglang.srt.mem_cache.memory_pool.KVCache``: no buffers, and none of what those import."""


def swa_allocator_class() -> Any:
    """SGLang's ``SWATokenToKVPoolAllocator``, with all its own code below it: pools, platform and invariants."""
    if "sglang" not in sys.modules:
        # The package itself imports its client API, and memory_pool the configuration of every model: IPython,
        # transformers and torchvision, which no allocator calls.
        package = ModuleType("sglang")
        package.__path__ = list(_spec("sglang").submodule_search_locations or ())
        memory_pool: Any = ModuleType("sglang.srt.mem_cache.memory_pool")
        memory_pool.KVCache = KVCache
        sys.modules.update({module.__name__: module for module in (package, memory_pool)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    return SWATokenToKVPoolAllocator


def swa_kv_cache() -> Any:
    """A ``BaseSWAKVPool`` that holds the mapping, and no KV."""
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool

    class SWAKVCache(BaseSWAKVPool):
        def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
            self.full_to_swa_index_mapping = full_to_swa_index_mapping

        def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
            # As SGLang's SWAKVPool does.
            return self.full_to_swa_index_mapping[kv_indices]

        def get_state_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
            return [], [], []

    return SWAKVCache()


def make_sglang(size: int, size_swa: int, page_size: int, *, need_sort: bool = False) -> Any:
    """SGLang's allocator, with every slot free."""
    return swa_allocator_class()(size, size_swa, page_size, torch.bfloat16, "cpu", swa_kv_cache(), need_sort)


def make_ours(size: int, size_swa: int, page_size: int, *, need_sort: bool = False) -> Any:
    """Ours, with every slot free and the default strategies."""
    return SWATokenToKVPoolAllocator(
        size, size_swa, page_size, torch.bfloat16, "cpu", None, need_sort, on_missing="default"
    )


def _spec(name: str) -> Any:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"{name} is not installed; run tests/rigs/sglang.sh", name=name)
    return spec


if __name__ == "__main__":
    for page_size in (1, 64):
        for make in (make_sglang, make_ours):
            allocator = make(1024, 512, page_size)
            sizes = (allocator.full_available_size(), allocator.swa_available_size())
            if sizes != (1024, 512):
                sys.exit(f"{type(allocator).__module__} starts with {sizes} slots free")
