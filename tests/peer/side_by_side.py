"""SGLang 0.5.23's allocator and ours go through the same operations and must show the same. See tests/test_sglang.py.

Which slots they hand out is their own affair. So each of the two has its own table of requests, a row of full slots
for each request, and what is compared is sizes and, token by token of every request, which slots have an SWA peer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from builders import PROPERTY
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from peer.sglang_peer import make_ours, make_sglang

# SGLang raises where an operation breaks one of its invariants, as its own CI has it.
os.environ.setdefault("SGLANG_INVARIANT_CHECK", "2")

REQUESTS, REQUEST_PAGES = 5, 12

# Pages more than there are, in the full and the SWA pool.
ROOM = [(0, 0), (1, 0), (0, 1)]

INDEX_DTYPES = st.sampled_from([torch.int32, torch.int64])


class Segment(NamedTuple):
    """Tokens ``start`` to ``end`` of a request."""

    request: int
    start: int
    end: int


class Growth(NamedTuple):
    """A request that grows from ``prefix`` tokens to ``length``."""

    request: int
    prefix: int
    length: int


def lengths(values: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """As SGLang passes lengths: on the device and on the host."""
    return torch.tensor(values), torch.tensor(values)


class Side:
    """An allocator and the full slots of each request's tokens, in int32 as in SGLang's request table."""

    def __init__(self, allocator: Any, page_size: int) -> None:
        self.allocator = allocator
        self.page_size = page_size
        self.table = torch.zeros(REQUESTS, REQUEST_PAGES * page_size, dtype=torch.int32)

    def slots(self, segments: list[Segment]) -> torch.Tensor:
        return torch.cat([self.table[request, start:end] for request, start, end in segments])

    @contextmanager
    def lent(self) -> Iterator[torch.Tensor]:
        """The table for a call; its rows change right after, as those of a request that ends do."""
        table = self.table.clone()
        yield table
        table.zero_()

    def last_loc(self, batch: list[Growth], dtype: torch.dtype) -> torch.Tensor:
        last = [self.table[request, prefix - 1].item() if prefix else -1 for request, prefix, _ in batch]
        return torch.tensor(last, dtype=dtype)

    def alloc(self, batch: list[Growth]) -> torch.Tensor | None:
        return self.allocator.alloc(sum(length - prefix for _, prefix, length in batch))

    def alloc_extend(self, batch: list[Growth], dtype: torch.dtype, **tail: int) -> torch.Tensor | None:
        method = self.allocator.alloc_extend_swa_tail if tail else self.allocator.alloc_extend
        return method(
            *lengths([growth.prefix for growth in batch]),
            *lengths([growth.length for growth in batch]),
            self.last_loc(batch, dtype),
            sum(length - prefix for _, prefix, length in batch),
            **tail,
        )

    def alloc_decode(self, batch: list[Growth], dtype: torch.dtype) -> torch.Tensor | None:
        return self.allocator.alloc_decode(*lengths([growth.length for growth in batch]), self.last_loc(batch, dtype))

    def take_swa(self, pages: int) -> torch.Tensor | None:
        """SWA pages without full ones."""
        slots: torch.Tensor | None = self.allocator.swa_attn_allocator.alloc(pages * self.page_size)
        return slots

    def sizes(self) -> dict[str, Any]:
        allocator = self.allocator
        full, swa = allocator.full_available_size(), allocator.swa_available_size()
        pages = (full // self.page_size, swa // self.page_size)
        return {
            "full": full,
            "swa": swa,
            "both": allocator.available_size(),
            "pools": (allocator.full_attn_allocator.available_size(), allocator.swa_attn_allocator.available_size()),
            "text": allocator.debug_print(),
            "fit": [
                allocator.new_pages_available(pages[0] + more_full, pages[1] + more_swa) for more_full, more_swa in ROOM
            ],
            "capacity": (allocator.size, allocator.size_full, allocator.size_swa),
        }


class SideBySide(RuleBasedStateMachine):
    """What SGLang's invariants allow, and nothing that it is known to get wrong: that has tests of its own."""

    page_size = 1

    @initialize(
        full_pages=st.integers(4, 24), swa_pages=st.integers(2, 16), need_sort=st.booleans(), reads=st.booleans()
    )
    def start(self, full_pages: int, swa_pages: int, need_sort: bool, reads: bool) -> None:  # noqa: FBT001 - Hypothesis draws it
        self.sizes = (full_pages * self.page_size, swa_pages * self.page_size)
        self.theirs, self.ours = (
            Side(make(*self.sizes, self.page_size, need_sort=need_sort), self.page_size)
            for make in (make_sglang, make_ours)
        )
        # A read resolves what ours has deferred, so half of the examples leave the mapping alone inside groups.
        self.reads = reads
        self.forget()

    def forget(self) -> None:
        self.grouped = False
        self.steps = 0
        self.freed_sets: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.length = [0] * REQUESTS
        self.owned = torch.zeros_like(self.theirs.table, dtype=torch.bool)
        self.look()

    def look(self) -> None:
        """What the requests' pages are now: with an SWA peer, or without."""
        self.peers = self.theirs.allocator.full_to_swa_index_mapping[self.theirs.table]
        first = self.owned[:, :: self.page_size]
        has_peer = self.peers[:, :: self.page_size] != 0
        self.mapped = [tuple(page) for page in (first & has_peer).nonzero().tolist()]
        self.released = [tuple(page) for page in (first & ~has_peer).nonzero().tolist()]
        self.new = [request for request, length in enumerate(self.length) if length == 0]
        # Requests that are not full and still have their last page.
        self.running = [
            request
            for request, length in enumerate(self.length)
            if 0 < length < self.owned.shape[1] and self.owned[request, length - 1]
        ]
        # Those whose next token has a place with both: on a new page, or behind a token that has an SWA peer.
        self.decoding = [
            request
            for request in self.running
            if self.length[request] % self.page_size == 0 or self.peers[request, self.length[request] - 1] != 0
        ]

    def both(self, call: Callable[[Side], Any]) -> tuple[Any, Any]:
        theirs, ours = call(self.theirs), call(self.ours)
        assert (theirs is None) == (ours is None)
        return theirs, ours

    # --- what rules choose from

    def segment(self, page: tuple[int, int]) -> Segment:
        request, number = page
        start = number * self.page_size
        return Segment(request, start, min(start + self.page_size, self.length[request]))

    def draw_pages(self, data: st.DataObject, pages: list[tuple[int, int]], most: int = 4) -> list[tuple[int, int]]:
        return data.draw(st.lists(st.sampled_from(pages), unique=True, min_size=1, max_size=most), label="pages")

    def draw_segments(self, data: st.DataObject, pages: list[tuple[int, int]]) -> list[Segment]:
        """Some pages of one request, as ascending segments that may end inside their last page."""
        request = data.draw(st.sampled_from(sorted({request for request, _ in pages})), label="request")
        chosen = sorted(self.draw_pages(data, [page for page in pages if page[0] == request]))
        apart = data.draw(st.booleans(), label="page by page")
        segments: list[Segment] = []
        for page in chosen:
            segment = self.segment(page)
            if segments and segments[-1].end == segment.start and not apart:
                segments[-1] = segments[-1]._replace(end=segment.end)
            else:
                segments.append(segment)
        short = data.draw(st.integers(0, self.page_size - 1), label="short of the end")
        last_page = (segments[-1].end - 1) // self.page_size * self.page_size
        segments[-1] = segments[-1]._replace(end=max(segments[-1].end - short, last_page + 1))
        return segments

    def draw_set(self, data: st.DataObject, pages: list[tuple[int, int]]) -> list[Segment]:
        """Single tokens of some pages, at least one of each, in any order."""
        tokens = []
        for page in self.draw_pages(data, pages):
            request, start, end = self.segment(page)
            offsets = data.draw(st.sets(st.integers(start, end - 1), min_size=1, max_size=3), label="tokens")
            tokens += [Segment(request, offset, offset + 1) for offset in offsets]
        return data.draw(st.permutations(tokens), label="order")

    def draw_growth(self, data: st.DataObject, request: int) -> Growth:
        prefix = self.length[request]
        if prefix == 0:
            prefix = self.draw_borrowed(data, request)
        pages, tokens = st.integers(0, 3), st.integers(0, self.page_size - 1)
        extend = data.draw(pages, label="pages") * self.page_size + data.draw(tokens, label="tokens")
        return Growth(request, prefix, min(prefix + extend, self.owned.shape[1]))

    def draw_borrowed(self, data: st.DataObject, request: int) -> int:
        """Tokens that a new request finds in the prefix cache: whole pages that another one owns."""
        whole = [
            page for page in (*self.mapped, *self.released) if self.length[page[0]] >= (page[1] + 1) * self.page_size
        ]
        if not whole or not data.draw(st.booleans(), label="borrow"):
            return 0
        lender, last = data.draw(st.sampled_from(whole), label="lender")
        prefix = (last + 1) * self.page_size
        for side in (self.theirs, self.ours):
            side.table[request, :prefix] = side.table[lender, :prefix]
        return prefix

    def grown(self, batch: list[Growth], taken: tuple[Any, Any]) -> None:
        if taken[0] is None:
            return
        for side, slots in zip((self.theirs, self.ours), taken, strict=True):
            assert slots.dtype is torch.int64
            pieces = slots.split([length - prefix for _, prefix, length in batch])
            for (request, prefix, length), piece in zip(batch, pieces, strict=True):
                side.table[request, prefix:length] = piece
        for request, prefix, length in batch:
            self.owned[request, prefix:length] = True
            # A request that borrowed a prefix and then grew by nothing owns nothing.
            if self.owned[request].any():
                self.length[request] = length

    def gone(self, segments: list[Segment]) -> None:
        for request, start, end in segments:
            first, last = start // self.page_size, (end - 1) // self.page_size
            tokens = slice(first * self.page_size, (last + 1) * self.page_size)
            self.owned[request, tokens] = False
            for side in (self.theirs, self.ours):
                side.table[request, tokens] = 0
            if not self.owned[request].any():
                self.length[request] = 0

    # --- allocation

    @precondition(lambda self: self.new or self.decoding)
    @rule(data=st.data(), dtype=INDEX_DTYPES)
    def extend(self, data: st.DataObject, dtype: torch.dtype) -> None:
        requests = st.lists(st.sampled_from(self.new + self.decoding), unique=True, min_size=1, max_size=3)
        batch = [self.draw_growth(data, request) for request in data.draw(requests, label="requests")]
        if self.page_size > 1:
            self.grown(batch, self.both(lambda side: side.alloc_extend(batch, dtype)))
        else:
            # SGLang extends at page_size > 1 only.
            plain = data.draw(st.booleans(), label="ours by alloc")
            ours = self.ours.alloc(batch) if plain else self.ours.alloc_extend(batch, dtype)
            self.grown(batch, self.both(lambda side: ours if side is self.ours else side.alloc(batch)))

    @precondition(lambda self: self.decoding)
    @rule(data=st.data(), dtype=INDEX_DTYPES, times=st.integers(1, 4))
    def decode(self, data: st.DataObject, dtype: torch.dtype, times: int) -> None:
        requests = data.draw(st.lists(st.sampled_from(self.decoding), unique=True, min_size=1), label="requests")
        for _ in range(times):
            batch = [
                Growth(request, self.length[request], self.length[request] + 1)
                for request in requests
                if request in self.decoding
            ]
            if not batch:
                return
            self.decode_step(batch, dtype)
            self.the_same_can_be_seen()

    def decode_step(self, batch: list[Growth], dtype: torch.dtype) -> None:
        if self.page_size == 1:
            ours = self.ours.alloc_decode(batch, dtype)
            self.grown(batch, self.both(lambda side: ours if side is self.ours else side.alloc(batch)))
            return
        need = sum(prefix % self.page_size == 0 for _, prefix, _ in batch) * self.page_size
        allocator = self.theirs.allocator
        if (need > allocator.full_available_size()) != (need > allocator.swa_available_size()):
            # SGLang would lose pages of the pool that has room.
            assert self.ours.alloc_decode(batch, dtype) is None
            return
        self.grown(batch, self.both(lambda side: side.alloc_decode(batch, dtype)))

    @precondition(lambda self: self.page_size > 1 and (self.new or self.running))
    @rule(data=st.data(), dtype=INDEX_DTYPES)
    def extend_swa_tail(self, data: st.DataObject, dtype: torch.dtype) -> None:
        # Unlike a plain extension it may follow a token without an SWA peer.
        growth = self.draw_growth(data, data.draw(st.sampled_from(self.new + self.running), label="request"))
        _, prefix, length = growth
        page_starts = range(-(-prefix // self.page_size) * self.page_size, length, self.page_size)
        tail = data.draw(st.sampled_from([0, *(length - start for start in page_starts)]), label="tail")
        self.grown([growth], self.both(lambda side: side.alloc_extend([growth], dtype, swa_tail_len=tail)))

    # --- frees of rows

    def free_rows(self, method: str, segments: list[Segment], *, plural: bool) -> None:
        def call(side: Side) -> None:
            free = getattr(side.allocator, method)
            with side.lent() as table:
                pieces = [(table[request, start:end], start) for request, start, end in segments]
                if plural:
                    free(pieces)
                    return
                for piece, start in pieces:
                    free(piece, start_pos=start)

        self.both(call)

    @precondition(lambda self: self.mapped)
    @rule(data=st.data(), plural=st.booleans())
    def free_segment(self, data: st.DataObject, plural: bool) -> None:  # noqa: FBT001 - Hypothesis draws it
        segments = self.draw_segments(data, self.mapped)
        self.free_rows("free_segments" if plural else "free_segment", segments, plural=plural)
        self.gone(segments)

    @precondition(lambda self: self.mapped)
    @rule(data=st.data())
    def free_swa_segment(self, data: st.DataObject) -> None:
        self.free_rows("free_swa_segment", self.draw_segments(data, self.mapped), plural=False)

    @precondition(lambda self: self.released)
    @rule(data=st.data(), plural=st.booleans())
    def free_full_segment(self, data: st.DataObject, plural: bool) -> None:  # noqa: FBT001 - Hypothesis draws it
        segments = self.draw_segments(data, self.released)
        self.free_rows("free_full_segments" if plural else "free_full_segment", segments, plural=plural)
        self.gone(segments)

    # --- frees of sets

    def free_set(self, method: str, tokens: list[Segment], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        freed = (self.theirs.slots(tokens).to(dtype), self.ours.slots(tokens).to(dtype))
        for side, slots in zip((self.theirs, self.ours), freed, strict=True):
            lent = slots.clone()
            getattr(side.allocator, method)(lent)
            lent.zero_()
        return freed

    @precondition(lambda self: self.mapped or (self.released and self.page_size > 1))
    @rule(data=st.data(), dtype=INDEX_DTYPES)
    def free(self, data: st.DataObject, dtype: torch.dtype) -> None:
        # At page_size 1 SGLang takes slots with an SWA peer only.
        tokens = self.draw_set(data, self.mapped + (self.released if self.page_size > 1 else []))
        self.freed_sets.append(self.free_set("free", tokens, dtype))
        self.gone(tokens)

    @precondition(lambda self: self.grouped and self.freed_sets and self.page_size > 1)
    @rule(data=st.data())
    def free_once_more_in_the_group(self, data: st.DataObject) -> None:
        # Callers free a page in parts; nobody can have been given it before the group ends.
        theirs, ours = data.draw(st.sampled_from(self.freed_sets), label="freed")
        self.theirs.allocator.free(theirs)
        self.ours.allocator.free(ours)

    @precondition(lambda self: self.mapped or (self.released and self.page_size > 1))
    @rule(data=st.data(), dtype=INDEX_DTYPES)
    def free_swa(self, data: st.DataObject, dtype: torch.dtype) -> None:
        self.free_set(
            "free_swa", self.draw_set(data, self.mapped + (self.released if self.page_size > 1 else [])), dtype
        )

    @precondition(lambda self: self.released)
    @rule(data=st.data(), dtype=INDEX_DTYPES)
    def free_full(self, data: st.DataObject, dtype: torch.dtype) -> None:
        tokens = self.draw_set(data, self.released)
        self.freed_sets.append(self.free_set("free_full", tokens, dtype))
        self.gone(tokens)

    # --- what caches do with the mapping

    @precondition(lambda self: self.mapped and self.released)
    @rule(data=st.data(), dtype=INDEX_DTYPES)
    def move_peers(self, data: st.DataObject, dtype: torch.dtype) -> None:
        """A cached page that had lost its SWA peer takes that of a newer copy."""
        source = self.segment(data.draw(st.sampled_from(self.mapped), label="from"))
        target = self.segment(data.draw(st.sampled_from(self.released), label="to"))
        count = min(source.end - source.start, target.end - target.start)

        def move(side: Side) -> None:
            peers = side.allocator.translate_loc_from_full_to_swa(side.slots([source]).to(dtype))
            side.allocator.clear_full_to_swa_mapping(side.slots([source]).to(dtype))
            side.allocator.set_full_to_swa_mapping(side.slots([target])[:count].to(dtype), peers[:count].to(dtype))

        self.both(move)

    @precondition(lambda self: self.mapped)
    @rule(data=st.data())
    def swap_peers(self, data: st.DataObject) -> None:
        one, other = (self.segment(data.draw(st.sampled_from(self.mapped), label="page")) for _ in range(2))
        if one.end - one.start != other.end - other.start:
            return

        def swap(side: Side) -> None:
            pair = side.slots([one, other])
            peers = side.allocator.translate_loc_from_full_to_swa(pair)
            side.allocator.set_full_to_swa_mapping(pair, peers.roll(one.end - one.start))

        self.both(swap)

    @precondition(lambda self: self.released)
    @rule(data=st.data())
    def load_back(self, data: st.DataObject) -> None:
        """Pages whose SWA side comes back from the host."""
        segments = [self.segment(page) for page in self.draw_pages(data, self.released)]

        def load(side: Side) -> bool | None:
            peers = side.take_swa(len(segments))
            if peers is None:
                return None
            rows = zip(peers.view(-1, side.page_size), segments, strict=True)
            peers = torch.cat([row[: segment.end - segment.start] for row, segment in rows])
            side.allocator.set_full_to_swa_mapping(side.slots(segments), peers)
            return True

        self.both(load)

    @precondition(lambda self: self.mapped)
    @rule(data=st.data(), dtype=INDEX_DTYPES)
    def release_by_hand(self, data: st.DataObject, dtype: torch.dtype) -> None:
        segments = [self.segment(page) for page in self.draw_pages(data, self.mapped)]

        def release(side: Side) -> None:
            slots = side.slots(segments).to(dtype)
            peers = side.allocator.translate_loc_from_full_to_swa(slots)
            side.allocator.clear_full_to_swa_mapping(slots)
            side.allocator.swa_attn_allocator.free(peers[peers > 0])

        self.both(release)

    @rule(dtype=INDEX_DTYPES)
    def translate(self, dtype: torch.dtype) -> None:
        def ask(side: Side) -> torch.Tensor:
            padding = torch.tensor([-1, 0], dtype=dtype)
            slots = torch.cat((padding, side.table[self.owned].to(dtype)))
            return side.allocator.translate_loc_from_full_to_swa(slots)

        theirs, ours = self.both(ask)
        assert theirs[:2].tolist() == ours[:2].tolist() == [-1, 0]
        assert torch.equal(ours != 0, theirs != 0)

    # --- groups, and starting over

    @precondition(lambda self: not self.grouped)
    @rule()
    def free_group_begin(self) -> None:
        self.both(lambda side: side.allocator.free_group_begin())
        self.grouped = True
        self.freed_sets = []

    @precondition(lambda self: self.grouped)
    @rule()
    def free_group_end(self) -> None:
        self.both(lambda side: side.allocator.free_group_end())
        self.grouped = False

    # Any earlier, and no example gets far.
    @precondition(lambda self: self.steps > 12)
    @rule(data=st.data(), end=st.booleans())
    def start_over(self, data: st.DataObject, end: bool) -> None:  # noqa: FBT001 - Hypothesis draws it
        grouped = self.grouped
        if data.draw(st.booleans(), label="resize"):
            full, swa = (data.draw(st.integers(1, most // self.page_size), label="pages") for most in self.sizes)
            config = SimpleNamespace(
                full_max_total_num_tokens=full * self.page_size, swa_max_total_num_tokens=swa * self.page_size
            )
            self.both(lambda side: side.allocator.resize(config))
        else:
            self.both(lambda side: side.allocator.clear())
        self.forget()
        if grouped and end:
            # It has ended with the clear; whoever began it does not know.
            self.both(lambda side: side.allocator.free_group_end())

    # --- what must agree

    @invariant()
    def the_same_can_be_seen(self) -> None:
        self.steps += 1
        self.look()
        assert self.ours.sizes() == self.theirs.sizes()
        if self.reads or not self.grouped:
            self.check_mappings()

    def check_mappings(self) -> None:
        has_peer = {}
        for name, side in (("sglang", self.theirs), ("ours", self.ours)):
            allocator = side.allocator
            mapping = allocator.full_to_swa_index_mapping
            assert mapping[-1] == -1
            full = side.table[self.owned]
            peers = mapping[full]
            has_peer[name] = (peers != 0, mapping[:-1].count_nonzero())
            offsets = torch.arange(self.owned.shape[1]).expand_as(self.owned)[self.owned] % self.page_size
            for slots, pool, at in (
                (full, allocator.full_attn_allocator, offsets),
                (peers[peers != 0], allocator.swa_attn_allocator, offsets[peers != 0]),
            ):
                assert torch.equal(slots % self.page_size, at)
                pages = torch.unique(slots // self.page_size)
                free = pool.get_all_free_pages()
                # No slot has two owners, and nobody's page is free.
                assert len(torch.unique(slots)) == len(slots)
                assert len(torch.unique(torch.cat((pages, free)))) == len(pages) + len(free)
        assert torch.equal(has_peer["ours"][0], has_peer["sglang"][0])
        assert has_peer["ours"][1] == has_peer["sglang"][1]

    def teardown(self) -> None:
        if not hasattr(self, "owned"):
            return
        if self.grouped:
            self.free_group_end()
        self.look()
        for method, pages in (("free_segment", self.mapped), ("free_full_segment", self.released)):
            self.free_rows(method, [self.segment(page) for page in pages], plural=False)
        for side in (self.theirs, self.ours):
            allocator = side.allocator
            assert allocator.full_available_size() == allocator.size_full
            assert allocator.swa_available_size() == allocator.size_swa
            assert allocator.full_to_swa_index_mapping.count_nonzero() == 1


def machine(page_size: int) -> Any:
    case = type(f"Page{page_size}", (SideBySide,), {"page_size": page_size}).TestCase
    # Explaining a failure takes minutes here, and several at once more.
    phases = [phase for phase in Phase if phase is not Phase.explain]
    case.settings = settings(
        PROPERTY, max_examples=50, stateful_step_count=40, phases=phases, report_multiple_bugs=False
    )
    return case


TestPage1 = machine(1)
TestPage4 = machine(4)
TestPage64 = machine(64)
