"""Free pages in and out in O(k): a stack that never moves what it holds."""

from __future__ import annotations

import torch

from swa_alloc.errors import PoolError


class FreeList:
    """The free page ids of one pool: 1 to ``capacity``; page 0 is padding and never enters.

    The ids lie in ``_ids[_head:]``. Dropping k moves the head up, putting k moves it down; its position is known on the
    host, so neither reads the device. Taking is two steps, ``peek`` and ``drop``, so that whoever takes from two lists
    can see that both can serve, and do all that may fail, before either changes.

    Args:
        capacity: Number of pages.
        device: Where the ids live.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self._ids = torch.empty(capacity, dtype=torch.int64, device=device)
        self.reset()

    def __len__(self) -> int:
        return self.capacity - self._head

    def reset(self) -> None:
        """Make every page free again, in ascending order. O(capacity)."""
        torch.arange(1, self.capacity + 1, out=self._ids, device=self._ids.device)
        self._head = 0

    def peek(self, count: int) -> torch.Tensor:
        """``[count]`` int64 page ids that are free, the caller's own copy; there must be as many."""
        # One call for slice and copy; a view would change under the caller when its pages come back.
        return self._ids.narrow_copy(0, self._head, count)

    def drop(self, count: int) -> None:
        """Hand out what ``peek(count)`` gave."""
        self._head += count

    def put(self, page_ids: torch.Tensor) -> None:
        """Give back ``[k]`` int32 or int64 page ids.

        Raises:
            PoolError: more would be free than there are, so something was freed twice; nothing has changed then.
        """
        count = page_ids.numel()
        head = self._head - count
        if head < 0:
            raise PoolError(
                f"freeing {count} pages would make {len(self) + count} of {self.capacity} free: freed twice?"
            )
        self._ids[head : head + count] = page_ids
        self._head = head

    def all_ids(self) -> torch.Tensor:
        """``[len]`` int64 copy of the free page ids."""
        return self._ids[self._head :].clone()


class SortedFreeList(FreeList):
    """A free list that hands out ascending ids for longer: what comes back waits until the sorted ids run short.

    The ids that wait lie in ``_ids[:_waiting]``, below the head. SGLang calls it ``need_sort``.
    """

    def __len__(self) -> int:
        return super().__len__() + self._waiting

    def reset(self) -> None:
        """See ``FreeList.reset``."""
        super().reset()
        self._waiting = 0

    def peek(self, count: int) -> torch.Tensor:
        """See ``FreeList.peek``. O(capacity log capacity) when the sorted ids run short, and O(count) otherwise."""
        if count > self.capacity - self._head:
            merged = self.all_ids().sort().values
            self._head, self._waiting = self.capacity - merged.numel(), 0
            self._ids[self._head :] = merged
        return super().peek(count)

    def put(self, page_ids: torch.Tensor) -> None:
        """See ``FreeList.put``."""
        count, start = page_ids.numel(), self._waiting
        if start + count > self._head:
            raise PoolError(
                f"freeing {count} pages would make {len(self) + count} of {self.capacity} free: freed twice?"
            )
        self._ids[start : start + count] = page_ids
        self._waiting = start + count

    def all_ids(self) -> torch.Tensor:
        """See ``FreeList.all_ids``."""
        return torch.cat((self._ids[: self._waiting], super().all_ids()))
