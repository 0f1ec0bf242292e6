"""PoolAllocator: one pool of KV slots, handed out and taken back in whole pages."""

from __future__ import annotations

import torch

from swa_alloc.errors import PoolError
from swa_alloc.free_list import FreeList, SortedFreeList
from swa_alloc.operations import INDEX_DTYPES

_INDEX_DTYPES = frozenset(INDEX_DTYPES.values())


class PoolAllocator:
    """The slots of one pool. Slots 0 to ``page_size - 1``, page 0, are padding and are never handed out.

    Args:
        size: Slots in the pool, padding not counted; a multiple of ``page_size``.
        page_size: Slots in a page.
        device: Where indices live.
        need_sort: Whether to hand out ascending pages for as long as possible.

    Raises:
        PoolError: the sizes are not positive, or do not divide.
    """

    def __init__(self, size: int, page_size: int, device: torch.device, *, need_sort: bool = False) -> None:
        check_sizes(size=size, page_size=page_size)
        self.size = size
        self.page_size = page_size
        self._free_list = (SortedFreeList if need_sort else FreeList)(size // page_size, device)
        self._offsets = torch.arange(page_size, dtype=torch.int64, device=device)

    def available_size(self) -> int:
        """Free slots."""
        return len(self._free_list) * self.page_size

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """``[need_size]`` int64 slots that are whole pages; None, and nothing changed, where there is no room.

        Raises:
            PoolError: ``need_size`` is negative or no multiple of the page size.
        """
        self.check_need(need_size)
        pages = self._free_list.take(need_size // self.page_size)
        return None if pages is None else self._slots(pages)

    def check_need(self, need_size: int) -> None:
        """Raise PoolError unless ``need_size`` is a number of slots that are whole pages."""
        if type(need_size) is not int or need_size < 0 or need_size % self.page_size:
            raise PoolError(f"need_size must be a multiple of the page size {self.page_size}, not {need_size!r}")

    def free(self, slots: torch.Tensor) -> None:
        """Give back ``[k]`` slots in any order; at ``page_size > 1``, every page that one of them lies in.

        Slots of the padding page are left out. The number of pages depends on the data, so it synchronizes on a device.

        Raises:
            PoolError: they are no indices, or more would be free than there are; nothing has changed then.
        """
        check_indices(slots)
        pages = self.pages_of(slots)
        self.free_page_ids(pages[pages > 0])

    def free_page_ids(self, page_ids: torch.Tensor) -> None:
        """Give back ``[k]`` distinct pages, none of them padding.

        Raises:
            PoolError: more would be free than there are; nothing has changed then.
        """
        self._free_list.put(page_ids)

    def get_all_free_pages(self) -> torch.Tensor:
        """``[n]`` int64 ids of the free pages."""
        return self._free_list.all_ids()

    def clear(self) -> None:
        """Make every slot free."""
        self._free_list.reset()

    def pages_of(self, slots: torch.Tensor) -> torch.Tensor:
        """The pages that ``[k]`` slots lie in, each once at ``page_size > 1``."""
        return slots if self.page_size == 1 else torch.unique(slots // self.page_size)

    def _slots(self, pages: torch.Tensor) -> torch.Tensor:
        if self.page_size == 1:
            return pages
        return (pages.unsqueeze(1) * self.page_size + self._offsets).view(-1)


def check_indices(indices: torch.Tensor) -> None:
    """Raise PoolError unless these can be ``[k]`` indices; their values are not looked at, which would synchronize."""
    if indices.dtype not in _INDEX_DTYPES or indices.dim() != 1:
        raise PoolError(f"indices must be 1-D and int32 or int64, not {indices.dim()}-D and {indices.dtype}")


def check_sizes(**sizes: int) -> None:
    """Raise PoolError unless all are whole numbers of at least 1 and ``page_size``, one of them, divides the others."""
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise PoolError(f"{name} must be a whole number of at least 1, not {value!r}")
    page_size = sizes["page_size"]
    for name, value in sizes.items():
        if value % page_size:
            raise PoolError(f"{name} must be a multiple of page_size {page_size}, not {value}")
