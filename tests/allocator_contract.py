"""What every SWA allocator must do, whoever wrote it: subclass ``AllocatorContract`` and say how to make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swa_alloc.errors import PoolError

# make(size, size_swa, page_size, kvcache) -> an allocator with every slot free
Make = Callable[..., Any]

FULL_PAGES, SWA_PAGES = 8, 6


class Snapshot(NamedTuple):
    """All that an allocation or a free can change."""

    full_free: list[int]
    swa_free: list[int]
    mapping: list[int]

    @classmethod
    def of(cls, allocator: Any) -> Snapshot:
        return cls(
            sorted(allocator.full_attn_allocator.get_all_free_pages().tolist()),
            sorted(allocator.swa_attn_allocator.get_all_free_pages().tolist()),
            allocator.full_to_swa_index_mapping.tolist(),
        )


class KVCacheStub:
    """Remembers what was registered."""

    def __init__(self) -> None:
        self.registered: list[torch.Tensor] = []

    def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
        self.registered.append(full_to_swa_index_mapping)


def as_row(indices: torch.Tensor) -> torch.Tensor:
    """``indices`` as SGLang passes them: a slice of a row of its int32 request table."""
    table = torch.zeros(2, indices.numel() + 3, dtype=torch.int32, device=indices.device)
    table[1, 1 : 1 + indices.numel()] = indices
    return table[1, 1 : 1 + indices.numel()]


def as_strided(indices: torch.Tensor) -> torch.Tensor:
    """``indices`` as every third element of a tensor that is 0 between."""
    spaced = torch.zeros(indices.numel(), 3, dtype=indices.dtype, device=indices.device)
    spaced[:, 1] = indices
    return spaced[:, 1]


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int64": lambda indices: indices,
    "int32_row": as_row,
    "strided": as_strided,
    "reversed": lambda indices: indices.flip(0),
}


class AllocatorContract:
    """Subclass it, and return from ``make`` a function that builds the allocator under test."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture(params=[1, 4, 64], ids=lambda page_size: f"page{page_size}")
    def page_size(self, request: pytest.FixtureRequest) -> int:
        size: int = request.param
        return size

    @pytest.fixture
    def allocator(self, make: Make, page_size: int) -> Any:
        return make(FULL_PAGES * page_size, SWA_PAGES * page_size, page_size, None)

    # --- sizes

    def test_starts_with_every_slot_free_and_an_empty_mapping(self, allocator: Any, page_size: int) -> None:
        assert allocator.full_available_size() == FULL_PAGES * page_size == allocator.size_full
        assert allocator.swa_available_size() == SWA_PAGES * page_size == allocator.size_swa
        assert allocator.available_size() == SWA_PAGES * page_size == allocator.size
        mapping = allocator.full_to_swa_index_mapping
        assert mapping.dtype is torch.int64
        assert mapping.tolist() == [0] * (FULL_PAGES * page_size + page_size) + [-1]

    def test_available_size_is_right_on_every_class_that_a_scheduler_may_ask(
        self, allocator: Any, page_size: int
    ) -> None:
        slots = allocator.alloc(2 * page_size)
        allocator.free_swa(slots[:page_size])
        assert allocator.full_attn_allocator.available_size() == (FULL_PAGES - 2) * page_size
        assert allocator.swa_attn_allocator.available_size() == (SWA_PAGES - 1) * page_size
        assert allocator.available_size() == (SWA_PAGES - 1) * page_size

    def test_available_size_is_the_smaller_pools(self, make: Make, page_size: int) -> None:
        allocator = make(2 * page_size, 3 * page_size, page_size, None)
        assert allocator.available_size() == 2 * page_size == allocator.size

    # --- alloc

    def test_alloc_hands_out_distinct_whole_pages_with_a_peer_each_and_never_padding(
        self, allocator: Any, page_size: int
    ) -> None:
        full = [allocator.alloc(count * page_size) for count in (1, 3, 2)]
        slots = torch.cat(full)
        peers = allocator.translate_loc_from_full_to_swa(slots)
        for indices, pages in ((slots, FULL_PAGES), (peers, SWA_PAGES)):
            assert indices.dtype is torch.int64
            assert len(set(indices.tolist())) == 6 * page_size
            assert indices.min() >= page_size
            assert indices.max() < (pages + 1) * page_size
            # Whole pages, each in order.
            by_page = indices.view(-1, page_size)
            assert (by_page[:, 0] % page_size == 0).all()
            assert (by_page.diff(dim=1) == 1).all()

    def test_alloc_of_nothing_gives_nothing(self, allocator: Any) -> None:
        before = Snapshot.of(allocator)
        assert allocator.alloc(0).tolist() == []
        assert Snapshot.of(allocator) == before

    @pytest.mark.parametrize(("full_pages", "swa_pages"), [(8, 2), (2, 8)], ids=["no_swa_room", "no_full_room"])
    def test_alloc_without_room_in_either_pool_returns_none_and_changes_neither(
        self, make: Make, page_size: int, full_pages: int, swa_pages: int
    ) -> None:
        allocator = make(full_pages * page_size, swa_pages * page_size, page_size, None)
        allocator.alloc(page_size)
        before = Snapshot.of(allocator)
        assert allocator.alloc(2 * page_size) is None
        assert Snapshot.of(allocator) == before
        assert allocator.alloc(page_size) is not None

    def test_alloc_of_an_impossible_number_is_refused_and_changes_nothing(self, allocator: Any, page_size: int) -> None:
        before = Snapshot.of(allocator)
        for need_size in {-1, -page_size, page_size + 1} - ({2} if page_size == 1 else set()):
            with pytest.raises(PoolError, match=f"need_size .* {need_size}"):
                allocator.alloc(need_size)
        assert Snapshot.of(allocator) == before

    def test_everything_can_be_handed_out_again_after_it_came_back(self, allocator: Any, page_size: int) -> None:
        for _ in range(3):
            slots = allocator.alloc(SWA_PAGES * page_size)
            assert allocator.available_size() == 0
            allocator.free(slots)
            assert allocator.available_size() == SWA_PAGES * page_size

    # --- free

    @pytest.mark.parametrize("form", FORMS)
    def test_free_gives_back_both_sides(self, allocator: Any, page_size: int, form: str) -> None:
        before = Snapshot.of(allocator)
        kept = allocator.alloc(page_size)
        slots = allocator.alloc(3 * page_size)
        allocator.free(FORMS[form](slots))
        assert allocator.full_available_size() == (FULL_PAGES - 1) * page_size
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
        assert allocator.translate_loc_from_full_to_swa(slots).tolist() == [0] * len(slots)
        assert 0 not in allocator.translate_loc_from_full_to_swa(kept).tolist()
        allocator.free(kept)
        assert Snapshot.of(allocator) == before

    @pytest.mark.parametrize("form", FORMS)
    def test_free_swa_gives_back_the_swa_side_only_and_once(self, allocator: Any, page_size: int, form: str) -> None:
        slots = allocator.alloc(3 * page_size)
        out_of_window = FORMS[form](slots[: 2 * page_size])
        for _ in range(2):
            allocator.free_swa(out_of_window)
            assert allocator.full_available_size() == (FULL_PAGES - 3) * page_size
            assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
            assert allocator.translate_loc_from_full_to_swa(slots[: 2 * page_size]).tolist() == [0] * 2 * page_size
            assert 0 not in allocator.translate_loc_from_full_to_swa(slots[2 * page_size :]).tolist()

    @pytest.mark.parametrize("form", FORMS)
    def test_free_full_gives_back_the_full_side_only(self, allocator: Any, page_size: int, form: str) -> None:
        slots = allocator.alloc(2 * page_size)
        allocator.free_swa(slots)
        allocator.free_full(FORMS[form](slots))
        assert allocator.full_available_size() == FULL_PAGES * page_size
        assert allocator.swa_available_size() == SWA_PAGES * page_size

    def test_free_passes_over_slots_whose_swa_side_is_gone(self, allocator: Any, page_size: int) -> None:
        before = Snapshot.of(allocator)
        slots = allocator.alloc(3 * page_size)
        allocator.free_swa(slots[page_size : 2 * page_size])
        allocator.free(slots)
        assert Snapshot.of(allocator) == before

    def test_slot_0_and_unmapped_slots_are_passed_over_and_their_mapped_neighbours_released(
        self, allocator: Any, page_size: int
    ) -> None:
        slots = allocator.alloc(2 * page_size)
        never_allocated = torch.tensor([FULL_PAGES * page_size])
        padding = torch.arange(page_size)
        allocator.free_swa(torch.cat((padding, slots[:page_size], never_allocated)))
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
        allocator.free(torch.cat((slots, padding)))
        after = Snapshot.of(allocator)
        # Padding entered no list: every page from 1 up is there, once.
        assert after.full_free == list(range(1, FULL_PAGES + 1))
        assert after.swa_free == list(range(1, SWA_PAGES + 1))

    def test_freeing_one_slot_of_a_page_releases_the_page_once(self, allocator: Any, page_size: int) -> None:
        # cases.md 1; with one slot a page it is an ordinary free.
        slots = allocator.alloc(2 * page_size)
        for slot in (page_size // 2, page_size - 1):
            allocator.free_swa(slots[slot : slot + 1])
            assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
            assert allocator.translate_loc_from_full_to_swa(slots[:page_size]).tolist() == [0] * page_size
            assert 0 not in allocator.translate_loc_from_full_to_swa(slots[page_size:]).tolist()
        allocator.free_full(slots[:1])
        assert allocator.full_available_size() == (FULL_PAGES - 1) * page_size

    @pytest.mark.parametrize("free", ["free", "free_swa", "free_full"])
    def test_freeing_nothing_changes_nothing(self, allocator: Any, page_size: int, free: str) -> None:
        allocator.alloc(page_size)
        before = Snapshot.of(allocator)
        for dtype in (torch.int32, torch.int64):
            getattr(allocator, free)(torch.tensor([], dtype=dtype))
        assert Snapshot.of(allocator) == before

    def test_freeing_more_than_there_is_raises_and_enters_nothing(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(page_size)
        allocator.free(slots)
        before = Snapshot.of(allocator)
        with pytest.raises(PoolError, match="freed twice"):
            allocator.free(slots)
        assert Snapshot.of(allocator) == before

    def test_what_alloc_returned_stays_the_callers_own(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(2 * page_size)
        copy = slots.tolist()
        allocator.free(slots)
        allocator.free(allocator.alloc(page_size))
        assert slots.tolist() == copy
        # And the caller may overwrite it.
        slots.zero_()
        assert Snapshot.of(allocator).full_free == list(range(1, FULL_PAGES + 1))

    # --- the mapping

    def test_minus_one_translates_to_minus_one(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(page_size)
        allocator.clear_full_to_swa_mapping(slots)
        allocator.clear()
        for dtype in (torch.int32, torch.int64):
            assert allocator.translate_loc_from_full_to_swa(torch.tensor([-1, 0], dtype=dtype)).tolist() == [-1, 0]

    @pytest.mark.parametrize("form", FORMS)
    def test_translate_gives_int64_peers_in_the_order_asked(self, allocator: Any, page_size: int, form: str) -> None:
        slots = allocator.alloc(2 * page_size)
        table = allocator.full_to_swa_index_mapping.tolist()
        asked = FORMS[form](slots)
        peers = allocator.translate_loc_from_full_to_swa(asked)
        assert peers.dtype is torch.int64
        assert peers.tolist() == [table[slot] for slot in asked.tolist()]

    def test_a_translation_is_no_view_of_the_table(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(page_size)
        peers = allocator.translate_loc_from_full_to_swa(slots)
        copy = peers.tolist()
        allocator.clear_full_to_swa_mapping(slots)
        assert peers.tolist() == copy

    @pytest.mark.parametrize("form", FORMS)
    def test_clearing_the_mapping_clears_entries_and_frees_nothing(
        self, allocator: Any, page_size: int, form: str
    ) -> None:
        slots = allocator.alloc(3 * page_size)
        before = Snapshot.of(allocator)
        cleared = slots[page_size : 2 * page_size]
        allocator.clear_full_to_swa_mapping(FORMS[form](cleared))
        expected = [0 if slot in cleared.tolist() else peer for slot, peer in enumerate(before.mapping)]
        assert Snapshot.of(allocator) == before._replace(mapping=expected)

    @pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.bool, torch.float32])
    def test_clearing_by_another_index_dtype_is_refused(self, allocator: Any, dtype: torch.dtype) -> None:
        before = Snapshot.of(allocator)
        with pytest.raises(PoolError, match=f"int32 or int64, not {dtype}"):
            allocator.clear_full_to_swa_mapping(torch.ones(2, dtype=dtype))
        assert Snapshot.of(allocator) == before

    @pytest.mark.parametrize("form", FORMS)
    def test_set_gives_full_slots_other_peers(self, allocator: Any, page_size: int, form: str) -> None:
        slots = allocator.alloc(2 * page_size)
        peers = allocator.translate_loc_from_full_to_swa(slots)
        allocator.set_full_to_swa_mapping(FORMS[form](slots), FORMS[form](peers.roll(page_size)))
        assert allocator.translate_loc_from_full_to_swa(slots).tolist() == peers.roll(page_size).tolist()

    def test_set_of_unequal_lengths_is_refused_and_changes_nothing(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(2 * page_size)
        before = Snapshot.of(allocator)
        with pytest.raises(PoolError, match=f"{2 * page_size} full slots .* 1 SWA slots"):
            # Length 1 would broadcast.
            allocator.set_full_to_swa_mapping(slots, slots[:1])
        assert Snapshot.of(allocator) == before

    def test_clear_makes_every_slot_free_and_empties_the_mapping(self, allocator: Any, page_size: int) -> None:
        before = Snapshot.of(allocator)
        slots = allocator.alloc(4 * page_size)
        allocator.free_swa(slots[:page_size])
        allocator.clear()
        assert Snapshot.of(allocator) == before
        assert allocator.alloc(SWA_PAGES * page_size) is not None

    # --- the KV cache

    def test_the_kv_cache_is_given_the_very_table_once(self, make: Make, page_size: int) -> None:
        kvcache = KVCacheStub()
        allocator = make(FULL_PAGES * page_size, SWA_PAGES * page_size, page_size, kvcache)
        allocator.free(allocator.alloc(page_size))
        allocator.clear()
        (registered,) = kvcache.registered
        assert registered is allocator.full_to_swa_index_mapping
        assert allocator.get_kvcache() is kvcache

    def test_without_a_kv_cache_there_is_none(self, allocator: Any) -> None:
        assert allocator.get_kvcache() is None

    # --- what it is asked for

    @pytest.mark.parametrize("bad", [0, -4, 2.0, "8", True, None])
    @pytest.mark.parametrize("name", ["size", "size_swa", "page_size"])
    def test_a_size_that_is_no_positive_whole_number_is_refused_by_name(
        self, make: Make, page_size: int, name: str, bad: object
    ) -> None:
        sizes: dict[str, Any] = {"size": 2 * page_size, "size_swa": 2 * page_size, "page_size": page_size, name: bad}
        with pytest.raises(PoolError, match=rf"^{name} must be .*{bad!r}"):
            make(sizes["size"], sizes["size_swa"], sizes["page_size"], None)

    @pytest.mark.parametrize("name", ["size", "size_swa"])
    def test_a_page_size_that_does_not_divide_a_pool_is_refused_by_the_pools_name(self, make: Make, name: str) -> None:
        sizes = {"size": 8, "size_swa": 8, name: 10}
        with pytest.raises(PoolError, match=rf"^{name} must be a multiple of page_size 4, not 10"):
            make(sizes["size"], sizes["size_swa"], 4, None)


class AllocatorMachine(RuleBasedStateMachine):
    """All operations in any order, against plain Python sets and a dict."""

    page_size = 1

    def make(self, size: int, size_swa: int, page_size: int) -> Any:
        raise NotImplementedError

    @initialize(full_pages=st.integers(1, 10), swa_pages=st.integers(1, 10))
    def start(self, full_pages: int, swa_pages: int) -> None:
        self.full_pages, self.swa_pages = full_pages, swa_pages
        self.allocator = self.make(full_pages * self.page_size, swa_pages * self.page_size, self.page_size)
        self.forget()

    def forget(self) -> None:
        self.full_free = set(range(1, self.full_pages + 1))
        self.swa_free = set(range(1, self.swa_pages + 1))
        self.owned: list[int] = []
        self.peer: dict[int, int] = {}  # full page -> SWA page

    @rule(pages=st.integers(0, 5))
    def alloc(self, pages: int) -> None:
        slots = self.allocator.alloc(pages * self.page_size)
        if pages > min(len(self.full_free), len(self.swa_free)):
            assert slots is None
            return
        peers = self.allocator.translate_loc_from_full_to_swa(slots)
        full = slots[:: self.page_size].div(self.page_size, rounding_mode="floor").tolist()
        swa = peers[:: self.page_size].div(self.page_size, rounding_mode="floor").tolist()
        assert len(full) == pages
        # Nobody else owns them.
        assert set(full) <= self.full_free
        assert set(swa) <= self.swa_free
        self.full_free -= set(full)
        self.swa_free -= set(swa)
        self.owned += full
        self.peer.update(zip(full, swa, strict=True))

    def draw_slots(self, data: st.DataObject, pages: list[int]) -> tuple[list[int], torch.Tensor]:
        """Some of ``pages``, and at least one slot of each, in any order, dtype and form."""
        chosen = data.draw(st.lists(st.sampled_from(pages), unique=True), label="pages") if pages else []
        slots: list[int] = []
        for page in chosen:
            offsets = data.draw(st.sets(st.integers(0, self.page_size - 1), min_size=1, max_size=3), label="offsets")
            slots += [page * self.page_size + offset for offset in offsets]
        slots = data.draw(st.permutations(slots), label="order")
        indices = torch.tensor(slots, dtype=torch.int64)
        return chosen, FORMS[data.draw(st.sampled_from(sorted(FORMS)), label="form")](indices)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        pages, slots = self.draw_slots(data, self.owned)
        self.allocator.free(slots)
        self.released_swa(pages)
        self.released_full(pages)

    @rule(data=st.data())
    def free_swa(self, data: st.DataObject) -> None:
        # Padding, and pages that nobody owns, are passed over.
        pages, slots = self.draw_slots(data, list(range(self.full_pages + 1)))
        self.allocator.free_swa(slots)
        self.released_swa(pages)

    @rule(data=st.data())
    def free_full(self, data: st.DataObject) -> None:
        pages, slots = self.draw_slots(data, [page for page in self.owned if page not in self.peer])
        self.allocator.free_full(slots)
        self.released_full(pages)

    @rule()
    def clear(self) -> None:
        self.allocator.clear()
        self.forget()

    def released_swa(self, pages: list[int]) -> None:
        self.swa_free |= {self.peer.pop(page) for page in pages if page in self.peer}

    def released_full(self, pages: list[int]) -> None:
        self.full_free |= set(pages)
        self.owned = [page for page in self.owned if page not in pages]

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        mapping = [0] * (self.full_pages + 1) * self.page_size
        for page, peer in self.peer.items():
            for offset in range(self.page_size):
                mapping[page * self.page_size + offset] = peer * self.page_size + offset
        snapshot = Snapshot.of(self.allocator)
        assert snapshot == Snapshot(sorted(self.full_free), sorted(self.swa_free), [*mapping, -1])
        assert self.allocator.full_available_size() == len(self.full_free) * self.page_size
        assert self.allocator.swa_available_size() == len(self.swa_free) * self.page_size
