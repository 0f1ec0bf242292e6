"""Checked modes: what a caller does wrong is named at the call, or counted and told later; off, nothing is added."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from allocator_calls import Grow, Snapshot, begin, config, decode, extend, goes_on, refused
from allocator_contract import FULL_PAGES, PAGE_SIZES, SWA_PAGES, WIDE_PAGES, page_name

from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.errors import PoolError

Allocator = SWATokenToKVPoolAllocator
# free(allocator, slots), the slots being whole pages
Free = Callable[[Allocator, torch.Tensor], None]

BOTH_SIDES: dict[str, Free] = {
    "free": lambda allocator, slots: allocator.free(slots),
    "free_segment": lambda allocator, slots: allocator.free_segment(slots, start_pos=0),
    "free_segments": lambda allocator, slots: allocator.free_segments([(slots, 0)]),
    "free_page_ids": lambda allocator, slots: allocator.free_page_ids(
        torch.div(slots[:: allocator.page_size], allocator.page_size, rounding_mode="floor")
    ),
}
FULL_SIDE: dict[str, Free] = {
    "free_full": lambda allocator, slots: allocator.free_full(slots),
    "free_full_segment": lambda allocator, slots: allocator.free_full_segment(slots, start_pos=0),
    "free_full_segments": lambda allocator, slots: allocator.free_full_segments([(slots, 0)]),
}
SWA_SIDE: dict[str, Free] = {
    "free_swa": lambda allocator, slots: allocator.free_swa(slots),
    "free_swa_segment": lambda allocator, slots: allocator.free_swa_segment(slots, start_pos=0),
}
FREES = {**BOTH_SIDES, **FULL_SIDE, **SWA_SIDE}

# free_swa, given wide pages, passes over what has no SWA side.
FREES_THAT_NEED_PEERS = pytest.mark.parametrize(
    ("free", "page_size"),
    [
        pytest.param(free, page_size, id=f"{free}-{page_name(page_size)}")
        for free in FREES
        for page_size in PAGE_SIZES
        if free != "free_swa" or page_size == 1
    ],
)
GROUPED = pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped"])


@pytest.fixture(params=PAGE_SIZES, ids=page_name)
def page_size(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


def _make(page_size: int, checks: Any) -> Allocator:
    sizes = (FULL_PAGES * page_size, SWA_PAGES * page_size, page_size)
    return Allocator(*sizes, torch.bfloat16, "cpu", None, checks=checks)


@pytest.fixture
def strict(page_size: int) -> Allocator:
    return _make(page_size, "strict")


@pytest.fixture
def lax(page_size: int) -> Allocator:
    return _make(page_size, "async")


def _alloc(allocator: Allocator, pages: int) -> torch.Tensor:
    slots = allocator.alloc(pages * allocator.page_size)
    assert slots is not None
    return slots


def _named(kind: str, index: int) -> str:
    return rf"{kind}: (-?\d+, )*{index}\b"


# --- strict


@FREES_THAT_NEED_PEERS
@GROUPED
def test_strict_names_what_was_freed_before(strict: Allocator, page_size: int, free: str, grouped: bool) -> None:  # noqa: FBT001 - a case
    slots = _alloc(strict, 3)
    kept, freed = slots[:page_size], slots[page_size:]
    strict.free(freed)
    if grouped:
        strict.free_group_begin()
    index = int(freed[0]) // page_size if free == "free_page_ids" else int(freed[0])
    with refused(strict, _named("double free", index)):
        FREES[free](strict, freed)
    if grouped:
        strict.free_group_end()
    strict.free(kept)
    assert strict.full_available_size() == FULL_PAGES * page_size


@pytest.mark.parametrize("again", {**BOTH_SIDES, **FULL_SIDE})
@pytest.mark.parametrize("free", ["free_segment", "free_segments", "free_page_ids"])
def test_strict_names_at_the_call_what_the_open_group_has_freed(
    strict: Allocator, page_size: int, free: str, again: str
) -> None:
    slots = _alloc(strict, 3)
    with strict.free_group():
        BOTH_SIDES[free](strict, slots[page_size:])
        with refused(strict, "double free: "):
            FREES[again](strict, slots[page_size : 2 * page_size])
    assert strict.full_available_size() == (FULL_PAGES - 1) * page_size
    assert strict.swa_available_size() == (SWA_PAGES - 1) * page_size


@FREES_THAT_NEED_PEERS
@GROUPED
def test_strict_names_what_was_never_allocated(strict: Allocator, page_size: int, free: str, grouped: bool) -> None:  # noqa: FBT001 - a case
    slots = _alloc(strict, 2)
    beside = slots + 2 * page_size
    if grouped:
        strict.free_group_begin()
    for fresh, first in ((beside, beside[0]), (torch.cat((slots[:page_size], beside[page_size:])), beside[page_size])):
        index = int(first) // page_size if free == "free_page_ids" else int(first)
        with refused(strict, _named("never allocated", index)):
            FREES[free](strict, fresh)
    if grouped:
        strict.free_group_end()
    strict.free(slots)
    assert strict.available_size() == SWA_PAGES * page_size


def test_strict_forgets_what_was_allocated_once_everything_was_cleared(strict: Allocator, page_size: int) -> None:
    for clear in (strict.clear, lambda: strict.resize(config(10 * page_size, 8 * page_size))):
        slots = _alloc(strict, 2)
        clear()
        _alloc(strict, 1)
        with refused(strict, "never allocated: "):
            strict.free_segment(slots[page_size:], start_pos=0)


@pytest.mark.parametrize("free", ["free_segment", "free_page_ids"])
def test_strict_names_a_page_that_one_call_names_twice(strict: Allocator, page_size: int, free: str) -> None:
    slots = _alloc(strict, 2)
    twice = torch.cat((slots, slots[:page_size]))
    index = int(twice[0]) // page_size if free == "free_page_ids" else int(twice[0])
    with refused(strict, _named("double free", index)):
        BOTH_SIDES[free](strict, twice)
    BOTH_SIDES[free](strict, slots)


def test_strict_names_a_slot_that_one_set_of_single_slots_names_twice() -> None:
    allocator = _make(1, "strict")
    slots = _alloc(allocator, 2)
    for free in ("free", "free_swa"):
        with refused(allocator, _named("double free", int(slots[0]))):
            FREES[free](allocator, slots[[0, 1, 0]])


@WIDE_PAGES
def test_strict_takes_parts_of_one_page_in_one_set_for_what_they_are(strict: Allocator, page_size: int) -> None:
    slots = _alloc(strict, 2)
    strict.free_swa(slots[:3])
    strict.free_full(slots[:3])
    with strict.free_group():
        strict.free(slots[page_size : page_size + 2])
        strict.free(slots[page_size + 2 :])
    assert strict.available_size() == SWA_PAGES * page_size


@pytest.mark.parametrize("again", {**BOTH_SIDES, **FULL_SIDE})
@pytest.mark.parametrize("over", ["ended", "cleared"])
def test_strict_takes_no_sets_for_parts_of_a_page_once_their_group_is_over(
    strict: Allocator, page_size: int, again: str, over: str
) -> None:
    slots = _alloc(strict, 3)
    with strict.free_group():
        strict.free(slots[: 2 * page_size])
        if over == "cleared":
            strict.clear()
            # The same pages, anew.
            slots = _alloc(strict, 3)
    if over == "cleared":
        strict.free(slots[: 2 * page_size])
    with refused(strict, "double free: "):
        FREES[again](strict, slots[:page_size])
    strict.free(slots[2 * page_size :])
    assert strict.full_available_size() == FULL_PAGES * page_size


@pytest.mark.parametrize("free", FREES)
@GROUPED
def test_strict_names_what_lies_outside_the_pool(strict: Allocator, page_size: int, free: str, grouped: bool) -> None:  # noqa: FBT001 - a case
    slots = _alloc(strict, 1)
    end = (FULL_PAGES + 1) * page_size
    if grouped:
        strict.free_group_begin()
    for outside in (end, 2**30, -page_size):
        index = outside // page_size if free == "free_page_ids" else outside
        stray = torch.arange(outside, outside + page_size)
        for indices in (stray, torch.cat((slots, stray))):
            with refused(strict, _named("out of range", index)):
                FREES[free](strict, indices)
    if grouped:
        strict.free_group_end()
    strict.free(slots)
    assert strict.available_size() == SWA_PAGES * page_size


@GROUPED
def test_strict_names_entries_that_do_not_exist(strict: Allocator, page_size: int, grouped: bool) -> None:  # noqa: FBT001 - a case
    slots = _alloc(strict, 1)[:1]
    end = (FULL_PAGES + 1) * page_size
    if grouped:
        strict.free_group_begin()
    for outside in (end, end + 1, -2):
        stray = torch.tensor([int(slots[0]), outside])
        with refused(strict, _named("out of range", outside)):
            strict.clear_full_to_swa_mapping(stray)
        with refused(strict, _named("out of range", outside)):
            strict.translate_loc_from_full_to_swa(stray)
        with refused(strict, _named("out of range", outside)):
            strict.set_full_to_swa_mapping(stray, slots.repeat(2))
    # The sentinel may be read, and not written.
    assert strict.translate_loc_from_full_to_swa(torch.tensor([-1])).tolist() == [-1]
    for write in (strict.clear_full_to_swa_mapping, lambda index: strict.set_full_to_swa_mapping(index, slots)):
        with refused(strict, _named("out of range", -1)):
            write(torch.tensor([-1]))
    if grouped:
        strict.free_group_end()


def test_strict_checks_entries_of_a_longer_table(strict: Allocator, page_size: int) -> None:
    strict.resize(config(2 * FULL_PAGES * page_size, SWA_PAGES * page_size))
    end = (2 * FULL_PAGES + 1) * page_size
    strict.clear_full_to_swa_mapping(torch.tensor([end - 1]))
    with refused(strict, _named("out of range", end)):
        strict.clear_full_to_swa_mapping(torch.tensor([end]))
    slots = _alloc(strict, 2)
    strict.free_segment(slots, start_pos=0)
    with refused(strict, _named("double free", int(slots[0]))):
        strict.free_segment(slots, start_pos=0)


@WIDE_PAGES
@pytest.mark.parametrize("free", ["free_segment", "free_segments", "free_swa_segment", "free_full_segment"])
@GROUPED
def test_strict_names_slots_of_a_segment_that_lie_on_a_foreign_page(
    strict: Allocator,
    page_size: int,
    free: str,
    grouped: bool,  # noqa: FBT001 - a case
) -> None:
    slots = _alloc(strict, 3)
    if free in FULL_SIDE:
        strict.free_swa(slots)
    foreign = int(slots[2 * page_size + 1])
    mixed = slots[: 2 * page_size].clone()
    mixed[page_size + 1] = foreign
    if grouped:
        strict.free_group_begin()
    for form in (mixed, mixed.to(torch.int32)):
        with refused(strict, _named("foreign page", foreign)):
            FREES[free](strict, form)
    if grouped:
        strict.free_group_end()


@WIDE_PAGES
@pytest.mark.parametrize("how", ["extend", "decode", "tail"])
@pytest.mark.parametrize("whose", ["never_allocated", "freed", "outside"])
@GROUPED
def test_strict_names_a_last_slot_on_a_page_that_nobody_has(
    strict: Allocator,
    page_size: int,
    how: str,
    whose: str,
    grouped: bool,  # noqa: FBT001 - a case
) -> None:
    (row,) = begin(strict, 2)
    grow = goes_on(row, 1)
    if whose == "freed":
        strict.free_segment(row, start_pos=0)
    elif whose == "never_allocated":
        grow = grow._replace(last_loc=grow.last_loc + page_size)
    else:
        grow = grow._replace(last_loc=(FULL_PAGES + 1) * page_size + 1)
    if grouped:
        strict.free_group_begin()
    with refused(strict, _named("out of range" if whose == "outside" else "foreign page", grow.last_loc)):
        {
            "extend": lambda: extend(strict, [Grow(0, 1), grow], dtype=torch.int32),
            "decode": lambda: decode(strict, [Grow(0, 1), grow]),
            "tail": lambda: extend(strict, [grow], swa_tail_len=1),
        }[how]()
    if grouped:
        strict.free_group_end()


@WIDE_PAGES
@pytest.mark.parametrize("how", ["extend", "decode"])
def test_strict_names_a_last_slot_whose_page_goes_on_without_an_swa_side(
    strict: Allocator, page_size: int, how: str
) -> None:
    # Its SWA slot would be the one after slot 0.
    within, whole = begin(strict, 2, page_size)
    strict.free_swa_segment(within, start_pos=0)
    strict.free_swa_segment(whole, start_pos=0)
    grow = {"extend": extend, "decode": decode}[how]
    with refused(strict, _named("grown after a slot without an SWA slot", int(within[-1]))):
        grow(strict, [goes_on(whole, 1), goes_on(within, 1)])
    # On a new page nothing goes on, and a tail has SWA pages of its own.
    assert grow(strict, [goes_on(whole, 1)]) is not None
    assert extend(strict, [goes_on(within, page_size - 1)], swa_tail_len=1) is not None


@pytest.mark.parametrize("free", {**BOTH_SIDES, **SWA_SIDE})
@GROUPED
def test_strict_names_an_swa_side_that_is_gone(strict: Allocator, page_size: int, free: str, grouped: bool) -> None:  # noqa: FBT001 - a case
    slots = _alloc(strict, 3)
    if grouped:
        strict.free_group_begin()
    strict.free_swa_segment(slots[page_size:], start_pos=page_size)
    if page_size > 1 and free in {"free", "free_swa"}:
        # Such sets pass over what has no SWA side.
        FREES[free](strict, slots)
    else:
        index = int(slots[page_size]) // page_size if free == "free_page_ids" else int(slots[page_size])
        with refused(strict, _named("unmapped SWA free", index)):
            FREES[free](strict, slots)
        strict.free(slots[:page_size])
        strict.free_full(slots[page_size:])
    if grouped:
        strict.free_group_end()
    assert strict.swa_available_size() == SWA_PAGES * page_size


@pytest.mark.parametrize("free", FULL_SIDE)
@GROUPED
def test_strict_names_a_full_side_that_still_has_its_swa_side(
    strict: Allocator,
    page_size: int,
    free: str,
    grouped: bool,  # noqa: FBT001 - a case
) -> None:
    slots = _alloc(strict, 3)
    strict.free_swa(slots[:page_size])
    if grouped:
        strict.free_group_begin()
    with refused(strict, _named("full side freed before the SWA side", int(slots[page_size]))):
        FULL_SIDE[free](strict, slots)
    strict.free_swa_segment(slots[page_size:], start_pos=page_size)
    FULL_SIDE[free](strict, slots)
    if grouped:
        strict.free_group_end()
    assert strict.full_available_size() == FULL_PAGES * page_size


def test_strict_frees_none_of_several_segments_where_one_is_wrong(strict: Allocator, page_size: int) -> None:
    slots, out = _alloc(strict, 3), _alloc(strict, 3)
    strict.free_segment(slots[2 * page_size :], start_pos=2 * page_size)
    with refused(strict, "double free: "):
        strict.free_segments([(slots[:page_size], 0), (slots[2 * page_size :], 2 * page_size)])
    strict.free_swa(out)
    strict.free_full_segment(out[2 * page_size :], start_pos=2 * page_size)
    with refused(strict, "double free: "):
        strict.free_full_segments([(out[:page_size], 0), (out[2 * page_size :], 2 * page_size)])


def test_strict_names_only_the_first_of_many(page_size: int) -> None:
    allocator = Allocator(400 * page_size, 400 * page_size, page_size, torch.bfloat16, "cpu", None, checks="strict")
    with pytest.raises(PoolError) as error:
        allocator.free_page_ids(torch.arange(1, 301))
    assert len(str(error.value)) < 300
    assert re.search(r"and \d+ more", str(error.value))


def test_strict_watches_a_page_anew_each_time_that_it_is_handed_out(strict: Allocator, page_size: int) -> None:
    for free in (*BOTH_SIDES.values(),) * 3:
        slots = _alloc(strict, SWA_PAGES)
        free(strict, slots)
    assert strict.available_size() == SWA_PAGES * page_size


# --- async


class Told:
    """What the allocators' logger has told as errors."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def lines(self) -> list[str]:
        records = [record for record in self._caplog.records if record.levelno == logging.ERROR]
        assert {record.name for record in records} <= {"swa_alloc"}
        lines = [record.getMessage() for record in records]
        self._caplog.clear()
        assert all(len(line.splitlines()) == 1 for line in lines)
        return lines


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


# What is done wrong, and how many indices it names. None of it raises without checks, in a pool that is part full.
def _double_free(allocator: Allocator) -> int:
    slots = _alloc(allocator, 4)
    allocator.free_segment(slots[: allocator.page_size], start_pos=0)
    allocator.free_swa_segment(slots[allocator.page_size :], start_pos=allocator.page_size)
    allocator.free_full_segment(slots[allocator.page_size : 2 * allocator.page_size], start_pos=0)
    allocator.free_full_segment(slots[allocator.page_size : 2 * allocator.page_size], start_pos=0)
    return 1


def _never_allocated(allocator: Allocator) -> int:
    slots = _alloc(allocator, 3)
    allocator.free_full_segment(slots[: 2 * allocator.page_size] + 4 * allocator.page_size, start_pos=0)
    return 2


def _unmapped(allocator: Allocator) -> int:
    slots = _alloc(allocator, 3)
    for _ in range(2):
        allocator.free_swa_segment(slots[: 2 * allocator.page_size], start_pos=0)
    return 2


def _still_mapped(allocator: Allocator) -> int:
    slots = _alloc(allocator, 2)
    allocator.free_full_segment(slots[: allocator.page_size], start_pos=0)
    return allocator.page_size


MISTAKES: dict[str, Callable[[Allocator], int]] = {
    "double free": _double_free,
    "never allocated": _never_allocated,
    "unmapped SWA free": _unmapped,
    "full side freed before the SWA side": _still_mapped,
}
REPORTS: dict[str, Callable[[Allocator], object]] = {
    "debug_print": lambda allocator: allocator.debug_print(),
    "clear": lambda allocator: allocator.clear(),
    "resize": lambda allocator: allocator.resize(config(2 * allocator.page_size, 2 * allocator.page_size)),
    "free_swa": lambda allocator: allocator.free_swa(torch.zeros(0, dtype=torch.int64)),
}


@pytest.mark.parametrize("kind", MISTAKES)
@pytest.mark.parametrize("report", ["debug_print", "clear", "resize"])
@GROUPED
def test_async_tells_once_what_was_done_wrong_when_it_waits_anyway(
    lax: Allocator,
    told: Told,
    kind: str,
    report: str,
    grouped: bool,  # noqa: FBT001 - a case
) -> None:
    if grouped:
        lax.free_group_begin()
    count = MISTAKES[kind](lax)
    if grouped:
        lax.free_group_end()
    assert told.lines() == []
    REPORTS[report](lax)
    (line,) = told.lines()
    assert re.search(rf"\b{kind}: {count}\b", line)
    assert not any(other in line for other in MISTAKES if other != kind)
    for again in REPORTS.values():
        again(lax)
    assert told.lines() == []


@WIDE_PAGES
@pytest.mark.parametrize("free", ["free", "free_swa", "free_full"])
def test_async_tells_at_a_free_of_a_set_of_wide_pages(lax: Allocator, told: Told, page_size: int, free: str) -> None:
    _unmapped(lax)
    slots = _alloc(lax, 1)
    if free == "free_full":
        lax.free_swa_segment(slots, start_pos=0)
    assert told.lines() == []
    FREES[free](lax, slots)
    assert len(told.lines()) == 1
    assert lax.full_attn_allocator.available_size() >= (FULL_PAGES - 4) * page_size


def test_async_tells_all_kinds_in_one_line(lax: Allocator, told: Told) -> None:
    counts = {kind: MISTAKES[kind](lax) for kind in ("unmapped SWA free", "full side freed before the SWA side")}
    lax.debug_print()
    (line,) = told.lines()
    for kind, count in counts.items():
        assert f"{kind}: {count}" in line


@WIDE_PAGES
def test_async_counts_slots_of_a_segment_on_a_foreign_page(lax: Allocator, told: Told, page_size: int) -> None:
    slots = _alloc(lax, 3)
    mixed = slots[: 2 * page_size].clone()
    mixed[1], mixed[page_size + 1] = slots[-1], slots[-1]
    lax.free_segment(mixed, start_pos=0)
    lax.debug_print()
    (line,) = told.lines()
    assert "foreign page: 2" in line


@WIDE_PAGES
def test_async_counts_a_last_slot_on_a_page_that_nobody_has(lax: Allocator, told: Told, page_size: int) -> None:
    (row,) = begin(lax, 2)
    nobodys = goes_on(row, 1)._replace(last_loc=int(row[-1]) + page_size)
    for grow in (extend, decode):
        assert grow(lax, [Grow(0, 1), nobodys]) is not None
        lax.debug_print()
        (line,) = told.lines()
        assert "foreign page: 1" in line
        lax.clear()
        begin(lax, 2)


def test_async_refuses_what_is_refused_unchecked(lax: Allocator, told: Told, page_size: int) -> None:
    slots = _alloc(lax, 1)
    lax.free(slots)
    with pytest.raises(PoolError, match="freed twice"):
        lax.free_full(slots)
    lax.debug_print()
    assert any("double free: " in line for line in told.lines())
    assert lax.full_available_size() == FULL_PAGES * page_size


def test_async_counts_on_after_a_group_that_gave_back_too_much(lax: Allocator, told: Told, page_size: int) -> None:
    out, slots = _alloc(lax, 1), _alloc(lax, 3)
    lax.free_swa(torch.cat((out, slots)))

    def give_back_too_much() -> None:
        with lax.free_group():
            for _ in range(FULL_PAGES):
                lax.free_full_segment(out, start_pos=0)

    with pytest.raises(PoolError, match="freed twice"):
        give_back_too_much()
    lax.debug_print()
    assert told.lines()
    # The group is over, for the checks as well: these are no parts of a page in one group.
    for _ in range(2):
        lax.free_full(slots[:page_size])
    lax.debug_print()
    assert any("double free: " in line for line in told.lines())


# --- off


def test_unchecked_methods_are_the_plain_ones(page_size: int) -> None:
    plain, unchecked = _make(page_size, "off"), Allocator(page_size, page_size, page_size, torch.bfloat16, "cpu", None)
    assert type(unchecked) is Allocator
    assert set(vars(plain)) == set(vars(unchecked))
    for name in dir(Allocator):
        method = getattr(Allocator, name)
        if not name.startswith("_") and callable(method):
            assert getattr(unchecked, name).__func__ is method
    # The one callable of the instance's own is the mapping's, as it is where nothing checks.
    bound = [name for name, value in vars(unchecked).items() if callable(value) and not name.startswith("_")]
    assert bound == ["clear_full_to_swa_mapping"]


@pytest.mark.parametrize("checks", ["on", "", None, True])
def test_another_mode_is_refused_by_name(checks: Any) -> None:
    with pytest.raises(PoolError, match=f"checks .*{checks!r}.*off, async, strict"):
        _make(1, checks)


@pytest.mark.parametrize("checks", ["off", "async", "strict"])
def test_checks_change_nothing_of_what_legal_calls_do(page_size: int, checks: Any) -> None:
    allocator, plain = _make(page_size, checks), _make(page_size, "off")
    for one in (allocator, plain):
        row, other = begin(one, 2 * page_size, page_size)
        with one.free_group():
            one.free_swa_segment(row[:page_size], start_pos=0)
            one.free_page_ids(torch.div(other[:1], page_size, rounding_mode="floor"))
        one.free_full_segment(row[:page_size], start_pos=0)
    assert Snapshot.of(allocator) == Snapshot.of(plain)
