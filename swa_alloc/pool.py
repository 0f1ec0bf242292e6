"""PoolAllocator: one pool of KV slots, handed out and taken back in whole pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch

from swa_alloc.errors import PoolError
from swa_alloc.free_list import FreeList, SortedFreeList
from swa_alloc.operations import INDEX_DTYPES

# Slots of a request's row, and the position in it, in tokens, at which they begin.
Segment = tuple[torch.Tensor, int]

_INDEX_DTYPES = frozenset(INDEX_DTYPES.values())


def _as_given(page_ids: torch.Tensor) -> torch.Tensor:
    return page_ids


# Up to so many pages a Python list tells the least of them sooner than PyTorch does: one in 0.5 instead of 2 us.
_FEW = 32


def _without_padding(page_ids: torch.Tensor) -> torch.Tensor:
    least = min(page_ids.tolist(), default=1) if page_ids.numel() <= _FEW else int(page_ids.min())
    return page_ids if least > 0 else page_ids[page_ids > 0]


def _each_once(page_ids: torch.Tensor) -> torch.Tensor:
    known = page_ids.tolist()
    return page_ids if len(set(known)) == len(known) else torch.unique(page_ids)


# By device type, how pages that somebody frees lose the padding among them. Elsewhere to look for it would mean to wait
# for the device, and callers pass none, as with SGLang.
PADDING_FILTERS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType({"cpu": _without_padding})
# Likewise, how pages of which the SWA side is read together are kept from being read twice.
DUPLICATE_FILTERS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType({"cpu": _each_once})


class PoolAllocator:
    """The slots of one pool. Slots 0 to ``page_size - 1``, page 0, are padding and are never handed out.

    Args:
        size: Slots in the pool, padding not counted; a multiple of ``page_size``.
        page_size: Slots in a page.
        device: Where indices live.
        need_sort: Whether to hand out ascending pages for as long as possible.

    Attributes:
        size: As passed in, or as resized.
        page_size: As passed in.
        distinct: ``(page_ids)`` gives each of ``[k]`` pages once on a CPU, and takes it for granted elsewhere.

    Raises:
        PoolError: the sizes are not positive, or do not divide.
    """

    def __init__(self, size: int, page_size: int, device: torch.device, *, need_sort: bool = False) -> None:
        check_sizes(size=size, page_size=page_size)
        self.size = size
        self.page_size = page_size
        self._device = device
        self._free_list_class = SortedFreeList if need_sort else FreeList
        self._free_list = self._free_list_class(size // page_size, device)
        self._offsets = torch.arange(page_size, dtype=torch.int64, device=device)
        self._without_padding = PADDING_FILTERS.get(device.type, _as_given)
        self.distinct = DUPLICATE_FILTERS.get(device.type, _as_given)
        # What an open free group holds back; None without one.
        self._held: list[torch.Tensor] | None = None
        self._held_sets: list[torch.Tensor] = []

    def available_size(self) -> int:
        """Free slots. What an open free group holds back is not free yet."""
        return len(self._free_list) * self.page_size

    def available_pages(self) -> int:
        """Free pages."""
        return len(self._free_list)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """``[need_size]`` int64 slots that are whole pages; None, and nothing changed, where there is no room.

        Raises:
            PoolError: ``need_size`` is negative or no multiple of the page size.
        """
        pages = self.pages_in(need_size)
        if pages > self.available_pages():
            return None
        slots = self.slots(self.peek(pages))
        self.drop(pages)
        return slots

    def pages_in(self, need_size: int) -> int:
        """Whole pages in so many slots.

        Raises:
            PoolError: it is negative or no multiple of the page size.
        """
        if type(need_size) is not int or need_size < 0 or need_size % self.page_size:
            raise PoolError(f"need_size must be a multiple of the page size {self.page_size}, not {need_size!r}")
        return need_size // self.page_size

    def peek(self, pages: int) -> torch.Tensor:
        """``[pages]`` int64 ids of free pages; there must be as many. They stay free until they are dropped."""
        return self._free_list.peek(pages)

    def drop(self, pages: int) -> None:
        """Hand out what ``peek(pages)`` gave."""
        self._free_list.drop(pages)

    def rows(self, page_ids: torch.Tensor) -> torch.Tensor:
        """``[k, page_size]`` int64 slots of ``[k]`` pages; ``[k]`` with one slot a page."""
        if self.page_size == 1:
            return page_ids
        return torch.add(self._offsets, page_ids.unsqueeze(1), alpha=self.page_size)

    def slots(self, page_ids: torch.Tensor) -> torch.Tensor:
        """``[k * page_size]`` int64 slots of ``[k]`` pages."""
        return page_ids if self.page_size == 1 else self.rows(page_ids).view(-1)

    def pages_of(self, slots: torch.Tensor) -> torch.Tensor:
        """The pages that ``[k]`` slots lie in, each once at ``page_size > 1``, padding left out.

        At ``page_size > 1`` their number depends on the data, so it synchronizes on a device.
        """
        if self.page_size == 1:
            return slots
        pages: torch.Tensor = torch.unique(slots.floor_divide(self.page_size))
        return pages[pages > 0]

    def leaders(self, segment: torch.Tensor, start_pos: int) -> torch.Tensor:
        """One slot a page, a copy, of ``[k]`` slots that lie in a request's row from token ``start_pos`` on.

        Raises:
            PoolError: they are no indices, or ``start_pos`` does not begin a page.
        """
        check_indices(segment)
        if start_pos % self.page_size:
            raise PoolError(f"start_pos must be a multiple of the page size {self.page_size}, not {start_pos}")
        # One call each; most segments are one page, and the first is the cheaper one.
        if 0 < segment.numel() <= self.page_size:
            return segment.narrow_copy(0, 0, 1)
        return torch.slice_copy(segment, step=self.page_size)

    def leaders_of(self, segments: Iterable[Segment]) -> torch.Tensor:
        """One slot a page, a copy, of several segments of one request, in ascending order.

        Raises:
            PoolError: as ``leaders``, and where two share a page.
        """
        end, leaders = 0, []
        for free_index, start_pos in segments:
            leaders.append(self.leaders(free_index, start_pos))
            if free_index.numel():
                if start_pos < end:
                    raise PoolError(f"the segment at {start_pos} shares a page with the one before it")
                # The whole last page goes with a segment.
                end = -(-(start_pos + free_index.numel()) // self.page_size) * self.page_size
        return torch.cat(leaders) if leaders else self._offsets[:0]

    def pages_of_leaders(self, slots: torch.Tensor) -> torch.Tensor:
        """The pages that ``[k]`` slots lie in, one for each. Never synchronizes."""
        return slots if self.page_size == 1 else slots.floor_divide(self.page_size)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """Give back ``[k]`` slots that lie in a request's row from token ``start_pos`` on. Never synchronizes.

        Raises:
            PoolError: they are no indices, ``start_pos`` does not begin a page, or more would be free than there are;
                nothing has changed then.
        """
        self.free_page_ids(self.pages_of_leaders(self.leaders(free_index, start_pos)))

    def free(self, slots: torch.Tensor) -> None:
        """Give back ``[k]`` slots in any order; at ``page_size > 1``, every page that one of them lies in, once.

        At ``page_size > 1`` it synchronizes on a device, as ``pages_of`` does.

        Raises:
            PoolError: they are no indices, or more would be free than there are; nothing has changed then.
        """
        check_indices(slots)
        self.free_page_set(self.pages_of(slots))

    def free_page_set(self, page_ids: torch.Tensor) -> None:
        """Give back ``[k]`` distinct pages. In a free group at ``page_size > 1`` they may come more than once.

        Raises:
            PoolError: more would be free than there are; nothing has changed then.
        """
        if self._held is None or self.page_size == 1:
            self.free_page_ids(page_ids)
        else:
            self._held_sets.append(page_ids.clone())

    def free_page_ids(self, page_ids: torch.Tensor) -> None:
        """Give back ``[k]`` distinct pages.

        Raises:
            PoolError: more would be free than there are; nothing has changed then.
        """
        if self._held is None:
            self._free_list.put(self._without_padding(page_ids))
        else:
            self._held.append(page_ids.clone())

    def free_group_begin(self) -> None:
        """Hold back what is freed from here on, until ``free_group_end``."""
        self._held = []

    def free_group_end(self) -> None:
        """Make what was held back free, all at once.

        Raises:
            PoolError: more would be free than there are; nothing of the group has become free then.
        """
        held, sets = self._held or [], self._held_sets
        self._held, self._held_sets = None, []
        if sets:
            held.append(united(sets))
        if held:
            self.free_page_ids(torch.cat(held))

    def get_all_free_pages(self) -> torch.Tensor:
        """``[n]`` int64 ids of the free pages."""
        return self._free_list.all_ids()

    def free_list(self, size: int) -> FreeList:
        """A list of the free pages of a pool of ``size`` slots, for ``adopt``."""
        return self._free_list_class(size // self.page_size, self._device)

    def adopt(self, free_list: FreeList) -> None:
        """Have as many slots as a list that ``free_list`` made, all of them free."""
        self._free_list = free_list
        self.size = free_list.capacity * self.page_size
        self._held, self._held_sets = None, []

    def clear(self) -> None:
        """Make every slot free. O(size)."""
        self._free_list.reset()
        self._held, self._held_sets = None, []


def united(page_sets: list[torch.Tensor]) -> torch.Tensor:
    """Each page of several sets once: parts of one page may be freed one after the other. Synchronizes on a device."""
    return torch.unique(torch.cat(page_sets)) if len(page_sets) > 1 else page_sets[0]


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
