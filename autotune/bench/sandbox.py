"""A mapping of the workload's size that nothing else uses, and indices into it drawn as the workload draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch

from swa_alloc.operations import INDEX_DTYPES, TOKEN, Target, empty_mapping, page_view

if TYPE_CHECKING:
    from autotune.devices import Device
    from autotune.traffic.plan import Point
    from swa_alloc.operations import CallKind
    from swa_alloc.trace import Layout

# Index tensors in rotation: one alone would live in the first-level cache. Every other one is sorted.
ROTATION = 4


class Sandbox:
    """One freshly allocated mapping.

    It is in the state that an allocator's mapping is in: a page view of it is alive, which changes what indexed writes
    cost (see ``FullToSWAMapping``).

    Args:
        size: Slots in the full pool.
        page_size: Slots in a page.
        device: Where it lives.
    """

    def __init__(self, size: int, page_size: int, device: Device) -> None:
        self._page_size = page_size
        self.mapping = empty_mapping(size, page_size, device.torch_device)
        self._pages = page_view(self.mapping, page_size)
        # Touched, so that no first write of a page of memory is timed.
        self._pages.fill_(1)

    def target(self, kind: CallKind) -> Target:
        """What a strategy for this kind of call is bound to."""
        return Target(kind.operation, kind.target, INDEX_DTYPES[kind.index_dtype], self.mapping, self._page_size)


def draw(point: Point, target: Target, seed: int) -> list[torch.Tensor]:
    """The rotation of ``[count]`` indices for one point, on the target's device; the same for every sandbox."""
    generator = np.random.default_rng((seed, point.count))
    rotation = []
    for turn in range(ROTATION):
        rows = draw_rows(target, point.count, point.layout, generator)
        rows = np.sort(rows) if turn % 2 else rows
        rotation.append(torch.from_numpy(rows).to(target.index_dtype).to(target.mapping.device))
    return rotation


def draw_rows(target: Target, count: int, layout: Layout, generator: np.random.Generator) -> np.ndarray:
    """``[count]`` distinct int64 rows of the target's table, padding and sentinel left out, laid out as asked."""
    first = target.page_size if target.name == TOKEN else 1
    rows = target.mapping.numel() - 1 if target.name == TOKEN else target.table.shape[0]
    page_size = target.page_size if target.name == TOKEN else 1
    return _DRAW[layout](first, rows, count, page_size, generator)


def _run(first: int, rows: int, count: int, _page_size: int, generator: np.random.Generator) -> np.ndarray:
    start = int(generator.integers(first, rows - count + 1))
    return np.arange(start, start + count)


def _pages(first: int, rows: int, count: int, page_size: int, generator: np.random.Generator) -> np.ndarray:
    pages = _distinct(first // page_size, rows // page_size, -(-count // page_size), generator)
    return (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)[:count]


def _scattered(first: int, rows: int, count: int, _page_size: int, generator: np.random.Generator) -> np.ndarray:
    return _distinct(first, rows, count, generator)


def _distinct(first: int, end: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """``[count]`` distinct numbers of ``[first, end)`` in random order, in time that does not depend on the range."""
    if (end - first) < 4 * count:
        return first + generator.permutation(end - first)[:count]
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        more = generator.integers(first, end, 2 * count)
        drawn = np.unique(np.concatenate((drawn, more)))
    return generator.permutation(drawn)[:count]


_DRAW: Mapping[Layout, Callable[[int, int, int, int, np.random.Generator], np.ndarray]] = MappingProxyType(
    {"run": _run, "pages": _pages, "scattered": _scattered}
)
