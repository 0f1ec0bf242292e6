"""Where SGLang 0.5.23's allocator goes wrong and ours does not; side_by_side.py keeps away from these.

Each test shows both, so that one that SGLang mends is noticed. See tests/test_sglang.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peer.sglang_peer import make_ours, make_sglang

from swa_alloc.errors import PoolError


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang looks for broken invariants in its CI only."""
    monkeypatch.setenv("SGLANG_INVARIANT_CHECK", "0")


def both(size: int, size_swa: int, page_size: int) -> tuple[Any, Any]:
    return make_sglang(size, size_swa, page_size), make_ours(size, size_swa, page_size)


def extend(allocator: Any, prefix: int, length: int, last_loc: int, *more: int, tail: int | None = None) -> Any:
    """One request that grows; ``more`` is what is said to be its number of new tokens."""
    method = allocator.alloc_extend if tail is None else allocator.alloc_extend_swa_tail
    prefixes, seq_lens = torch.tensor([prefix]), torch.tensor([length])
    (tokens,) = more or (length - prefix,)
    tails = () if tail is None else (tail,)
    return method(prefixes, prefixes, seq_lens, seq_lens, torch.tensor([last_loc]), tokens, *tails)


def sizes(allocator: Any) -> tuple[int, int]:
    return allocator.full_available_size(), allocator.swa_available_size()


def free_pages(pool: Any) -> list[int]:
    return sorted(pool.get_all_free_pages().tolist())


@pytest.mark.parametrize(("full", "swa"), [(32, 8), (8, 32)], ids=["no_swa_room", "no_full_room"])
def test_a_decode_step_without_room_in_one_pool_costs_sglang_pages_of_the_other(full: int, swa: int) -> None:
    theirs, ours = both(full, swa, 4)
    for allocator in (theirs, ours):
        rows = [extend(allocator, 0, 4, -1) for _ in range(2)]
        before = sizes(allocator)
        seq_lens = torch.tensor([5, 5])
        assert allocator.alloc_decode(seq_lens, seq_lens, torch.stack([row[-1] for row in rows])) is None
        lost = sum(before) - sum(sizes(allocator))
        assert lost == (8 if allocator is theirs else 0)


def recycled(allocator: Any) -> torch.Tensor:
    """The row of a request whose full side was freed by hand, so that free pages carry its entries."""
    row = extend(allocator, 0, 8, -1)
    allocator.full_attn_allocator.free(row)
    return row


def test_a_tail_of_nothing_leaves_sglang_an_earlier_requests_entries_and_their_owner_loses_its_slots() -> None:
    theirs, ours = both(8, 16, 4)
    for allocator in (theirs, ours):
        recycled(allocator)
        row = extend(allocator, 0, 8, -1, tail=0)
        stale = allocator.full_to_swa_index_mapping[row].count_nonzero()
        allocator.free(row)
        assert (stale, allocator.swa_available_size()) == ((8, 16) if allocator is theirs else (0, 8))


def test_a_page_that_is_filled_in_part_keeps_an_earlier_requests_entries_behind_its_end_in_sglang() -> None:
    theirs, ours = both(8, 16, 4)
    for allocator in (theirs, ours):
        recycled(allocator)
        row = extend(allocator, 0, 2, -1)
        behind = allocator.full_to_swa_index_mapping[row[-1] + 1 : row[-1] + 3].count_nonzero()
        assert behind == (2 if allocator is theirs else 0)


def test_freeing_an_swa_side_twice_makes_sglang_hand_out_padding_at_page_size_1() -> None:
    theirs, ours = both(8, 8, 1)
    for allocator in (theirs, ours):
        slots = allocator.alloc(3)
        for _ in range(2):
            allocator.free_swa(slots[:1])
        assert (0 in free_pages(allocator.swa_attn_allocator)) == (allocator is theirs)
        assert allocator.swa_available_size() == (7 if allocator is theirs else 6)


def test_freeing_a_row_without_its_swa_side_makes_sglang_hand_out_padding() -> None:
    theirs, ours = both(32, 32, 4)
    for allocator in (theirs, ours):
        row = extend(allocator, 0, 16, -1)
        allocator.free_swa_segment(row[:8], start_pos=0)
        allocator.free_segment(row[:8], start_pos=0)
        assert free_pages(allocator.swa_attn_allocator).count(0) == (2 if allocator is theirs else 0)


@pytest.mark.parametrize("page_size", [1, 4])
def test_freeing_a_set_with_padding_in_it_makes_sglang_hand_it_out(page_size: int) -> None:
    theirs, ours = both(8 * page_size, 8 * page_size, page_size)
    for allocator in (theirs, ours):
        slots = allocator.alloc(2) if page_size == 1 else extend(allocator, 0, 2 * page_size, -1)
        allocator.free(torch.cat((slots[:page_size], torch.zeros(1, dtype=torch.int64))))
        assert (0 in free_pages(allocator.full_attn_allocator)) == (allocator is theirs)


def test_freeing_more_than_there_is_is_noticed_by_sglang_after_the_fact() -> None:
    theirs, ours = both(16, 16, 4)
    for allocator, error in ((theirs, AssertionError), (ours, PoolError)):
        row = extend(allocator, 0, 4, -1)
        allocator.free(row)
        with pytest.raises(error):
            allocator.free(row)
        assert allocator.full_available_size() == (20 if allocator is theirs else 16)


def test_segments_that_share_a_page_are_noticed_by_sglang_when_the_first_is_gone() -> None:
    theirs, ours = both(16, 16, 4)
    for allocator, error in ((theirs, AssertionError), (ours, PoolError)):
        row = extend(allocator, 0, 12, -1)
        with pytest.raises(error, match="shares a page"):
            allocator.free_segments([(row[:6], 0), (row[4:], 4)])
        assert sizes(allocator) == ((12, 12) if allocator is theirs else (4, 4))


def test_lengths_that_do_not_add_up_leave_sglang_with_slots_that_nobody_has() -> None:
    theirs, ours = both(16, 16, 4)
    assert extend(theirs, 0, 8, -1, 4).tolist() == [4, 5, 6, 7]
    assert sizes(theirs) == (8, 8)
    with pytest.raises(PoolError, match="extend_num_tokens"):
        extend(ours, 0, 8, -1, 4)
    assert sizes(ours) == (16, 16)


def test_a_negative_number_of_slots_is_all_but_so_many_to_sglang() -> None:
    theirs, ours = both(8, 8, 1)
    assert len(theirs.alloc(-1)) == 7
    with pytest.raises(PoolError, match="need_size"):
        ours.alloc(-1)
    assert sizes(ours) == (8, 8)


def test_a_sentinel_that_was_overwritten_stays_so_in_sglang_after_a_clear() -> None:
    theirs, ours = both(16, 16, 4)
    for allocator in (theirs, ours):
        allocator.full_to_swa_index_mapping[-1] = 9
        allocator.clear()
        assert allocator.full_to_swa_index_mapping[-1] == (9 if allocator is theirs else -1)


def test_sglang_allocates_by_number_at_page_size_1_only_and_by_length_above_only() -> None:
    theirs, ours = both(16, 16, 4)
    with pytest.raises(AssertionError):
        theirs.alloc(4)
    assert len(ours.alloc(4)) == 4
    theirs, ours = both(16, 16, 1)
    with pytest.raises(AssertionError):
        extend(theirs, 0, 3, -1)
    assert len(extend(ours, 0, 3, -1)) == 3
