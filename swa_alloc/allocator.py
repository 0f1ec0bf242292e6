"""SWATokenToKVPoolAllocator: the full pool, the SWA pool and the mapping between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from swa_alloc.errors import PoolError
from swa_alloc.mapping import FullToSWAMapping
from swa_alloc.pool import PoolAllocator, check_indices, check_sizes
from swa_alloc.selection import OnMissing, Overrides

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from swa_alloc.profile import StrategyProfile
    from swa_alloc.strategies import Strategy


class KVCache(Protocol):
    """What the allocator asks of the KV cache that it allocates for."""

    def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
        """Keep the mapping; attention reads it."""


class SWATokenToKVPoolAllocator:
    """Allocates KV slots for models that mix full-attention and sliding-window layers.

    Each full slot is handed out with an SWA slot that shadows it. Names, signatures and meaning follow SGLang 0.5.23's
    class of the same name.

    Args:
        size: Slots in the full pool.
        size_swa: Slots in the SWA pool.
        page_size: Slots in a page; divides both sizes.
        dtype: Of the KV cache; kept for callers.
        device: Where indices and mapping live.
        kvcache: Gets ``register_mapping(mapping)``; None for no cache.
        need_sort: Whether to hand out ascending slots for as long as possible.
        profile: A ``StrategyProfile`` or the path of one; beats the stores.
        strategy: A pin, ``"index_fill"`` or ``"clear.token=index_fill,clear.page=index_copy"``; beats every profile.
        on_missing: What to do where no profile fits: ``"calibrate"`` (the default), ``"default"`` or ``"error"``.
        strict_profile: Raise where a profile or pin cannot be used, instead of a warning and the default strategy.

    Attributes:
        clear_full_to_swa_mapping: ``(full_indices)`` sets the entries of ``[k]`` full slots to 0. int32 or int64, any
            order, duplicates and strided views allowed, k = 0 allowed. Bound to the tuned strategy when constructed.
            Raises ``PoolError`` for another dtype.

    Raises:
        PoolError: the sizes are not positive whole numbers, or the page size does not divide them.
        ProfileError, StrategyError, CalibrationError: as ``strict_profile`` and ``on_missing`` asked for.
    """

    clear_full_to_swa_mapping: Callable[[torch.Tensor], None]

    def __init__(  # noqa: PLR0913 - SGLang's signature, and the keywords of this project
        self,
        size: int,
        size_swa: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: KVCache | None,
        need_sort: bool = False,  # noqa: FBT001, FBT002 - positional in SGLang's signature
        *,
        profile: StrategyProfile | str | Path | None = None,
        strategy: str | Strategy | None = None,
        on_missing: OnMissing | None = None,
        strict_profile: bool = False,
    ) -> None:
        check_sizes(size=size, size_swa=size_swa, page_size=page_size)
        self._size_full = size
        self._size_swa = size_swa
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        self._kvcache = kvcache
        self.need_sort = need_sort
        where = torch.device(device)
        overrides = Overrides(profile, strategy, on_missing, strict_profile)
        # What inference mode makes cannot be written outside it.
        with torch.inference_mode(mode=False):
            self.full_attn_allocator = PoolAllocator(size, page_size, where, need_sort=need_sort)
            self.swa_attn_allocator = PoolAllocator(size_swa, page_size, where, need_sort=need_sort)
            self._mapping = FullToSWAMapping.allocate(size, page_size, where, overrides)
        # The bound callable itself, not a method around it: a frame saved on the decode path.
        self.clear_full_to_swa_mapping = self._mapping.clear
        if kvcache is not None:
            kvcache.register_mapping(self._mapping.tensor)

    @property
    def full_to_swa_index_mapping(self) -> torch.Tensor:
        """``[size + page_size + 1]`` int64: each full slot's SWA slot, 0 for none; the last entry is -1."""
        return self._mapping.tensor

    @property
    def size(self) -> int:
        """Slots that can be handed out with both sides."""
        return min(self._size_full, self._size_swa)

    @property
    def size_full(self) -> int:
        """Slots in the full pool."""
        return self._size_full

    @property
    def size_swa(self) -> int:
        """Slots in the SWA pool."""
        return self._size_swa

    def available_size(self) -> int:
        """Slots that ``alloc`` could hand out now."""
        return min(self.full_available_size(), self.swa_available_size())

    def full_available_size(self) -> int:
        """Free slots of the full pool."""
        return self.full_attn_allocator.available_size()

    def swa_available_size(self) -> int:
        """Free slots of the SWA pool."""
        return self.swa_attn_allocator.available_size()

    def get_kvcache(self) -> Any:
        """The KV cache that was passed in."""
        return self._kvcache

    def debug_print(self) -> str:
        """Free sizes of both pools, for a log line."""
        return (
            f"#swa-available-size: {self.swa_available_size()}, #full-attn-available-size: "
            f"{self.full_available_size()}, "
        )

    def explain(self) -> str:
        """Which strategy clears what, from which layer and profile, and why, in words."""
        # Nothing that a start needs.
        from swa_alloc.explain import explain_selection

        return explain_selection(self._mapping.selection)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """``[need_size]`` int64 full slots, each with an SWA slot; None, and nothing changed, without room in both.

        Raises:
            PoolError: ``need_size`` is negative or no multiple of the page size.
        """
        self.full_attn_allocator.check_need(need_size)
        if need_size > self.available_size():
            return None
        full_indices = self.full_attn_allocator.alloc(need_size)
        swa_indices = self.swa_attn_allocator.alloc(need_size)
        if full_indices is not None and swa_indices is not None:
            self.set_full_to_swa_mapping(full_indices, swa_indices)
        return full_indices

    def free(self, free_index: torch.Tensor) -> None:
        """Give back ``[k]`` distinct full slots, in any order, and the SWA slots that they still have.

        At ``page_size > 1`` the whole page of each is given back. Synchronizes on a device, as ``free_swa`` does.

        Raises:
            PoolError: more would be free than there are.
        """
        self.free_swa(free_index)
        self.free_full(free_index)

    def free_swa(self, free_index: torch.Tensor) -> None:
        """Give back the SWA slots of ``[k]`` distinct full slots, in any order, and clear their entries.

        Slots without an SWA slot are passed over. At ``page_size > 1`` the whole page of each is meant. How many there
        are depends on the data, so it synchronizes on a device.

        Raises:
            PoolError: more would be free than there are.
        """
        check_indices(free_index)
        if free_index.numel() == 0:
            return
        pages = self.full_attn_allocator.pages_of(free_index)
        peers = self._mapping.page_peers(pages)
        self._mapping.clear_pages(pages)
        self.swa_attn_allocator.free(peers)

    def free_full(self, free_index: torch.Tensor) -> None:
        """Give back ``[k]`` distinct full slots whose SWA slots were given back before.

        Raises:
            PoolError: more would be free than there are.
        """
        self.full_attn_allocator.free(free_index)

    def set_full_to_swa_mapping(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Give each of ``[k]`` full slots an SWA slot.

        Raises:
            PoolError: they are no indices, or the two differ in length.
        """
        check_indices(full_indices)
        check_indices(swa_indices)
        if full_indices.numel() != swa_indices.numel():
            raise PoolError(f"{full_indices.numel()} full slots cannot be given {swa_indices.numel()} SWA slots")
        self._mapping.set(full_indices, swa_indices)

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """``[k]`` int64 SWA slots of ``[k]`` full slots; 0 where there is none, -1 for -1."""
        return self._mapping.translate(kv_indices)

    def clear(self) -> None:
        """Make every slot free and clear the mapping. The sentinel stays."""
        self.full_attn_allocator.clear()
        self.swa_attn_allocator.clear()
        self._mapping.reset()
