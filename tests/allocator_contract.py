"""What every SWA allocator must do, whoever wrote it: subclass one of the contracts and say how to make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from allocator_calls import (
    FORMS,
    ROWS,
    Grow,
    KVCacheStub,
    Snapshot,
    begin,
    check_growth,
    config,
    decode,
    extend,
    goes_on,
    lend,
    lend_segments,
    pages_of,
    pages_taken,
    refused,
)

from swa_alloc.errors import PoolError

# make(size, size_swa, page_size, kvcache) -> an allocator with every slot free
Make = Callable[..., Any]

FULL_PAGES, SWA_PAGES = 8, 6
PAGE_SIZES = (1, 4, 64)


def page_name(page_size: int) -> str:
    return f"page{page_size}"


# A page of one slot has no parts.
WIDE_PAGES = pytest.mark.parametrize("page_size", [size for size in PAGE_SIZES if size > 1], ids=page_name)


class AllocatorContract:
    """Subclass it, and return from ``make`` a function that builds the allocator under test.

    Frees whose SWA side is known by their very form may count on it: row segments, page ids, and at page_size 1 every
    set. Devices do, since to look would be to wait, and so does checks="strict". For an allocator that looks, subclass
    ``PaddingContract``.
    """

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture(params=PAGE_SIZES, ids=page_name)
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
        # cases.md 7
        slots = allocator.alloc(2 * page_size)
        allocator.free_swa(slots[:page_size])
        assert allocator.full_attn_allocator.available_size() == (FULL_PAGES - 2) * page_size
        assert allocator.swa_attn_allocator.available_size() == (SWA_PAGES - 1) * page_size
        assert allocator.available_size() == (SWA_PAGES - 1) * page_size

    def test_available_size_is_the_smaller_pools(self, make: Make, page_size: int) -> None:
        allocator = make(2 * page_size, 3 * page_size, page_size, None)
        assert allocator.available_size() == 2 * page_size == allocator.size

    def test_new_pages_are_available_up_to_what_each_pool_has(self, allocator: Any, page_size: int) -> None:
        begin(allocator, page_size + 1)
        full, swa = FULL_PAGES - 2, SWA_PAGES - 2
        assert allocator.new_pages_available(full, swa)
        assert allocator.new_pages_available(0, 0)
        assert not allocator.new_pages_available(full + 1, swa)
        assert not allocator.new_pages_available(full, swa + 1)

    def test_the_free_pages_are_listed_by_the_pools_and_not_by_the_pair(self, allocator: Any, page_size: int) -> None:
        # As SGLang: a census asks each pool for its own.
        slots = allocator.alloc(2 * page_size)
        assert allocator.get_all_free_pages() is None
        full = allocator.full_attn_allocator.get_all_free_pages()
        swa = allocator.swa_attn_allocator.get_all_free_pages()
        assert full.dtype is swa.dtype is torch.int64
        assert sorted([*full.tolist(), *pages_of(slots, page_size)]) == list(range(1, FULL_PAGES + 1))
        assert len(set(swa.tolist())) == SWA_PAGES - 2

    def test_a_log_line_names_the_free_sizes(self, allocator: Any, page_size: int) -> None:
        allocator.alloc(page_size)
        line = allocator.debug_print()
        assert f"#swa-available-size: {(SWA_PAGES - 1) * page_size}, " in line
        assert f"#full-attn-available-size: {(FULL_PAGES - 1) * page_size}, " in line

    # --- alloc

    def test_alloc_hands_out_distinct_whole_pages_with_a_peer_each_and_never_padding(
        self, allocator: Any, page_size: int
    ) -> None:
        # cases.md 6
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
        # cases.md 4
        allocator = make(full_pages * page_size, swa_pages * page_size, page_size, None)
        allocator.alloc(page_size)
        before = Snapshot.of(allocator)
        assert allocator.alloc(2 * page_size) is None
        assert Snapshot.of(allocator) == before
        assert allocator.alloc(page_size) is not None

    def test_alloc_of_an_impossible_number_is_refused_and_changes_nothing(self, allocator: Any, page_size: int) -> None:
        for need_size in {-1, -page_size, page_size + 1} - ({2} if page_size == 1 else set()):
            with refused(allocator, f"need_size .* {need_size}"):
                allocator.alloc(need_size)

    def test_everything_can_be_handed_out_again_after_it_came_back(self, allocator: Any, page_size: int) -> None:
        for _ in range(3):
            slots = allocator.alloc(SWA_PAGES * page_size)
            assert allocator.available_size() == 0
            allocator.free(slots)
            assert allocator.available_size() == SWA_PAGES * page_size

    # --- alloc_extend

    def test_extending_from_nothing_fills_pages_in_order_and_shares_none(self, allocator: Any, page_size: int) -> None:
        before = Snapshot.of(allocator)
        requests = [Grow(0, 1), Grow(0, page_size), Grow(0, page_size + 1), Grow(0, max(page_size - 1, 1))]
        check_growth(allocator, before, requests, extend(allocator, requests))

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_extending_goes_on_in_the_begun_page_and_then_takes_new_ones(
        self, allocator: Any, page_size: int, dtype: torch.dtype
    ) -> None:
        middle, boundary = begin(allocator, page_size // 2 + 1, page_size)
        before = Snapshot.of(allocator)
        requests = [goes_on(middle, page_size), goes_on(boundary, page_size), Grow(0, 1)]
        check_growth(allocator, before, requests, extend(allocator, requests, dtype=dtype))

    @WIDE_PAGES
    def test_extending_within_begun_pages_needs_no_free_page(self, make: Make, page_size: int) -> None:
        allocator = make(2 * page_size, 2 * page_size, page_size, None)
        first, second = begin(allocator, 1, 2)
        before = Snapshot.of(allocator)
        assert before.full_free == before.swa_free == []
        requests = [goes_on(first, page_size - 1), goes_on(second, 1)]
        check_growth(allocator, before, requests, extend(allocator, requests))

    def test_a_request_that_grows_by_nothing_takes_no_part(self, allocator: Any, page_size: int) -> None:
        row, boundary = begin(allocator, page_size // 2 + 1, page_size)
        before = Snapshot.of(allocator)
        requests = [goes_on(row, 0), Grow(0, page_size + 1), goes_on(boundary, 0), Grow(0, 0)]
        check_growth(allocator, before, requests, extend(allocator, requests))

    @pytest.mark.parametrize("requests", [[], [Grow(0, 0)], [Grow(0, 0), Grow(0, 0)]], ids=["no", "one", "two"])
    def test_a_batch_of_nothing_gives_nothing(self, allocator: Any, requests: list[Grow]) -> None:
        before = Snapshot.of(allocator)
        check_growth(allocator, before, requests, extend(allocator, requests))

    def test_one_batch_may_take_every_page(self, allocator: Any, page_size: int) -> None:
        before = Snapshot.of(allocator)
        requests = [Grow(0, 1)] * 2 + [Grow(0, 3 * page_size)] + [Grow(0, page_size)]
        check_growth(allocator, before, requests, extend(allocator, requests))
        assert allocator.available_size() == 0

    @pytest.mark.parametrize(("full_pages", "swa_pages"), [(8, 3), (3, 8)], ids=["no_swa_room", "no_full_room"])
    def test_extending_without_room_in_either_pool_returns_none_and_changes_neither(
        self, make: Make, page_size: int, full_pages: int, swa_pages: int
    ) -> None:
        # cases.md 4
        allocator = make(full_pages * page_size, swa_pages * page_size, page_size, None)
        (row,) = begin(allocator, page_size)
        before = Snapshot.of(allocator)
        assert extend(allocator, [goes_on(row, page_size + 1), Grow(0, 1)]) is None
        assert Snapshot.of(allocator) == before
        requests = [goes_on(row, page_size), Grow(0, 1)]
        check_growth(allocator, before, requests, extend(allocator, requests))

    @WIDE_PAGES
    def test_the_slots_behind_the_last_token_have_no_peer(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, page_size + 1)
        behind = int(row[-1]) + 1
        assert allocator.full_to_swa_index_mapping[behind : behind + page_size - 1].count_nonzero() == 0

    def test_what_an_extension_returned_stays_the_callers_own(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, 2 * page_size)
        copy, before = row.tolist(), Snapshot.of(allocator)
        lend(allocator.free_segment, row, start_pos=0)
        begin(allocator, page_size)
        assert row.tolist() == copy
        row.zero_()
        assert Snapshot.of(allocator).full_free != before.full_free
        assert 0 not in Snapshot.of(allocator).full_free

    # --- alloc_decode

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_decoding_goes_on_in_begun_pages_and_takes_a_page_at_each_boundary(
        self, allocator: Any, page_size: int, dtype: torch.dtype
    ) -> None:
        rows = begin(allocator, page_size, page_size // 2 + 1, 1)
        before = Snapshot.of(allocator)
        requests = [goes_on(row, 1) for row in rows]
        check_growth(allocator, before, requests, decode(allocator, requests, dtype=dtype))

    def test_decoding_where_every_request_crosses_into_a_new_page(self, allocator: Any, page_size: int) -> None:
        rows = begin(allocator, page_size, 2 * page_size)
        before = Snapshot.of(allocator)
        requests = [goes_on(row, 1) for row in rows]
        check_growth(allocator, before, requests, decode(allocator, requests))

    @WIDE_PAGES
    def test_decoding_where_none_crosses_needs_no_free_page(self, make: Make, page_size: int) -> None:
        allocator = make(2 * page_size, 2 * page_size, page_size, None)
        rows = begin(allocator, 1, page_size - 1)
        before = Snapshot.of(allocator)
        requests = [goes_on(row, 1) for row in rows]
        check_growth(allocator, before, requests, decode(allocator, requests))

    def test_a_request_decodes_on_across_pages(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, 1)
        for _ in range(2 * page_size):
            before = Snapshot.of(allocator)
            slots = decode(allocator, [goes_on(row, 1)])
            check_growth(allocator, before, [goes_on(row, 1)], slots)
            assert slots is not None
            row = torch.cat((row, slots))
        lend(allocator.free_segment, row, "int32_row", start_pos=0)
        assert allocator.available_size() == SWA_PAGES * page_size

    @pytest.mark.parametrize(("full_pages", "swa_pages"), [(8, 3), (3, 8)], ids=["no_swa_room", "no_full_room"])
    def test_decoding_without_room_in_either_pool_returns_none_and_changes_neither(
        self, make: Make, page_size: int, full_pages: int, swa_pages: int
    ) -> None:
        # cases.md 4: SGLang loses the full pages here.
        allocator = make(full_pages * page_size, swa_pages * page_size, page_size, None)
        rows = begin(allocator, page_size, page_size)
        before = Snapshot.of(allocator)
        assert decode(allocator, [goes_on(row, 1) for row in rows]) is None
        assert Snapshot.of(allocator) == before
        check_growth(allocator, before, [goes_on(rows[0], 1)], decode(allocator, [goes_on(rows[0], 1)]))

    def test_decoding_no_request_gives_nothing(self, allocator: Any) -> None:
        before = Snapshot.of(allocator)
        check_growth(allocator, before, [], decode(allocator, []))

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_a_request_without_a_prefix_has_a_last_slot_of_minus_one(self, allocator: Any, dtype: torch.dtype) -> None:
        # cases.md 5
        assert allocator.translate_loc_from_full_to_swa(torch.tensor([-1], dtype=dtype)).tolist() == [-1]
        before = Snapshot.of(allocator)
        check_growth(allocator, before, [Grow(0, 2, -1)], extend(allocator, [Grow(0, 2, -1)], dtype=dtype))
        before = Snapshot.of(allocator)
        check_growth(allocator, before, [Grow(0, 1, -1)], decode(allocator, [Grow(0, 1, -1)], dtype=dtype))
        before = Snapshot.of(allocator)
        assert extend(allocator, [Grow(0, 1, -1)], dtype=dtype, swa_tail_len=1) is not None
        assert Snapshot.of(allocator).mapping[-1] == before.mapping[-1] == -1

    # --- alloc_extend_swa_tail

    def check_tail(self, allocator: Any, before: Snapshot, request: Grow, tail: int, slots: torch.Tensor) -> None:
        """Full slots for all tokens; the last ones have SWA slots, on pages of their own, and the rest have none."""
        page_size = allocator.page_size
        assert slots.dtype is torch.int64
        full, after = slots.tolist(), Snapshot.of(allocator)
        assert len(full) == request.length - request.prefix
        expected = list(before.mapping)
        for slot in full:
            expected[slot] = 0
        peers = [after.mapping[slot] for slot in full[len(full) - tail :]]
        for slot, peer in zip(full[len(full) - tail :], peers, strict=True):
            expected[slot] = peer
        full_pages = pages_taken(full, request.prefix, request.last_loc, page_size)
        swa_pages = pages_taken(peers, 0, -1, page_size)
        assert sorted(full_pages + after.full_free) == before.full_free
        assert sorted(swa_pages + after.swa_free) == before.swa_free
        assert after.mapping == expected

    @pytest.mark.parametrize("of_tail", ["none", "one", "page", "page_and_one", "all"])
    @pytest.mark.parametrize("odd", [0, 1], ids=["aligned", "unaligned"])
    def test_a_tail_gets_swa_slots_and_the_rest_none(
        self, allocator: Any, page_size: int, of_tail: str, odd: int
    ) -> None:
        request = Grow(0, 3 * page_size + odd * (page_size // 2))
        tail = {"none": 0, "one": 1, "page": page_size, "page_and_one": page_size + 1, "all": request.length}[of_tail]
        before = Snapshot.of(allocator)
        slots = extend(allocator, [request], swa_tail_len=tail)
        assert slots is not None
        self.check_tail(allocator, before, request, tail, slots)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_a_tail_goes_on_from_a_prefix(self, allocator: Any, page_size: int, dtype: torch.dtype) -> None:
        middle, boundary = begin(allocator, page_size // 2 + 1, page_size)
        for row in (boundary, middle):
            request = goes_on(row, page_size + 1)
            before = Snapshot.of(allocator)
            slots = extend(allocator, [request], dtype=dtype, swa_tail_len=1)
            assert slots is not None
            self.check_tail(allocator, before, request, 1, slots)

    @pytest.mark.parametrize("tail_pages", [0, 1])
    def test_stale_entries_of_recycled_pages_are_cleared_outside_the_tail(
        self, allocator: Any, page_size: int, tail_pages: int
    ) -> None:
        # cases.md 2: or a later free releases another request's SWA pages.
        (other,) = begin(allocator, page_size)
        peers = allocator.translate_loc_from_full_to_swa(other)
        stale = allocator.full_to_swa_index_mapping[:-1].view(-1, page_size)
        stale[[page for page in range(1, FULL_PAGES + 1) if page not in pages_of(other, page_size)]] = peers
        slots = extend(allocator, [Grow(0, 4 * page_size)], swa_tail_len=tail_pages * page_size)
        assert slots is not None
        outside = slots[: (4 - tail_pages) * page_size]
        assert allocator.translate_loc_from_full_to_swa(outside).count_nonzero() == 0
        lend(allocator.free_swa, slots[(4 - tail_pages) * page_size :])
        lend(allocator.free_full, slots)
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
        assert allocator.translate_loc_from_full_to_swa(other).tolist() == peers.tolist()

    @WIDE_PAGES
    @pytest.mark.parametrize("tail", ["next_page", "this_page"])
    def test_stale_entries_in_a_begun_page_are_cleared_outside_the_tail(
        self, allocator: Any, page_size: int, tail: str
    ) -> None:
        # cases.md 2
        row, other = begin(allocator, page_size // 2, page_size)
        peers = allocator.translate_loc_from_full_to_swa(row)
        stale = allocator.full_to_swa_index_mapping[:-1].view(-1, page_size)[pages_of(row, page_size)[0]]
        stale[page_size // 2 :] = allocator.translate_loc_from_full_to_swa(other)[page_size // 2 :]
        tokens = page_size if tail == "next_page" else page_size - page_size // 2
        slots = extend(allocator, [goes_on(row, tokens)], swa_tail_len=1)
        assert slots is not None
        assert allocator.translate_loc_from_full_to_swa(slots).count_nonzero() == 1
        assert allocator.translate_loc_from_full_to_swa(slots[-1:]).count_nonzero() == 1
        assert allocator.translate_loc_from_full_to_swa(row).tolist() == peers.tolist()

    @pytest.mark.parametrize(("full_pages", "swa_pages"), [(4, 1), (3, 8)], ids=["no_swa_room", "no_full_room"])
    def test_a_tail_without_room_in_either_pool_returns_none_and_changes_neither(
        self, make: Make, page_size: int, full_pages: int, swa_pages: int
    ) -> None:
        # cases.md 4
        allocator = make(full_pages * page_size, swa_pages * page_size, page_size, None)
        before = Snapshot.of(allocator)
        assert extend(allocator, [Grow(0, 3 * page_size + 1)], swa_tail_len=page_size + 1) is None
        assert Snapshot.of(allocator) == before
        assert extend(allocator, [Grow(0, 3 * page_size)], swa_tail_len=page_size) is not None

    def test_a_request_goes_on_from_an_aligned_tail_as_from_any_other(self, allocator: Any, page_size: int) -> None:
        length = 2 * page_size + page_size // 2 + 1
        tail = length - page_size
        row = extend(allocator, [Grow(0, length)], swa_tail_len=tail)
        assert row is not None
        before = Snapshot.of(allocator)
        check_growth(allocator, before, [goes_on(row, 1)], decode(allocator, [goes_on(row, 1)]))
        lend(allocator.free_segment, row[page_size:], start_pos=page_size)
        lend(allocator.free_full_segment, row[:page_size], start_pos=0)

    @WIDE_PAGES
    def test_a_set_finds_every_swa_page_of_an_unaligned_tail(self, allocator: Any, page_size: int) -> None:
        start = Snapshot.of(allocator)
        # The tail begins inside a full page, so full pages and SWA pages are out of step.
        slots = extend(allocator, [Grow(0, 3 * page_size)], swa_tail_len=page_size + 2)
        assert slots is not None
        assert allocator.swa_available_size() == (SWA_PAGES - 2) * page_size
        lend(allocator.free_swa, slots)
        assert allocator.swa_available_size() == SWA_PAGES * page_size
        lend(allocator.free_full, slots)
        assert Snapshot.of(allocator) == start
        slots = extend(allocator, [Grow(0, 3 * page_size)], swa_tail_len=page_size + 2)
        assert slots is not None
        lend(allocator.free, slots)
        assert Snapshot.of(allocator) == start

    # --- free

    @pytest.mark.parametrize("form", FORMS)
    def test_free_gives_back_both_sides(self, allocator: Any, page_size: int, form: str) -> None:
        before = Snapshot.of(allocator)
        kept = allocator.alloc(page_size)
        slots = allocator.alloc(3 * page_size)
        lend(allocator.free, slots, form)
        assert allocator.full_available_size() == (FULL_PAGES - 1) * page_size
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
        assert allocator.translate_loc_from_full_to_swa(slots).tolist() == [0] * len(slots)
        assert 0 not in allocator.translate_loc_from_full_to_swa(kept).tolist()
        lend(allocator.free, kept, form)
        assert Snapshot.of(allocator) == before

    @pytest.mark.parametrize("form", FORMS)
    def test_free_swa_gives_back_the_swa_side_only(self, allocator: Any, page_size: int, form: str) -> None:
        slots = allocator.alloc(3 * page_size)
        lend(allocator.free_swa, slots[: 2 * page_size], form)
        assert allocator.full_available_size() == (FULL_PAGES - 3) * page_size
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
        assert allocator.translate_loc_from_full_to_swa(slots[: 2 * page_size]).tolist() == [0] * 2 * page_size
        assert 0 not in allocator.translate_loc_from_full_to_swa(slots[2 * page_size :]).tolist()

    @WIDE_PAGES
    def test_free_swa_passes_over_what_it_has_freed_before(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(3 * page_size)
        for _ in range(2):
            lend(allocator.free_swa, slots[: 2 * page_size])
            assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size

    @pytest.mark.parametrize("form", FORMS)
    def test_free_full_gives_back_the_full_side_only(self, allocator: Any, page_size: int, form: str) -> None:
        slots = allocator.alloc(2 * page_size)
        allocator.free_swa(slots)
        lend(allocator.free_full, slots, form)
        assert allocator.full_available_size() == FULL_PAGES * page_size
        assert allocator.swa_available_size() == SWA_PAGES * page_size

    @WIDE_PAGES
    def test_free_passes_over_slots_whose_swa_side_is_gone(self, allocator: Any, page_size: int) -> None:
        # cases.md 6
        before = Snapshot.of(allocator)
        slots = allocator.alloc(3 * page_size)
        allocator.free_swa(slots[page_size : 2 * page_size])
        lend(allocator.free, slots)
        assert Snapshot.of(allocator) == before

    @WIDE_PAGES
    def test_freeing_one_slot_of_a_page_releases_the_page_once(self, allocator: Any, page_size: int) -> None:
        # cases.md 1
        slots = allocator.alloc(2 * page_size)
        for slot in (page_size // 2, page_size - 1):
            lend(allocator.free_swa, slots[slot : slot + 1])
            assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
            assert allocator.translate_loc_from_full_to_swa(slots[:page_size]).tolist() == [0] * page_size
            assert 0 not in allocator.translate_loc_from_full_to_swa(slots[page_size:]).tolist()
        lend(allocator.free_full, slots[:1])
        assert allocator.full_available_size() == (FULL_PAGES - 1) * page_size

    @WIDE_PAGES
    def test_several_slots_of_a_page_in_one_set_release_it_once(self, allocator: Any, page_size: int) -> None:
        before = Snapshot.of(allocator)
        slots = allocator.alloc(2 * page_size)
        # The first page's slots lie on both sides of the second's.
        lend(allocator.free, torch.cat((slots[1:3], slots[-2:], slots[:1])))
        assert Snapshot.of(allocator) == before

    def test_freeing_more_than_there_is_raises_and_enters_nothing(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(page_size)
        allocator.free(slots)
        with refused(allocator, "freed twice|double free"):
            allocator.free_full(slots)

    def test_what_alloc_returned_stays_the_callers_own(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(2 * page_size)
        copy = slots.tolist()
        allocator.free(slots)
        allocator.free(allocator.alloc(page_size))
        assert slots.tolist() == copy
        # And the caller may overwrite it.
        slots.zero_()
        assert Snapshot.of(allocator).full_free == list(range(1, FULL_PAGES + 1))

    # --- segments of a request's row

    @pytest.mark.parametrize("form", ROWS)
    @pytest.mark.parametrize("last", ["whole", "partial"])
    def test_a_freed_segment_gives_back_both_sides_of_its_pages(
        self, allocator: Any, page_size: int, form: str, last: str
    ) -> None:
        length = 3 * page_size - (page_size // 2 if last == "partial" else 0)
        row, other = begin(allocator, length, page_size)
        before = Snapshot.of(allocator)
        lend(allocator.free_segment, row[page_size:], form, start_pos=page_size)
        after = Snapshot.of(allocator)
        assert after.full_free == sorted([*before.full_free, *pages_of(row[page_size:], page_size)])
        assert len(after.swa_free) == len(before.swa_free) + 2
        gone = row[page_size:].tolist()
        assert after.mapping == [0 if slot in gone else peer for slot, peer in enumerate(before.mapping)]
        lend(allocator.free_segment, row[:page_size], form, start_pos=0)
        lend(allocator.free_segment, other, form, start_pos=0)
        assert allocator.available_size() == SWA_PAGES * page_size

    @pytest.mark.parametrize("form", ROWS)
    def test_a_segment_that_leaves_the_window_gives_back_the_swa_side_and_later_the_full_side(
        self, allocator: Any, page_size: int, form: str
    ) -> None:
        (row,) = begin(allocator, 3 * page_size - page_size // 2)
        before = Snapshot.of(allocator)
        lend(allocator.free_swa_segment, row[: 2 * page_size], form, start_pos=0)
        between = Snapshot.of(allocator)
        out = row[: 2 * page_size].tolist()
        assert between.full_free == before.full_free
        assert len(between.swa_free) == len(before.swa_free) + 2
        assert between.mapping == [0 if slot in out else peer for slot, peer in enumerate(before.mapping)]
        lend(allocator.free_full_segment, row[: 2 * page_size], form, start_pos=0)
        after = Snapshot.of(allocator)
        assert after == between._replace(
            full_free=sorted([*before.full_free, *pages_of(row[: 2 * page_size], page_size)])
        )
        lend(allocator.free_segment, row[2 * page_size :], form, start_pos=2 * page_size)
        assert allocator.full_available_size() == FULL_PAGES * page_size

    @WIDE_PAGES
    def test_a_segment_that_ends_inside_a_page_gives_back_the_whole_page(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, 2 * page_size)
        lend(allocator.free_segment, row[: page_size + 1], start_pos=0)
        assert allocator.full_available_size() == FULL_PAGES * page_size
        assert allocator.swa_available_size() == SWA_PAGES * page_size
        assert allocator.translate_loc_from_full_to_swa(row).count_nonzero() == 0

    @pytest.mark.parametrize("form", ROWS)
    @pytest.mark.parametrize("free", ["free_segments", "free_full_segments"])
    def test_several_segments_of_a_row_are_given_back_at_once(
        self, allocator: Any, page_size: int, form: str, free: str
    ) -> None:
        (row,) = begin(allocator, 5 * page_size - page_size // 2)
        if free == "free_full_segments":
            allocator.free_swa(row)
        segments = [(row[:page_size], 0), (row[:0], page_size), (row[2 * page_size :], 2 * page_size)]
        lend_segments(getattr(allocator, free), segments, form)
        assert allocator.full_available_size() == (FULL_PAGES - 1) * page_size
        kept = 0 if free == "free_full_segments" else 1
        assert allocator.swa_available_size() == (SWA_PAGES - kept) * page_size
        assert allocator.translate_loc_from_full_to_swa(row).count_nonzero() == kept * page_size

    def test_segments_may_come_one_by_one(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, 4 * page_size)
        allocator.free_segments((row[start : start + page_size], start) for start in (0, 2 * page_size))
        assert allocator.full_available_size() == (FULL_PAGES - 2) * page_size
        allocator.free_segments([])
        allocator.free_full_segments([])
        assert allocator.full_available_size() == (FULL_PAGES - 2) * page_size

    # --- page ids

    @pytest.mark.parametrize("form", FORMS)
    def test_freed_page_ids_give_back_both_sides_of_those_full_pages(
        self, allocator: Any, page_size: int, form: str
    ) -> None:
        before = Snapshot.of(allocator)
        slots = allocator.alloc(3 * page_size)
        pages = torch.tensor(pages_of(slots, page_size))
        lend(allocator.free_page_ids, pages[1:], form)
        assert allocator.full_available_size() == (FULL_PAGES - 1) * page_size
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
        assert allocator.translate_loc_from_full_to_swa(slots[page_size:]).count_nonzero() == 0
        lend(allocator.free_page_ids, pages[:1], form)
        assert Snapshot.of(allocator) == before

    # --- freeing nothing

    @pytest.mark.parametrize(
        "free",
        ["free", "free_swa", "free_full", "free_page_ids", "free_segment", "free_swa_segment", "free_full_segment"],
    )
    @pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped"])
    def test_freeing_nothing_changes_nothing(self, allocator: Any, page_size: int, free: str, grouped: bool) -> None:  # noqa: FBT001 - a case
        allocator.alloc(page_size)
        before = Snapshot.of(allocator)
        keywords = {"start_pos": page_size} if "segment" in free else {}
        if grouped:
            allocator.free_group_begin()
        for dtype in (torch.int32, torch.int64):
            getattr(allocator, free)(torch.tensor([], dtype=dtype), **keywords)
        if grouped:
            allocator.free_group_end()
        assert Snapshot.of(allocator) == before

    # --- groups

    def test_a_group_holds_back_what_is_freed_in_it_until_its_end(self, allocator: Any, page_size: int) -> None:
        start = Snapshot.of(allocator)
        rows = begin(allocator, page_size, page_size, page_size, page_size)
        taken = 4 * page_size
        frees: list[Callable[[torch.Tensor], None]] = [
            allocator.free,
            lambda row: allocator.free_segment(row, start_pos=0),
            lambda row: allocator.free_segments([(row, 0)]),
            lambda row: allocator.free_page_ids(row[::page_size] // page_size),
        ]
        with allocator.free_group():
            for free, row in zip(frees, rows, strict=True):
                lend(free, row, "int32_row")
                assert allocator.full_available_size() == FULL_PAGES * page_size - taken
                assert allocator.swa_available_size() == SWA_PAGES * page_size - taken
                assert allocator.available_size() == SWA_PAGES * page_size - taken
                assert not allocator.new_pages_available(FULL_PAGES - 3, 0)
                assert not allocator.new_pages_available(0, SWA_PAGES - 3)
        assert Snapshot.of(allocator) == start

    @pytest.mark.parametrize("form", ROWS)
    def test_a_group_keeps_no_view_of_the_rows_freed_in_it(self, allocator: Any, page_size: int, form: str) -> None:
        start = Snapshot.of(allocator)
        rows = begin(allocator, page_size, page_size, page_size, page_size + 1)
        with allocator.free_group():
            lend(allocator.free_segment, rows[0], form, start_pos=0)
            lend(allocator.free_swa_segment, rows[1], form, start_pos=0)
            lend(allocator.free_full_segment, rows[1], form, start_pos=0)
            lend(allocator.free_page_ids, rows[2][:1] // page_size, form)
            lend_segments(allocator.free_segments, [(rows[3][:page_size], 0), (rows[3][page_size:], page_size)], form)
        assert Snapshot.of(allocator) == start

    @pytest.mark.parametrize("form", FORMS)
    def test_a_group_keeps_no_view_of_the_sets_freed_in_it(self, allocator: Any, page_size: int, form: str) -> None:
        start = Snapshot.of(allocator)
        first, second, third = (allocator.alloc(page_size) for _ in range(3))
        with allocator.free_group():
            lend(allocator.free, first, form)
            lend(allocator.free_swa, torch.cat((second, third)), form)
            lend(allocator.free_full, second, form)
            lend(allocator.free_full, third, form)
        assert Snapshot.of(allocator) == start

    @pytest.mark.parametrize("read", ["translate", "mapping"])
    @pytest.mark.parametrize("free", ["free_segment", "free_swa_segment", "free", "free_swa", "free_page_ids"])
    def test_a_read_inside_a_group_sees_the_frees_before_it(
        self, allocator: Any, page_size: int, free: str, read: str
    ) -> None:
        row, kept = begin(allocator, 2 * page_size, page_size)
        with allocator.free_group():
            indices = row[::page_size] // page_size if free == "free_page_ids" else row
            lend(getattr(allocator, free), indices, **({"start_pos": 0} if "segment" in free else {}))
            if read == "translate":
                assert allocator.translate_loc_from_full_to_swa(row).count_nonzero() == 0
                assert allocator.translate_loc_from_full_to_swa(kept.to(torch.int32)).count_nonzero() == page_size
            else:
                assert allocator.full_to_swa_index_mapping[row].count_nonzero() == 0
                assert allocator.full_to_swa_index_mapping[kept].count_nonzero() == page_size
            # What was read is not free yet.
            assert allocator.swa_available_size() == (SWA_PAGES - 3) * page_size
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size

    @pytest.mark.parametrize("free", ["free_swa_segment", "free_swa"])
    def test_a_peer_set_inside_a_group_outlives_it_and_the_one_freed_before_does_not(
        self, allocator: Any, page_size: int, free: str
    ) -> None:
        # cases.md 3
        (row,) = begin(allocator, 2 * page_size)
        old = allocator.translate_loc_from_full_to_swa(row[:page_size])
        new = allocator.swa_attn_allocator.alloc(page_size)
        with allocator.free_group():
            lend(getattr(allocator, free), row[:page_size], **({"start_pos": 0} if "segment" in free else {}))
            allocator.set_full_to_swa_mapping(row[:page_size], new)
            assert allocator.translate_loc_from_full_to_swa(row[:page_size]).tolist() == new.tolist()
        assert allocator.translate_loc_from_full_to_swa(row[:page_size]).tolist() == new.tolist()
        swa_free = Snapshot.of(allocator).swa_free
        assert pages_of(old, page_size)[0] in swa_free
        assert pages_of(new, page_size)[0] not in swa_free
        lend(allocator.free_segment, row, start_pos=0)
        assert allocator.swa_available_size() == SWA_PAGES * page_size

    @pytest.mark.parametrize("free", ["free_swa_segment", "free_swa"])
    def test_entries_cleared_inside_a_group_do_not_lose_the_peers_freed_before(
        self, allocator: Any, page_size: int, free: str
    ) -> None:
        (row,) = begin(allocator, 2 * page_size)
        with allocator.free_group():
            lend(getattr(allocator, free), row, **({"start_pos": 0} if "segment" in free else {}))
            allocator.clear_full_to_swa_mapping(row)
            lend(allocator.free_full_segment, row, start_pos=0)
        assert allocator.swa_available_size() == SWA_PAGES * page_size
        assert allocator.full_available_size() == FULL_PAGES * page_size

    def test_allocating_inside_a_group_does_not_get_what_is_freed_in_it(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, SWA_PAGES * page_size)
        with allocator.free_group():
            lend(allocator.free_segment, row[: 2 * page_size], start_pos=0)
            lend(allocator.free, row[2 * page_size : 4 * page_size])
            before = Snapshot.of(allocator)
            assert allocator.alloc(page_size) is None
            assert extend(allocator, [Grow(0, 1)]) is None
            assert decode(allocator, [Grow(0, 1)]) is None
            assert extend(allocator, [Grow(0, 1)], swa_tail_len=1) is None
            assert Snapshot.of(allocator) == before
        assert allocator.alloc(4 * page_size) is not None

    @pytest.mark.parametrize("how", ["alloc", "extend", "decode", "tail"])
    def test_what_is_allocated_inside_a_group_outlives_it(self, allocator: Any, page_size: int, how: str) -> None:
        (row,) = begin(allocator, 2 * page_size)
        allocate: dict[str, Callable[[], torch.Tensor | None]] = {
            "alloc": lambda: allocator.alloc(page_size),
            "extend": lambda: extend(allocator, [goes_on(row, 1)]),
            "decode": lambda: decode(allocator, [goes_on(row, 1)]),
            "tail": lambda: extend(allocator, [goes_on(row, 1)], swa_tail_len=1),
        }
        with allocator.free_group():
            lend(allocator.free_swa_segment, row, start_pos=0)
            slots = allocate[how]()
            assert slots is not None
            peers = allocator.translate_loc_from_full_to_swa(slots)
            lend(allocator.free_full_segment, row, start_pos=0)
        assert peers.count_nonzero() == slots.numel()
        assert allocator.translate_loc_from_full_to_swa(slots).tolist() == peers.tolist()
        after = Snapshot.of(allocator)
        assert pages_of(slots, page_size)[0] not in after.full_free
        assert pages_of(peers, page_size)[0] not in after.swa_free
        assert len(after.full_free) == FULL_PAGES - 1
        assert len(after.swa_free) == SWA_PAGES - 1

    @WIDE_PAGES
    def test_decoding_inside_a_group_reads_the_peer_of_the_last_slot_as_it_is_now(
        self, allocator: Any, page_size: int
    ) -> None:
        row, other = begin(allocator, 1, page_size)
        with allocator.free_group():
            lend(allocator.free_segment, other, start_pos=0)
            before = Snapshot.of(allocator)
            check_growth(allocator, before, [goes_on(row, 1)], decode(allocator, [goes_on(row, 1)]))

    @WIDE_PAGES
    def test_parts_of_a_page_freed_as_sets_in_one_group_release_it_once(self, allocator: Any, page_size: int) -> None:
        start = Snapshot.of(allocator)
        slots = allocator.alloc(2 * page_size)
        with allocator.free_group():
            lend(allocator.free, slots[:1])
            lend(allocator.free, slots[1 : page_size + 1])
            lend(allocator.free, slots[page_size + 1 :])
        assert Snapshot.of(allocator) == start
        slots = allocator.alloc(2 * page_size)
        with allocator.free_group():
            lend(allocator.free_swa, slots[:1])
            lend(allocator.free_swa, slots[1:])
            lend(allocator.free_full, slots[:-1])
            lend(allocator.free_full, slots[-1:])
        assert Snapshot.of(allocator) == start

    @WIDE_PAGES
    def test_a_set_in_a_group_passes_over_what_a_segment_freed_before_it(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, 3 * page_size)
        with allocator.free_group():
            lend(allocator.free_swa_segment, row[:page_size], start_pos=0)
            lend(allocator.free_swa, row[: 2 * page_size])
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size

    def test_free_inside_a_group_gives_back_both_sides_after_a_segment_of_the_row_left_the_window(
        self, allocator: Any, page_size: int
    ) -> None:
        start = Snapshot.of(allocator)
        (row,) = begin(allocator, 3 * page_size - page_size // 2)
        with allocator.free_group():
            lend(allocator.free_swa_segment, row[:page_size], "int32_row", start_pos=0)
            lend(allocator.free_full_segment, row[:page_size], "int32_row", start_pos=0)
            lend(allocator.free_segment, row[page_size:], "int32_row", start_pos=page_size)
        assert Snapshot.of(allocator) == start

    def test_groups_do_not_nest(self, allocator: Any, page_size: int) -> None:
        start = Snapshot.of(allocator)
        slots = allocator.alloc(2 * page_size)
        allocator.free_group_begin()
        allocator.free(slots[:page_size])
        with refused(allocator, "nest"):
            allocator.free_group_begin()
        with refused(allocator, "nest"), allocator.free_group():
            pass
        # The group goes on as if nothing had been asked.
        allocator.free(slots[page_size:])
        assert allocator.full_available_size() == (FULL_PAGES - 2) * page_size
        allocator.free_group_end()
        assert Snapshot.of(allocator) == start

    def test_an_end_without_a_beginning_is_harmless(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(page_size)
        before = Snapshot.of(allocator)
        allocator.free_group_end()
        assert Snapshot.of(allocator) == before
        allocator.free(slots)
        assert allocator.available_size() == SWA_PAGES * page_size

    def test_an_empty_group_changes_nothing(self, allocator: Any, page_size: int) -> None:
        allocator.alloc(page_size)
        before = Snapshot.of(allocator)
        with allocator.free_group():
            pass
        assert Snapshot.of(allocator) == before

    def test_an_error_inside_a_group_ends_it(self, allocator: Any, page_size: int) -> None:
        start = Snapshot.of(allocator)
        (row,) = begin(allocator, 2 * page_size)

        def fail() -> None:
            with allocator.free_group():
                lend(allocator.free_segment, row[:page_size], start_pos=0)
                raise KeyError("the caller's own")

        with pytest.raises(KeyError, match="the caller's own"):
            fail()
        assert allocator.full_available_size() == (FULL_PAGES - 1) * page_size
        with allocator.free_group():
            lend(allocator.free_segment, row[page_size:], start_pos=page_size)
        assert Snapshot.of(allocator) == start

    def test_clearing_everything_inside_a_group_ends_it(self, allocator: Any, page_size: int) -> None:
        start = Snapshot.of(allocator)
        rows = begin(allocator, page_size, page_size, page_size)
        with allocator.free_group():
            lend(allocator.free_segment, rows[0], start_pos=0)
            lend(allocator.free_page_ids, rows[1][:1] // page_size)
            lend(allocator.free, rows[2])
            allocator.clear()
            assert Snapshot.of(allocator) == start
            # No group any more: what is freed is free at once.
            allocator.free(allocator.alloc(page_size))
            assert Snapshot.of(allocator) == start
        assert Snapshot.of(allocator) == start
        with allocator.free_group():
            pass

    def test_freeing_more_than_there_is_inside_a_group_raises_and_overfills_nothing(
        self, allocator: Any, page_size: int
    ) -> None:
        (row,) = begin(allocator, page_size)
        allocator.free_swa(row)

        def free_twice() -> None:
            with allocator.free_group():
                allocator.free_full_segment(row, start_pos=0)
                allocator.free_full_segment(row, start_pos=0)

        with pytest.raises(PoolError, match=r"freed twice|double free"):
            free_twice()
        after = Snapshot.of(allocator)
        assert len(after.full_free) <= FULL_PAGES
        assert len(after.swa_free) <= SWA_PAGES
        # And the group is over.
        with allocator.free_group():
            pass

    # --- the mapping

    def test_minus_one_translates_to_minus_one(self, allocator: Any, page_size: int) -> None:
        # cases.md 5
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
        lend(allocator.clear_full_to_swa_mapping, cleared, form)
        expected = [0 if slot in cleared.tolist() else peer for slot, peer in enumerate(before.mapping)]
        assert Snapshot.of(allocator) == before._replace(mapping=expected)

    @pytest.mark.parametrize("form", FORMS)
    def test_set_gives_full_slots_other_peers(self, allocator: Any, page_size: int, form: str) -> None:
        slots = allocator.alloc(2 * page_size)
        peers = allocator.translate_loc_from_full_to_swa(slots)
        allocator.set_full_to_swa_mapping(FORMS[form](slots), FORMS[form](peers.roll(page_size)))
        assert allocator.translate_loc_from_full_to_swa(slots).tolist() == peers.roll(page_size).tolist()

    def test_setting_and_clearing_nothing_changes_nothing(self, allocator: Any, page_size: int) -> None:
        allocator.alloc(page_size)
        before = Snapshot.of(allocator)
        for dtype in (torch.int32, torch.int64):
            nothing = torch.tensor([], dtype=dtype)
            allocator.clear_full_to_swa_mapping(nothing)
            allocator.set_full_to_swa_mapping(nothing, nothing)
            assert allocator.translate_loc_from_full_to_swa(nothing).tolist() == []
        assert Snapshot.of(allocator) == before

    # --- clear and resize

    def test_clear_makes_every_slot_free_and_empties_the_mapping(self, allocator: Any, page_size: int) -> None:
        before = Snapshot.of(allocator)
        slots = allocator.alloc(4 * page_size)
        allocator.free_swa(slots[:page_size])
        allocator.clear()
        assert Snapshot.of(allocator) == before
        assert allocator.alloc(SWA_PAGES * page_size) is not None

    @pytest.mark.parametrize(("full_pages", "swa_pages"), [(3, 2), (8, 6), (2, 9), (1, 1)])
    def test_resizing_within_the_table_keeps_it(
        self, make: Make, page_size: int, full_pages: int, swa_pages: int
    ) -> None:
        kvcache = KVCacheStub()
        allocator = make(FULL_PAGES * page_size, SWA_PAGES * page_size, page_size, kvcache)
        table = allocator.full_to_swa_index_mapping
        allocator.free_swa(allocator.alloc(3 * page_size)[:page_size])
        allocator.resize(config(full_pages * page_size, swa_pages * page_size))
        assert allocator.full_to_swa_index_mapping is table
        assert len(kvcache.registered) == 1
        self.check_fresh(allocator, full_pages, swa_pages)

    def test_resizing_beyond_the_table_registers_a_longer_one(self, make: Make, page_size: int) -> None:
        kvcache = KVCacheStub()
        allocator = make(FULL_PAGES * page_size, SWA_PAGES * page_size, page_size, kvcache)
        allocator.alloc(3 * page_size)
        allocator.resize(config((FULL_PAGES + 3) * page_size, SWA_PAGES * page_size))
        table = allocator.full_to_swa_index_mapping
        assert [id(mapping) for mapping in kvcache.registered[1:]] == [id(table)]
        assert table.numel() >= (FULL_PAGES + 4) * page_size + 1
        assert table.dtype is torch.int64
        self.check_fresh(allocator, FULL_PAGES + 3, SWA_PAGES)
        # Down and up again within it.
        for full_pages in (2, FULL_PAGES + 3):
            allocator.resize(config(full_pages * page_size, SWA_PAGES * page_size))
            assert allocator.full_to_swa_index_mapping is table
            self.check_fresh(allocator, full_pages, SWA_PAGES)
        assert len(kvcache.registered) == 2

    def check_fresh(self, allocator: Any, full_pages: int, swa_pages: int) -> None:
        """Everything is free, and everything works."""
        page_size = allocator.page_size
        assert (allocator.size_full, allocator.size_swa) == (full_pages * page_size, swa_pages * page_size)
        assert allocator.size == min(full_pages, swa_pages) * page_size
        assert allocator.full_attn_allocator.size == full_pages * page_size
        assert allocator.swa_attn_allocator.size == swa_pages * page_size
        start = Snapshot.of(allocator)
        assert start.full_free == list(range(1, full_pages + 1))
        assert start.swa_free == list(range(1, swa_pages + 1))
        assert set(start.mapping[:-1]) == {0}
        assert start.mapping[-1] == -1
        pages = min(full_pages, swa_pages)
        (row,) = begin(allocator, pages * page_size)
        peers = allocator.translate_loc_from_full_to_swa(row)
        assert sorted(pages_of(peers, page_size)) == list(range(1, pages + 1)) or pages < swa_pages
        assert allocator.translate_loc_from_full_to_swa(torch.tensor([-1], dtype=torch.int32)).tolist() == [-1]
        allocator.clear_full_to_swa_mapping(row[:1])
        assert allocator.full_to_swa_index_mapping[row[0]] == 0
        allocator.set_full_to_swa_mapping(row[:1], peers[:1])
        lend(allocator.free_segment, row[:page_size], "int32_row", start_pos=0)
        with allocator.free_group():
            lend(allocator.free, row[page_size:], "int32_row")
        assert Snapshot.of(allocator) == start

    @pytest.mark.parametrize(("full_pages", "swa_pages"), [(3, 2), (FULL_PAGES + 1, 2)])
    def test_resizing_inside_a_group_ends_it(
        self, allocator: Any, page_size: int, full_pages: int, swa_pages: int
    ) -> None:
        rows = begin(allocator, page_size, page_size)
        with allocator.free_group():
            lend(allocator.free_segment, rows[0], start_pos=0)
            lend(allocator.free, rows[1])
            allocator.resize(config(full_pages * page_size, swa_pages * page_size))
            self.check_fresh(allocator, full_pages, swa_pages)
        self.check_fresh(allocator, full_pages, swa_pages)

    @pytest.mark.parametrize("bad", [0, -64])
    @pytest.mark.parametrize("pool", ["full", "swa"])
    def test_an_impossible_resize_is_refused_and_changes_nothing(
        self, allocator: Any, page_size: int, pool: str, bad: int
    ) -> None:
        slots = allocator.alloc(2 * page_size)
        table = allocator.full_to_swa_index_mapping
        sizes = {"full": 2 * FULL_PAGES * page_size, "swa": 2 * SWA_PAGES * page_size, pool: bad}
        with refused(allocator, "must be"):
            allocator.resize(config(sizes["full"], sizes["swa"]))
        assert allocator.full_to_swa_index_mapping is table
        assert (allocator.size_full, allocator.size_swa) == (FULL_PAGES * page_size, SWA_PAGES * page_size)
        allocator.free(slots)
        assert allocator.available_size() == SWA_PAGES * page_size

    @WIDE_PAGES
    def test_a_resize_to_parts_of_pages_is_refused_and_changes_nothing(self, allocator: Any, page_size: int) -> None:
        allocator.alloc(page_size)
        for full, swa in ((page_size + 1, page_size), (page_size, page_size + 1)):
            with refused(allocator, f"multiple of page_size {page_size}, not {page_size + 1}"):
                allocator.resize(config(full, swa))

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

    @WIDE_PAGES
    @pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped"])
    def test_a_segment_that_starts_inside_a_page_is_refused(
        self,
        allocator: Any,
        page_size: int,
        grouped: bool,  # noqa: FBT001 - a case
    ) -> None:
        row, out = begin(allocator, 2 * page_size, 2 * page_size)
        allocator.free_swa(out)
        start = page_size // 2
        if grouped:
            allocator.free_group_begin()
        for free, segment in (("segment", row), ("swa_segment", row), ("full_segment", out)):
            with refused(allocator, f"start_pos .* page .*{start}"):
                getattr(allocator, f"free_{free}")(segment[start:], start_pos=start)
        for free, segment in (("segments", row), ("full_segments", out)):
            first = segment[:page_size]
            with refused(allocator, f"start_pos .* page .*{page_size + 1}"):
                getattr(allocator, f"free_{free}")([(first, 0), (segment[page_size + 1 :], page_size + 1)])
        if grouped:
            before = Snapshot.of(allocator)
            allocator.free_group_end()
            assert Snapshot.of(allocator) == before

    def test_segments_that_share_a_page_are_refused(self, allocator: Any, page_size: int) -> None:
        row, out = begin(allocator, 3 * page_size, 3 * page_size)
        allocator.free_swa(out)
        overlap = 2 * page_size - page_size // 2
        for free, whole in (("free_segments", row), ("free_full_segments", out)):
            with refused(allocator, "page"):
                getattr(allocator, free)([(whole[:overlap], 0), (whole[page_size:], page_size)])
            with refused(allocator, "page"):
                getattr(allocator, free)([(whole[:page_size], 0), (whole[:page_size], 0)])

    def test_an_extension_by_another_number_of_tokens_is_refused(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, page_size)
        for tokens in (0, page_size, page_size + 2, -1):
            with refused(allocator, f"{tokens}.*{page_size + 1}|{page_size + 1}.*{tokens}"):
                extend(allocator, [goes_on(row, page_size), Grow(0, 1)], tokens=tokens)
            with refused(allocator, f"{tokens}.*{page_size + 1}|{page_size + 1}.*{tokens}"):
                extend(allocator, [goes_on(row, page_size + 1)], tokens=tokens, swa_tail_len=0)

    def test_a_sequence_shorter_than_its_prefix_is_refused(self, allocator: Any, page_size: int) -> None:
        (row,) = begin(allocator, page_size + 1)
        shrinks = Grow(page_size + 1, page_size, int(row[-1]))
        with refused(allocator, f"{page_size}.*{page_size + 1}"):
            extend(allocator, [shrinks, Grow(0, 2)], tokens=1)
        with refused(allocator, f"{page_size}.*{page_size + 1}"):
            extend(allocator, [shrinks], tokens=-1, swa_tail_len=0)

    @pytest.mark.parametrize("tail", [-1, 1])
    def test_a_tail_that_the_extension_does_not_have_is_refused(
        self, allocator: Any, page_size: int, tail: int
    ) -> None:
        swa_tail_len = -1 if tail < 0 else 2 * page_size + 1
        with refused(allocator, f"swa_tail_len.*{swa_tail_len}"):
            extend(allocator, [Grow(0, 2 * page_size)], swa_tail_len=swa_tail_len)

    @pytest.mark.parametrize("requests", [[], [Grow(0, 1), Grow(0, 1)]], ids=["none", "two"])
    def test_a_tail_is_for_one_request(self, allocator: Any, requests: list[Grow]) -> None:
        with refused(allocator, f"request.*{len(requests)}|{len(requests)}.*request"):
            extend(allocator, requests, swa_tail_len=0)

    def test_lengths_and_last_slots_of_different_numbers_of_requests_are_refused(
        self, allocator: Any, page_size: int
    ) -> None:
        one, two = torch.ones(1, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
        nothing, none = torch.zeros(2, dtype=torch.int64), torch.full((1,), -1)
        with refused(allocator, "1.*2|2.*1"):
            allocator.alloc_extend(nothing, nothing, two, two, none, 2)
        with refused(allocator, "1.*2|2.*1"):
            allocator.alloc_extend(nothing[:1], nothing[:1], two, two, none.repeat(2), 2)
        with refused(allocator, "1.*2|2.*1"):
            allocator.alloc_decode(two, two, none)
        with refused(allocator, "1.*2|2.*1"):
            allocator.alloc_extend_swa_tail(nothing[:1], nothing[:1], one, one, none.repeat(2), 1, 1)
        assert allocator.available_size() == SWA_PAGES * page_size

    @pytest.mark.parametrize(
        "indices",
        [
            torch.tensor([1.0]),
            torch.tensor([True]),
            torch.tensor([[1]]),
            torch.tensor(1),
            torch.tensor([1], dtype=torch.int16),
        ],
        ids=["float", "bool", "2d", "0d", "int16"],
    )
    def test_what_is_no_list_of_indices_is_refused_everywhere(
        self, allocator: Any, page_size: int, indices: torch.Tensor
    ) -> None:
        (row,) = begin(allocator, page_size)
        one = torch.ones(1, dtype=torch.int64)
        calls: list[Callable[[], Any]] = [
            lambda: allocator.free(indices),
            lambda: allocator.free_swa(indices),
            lambda: allocator.free_full(indices),
            lambda: allocator.free_page_ids(indices),
            lambda: allocator.free_segment(indices, start_pos=0),
            lambda: allocator.free_swa_segment(indices, start_pos=0),
            lambda: allocator.free_full_segment(indices, start_pos=0),
            lambda: allocator.free_segments([(indices, 0)]),
            lambda: allocator.free_full_segments([(row[:0], 0), (indices, 0)]),
            lambda: allocator.set_full_to_swa_mapping(indices, row[:1]),
            lambda: allocator.set_full_to_swa_mapping(row[:1], indices),
            lambda: allocator.alloc_extend(one, one, one + 1, one + 1, indices, 1),
            lambda: allocator.alloc_decode(one + 1, one + 1, indices),
            lambda: allocator.alloc_extend_swa_tail(one, one, one + 1, one + 1, indices, 1, 1),
        ]
        for call in calls:
            with refused(allocator, "int32 or int64, not"):
                call()
        with allocator.free_group():
            for call in calls:
                with refused(allocator, "int32 or int64, not"):
                    call()

    @pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.bool, torch.float32])
    def test_clearing_or_translating_by_another_index_dtype_is_refused(
        self, allocator: Any, dtype: torch.dtype
    ) -> None:
        for call in (allocator.clear_full_to_swa_mapping, allocator.translate_loc_from_full_to_swa):
            with refused(allocator, f"int32 or int64, not .*{dtype}"):
                call(torch.ones(2, dtype=dtype))

    def test_set_of_unequal_lengths_is_refused_and_changes_nothing(self, allocator: Any, page_size: int) -> None:
        slots = allocator.alloc(2 * page_size)
        with refused(allocator, f"{2 * page_size} full slots .* 1 SWA slots"):
            # Length 1 would broadcast.
            allocator.set_full_to_swa_mapping(slots, slots[:1])


class PaddingContract(AllocatorContract):
    """And of an allocator that looks for padding, as on a CPU: every free passes over slots without an SWA side."""

    # These two hold at page_size 1 as well.

    def test_free_swa_passes_over_what_it_has_freed_before(self, allocator: Any, page_size: int) -> None:
        super().test_free_swa_passes_over_what_it_has_freed_before(allocator, page_size)

    def test_free_passes_over_slots_whose_swa_side_is_gone(self, allocator: Any, page_size: int) -> None:
        super().test_free_passes_over_slots_whose_swa_side_is_gone(allocator, page_size)

    def test_slot_0_and_unmapped_slots_are_passed_over_and_their_mapped_neighbours_released(
        self, allocator: Any, page_size: int
    ) -> None:
        # cases.md 6
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

    def test_a_segment_passes_over_pages_whose_swa_side_is_gone(self, allocator: Any, page_size: int) -> None:
        # cases.md 6
        before = Snapshot.of(allocator)
        (row,) = begin(allocator, 3 * page_size)
        allocator.free_swa(row[page_size : 2 * page_size])
        lend(allocator.free_swa_segment, row[: 2 * page_size], start_pos=0)
        assert allocator.swa_available_size() == (SWA_PAGES - 1) * page_size
        lend(allocator.free_segment, row, start_pos=0)
        assert Snapshot.of(allocator) == before

    def test_freed_page_ids_pass_over_an_swa_side_that_is_gone(self, allocator: Any, page_size: int) -> None:
        # cases.md 6
        before = Snapshot.of(allocator)
        slots = allocator.alloc(2 * page_size)
        allocator.free_swa(slots[:page_size])
        lend(allocator.free_page_ids, torch.tensor(pages_of(slots, page_size)))
        assert Snapshot.of(allocator) == before
