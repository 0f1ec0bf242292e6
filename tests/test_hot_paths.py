"""The hot paths never make the host wait for the device, and cost nothing that grows with the pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from builders import Operators
from torch.utils._python_dispatch import TorchDispatchMode

from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.backends import Backend, Facts

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 4, 64])
UNWAITING = pytest.mark.parametrize("checks", ["off", "async"])

FULL_PAGES, SWA_PAGES = 64, 48


class Crossings(TorchDispatchMode):
    """Notes the operators that take a tensor from the host to the device, or back."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        tensors = [thing for thing in (*args, result) if isinstance(thing, torch.Tensor)]
        tensors += [part for thing in (*args, result) if isinstance(thing, (list, tuple)) for part in thing]
        if len({tensor.device.type for tensor in tensors if isinstance(tensor, torch.Tensor)}) > 1:
            self.names.add(func.overloadpacket.__name__)
        return result


class Touching(TorchDispatchMode):
    """Counts the operators that are given a tensor, or make one, of at least so many elements; views left out."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        large = any(isinstance(thing, torch.Tensor) and thing.numel() >= self.elements for thing in (*args, result))
        if large and not func.is_view:
            self.names[func.overloadpacket.__name__] += 1
        return result


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """A device whose tensors have no values: whatever would have to wait for one raises."""

    class Meta(Backend):
        device_type = "meta"

        def facts(self, device: torch.device) -> Facts:
            del device
            return Facts("no machine has a profile for it")

    monkeypatch.setattr("swa_alloc.backends._registry._registered", {"meta": Meta})
    return "meta"


def _make(device: str, full_pages: int, swa_pages: int, page_size: int, **keywords: Any) -> SWATokenToKVPoolAllocator:
    sizes = (full_pages * page_size, swa_pages * page_size, page_size)
    return SWATokenToKVPoolAllocator(*sizes, torch.bfloat16, device, None, **keywords)


class Batch:
    """Two requests' arguments as SGLang passes them: tensors on the device, and lengths on the host as well."""

    def __init__(self, device: str, page_size: int, prefixes: list[int], lengths: list[int]) -> None:
        self.prefix_lens_cpu = torch.tensor(prefixes)
        self.seq_lens_cpu = torch.tensor(lengths)
        self.prefix_lens = self.prefix_lens_cpu.to(device)
        self.seq_lens = self.seq_lens_cpu.to(device)
        self.tokens = int((self.seq_lens_cpu - self.prefix_lens_cpu).sum())
        # Of these requests' rows, as the tests' CPU allocators hand them out, or no values at all.
        last = [page_size + prefix - 1 if prefix else -1 for prefix in prefixes]
        self.last_loc = torch.tensor(last, dtype=torch.int32).to(device)

    def extend(self, allocator: SWATokenToKVPoolAllocator) -> torch.Tensor | None:
        lens = (self.prefix_lens, self.prefix_lens_cpu, self.seq_lens, self.seq_lens_cpu)
        return allocator.alloc_extend(*lens, self.last_loc, self.tokens)

    def tail(self, allocator: SWATokenToKVPoolAllocator, swa_tail_len: int) -> torch.Tensor | None:
        lens = (self.prefix_lens, self.prefix_lens_cpu, self.seq_lens, self.seq_lens_cpu)
        return allocator.alloc_extend_swa_tail(*lens, self.last_loc, self.tokens, swa_tail_len)

    def decode(self, allocator: SWATokenToKVPoolAllocator) -> torch.Tensor | None:
        return allocator.alloc_decode(self.seq_lens, self.seq_lens_cpu, self.last_loc)


def _steps(
    allocator: SWATokenToKVPoolAllocator, device: str, page_size: int
) -> dict[str, Callable[[], torch.Tensor | None]]:
    """Every hot path once, in an order in which each is legal on a pool of which nothing was handed out before."""
    size = page_size
    grow = Batch(device, size, [0], [2 * size + size // 2 + 1])
    go_on = Batch(device, size, [2 * size + size // 2 + 1, 0], [5 * size, size])
    boundary = Batch(device, size, [0, 0], [1, 1])
    in_page = Batch(device, size, [2 * size + size // 2], [2 * size + size // 2 + 1])
    tail = Batch(device, size, [0], [3 * size])
    unaligned = Batch(device, size, [0], [3 * size])
    row = torch.empty(1, 6 * size, dtype=torch.int32, device=device)
    rows: dict[str, torch.Tensor] = {}

    def keep(name: str, slots: torch.Tensor | None) -> None:
        assert slots is not None
        rows[name] = slots

    def of_row(name: str, start: int, end: int) -> torch.Tensor:
        """Slots of a request as a slice of its int32 row."""
        row[0, : rows[name].numel()] = rows[name]
        return row[0, start * size : end * size]

    def group() -> None:
        with allocator.free_group():
            allocator.free_segment(of_row("more", 0, 1), start_pos=0)
            allocator.free_segments([(of_row("more", 1, 2), size), (of_row("more", 2, 2), 2 * size)])
            allocator.free_swa_segment(of_row("more", 2, 4), start_pos=2 * size)
            allocator.translate_loc_from_full_to_swa(rows["more"])
            allocator.free_full_segment(of_row("more", 2, 3), start_pos=2 * size)
            allocator.free_full_segments([(of_row("more", 3, 4), 3 * size)])
            allocator.free_page_ids(torch.div(rows["more"][4 * size :: size], size, rounding_mode="floor"))

    return {
        "extend": lambda: keep("row", grow.extend(allocator)),
        "extend_from_a_prefix": lambda: keep("longer", go_on.extend(allocator)),
        "decode_into_new_pages": lambda: keep("one", boundary.decode(allocator)),
        "decode_in_a_page": lambda: keep("two", in_page.decode(allocator)),
        "alloc": lambda: keep("slots", allocator.alloc(3 * size)),
        "tail": lambda: keep("tail", tail.tail(allocator, size)),
        "unaligned_tail": lambda: keep("unaligned", unaligned.tail(allocator, size + 1)),
        "free_swa_segment": lambda: allocator.free_swa_segment(of_row("slots", 0, 1), start_pos=0),
        "free_full_segment": lambda: allocator.free_full_segment(of_row("slots", 0, 1), start_pos=0),
        "free_segment": lambda: allocator.free_segment(of_row("slots", 1, 3), start_pos=size),
        "alloc_again": lambda: keep("slots", allocator.alloc(3 * size)),
        "set": lambda: allocator.set_full_to_swa_mapping(rows["slots"], rows["slots"].to(torch.int32)),
        "translate": lambda: allocator.translate_loc_from_full_to_swa(rows["slots"]),
        "translate_a_row": lambda: allocator.translate_loc_from_full_to_swa(of_row("slots", 0, 2)),
        "free_page_ids": lambda: allocator.free_page_ids(torch.div(rows["slots"][::size], size, rounding_mode="floor")),
        "clear": lambda: allocator.clear_full_to_swa_mapping(rows["slots"]),
        "clear_a_row": lambda: allocator.clear_full_to_swa_mapping(of_row("slots", 0, 2)),
        "alloc_more": lambda: keep("more", allocator.alloc(6 * size)),
        "group": group,
        "sizes": lambda: allocator.new_pages_available(allocator.available_size(), allocator.swa_available_size()),
    }


@PAGE_SIZES
@UNWAITING
@pytest.mark.parametrize("need_sort", [False, True], ids=["unsorted", "need_sort"])
def test_nothing_waits_for_the_device(device: str, page_size: int, checks: Any, need_sort: bool) -> None:  # noqa: FBT001 - a case
    allocator = _make(device, FULL_PAGES, SWA_PAGES, page_size, checks=checks, need_sort=need_sort)
    for name, step in _steps(allocator, device, page_size).items():
        with Crossings() as crossed:
            step()
        assert not crossed.names, name
    assert 0 < allocator.full_available_size() < FULL_PAGES * page_size


@UNWAITING
def test_sets_of_single_slots_do_not_wait_either(device: str, checks: Any) -> None:
    allocator = _make(device, FULL_PAGES, SWA_PAGES, 1, checks=checks)
    slots = allocator.alloc(6)
    assert slots is not None
    with Crossings() as crossed:
        allocator.free(slots[:2])
        allocator.free_swa(slots[2:4].to(torch.int32))
        allocator.free_full(slots[2:4])
        with allocator.free_group():
            allocator.free(slots[4:5])
            allocator.free_swa(slots[5:])
            allocator.free_full(slots[5:])
    assert not crossed.names
    assert allocator.available_size() == SWA_PAGES
    assert allocator.full_available_size() == FULL_PAGES


# What finds its place in a large tensor by index; whoever else is given one may read all of it.
INDEXED = {
    "gather",
    "index",
    "index_copy_",
    "index_fill_",
    "index_put_",
    "index_select",
    "narrow_copy",
    "scatter_",
    "take",
}


# 16 Ki and 1 Mi slots; with wide pages, more than one extension takes.
_PAGES = {page_size: (max(2**14 // page_size, 1024), 2**20 // page_size) for page_size in (1, 4, 64)}


@PAGE_SIZES
@UNWAITING
def test_nothing_grows_with_the_pools(page_size: int, checks: Any) -> None:
    largest = []
    for pages in _PAGES[page_size]:
        allocator = _make("cpu", pages, pages, page_size, checks=checks)
        steps = _steps(allocator, "cpu", page_size)
        made, touched = Operators(), Touching(pages)
        for name, step in steps.items():
            touched.names.clear()
            with made, touched:
                step()
            assert set(touched.names) <= INDEXED, name
        largest.append(made.largest)
    # The longest extension is of five and a half pages; the checks look at several properties of each slot.
    assert 0 < largest[0] == largest[1] <= 12 * page_size


@PAGE_SIZES
def test_a_set_costs_nothing_that_grows_with_the_pools(page_size: int) -> None:
    largest = []
    for pages in _PAGES[page_size]:
        allocator = _make("cpu", pages, pages, page_size)
        slots_taken = allocator.alloc(4 * page_size)
        assert slots_taken is not None
        with Operators() as made, Touching(pages) as touched:
            allocator.free(slots_taken[:page_size])
            allocator.free_swa(slots_taken[page_size:])
            allocator.free_full(slots_taken[page_size : 2 * page_size])
            with allocator.free_group():
                allocator.free_full(slots_taken[2 * page_size : 3 * page_size])
                allocator.free_full(slots_taken[3 * page_size :])
        assert set(touched.names) <= INDEXED
        largest.append(made.largest)
    assert 0 < largest[0] == largest[1] <= 6 * page_size


@PAGE_SIZES
def test_a_group_reads_clears_and_releases_once_for_all_its_segments(page_size: int) -> None:
    counts = []
    for requests in (2, 40):
        allocator = _make("cpu", 1024, 1024, page_size)
        rows = [allocator.alloc(2 * page_size) for _ in range(requests)]
        with Touching(1024) as touched, allocator.free_group():
            for row in rows:
                assert row is not None
                allocator.free_swa_segment(row[:page_size], start_pos=0)
                allocator.free_full_segment(row[:page_size], start_pos=0)
                allocator.free_segment(row[page_size:], start_pos=page_size)
        assert allocator.full_available_size() == allocator.swa_available_size() == 1024 * page_size
        counts.append(touched.names)
    assert counts[0] == counts[1]


def test_whoever_waits_is_seen(device: str) -> None:
    slots = torch.zeros(4, dtype=torch.int64, device=device)
    waiting: list[Callable[[], object]] = [
        slots.tolist,
        slots[0].item,
        slots.nonzero,
        slots.cpu,
        lambda: bool(slots.any()),
        lambda: torch.unique(slots),
        lambda: slots[slots > 0],
        lambda: slots.masked_select(slots > 0),
        lambda: torch.equal(slots, slots),
    ]
    for wait in waiting:
        with pytest.raises((NotImplementedError, RuntimeError)):
            wait()
    with Crossings() as crossed:
        torch.tensor([1, 2]).to(device)
    assert crossed.names
