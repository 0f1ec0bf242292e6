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
    from autotune.plan import Kind, Point
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
        seed: Of the indices.
    """

    def __init__(self, size: int, page_size: int, device: Device, seed: int) -> None:
        self._page_size = page_size
        self._device = device.torch_device
        self._seed = seed
        self.mapping = empty_mapping(size, page_size, self._device)
        self._pages = page_view(self.mapping, page_size)
        self._pages.fill_(1)

    def target(self, kind: Kind) -> Target:
        """What a strategy for this kind of call is bound to."""
        operation, name, index_dtype = kind
        return Target(operation, name, INDEX_DTYPES[index_dtype], self.mapping, self._page_size)

    def indices(self, point: Point) -> list[torch.Tensor]:
        """The rotation of ``[count]`` indices for one point, on the device."""
        target = self.target(point.kind)
        # The same on every fresh sandbox, so that passes differ in the memory and in nothing else.
        generator = np.random.default_rng((self._seed, point.count))
        rotation = []
        for turn in range(ROTATION):
            rows = draw_rows(target, point.count, point.layout, generator)
            rows = np.sort(rows) if turn % 2 else rows
            rotation.append(torch.from_numpy(rows).to(target.index_dtype).to(self._device))
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
    pages = generator.choice(np.arange(first // page_size, rows // page_size), -(-count // page_size), replace=False)
    return (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)[:count]


def _scattered(first: int, rows: int, count: int, _page_size: int, generator: np.random.Generator) -> np.ndarray:
    return first + generator.choice(rows - first, count, replace=False)


_DRAW: Mapping[Layout, Callable[[int, int, int, int, np.random.Generator], np.ndarray]] = MappingProxyType(
    {"run": _run, "pages": _pages, "scattered": _scattered}
)
