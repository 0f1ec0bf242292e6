"""A state machine that does to an allocator all that a caller may, beside a model of plain lists, sets and dicts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import pytest
import torch
from allocator_calls import (
    FORMS,
    OVERWRITTEN,
    ROWS,
    Grow,
    Snapshot,
    config,
    decode,
    extend,
    lend,
    lend_segments,
    pages_taken,
)
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swa_alloc.errors import PoolError

# What a request still has of one of its pages: both sides, the full side (a tombstone), or nothing.
State = Literal["both", "full", "gone"]

DTYPES = st.sampled_from([torch.int32, torch.int64])
ROW_FORMS, SET_FORMS = st.sampled_from(sorted(ROWS)), st.sampled_from(sorted(FORMS))


class Request:
    """A request's row of full slots, and what it still has of the pages under it."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.states: list[State] = []
        # An SWA tail that began inside a page: full pages and SWA pages are out of step, so its SWA side can only be
        # given back as one set, and it cannot grow on.
        self.out_of_step = False

    def __repr__(self) -> str:
        return f"<{self.row} {self.states}{' out of step' if self.out_of_step else ''}>"


class Errors(logging.Handler):
    """Keeps the messages of level ERROR."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def when_some_are(*states: State) -> Callable[[Any], Any]:
    """A rule that needs pages in one of the states."""
    return precondition(lambda self: self.pages(*states))


class AllocatorMachine(RuleBasedStateMachine):
    """Subclass it, say how to ``make`` an allocator, and with which pages."""

    page_size = 1
    # Whether it is held to AllocatorContract alone, and not to PaddingContract.
    needs_mapped_peers = False
    # Whether the full pool itself is asked to free, as SGLang's caches do.
    asks_the_full_pool = True

    def make(self, size: int, size_swa: int, page_size: int) -> Any:
        raise NotImplementedError

    # --- beginning and end

    # With lazy reads a group is looked at when it ends, so that what it puts off stays put off in the meantime.
    @initialize(full_pages=st.integers(1, 12), swa_pages=st.integers(1, 12), lazy=st.booleans(), grouped=st.booleans())
    def start(self, full_pages: int, swa_pages: int, lazy: bool, grouped: bool) -> None:  # noqa: FBT001 - drawn
        self.errors = Errors()
        logging.getLogger("swa_alloc").addHandler(self.errors)
        self.lazy = lazy
        self.allocator = self.make(full_pages * self.page_size, swa_pages * self.page_size, self.page_size)
        self.everything_is_free(full_pages, swa_pages, (full_pages + 1) * self.page_size + 1)
        self.some_requests_begin()
        if grouped:
            self.begin_a_group(as_context=False)

    def everything_is_free(self, full_pages: int, swa_pages: int, entries: int) -> None:
        self.full_pages, self.swa_pages = full_pages, swa_pages
        self.full_free = set(range(1, full_pages + 1))
        self.swa_free = set(range(1, swa_pages + 1))
        self.mapping = [0] * (entries - 1) + [-1]
        self.requests: list[Request] = []
        # SWA pages that somebody has without a full page to them.
        self.orphans: list[int] = []
        self.grouped = False
        self.held_full, self.held_swa = set[int](), set[int]()
        # Full pages that the open group has been given as sets: other parts of them may follow.
        self.held_sets = set[int]()
        self.manager: AbstractContextManager[None] | None = None

    def some_requests_begin(self) -> None:
        """Not to spend most steps on an empty pool."""
        for length in (2 * self.page_size, self.page_size + 1, 1, 3 * self.page_size):
            self.extend_batch([(Request(), length)])

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            self.allocator.free_group_end()
            self.allocator.debug_print()
            logging.getLogger("swa_alloc").removeHandler(self.errors)
            # Nothing that was done here is a violation.
            assert self.errors.messages == []

    # --- the model

    def page(self, page: int) -> range:
        """The slots of a page."""
        return range(page * self.page_size, (page + 1) * self.page_size)

    def pages(self, *states: State) -> list[tuple[Request, int]]:
        """Those pages of requests that are in one of the states; of requests out of step, none."""
        return [
            (request, position)
            for request in self.requests
            if not request.out_of_step
            for position, state in enumerate(request.states)
            if state in states
        ]

    def full_page(self, request: Request, position: int) -> int:
        return request.row[position * self.page_size] // self.page_size

    def slots_in(self, request: Request, position: int) -> list[int]:
        """The slots of a request's page that it has tokens in."""
        return request.row[position * self.page_size : (position + 1) * self.page_size]

    def is_whole(self, request: Request, position: int) -> bool:
        return len(self.slots_in(request, position)) == self.page_size

    def release_swa(self, full_pages: Sequence[int]) -> None:
        """Give back whatever SWA pages the entries of full pages name, and clear these entries."""
        slots = [slot for page in full_pages for slot in self.page(page)]
        released = {self.mapping[slot] // self.page_size for slot in slots if self.mapping[slot]}
        owner = self.held_swa if self.grouped else self.swa_free
        assert not released & (self.held_swa | self.swa_free)
        owner |= released
        for slot in slots:
            self.mapping[slot] = 0

    def release_full(self, full_pages: Sequence[int]) -> None:
        owner = self.held_full if self.grouped else self.full_free
        assert not set(full_pages) & (self.held_full | self.full_free) - self.held_sets
        owner |= set(full_pages)

    def room(self, full_pages: int, swa_pages: int) -> bool:
        return full_pages <= len(self.full_free) and swa_pages <= len(self.swa_free)

    def give(self, request: Request, slots: list[int], tail: int) -> None:
        """Take down that a request got these slots, the last ``tail`` of them with SWA slots."""
        prefix, length = len(request.row), len(request.row) + len(slots)
        last_loc = request.row[-1] if prefix else -1
        taken = pages_taken(slots, prefix, last_loc, self.page_size)
        # Each was free, and is given to nobody else.
        assert len(set(taken)) == len(taken)
        assert self.full_free.issuperset(taken)
        self.full_free -= set(taken)
        request.row += slots
        request.states += ["both" if tail else "full"] * len(taken)
        for position in range(-(-prefix // self.page_size), (length - tail) // self.page_size):
            request.states[position] = "full"

    def give_peers(self, slots: list[int], peers: list[int], position: int, last_peer: int) -> None:
        """Take down that full slots, which begin at a position of their row, got these SWA slots."""
        taken = pages_taken(peers, position, last_peer, self.page_size)
        assert len(set(taken)) == len(taken)
        assert self.swa_free.issuperset(taken)
        self.swa_free -= set(taken)
        for slot, peer in zip(slots, peers, strict=True):
            self.mapping[slot] = peer

    def can_grow(self, request: Request, *, as_tail: bool = False) -> bool:
        """Whether its last slot is still there, and, where it goes on from it on the SWA side, has a peer."""
        if request.out_of_step or (request.states and request.states[-1] == "gone"):
            return False
        in_page = len(request.row) % self.page_size
        return as_tail or not in_page or self.mapping[request.row[-1]] > 0

    def growable(self) -> list[Request]:
        return [request for request in self.requests if self.can_grow(request)]

    # --- draws

    def tokens(self, data: st.DataObject, pages: int, label: str) -> int:
        """A number of tokens, around page boundaries above all."""
        size = self.page_size
        near = st.sampled_from(sorted({0, 1, size // 2, size - 1}))
        return data.draw(st.integers(0, pages), label=label) * size + (data.draw(near) if size > 1 else 0)

    def some(self, data: st.DataObject, things: list[Any], label: str, *, least: int = 0, most: int = 3) -> list[Any]:
        """Some of ``things`` in any order."""
        if not things:
            return []
        which = st.lists(st.integers(0, len(things) - 1), unique=True, min_size=least, max_size=most)
        return [things[index] for index in data.draw(which, label=label)]

    def parts(self, data: st.DataObject, full_pages: Sequence[int]) -> torch.Tensor:
        """Some slots of each of these pages, and at least one, in any order."""
        slots: list[int] = []
        for page in full_pages:
            offsets = st.sets(st.integers(0, self.page_size - 1), min_size=1, max_size=3)
            slots += [page * self.page_size + offset for offset in data.draw(offsets, label="offsets")]
        return torch.tensor(data.draw(st.permutations(slots), label="order"), dtype=torch.int64)

    def segment(self, data: st.DataObject, state: State) -> tuple[Request, int, int, torch.Tensor] | None:
        """A request's pages side by side in one state: the request, the first, one past the last, and their slots."""
        pages = self.pages(state)
        if not pages:
            return None
        request, first = data.draw(st.sampled_from(pages), label="segment")
        end = first + 1
        while end < len(request.states) and request.states[end] == state and data.draw(st.booleans(), label="longer"):
            end += 1
        slots = request.row[first * self.page_size : end * self.page_size]
        # It may end inside its last page.
        spare = len(slots) - (end - 1 - first) * self.page_size - 1
        cut = data.draw(st.integers(0, spare), label="cut") if spare else 0
        return request, first, end, torch.tensor(slots[: len(slots) - cut])

    # --- allocation

    @rule(pages=st.integers(0, 4))
    def alloc(self, pages: int) -> None:
        slots = self.allocator.alloc(pages * self.page_size)
        if not self.room(pages, pages):
            assert slots is None
            return
        assert slots.dtype is torch.int64
        self.taken_down(slots, [(Request(), pages * self.page_size)])

    def taken_down(self, slots: torch.Tensor, grown: Sequence[tuple[Request, int]]) -> None:
        """Take down what requests were given, with a peer for every slot, and overwrite the tensor."""
        full = slots.tolist()
        # Reading through the allocator would resolve what a group has put off.
        peers = self.allocator.translate_loc_from_full_to_swa(slots).tolist()
        slots.fill_(OVERWRITTEN)
        assert len(full) == sum(tokens for _, tokens in grown)
        for request, tokens in grown:
            mine, full = full[:tokens], full[tokens:]
            theirs, peers = peers[:tokens], peers[tokens:]
            position = len(request.row)
            last_peer = self.mapping[request.row[-1]] if request.row else -1
            self.give(request, mine, tokens)
            self.give_peers(mine, theirs, position, last_peer)
            if request not in self.requests and request.row:
                self.requests.append(request)

    @rule(data=st.data(), dtype=DTYPES)
    def extend(self, data: st.DataObject, dtype: torch.dtype) -> None:
        fresh = [Request() for _ in range(data.draw(st.integers(0, 2), label="fresh"))]
        growing = self.some(data, self.growable(), "growing", least=0 if fresh else 1)
        self.extend_batch([(request, self.tokens(data, 2, "tokens")) for request in [*fresh, *growing]], dtype)

    def extend_batch(self, batch: list[tuple[Request, int]], dtype: torch.dtype = torch.int64) -> None:
        slots = extend(self.allocator, [self.grow(request, tokens) for request, tokens in batch], dtype=dtype)
        needed = sum(self.new_pages(request, tokens) for request, tokens in batch)
        if not self.room(needed, needed):
            assert slots is None
            return
        assert slots is not None
        self.taken_down(slots, batch)

    @rule(data=st.data(), dtype=DTYPES)
    def decode(self, data: st.DataObject, dtype: torch.dtype) -> None:
        growing = self.some(data, self.growable(), "growing", least=1, most=6)
        fresh = [Request() for _ in range(data.draw(st.integers(0, 1), label="fresh"))]
        batch = [(request, 1) for request in [*growing, *fresh]]
        slots = decode(self.allocator, [self.grow(request, 1) for request, _ in batch], dtype=dtype)
        needed = sum(self.new_pages(request, 1) for request, _ in batch)
        if not self.room(needed, needed):
            assert slots is None
            return
        assert slots is not None
        self.taken_down(slots, batch)

    @rule(data=st.data(), dtype=DTYPES)
    def extend_with_a_tail(self, data: st.DataObject, dtype: torch.dtype) -> None:
        growing = [request for request in self.requests if self.can_grow(request, as_tail=True)]
        request = data.draw(st.sampled_from([Request(), *growing]), label="request")
        tokens = self.tokens(data, 3, "tokens")
        tail = min(tokens, self.tokens(data, 2, "tail"))
        if data.draw(st.booleans(), label="aligned") and tail:
            # A tail that begins where a page does, or is all there is.
            tail = min(tokens, tail + (len(request.row) + tokens - tail) % self.page_size)
        slots = extend(self.allocator, [self.grow(request, tokens)], dtype=dtype, swa_tail_len=tail)
        if not self.room(self.new_pages(request, tokens), -(-tail // self.page_size)):
            assert slots is None
            return
        assert slots is not None
        full = slots.tolist()
        peers = self.allocator.translate_loc_from_full_to_swa(slots).tolist()
        slots.fill_(OVERWRITTEN)
        begins_in_page = (len(request.row) + tokens - tail) % self.page_size != 0
        self.give(request, full, tail)
        assert peers[: tokens - tail] == [0] * (tokens - tail)
        self.give_peers(full[tokens - tail :], peers[tokens - tail :], 0, -1)
        request.out_of_step |= begins_in_page and tail > 0
        if request not in self.requests and request.row:
            self.requests.append(request)

    def grow(self, request: Request, tokens: int) -> Grow:
        return Grow(len(request.row), len(request.row) + tokens, request.row[-1] if request.row else -1)

    def new_pages(self, request: Request, tokens: int) -> int:
        return -(-(len(request.row) + tokens) // self.page_size) - -(-len(request.row) // self.page_size)

    # --- segments

    @when_some_are("both")
    @rule(data=st.data(), form=ROW_FORMS)
    def free_segment(self, data: st.DataObject, form: str) -> None:
        self.free_a_segment(data, form, "both", "gone", self.allocator.free_segment)

    @when_some_are("both")
    @rule(data=st.data(), form=ROW_FORMS)
    def free_swa_segment(self, data: st.DataObject, form: str) -> None:
        self.free_a_segment(data, form, "both", "full", self.allocator.free_swa_segment)

    @when_some_are("full")
    @rule(data=st.data(), form=ROW_FORMS, of_the_pool=st.booleans())
    def free_full_segment(self, data: st.DataObject, form: str, of_the_pool: bool) -> None:  # noqa: FBT001 - drawn
        of_the_pool &= self.asks_the_full_pool
        owner = self.allocator.full_attn_allocator if of_the_pool else self.allocator
        free = owner.free_segment if of_the_pool else owner.free_full_segment
        self.free_a_segment(data, form, "full", "gone", free)

    def free_a_segment(
        self, data: st.DataObject, form: str, state: State, after: State, free: Callable[..., None]
    ) -> None:
        segment = self.segment(data, state)
        if segment is None:
            return
        request, first, end, slots = segment
        lend(free, slots, form, start_pos=first * self.page_size)
        self.passed(request, range(first, end), state, after)

    def passed(self, request: Request, positions: Sequence[int], before: State, after: State) -> None:
        """Take down that a request's pages have gone from one state to another."""
        pages = [self.full_page(request, position) for position in positions]
        if before == "both":
            self.release_swa(pages)
        if after == "gone":
            self.release_full(pages)
        for position in positions:
            request.states[position] = after

    @when_some_are("both", "full")
    @rule(data=st.data(), form=ROW_FORMS, state=st.sampled_from(["both", "full"]))
    def free_segments(self, data: st.DataObject, form: str, state: State) -> None:
        segment = self.segment(data, state)
        if segment is None:
            return
        request, first, end, slots = segment
        chosen = [*range(first, end)]
        segments = [(slots, first * self.page_size), (slots[:0], end * self.page_size)]
        for position in range(end, len(request.states)):
            if request.states[position] == state and data.draw(st.booleans(), label="one more"):
                segments.append((torch.tensor(self.slots_in(request, position)), position * self.page_size))
                chosen.append(position)
        free = self.allocator.free_segments if state == "both" else self.allocator.free_full_segments
        lend_segments(free, segments, form)
        self.passed(request, chosen, state, "gone")

    # --- sets and page ids

    @when_some_are("both", "full")
    @rule(data=st.data(), form=SET_FORMS)
    def free(self, data: st.DataObject, form: str) -> None:
        pages = self.some(data, self.pages(*self.of_sets), "pages", least=1)
        full_pages = [self.full_page(*page) for page in pages]
        again = self.parts_of_held_pages(data)
        lend(self.allocator.free, self.parts(data, [*full_pages, *again]), form)
        self.release_swa(full_pages)
        self.release_full(full_pages)
        self.held_as_sets(full_pages)
        for request, position in pages:
            request.states[position] = "gone"

    @rule(data=st.data(), form=SET_FORMS)
    def free_swa(self, data: st.DataObject, form: str) -> None:
        pages = self.some(data, self.pages(*self.of_sets), "pages", least=1)
        full_pages = [self.full_page(*page) for page in pages]
        nobodys = []
        if not self.needs_mapped_peers:
            # Padding, and pages that nobody has.
            nobodys = self.some(data, [0, *sorted(self.full_free | self.held_full)], "nobody's", most=2)
        lend(self.allocator.free_swa, self.parts(data, [*full_pages, *nobodys]), form)
        self.release_swa(full_pages)
        for request, position in pages:
            request.states[position] = "full"

    @when_some_are("full")
    @rule(data=st.data(), form=SET_FORMS)
    def free_full(self, data: st.DataObject, form: str) -> None:
        pages = self.some(data, self.pages("full"), "pages", least=1)
        full_pages = [self.full_page(*page) for page in pages]
        again = self.parts_of_held_pages(data)
        lend(self.allocator.free_full, self.parts(data, [*full_pages, *again]), form)
        self.release_full(full_pages)
        self.held_as_sets(full_pages)
        for request, position in pages:
            request.states[position] = "gone"

    @precondition(lambda self: any(request.out_of_step for request in self.requests))
    @rule(data=st.data(), form=SET_FORMS, swa_first=st.booleans())
    def free_what_is_out_of_step(self, data: st.DataObject, form: str, swa_first: bool) -> None:  # noqa: FBT001 - drawn
        request = data.draw(st.sampled_from([request for request in self.requests if request.out_of_step]))
        positions = [position for position, state in enumerate(request.states) if state != "gone"]
        full_pages = [self.full_page(request, position) for position in positions]
        slots = self.parts(data, full_pages)
        lend(self.allocator.free_swa if swa_first else self.allocator.free, slots, form)
        self.release_swa(full_pages)
        for position in positions:
            request.states[position] = "full" if swa_first else "gone"
        request.out_of_step = False
        if not swa_first:
            self.release_full(full_pages)
            self.held_as_sets(full_pages)

    @when_some_are("both")
    @rule(data=st.data(), form=SET_FORMS)
    def free_page_ids(self, data: st.DataObject, form: str) -> None:
        pages = self.some(data, self.pages("both"), "pages", least=1)
        full_pages = [self.full_page(*page) for page in pages]
        lend(self.allocator.free_page_ids, torch.tensor(full_pages, dtype=torch.int64), form)
        self.release_swa(full_pages)
        self.release_full(full_pages)
        for request, position in pages:
            request.states[position] = "gone"

    @property
    def of_sets(self) -> tuple[State, ...]:
        """What pages of a set may be; whether it passes over those whose SWA side is gone."""
        return ("both", "full") if self.page_size > 1 or not self.needs_mapped_peers else ("both",)

    def parts_of_held_pages(self, data: st.DataObject) -> list[int]:
        """Pages that the open group has been given as sets before: it releases them once."""
        return self.some(data, sorted(self.held_sets), "parts of held pages", most=2) if self.page_size > 1 else []

    def held_as_sets(self, full_pages: Sequence[int]) -> None:
        if self.grouped:
            self.held_sets |= set(full_pages)

    # --- the mapping

    @when_some_are("both")
    @rule(data=st.data(), form=SET_FORMS)
    def two_pages_exchange_their_peers(self, data: st.DataObject, form: str) -> None:
        pages = [page for page in self.pages("both") if self.is_whole(*page) and self.has_all_peers(*page)]
        chosen = self.some(data, pages, "pages", least=1, most=2)
        slots = [slot for page in chosen for slot in self.slots_in(*page)]
        peers = [self.mapping[slot] for page in reversed(chosen) for slot in self.slots_in(*page)]
        self.set_peers(slots, peers, form)

    @when_some_are("both")
    @rule(data=st.data(), form=SET_FORMS)
    def a_page_hands_its_peer_to_a_tombstone(self, data: st.DataObject, form: str) -> None:
        # SGLang's RecoverEvictedSWA.
        incoming = [page for page in self.pages("both") if self.is_whole(*page) and self.has_all_peers(*page)]
        kept = [page for page in self.pages("full") if self.is_whole(*page)]
        if not incoming or not kept:
            return
        giver, taker = data.draw(st.sampled_from(incoming)), data.draw(st.sampled_from(kept))
        slots = torch.tensor(self.slots_in(*giver))
        peers = self.allocator.translate_loc_from_full_to_swa(slots)
        assert peers.tolist() == [self.mapping[slot] for slot in slots.tolist()]
        lend(self.allocator.clear_full_to_swa_mapping, slots, form)
        for slot in slots.tolist():
            self.mapping[slot] = 0
        giver[0].states[giver[1]], taker[0].states[taker[1]] = "full", "both"
        self.set_peers(self.slots_in(*taker), peers.tolist(), form)

    @when_some_are("full")
    @rule(data=st.data(), form=SET_FORMS)
    def a_tombstone_gets_a_new_peer(self, data: st.DataObject, form: str) -> None:
        request, position = data.draw(st.sampled_from(self.pages("full")), label="page")
        peers = self.allocator.swa_attn_allocator.alloc(self.page_size)
        if not self.swa_free:
            assert peers is None
            return
        slots = self.slots_in(request, position)
        (page,) = pages_taken(peers.tolist(), 0, -1, self.page_size)
        assert page in self.swa_free
        self.swa_free.remove(page)
        self.set_peers(slots, peers.tolist()[: len(slots)], form)
        request.states[position] = "both"

    @when_some_are("both")
    @rule(data=st.data(), form=SET_FORMS)
    def a_page_loses_its_peer_to_nobody(self, data: st.DataObject, form: str) -> None:
        request, position = data.draw(st.sampled_from(self.pages("both")), label="page")
        slots = [slot for slot in self.slots_in(request, position) if self.mapping[slot]]
        self.orphans.append(self.mapping[slots[0]] // self.page_size)
        lend(self.allocator.clear_full_to_swa_mapping, torch.tensor(slots), form)
        for slot in slots:
            self.mapping[slot] = 0
        request.states[position] = "full"

    @when_some_are("both", "full")
    @rule(data=st.data(), form=SET_FORMS)
    def some_entries_are_cleared(self, data: st.DataObject, form: str) -> None:
        request, position = data.draw(st.sampled_from(self.pages("both", "full")), label="page")
        # All but the first, by which segments know the SWA page; a tombstone has none to lose.
        slots = self.slots_in(request, position)[request.states[position] == "both" :]
        cleared = self.some(data, slots, "cleared", least=1)
        lend(self.allocator.clear_full_to_swa_mapping, torch.tensor(cleared, dtype=torch.int64), form)
        for slot in cleared:
            self.mapping[slot] = 0

    # In a group it would be a matter of taste whether it is free at once.
    @precondition(lambda self: self.orphans and not self.grouped)
    @rule(form=SET_FORMS, by_page=st.booleans())
    def an_swa_page_comes_back_by_itself(self, form: str, by_page: bool) -> None:  # noqa: FBT001 - drawn
        page = self.orphans.pop()
        swa = self.allocator.swa_attn_allocator
        if by_page:
            lend(swa.free_page_ids, torch.tensor([page]), form)
        else:
            lend(swa.free, torch.tensor(self.page(page)), form)
        self.swa_free.add(page)

    def has_all_peers(self, request: Request, position: int) -> bool:
        return all(self.mapping[slot] for slot in self.slots_in(request, position))

    def set_peers(self, slots: list[int], peers: list[int], form: str) -> None:
        full, swa = (FORMS[form](torch.tensor(values, dtype=torch.int64)) for values in (slots, peers))
        self.allocator.set_full_to_swa_mapping(full, swa)
        full.fill_(OVERWRITTEN)
        swa.fill_(OVERWRITTEN)
        for slot, peer in zip(slots, peers, strict=True):
            self.mapping[slot] = peer

    @rule(data=st.data(), form=SET_FORMS)
    def translate(self, data: st.DataObject, form: str) -> None:
        within = st.integers(-1, (self.full_pages + 1) * self.page_size - 1)
        slots = data.draw(st.lists(within, max_size=3), label="any")
        slots += [self.row_slot(data, *page) for page in self.some(data, self.pages("both", "full"), "pages")]
        slots += [page * self.page_size for page in self.held_full]
        asked = FORMS[form](torch.tensor(slots, dtype=torch.int64))
        peers = self.allocator.translate_loc_from_full_to_swa(asked)
        assert peers.dtype is torch.int64
        assert peers.tolist() == [self.mapping[slot] for slot in asked.tolist()]
        assert self.allocator.full_to_swa_index_mapping.tolist() == self.mapping

    def row_slot(self, data: st.DataObject, request: Request, position: int) -> int:
        slot: int = data.draw(st.sampled_from(self.slots_in(request, position)), label="slot")
        return slot

    # --- groups

    @precondition(lambda self: not self.grouped)
    @rule(as_context=st.booleans())
    def a_group_begins(self, as_context: bool) -> None:  # noqa: FBT001 - drawn
        self.begin_a_group(as_context=as_context)

    @precondition(lambda self: self.grouped)
    @rule(failing=st.booleans(), another=st.booleans())
    def a_group_ends(self, failing: bool, another: bool) -> None:  # noqa: FBT001 - drawn
        manager, self.manager = self.manager, None
        if manager is None:
            self.allocator.free_group_end()
        elif failing:
            error = KeyError("the caller's own")
            with pytest.raises(KeyError, match="the caller's own"):
                # An error that is not handled comes out again.
                raise_unless(manager.__exit__(KeyError, error, None), error)
        else:
            manager.__exit__(None, None, None)
        self.grouped = False
        self.full_free |= self.held_full
        self.swa_free |= self.held_swa
        self.held_full, self.held_swa, self.held_sets = set(), set(), set()
        if another:
            self.everything_is_as_in_the_model()
            self.begin_a_group(as_context=failing)

    def begin_a_group(self, *, as_context: bool) -> None:
        if as_context:
            self.manager = self.allocator.free_group()
            self.manager.__enter__()
        else:
            self.allocator.free_group_begin()
        self.grouped = True

    # --- the whole

    @rule(
        full_pages=st.integers(0, 12),
        swa_pages=st.integers(0, 12),
        how=st.sampled_from([None, None, None, None, "clear", "resize"]),
    )
    def start_over(self, full_pages: int, swa_pages: int, how: str | None) -> None:
        if how is None:
            # Or no pool would ever fill.
            return
        if how == "clear":
            self.allocator.clear()
            self.everything_is_free(self.full_pages, self.swa_pages, len(self.mapping))
            self.some_requests_begin()
            return
        sizes = config(full_pages * self.page_size, swa_pages * self.page_size)
        if full_pages == 0 or swa_pages == 0:
            with pytest.raises(PoolError, match="must be"):
                self.allocator.resize(sizes)
            return
        before = len(self.mapping)
        self.allocator.resize(sizes)
        entries, needed = self.allocator.full_to_swa_index_mapping.numel(), (full_pages + 1) * self.page_size + 1
        assert entries == before if needed <= before else entries >= needed
        self.everything_is_free(full_pages, swa_pages, entries)
        self.some_requests_begin()

    # --- what is refused

    @rule(data=st.data())
    def impossible_requests_are_refused(self, data: st.DataObject) -> None:
        if self.grouped:
            with pytest.raises(PoolError, match="nest"):
                self.allocator.free_group_begin()
        else:
            # An end without a beginning is not refused, and harmless.
            self.allocator.free_group_end()
        request = data.draw(st.sampled_from([Request(), *self.growable()]), label="request")
        grow, shrink = self.grow(request, 2), self.grow(request, -1)
        row = torch.tensor(request.row, dtype=torch.int64)
        calls: list[Callable[[], object]] = [
            lambda: extend(self.allocator, [grow], tokens=1),
            lambda: extend(self.allocator, [shrink]),
            lambda: extend(self.allocator, [grow], swa_tail_len=3),
            lambda: extend(self.allocator, [grow, grow], swa_tail_len=1),
            lambda: self.allocator.alloc(-self.page_size),
            lambda: self.allocator.free(torch.tensor([1.0])),
            lambda: self.allocator.set_full_to_swa_mapping(torch.tensor([1, 1]), torch.tensor([1])),
        ]
        if self.page_size > 1:
            calls += [
                lambda: self.allocator.alloc(self.page_size + 1),
                lambda: self.allocator.free_segment(row, start_pos=1),
                lambda: self.allocator.free_segments([(torch.tensor([1]), 0), (torch.tensor([2]), 1)]),
            ]
        with pytest.raises(PoolError):
            data.draw(st.sampled_from(calls), label="call")()

    # --- after every step

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        allocator = self.allocator
        # Slots are conserved: each list holds what the model says, once.
        assert sorted(allocator.full_attn_allocator.get_all_free_pages().tolist()) == sorted(self.full_free)
        assert sorted(allocator.swa_attn_allocator.get_all_free_pages().tolist()) == sorted(self.swa_free)
        full, swa = len(self.full_free), len(self.swa_free)
        assert allocator.full_available_size() == full * self.page_size
        assert allocator.swa_available_size() == swa * self.page_size
        assert allocator.available_size() == min(full, swa) * self.page_size
        assert allocator.new_pages_available(full, swa)
        assert not allocator.new_pages_available(full + 1, swa)
        assert not allocator.new_pages_available(full, swa + 1)
        if not (self.grouped and self.lazy):
            assert allocator.full_to_swa_index_mapping.tolist() == self.mapping

    @invariant()
    def the_model_is_sound(self) -> None:
        """No full page and no SWA page has two owners; every page has one."""
        self.requests = [request for request in self.requests if any(state != "gone" for state in request.states)]
        owned = [
            self.full_page(request, position)
            for request in self.requests
            for position, state in enumerate(request.states)
            if state != "gone"
        ]
        assert sorted([*owned, *self.full_free, *self.held_full]) == list(range(1, self.full_pages + 1))
        shadows = {peer // self.page_size for peer in self.mapping[:-1] if peer}
        swa_pages = [*shadows, *self.orphans, *self.swa_free, *self.held_swa]
        assert sorted(swa_pages) == list(range(1, self.swa_pages + 1))


class StrictMachine(AllocatorMachine):
    """The same with ``checks="strict"``, and with what it must refuse."""

    needs_mapped_peers = True
    # The checks do not see it.
    asks_the_full_pool = False

    @rule(data=st.data(), form=SET_FORMS)
    def what_nobody_has_cannot_be_freed(self, data: st.DataObject, form: str) -> None:
        nobodys = self.some(data, sorted((self.full_free | self.held_full) - self.held_sets), "nobody's", most=2)
        if nobodys:
            slots = torch.tensor([slot for page in nobodys for slot in self.page(page)])
            with self.refused(r"double free|never allocated"):
                data.draw(st.sampled_from(self.frees_of(slots, form)), label="free")()

    @rule(data=st.data(), form=SET_FORMS)
    def a_full_side_cannot_be_freed_before_its_swa_side(self, data: st.DataObject, form: str) -> None:
        pages = self.some(data, self.pages("both"), "pages", least=1, most=2)
        slots = torch.tensor([slot for page in pages for slot in self.slots_in(*page)], dtype=torch.int64)
        if pages:
            with self.refused("full side"):
                lend(self.allocator.free_full, slots, form)
            position = pages[0][1] * self.page_size
            with self.refused("full side"):
                self.allocator.free_full_segment(torch.tensor(self.slots_in(*pages[0])), start_pos=position)

    @rule(data=st.data())
    def an_swa_side_that_is_gone_cannot_be_freed(self, data: st.DataObject) -> None:
        segment = self.segment(data, "full")
        if segment is not None:
            _, first, _, slots = segment
            free = data.draw(st.sampled_from([self.allocator.free_segment, self.allocator.free_swa_segment]))
            with self.refused("unmapped"):
                free(slots, start_pos=first * self.page_size)
            with self.refused("unmapped"):
                self.allocator.free_page_ids(slots[:1] // self.page_size)

    @rule(data=st.data(), beyond=st.sampled_from([-2, -1, 1, 1000]))
    def indices_outside_the_pool_are_refused(self, data: st.DataObject, beyond: int) -> None:
        last = (self.full_pages + 1) * self.page_size - 1
        slots = torch.tensor([beyond if beyond < 0 else last + beyond])
        with self.refused("out of range"):
            data.draw(st.sampled_from(self.frees_of(slots, "int64")), label="free")()

    def frees_of(self, slots: torch.Tensor, form: str) -> list[Callable[[], None]]:
        allocator = self.allocator
        return [
            lambda: lend(allocator.free, slots, form),
            lambda: lend(allocator.free_full, slots, form),
            lambda: allocator.free_segment(slots, start_pos=0),
            lambda: allocator.free_swa_segment(slots, start_pos=0),
            lambda: allocator.free_full_segment(slots, start_pos=0),
            lambda: allocator.free_segments([(slots, 0)]),
            lambda: allocator.free_full_segments([(slots, 0)]),
            lambda: allocator.free_page_ids(slots[:: self.page_size] // self.page_size),
        ]

    @contextmanager
    def refused(self, match: str) -> Iterator[None]:
        before = None if self.grouped and self.lazy else Snapshot.of(self.allocator)
        with pytest.raises(PoolError, match=match):
            yield
        assert before is None or Snapshot.of(self.allocator) == before


def raise_unless(handled: bool | None, error: Exception) -> None:  # noqa: FBT001 - what __exit__ returns
    """What ``with`` does after ``__exit__``."""
    if not handled:
        raise error
