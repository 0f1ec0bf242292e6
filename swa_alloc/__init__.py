"""A self-tuning allocator for hybrid sliding-window-attention KV caches. Imports torch and nothing else."""

from swa_alloc._version import __version__
from swa_alloc.allocator import SWATokenToKVPoolAllocator
from swa_alloc.mapping import FullToSWAMapping, tuned_clear
from swa_alloc.profile import StrategyProfile
from swa_alloc.selection import Overrides
from swa_alloc.strategies import Strategy, register_strategy

__all__ = [
    "FullToSWAMapping",
    "Overrides",
    "SWATokenToKVPoolAllocator",
    "Strategy",
    "StrategyProfile",
    "__version__",
    "register_strategy",
    "tuned_clear",
]
