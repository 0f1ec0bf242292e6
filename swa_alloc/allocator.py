"""SWATokenToKVPoolAllocator: the full pool, the SWA pool and the mapping between them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from swa_alloc.checks import Checks, watch
from swa_alloc.errors import PoolError
from swa_alloc.extend import joined, plan_extension
from swa_alloc.mapping import FullToSWAMapping
from swa_alloc.pool import PoolAllocator, Segment, check_indices, check_sizes, united
from swa_alloc.selection import OnMissing, Overrides, Pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from swa_alloc.operations import Objective
    from swa_alloc.profile import StrategyProfile


class KVCache(Protocol):
    """What the allocator asks of the KV cache that it allocates for."""

    def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
        """Keep the mapping; attention reads it."""


class PoolSizes(Protocol):
    """What ``resize`` reads of SGLang's memory pool configuration: the sizes of the pools in slots."""

    full_max_total_num_tokens: int
    swa_max_total_num_tokens: int


class _FreeGroup(NamedTuple):
    """What an open free group has not done yet.

    Attributes:
        swa_segments: One slot a page, of full slots whose SWA peers are to be read, cleared and freed.
        full_segments: One slot a page, of full slots to be freed.
        swa_pages: SWA pages to be freed, each once.
        swa_page_sets: Sets of SWA pages to be freed, which may share some.
        clear: What ``clear_full_to_swa_mapping`` was.
    """

    swa_segments: list[torch.Tensor]
    full_segments: list[torch.Tensor]
    swa_pages: list[torch.Tensor]
    swa_page_sets: list[torch.Tensor]
    clear: Callable[[torch.Tensor], None]


class SWATokenToKVPoolAllocator:
    """Allocates KV slots for models that mix full-attention and sliding-window layers.

    A full slot that is handed out is shadowed by an SWA slot until that is freed. Names, signatures and meaning follow
    SGLang 0.5.23's class of the same name (sglang/srt/mem_cache/allocator/swa.py). Whatever ``alloc`` method finds no
    room in one of the pools returns None and has changed neither.

    Row segments, slices of a request's row in the int32 request table that begin at a page's first token, are the fast
    way to free: nothing waits for the device, and within a free group those of many requests become one read, one
    clear and one release. Frees of arbitrary sets synchronize on a device at ``page_size > 1``.

    No other thread may call it at the same time.

    Args:
        size: Slots in the full pool.
        size_swa: Slots in the SWA pool.
        page_size: Slots in a page; divides both sizes.
        dtype: Of the KV cache; kept for callers.
        device: Where indices and mapping live.
        kvcache: Gets ``register_mapping(mapping)``; None for no cache.
        need_sort: Whether to hand out ascending slots for as long as possible.
        profile: A ``StrategyProfile`` or the path of one; beats the stores.
        strategy: A pin, ``"index_fill"`` or ``"clear.token=index_fill,clear.page=index_copy"``; beats every profile.
        on_missing: What to do where no profile fits: ``"calibrate"`` (the default), ``"default"`` or ``"error"``.
        strict_profile: Raise where a profile or pin cannot be used, instead of a warning and the default strategy.
        objective: Use what a profile decided for ``"serving"`` or for ``"latency"``; its own objective by default.
        checks: ``"off"``: a caller's mistakes are seen only where that costs nothing. ``"async"``: they are counted on
            the device, and logged at the next natural synchronization. ``"strict"``: they raise at the call, which
            waits for the device. See ``swa_alloc.checks``.

    Attributes:
        full_attn_allocator: The full pool.
        swa_attn_allocator: The SWA pool.
        page_size, dtype, device, need_sort: As passed in.
        clear_full_to_swa_mapping: ``(full_indices)`` sets the entries of ``[k]`` full slots to 0. int32 or int64, any
            order, duplicates and strided views allowed, k = 0 allowed. Bound to the tuned strategy when constructed,
            and to another callable while a free group is open: look it up at each call. Raises ``PoolError`` for
            another dtype.

    Raises:
        PoolError: the sizes are not positive whole numbers, the page size does not divide them, or ``checks`` is none
            of the three.
        ProfileError, StrategyError, CalibrationError: as ``strict_profile`` and ``on_missing`` asked for.
    """

    clear_full_to_swa_mapping: Callable[[torch.Tensor], None]

    def __init__(  # noqa: PLR0913 - SGLang's signature, and the keywords of this project
        self,
        size: int,
        size_swa: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: KVCache | None,
        need_sort: bool = False,  # noqa: FBT001, FBT002 - positional in SGLang's signature
        *,
        profile: StrategyProfile | str | Path | None = None,
        strategy: Pin | None = None,
        on_missing: OnMissing | None = None,
        strict_profile: bool = False,
        objective: Objective | None = None,
        checks: Checks = "off",
    ) -> None:
        check_sizes(size=size, size_swa=size_swa, page_size=page_size)
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        self._kvcache = kvcache
        self.need_sort = need_sort
        where = torch.device(device)
        self._overrides = Overrides(profile, strategy, on_missing, strict_profile, objective)
        # What inference mode makes cannot be written outside it.
        with torch.inference_mode(mode=False):
            self.full_attn_allocator = PoolAllocator(size, page_size, where, need_sort=need_sort)
            self.swa_attn_allocator = PoolAllocator(size_swa, page_size, where, need_sort=need_sort)
            self._zeros = torch.zeros(page_size, dtype=torch.int64, device=where)
            self._row_shape = () if page_size == 1 else (page_size,)
            self._use(FullToSWAMapping.allocate(size, page_size, where, self._overrides))
            self._group: _FreeGroup | None = None
            watch(self, checks)

    # --- sizes

    @property
    def full_to_swa_index_mapping(self) -> torch.Tensor:
        """``[size + page_size + 1]`` int64: each full slot's SWA slot, 0 for none; the last entry is -1."""
        self._settle()
        return self._mapping.tensor

    @property
    def size(self) -> int:
        """Slots that can be handed out with both sides."""
        return min(self.size_full, self.size_swa)

    @property
    def size_full(self) -> int:
        """Slots in the full pool."""
        return self.full_attn_allocator.size

    @property
    def size_swa(self) -> int:
        """Slots in the SWA pool."""
        return self.swa_attn_allocator.size

    def available_size(self) -> int:
        """Slots that ``alloc`` could hand out now."""
        return min(self.full_available_size(), self.swa_available_size())

    def full_available_size(self) -> int:
        """Free slots of the full pool; what an open free group holds back is not free yet."""
        return self.full_attn_allocator.available_size()

    def swa_available_size(self) -> int:
        """Free slots of the SWA pool; what an open free group holds back is not free yet."""
        return self.swa_attn_allocator.available_size()

    def new_pages_available(self, num_full_pages: int, num_swa_pages: int) -> bool:
        """Whether so many pages of either pool are free."""
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        return num_full_pages <= full.available_pages() and num_swa_pages <= swa.available_pages()

    def get_all_free_pages(self) -> None:
        """None, as with SGLang: two pools have no one list. Each of them has a ``get_all_free_pages`` of its own."""

    def get_kvcache(self) -> Any:
        """The KV cache that was passed in."""
        return self._kvcache

    def debug_print(self) -> str:
        """Free sizes of both pools, for a log line."""
        return (
            f"#swa-available-size: {self.swa_available_size()}, #full-attn-available-size: "
            f"{self.full_available_size()}, "
        )

    def explain(self) -> str:
        """Which strategy serves what, from which layer and profile, and why, in words."""
        # Nothing that a start needs.
        from swa_alloc.explain import explain_selection

        return explain_selection(self._mapping.selection)

    # --- allocation

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """``[need_size]`` int64 full slots, each with an SWA slot; None, and nothing changed, without room in both.

        Raises:
            PoolError: ``need_size`` is negative or no multiple of the page size.
        """
        pages = self.full_attn_allocator.pages_in(need_size)
        if not self.new_pages_available(pages, pages):
            return None
        self._settle()
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        full_pages = full.peek(pages)
        slots = full.slots(full_pages)
        self._mapping.set_pages(full_pages, swa.rows(swa.peek(pages)))
        full.drop(pages)
        swa.drop(pages)
        return slots

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
    ) -> torch.Tensor | None:
        """Slots for a batch of requests that grow by any number of tokens each.

        A request goes on in the page that its prefix ends in, with the slots after ``last_loc``, and then on new pages.
        Sizes are taken from the host's tensors, so nothing waits for the device.

        Args:
            prefix_lens: Not looked at; what ``prefix_lens_cpu`` says, on the device.
            prefix_lens_cpu: ``[requests]`` tokens that each has already, on the host.
            seq_lens: Not looked at; what ``seq_lens_cpu`` says, on the device.
            seq_lens_cpu: ``[requests]`` tokens that each shall have, on the host.
            last_loc: ``[requests]`` int32 or int64 full slot of each prefix's last token; -1 without a prefix.
            extend_num_tokens: Sum of what they grow by.

        Returns:
            ``[extend_num_tokens]`` int64 full slots, request by request, each with an SWA slot; None, and nothing
            changed, without room in both pools.

        Raises:
            PoolError: the lengths do not agree with each other or with ``extend_num_tokens``.
        """
        del prefix_lens, seq_lens
        plan = plan_extension(prefix_lens_cpu, seq_lens_cpu, last_loc, extend_num_tokens, self.page_size)
        pages = plan.new_pages
        if not self.new_pages_available(pages, pages):
            return None
        self._settle()
        full, swa, mapping = self.full_attn_allocator, self.swa_attn_allocator, self._mapping
        full_heads: tuple[torch.Tensor, ...] = ()
        if plan.has_heads:
            full_heads = plan.head_slots(last_loc)
            mapping.set(joined(full_heads), joined(plan.head_slots(mapping.translate(last_loc))))
        full_pages = full.peek(pages)
        slots = plan.in_order(full_heads, full.slots(full_pages))
        mapping.set_pages(full_pages, plan.without_gaps(swa.rows(swa.peek(pages)), self._zeros))
        full.drop(pages)
        swa.drop(pages)
        return slots

    def alloc_extend_swa_tail(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        swa_tail_len: int,
    ) -> torch.Tensor | None:
        """Slots for one request that grows, with SWA slots for its last ``swa_tail_len`` tokens only.

        The entries of the others read 0 afterwards, whatever the recycled pages held. The tail gets SWA pages of its
        own. It should begin where a page does, or its SWA pages and full pages are not in step: then segments of it
        cannot be freed, and it cannot grow on; sets can.

        Args:
            prefix_lens: As in ``alloc_extend``, like all up to ``extend_num_tokens``; of one request.
            prefix_lens_cpu: See there.
            seq_lens: See there.
            seq_lens_cpu: See there.
            last_loc: See there.
            extend_num_tokens: See there.
            swa_tail_len: Tokens at the end that get an SWA slot, from 0 to ``extend_num_tokens``.

        Returns:
            ``[extend_num_tokens]`` int64 full slots; None, and nothing changed, without room in both pools.

        Raises:
            PoolError: as ``alloc_extend``, and for more than one request, or a tail that is longer than the extension.
        """
        del prefix_lens, seq_lens
        plan = plan_extension(prefix_lens_cpu, seq_lens_cpu, last_loc, extend_num_tokens, self.page_size)
        if len(plan.bodies) != 1:
            raise PoolError(f"an SWA tail is of one request, not of {len(plan.bodies)}")
        if not 0 <= swa_tail_len <= extend_num_tokens:
            raise PoolError(f"swa_tail_len must be from 0 to extend_num_tokens {extend_num_tokens}, not {swa_tail_len}")
        pages, swa_pages = plan.new_pages, -(-swa_tail_len // self.page_size)
        if not self.new_pages_available(pages, swa_pages):
            return None
        self._settle()
        full, swa, mapping = self.full_attn_allocator, self.swa_attn_allocator, self._mapping
        full_pages = full.peek(pages)
        tail = swa.slots(swa.peek(swa_pages))[:swa_tail_len]
        full_heads = plan.head_slots(last_loc) if plan.has_heads else ()
        (head,), (body,) = plan.heads, plan.bodies
        slots = plan.in_order(full_heads, full.slots(full_pages))
        in_body = min(swa_tail_len, body)
        in_head = swa_tail_len - in_body
        before = body - in_body
        untouched = before // self.page_size if in_body else pages
        mapping.clear_pages(full_pages[:untouched])
        if in_body:
            lead, rest = self._zeros[: before % self.page_size], self._zeros[: plan.gaps[0]]
            rows = torch.cat((lead, tail[in_head:], rest)).view(-1, *self._row_shape)
            mapping.set_pages(full_pages[untouched:], rows)
        # Last, since a failure before would leave entries of pages in use that name free SWA slots.
        for begun in full_heads:
            mapping.clear(begun[: head - in_head])
            mapping.set(begun[head - in_head :], tail[:in_head])
        full.drop(pages)
        swa.drop(swa_pages)
        return slots

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """A slot each for requests that grow by one token. Nothing waits for the device.

        Args:
            seq_lens: Not looked at; what ``seq_lens_cpu`` says, on the device.
            seq_lens_cpu: ``[requests]`` tokens that each shall have, the new one included, on the host.
            last_loc: ``[requests]`` int32 or int64 full slot of each one's last token; -1 where there is none.

        Returns:
            ``[requests]`` int64 full slots, each with an SWA slot; None, and nothing changed, without room in both
            pools.

        Raises:
            PoolError: the two differ in length.
        """
        del seq_lens
        check_indices(last_loc)
        requests = seq_lens_cpu.numel()
        if last_loc.numel() != requests:
            raise PoolError(f"{requests} sequence lengths and {last_loc.numel()} last slots; a request has one of each")
        # Whoever fills a page to its end has no token on the next one yet.
        pages = requests - int(torch.count_nonzero((seq_lens_cpu - 1) % self.page_size))
        if not self.new_pages_available(pages, pages):
            return None
        self._settle()
        full, swa, mapping = self.full_attn_allocator, self.swa_attn_allocator, self._mapping
        full_slots = last_loc.to(torch.int64) + 1
        swa_slots = mapping.translate(last_loc) + 1
        if pages:
            begins_page = full_slots % self.page_size == 0
            full_slots.masked_scatter_(begins_page, full.peek(pages) * self.page_size)
            swa_slots.masked_scatter_(begins_page, swa.peek(pages) * self.page_size)
        mapping.set(full_slots, swa_slots)
        full.drop(pages)
        swa.drop(pages)
        return full_slots

    # --- freeing

    def free(self, free_index: torch.Tensor) -> None:
        """Give back ``[k]`` distinct full slots, in any order, and the SWA slots that they still have.

        At ``page_size > 1`` the whole page of each is given back, and it synchronizes on a device. At ``page_size`` 1
        it never does; on a device every slot must still have its SWA slot then, else use ``free_full``.

        Raises:
            PoolError: more would be free than there are.
        """
        pages = self._pages_of_set(free_index)
        self._release_swa(pages)
        self.full_attn_allocator.free_page_set(pages)

    def free_swa(self, free_index: torch.Tensor) -> None:
        """Give back the SWA slots of ``[k]`` distinct full slots, in any order, and clear their entries.

        Slots without an SWA slot are passed over. At ``page_size > 1`` the whole page of each is meant, and it
        synchronizes on a device. At ``page_size`` 1 it never does; on a device every slot must have its SWA slot then.

        Raises:
            PoolError: more would be free than there are.
        """
        self._release_swa(self._pages_of_set(free_index))

    def free_full(self, free_index: torch.Tensor) -> None:
        """Give back ``[k]`` distinct full slots whose SWA slots were given back before.

        At ``page_size > 1`` the whole page of each is given back, and it synchronizes on a device.

        Raises:
            PoolError: more would be free than there are.
        """
        self.full_attn_allocator.free(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """Give back ``[k]`` full slots that lie in a request's row from token ``start_pos`` on, and their SWA slots.

        The whole last page is given back. All of them must still have their SWA slots; on a CPU those that have not are
        passed over. Never synchronizes.

        Raises:
            PoolError: ``start_pos`` does not begin a page, or more would be free than there are.
        """
        self._free_leaders(self.full_attn_allocator.leaders(free_index, start_pos))

    def free_swa_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """``free_segment`` for the SWA side alone: the window has passed these tokens. Never synchronizes.

        Raises:
            PoolError: ``start_pos`` does not begin a page, or more would be free than there are.
        """
        slots = self.full_attn_allocator.leaders(free_index, start_pos)
        if self._group is not None:
            self._group.swa_segments.append(slots)
        else:
            self._release_swa_now(slots)

    def free_full_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """``free_segment`` for slots whose SWA slots were given back before. Never synchronizes.

        Raises:
            PoolError: ``start_pos`` does not begin a page, or more would be free than there are.
        """
        self._free_full_leaders(self.full_attn_allocator.leaders(free_index, start_pos))

    def free_segments(self, segments: Iterable[Segment]) -> None:
        """``free_segment`` for several ``(free_index, start_pos)`` of one request, in ascending order.

        Raises:
            PoolError: as ``free_segment``, and where two share a page; nothing is given back then.
        """
        self._free_leaders(self.full_attn_allocator.leaders_of(segments))

    def free_full_segments(self, segments: Iterable[Segment]) -> None:
        """``free_full_segment`` for several ``(free_index, start_pos)`` of one request, in ascending order.

        Raises:
            PoolError: as ``free_full_segment``, and where two share a page; nothing is given back then.
        """
        self._free_full_leaders(self.full_attn_allocator.leaders_of(segments))

    def free_page_ids(self, page_ids: torch.Tensor) -> None:
        """Give back ``[k]`` distinct full pages and their SWA pages, as ``free_segment`` does. Never synchronizes.

        Raises:
            PoolError: they are no indices, or more would be free than there are.
        """
        check_indices(page_ids)
        self._free_leaders(page_ids.to(torch.int64) * self.page_size)

    def free_group_begin(self) -> None:
        """Let what is freed become free only at ``free_group_end``.

        Row segments and page ids are read and cleared together then, or before any other use of the mapping, so that
        nobody sees a difference; callers may overwrite their rows at once.

        Raises:
            PoolError: a group is open already.
        """
        if self._group is not None:
            raise PoolError("free groups cannot be nested; end the open one first")
        clear = self.clear_full_to_swa_mapping

        def settle_and_clear(full_indices: torch.Tensor) -> None:
            self._settle()
            clear(full_indices)

        self._group = _FreeGroup([], [], [], [], clear)
        self.clear_full_to_swa_mapping = settle_and_clear
        self.full_attn_allocator.free_group_begin()

    def free_group_end(self) -> None:
        """Make free what was freed since ``free_group_begin``. Without an open group, nothing happens.

        Raises:
            PoolError: more would be free than there are; of that pool nothing has become free then.
        """
        group = self._group
        if group is None:
            return
        with ExitStack() as stack:
            # From the last to the first, each whatever becomes of the others.
            stack.callback(self.full_attn_allocator.free_group_end)
            stack.callback(self._forget_group)
            stack.callback(self._end_swa, group)
            stack.callback(self._end_full, group)
            stack.callback(self._settle)

    @contextmanager
    def free_group(self) -> Iterator[None]:
        """A free group for as long as the context lasts.

        Raises:
            PoolError: a group is open already, or more would be free at the end than there are.
        """
        self.free_group_begin()
        try:
            yield
        finally:
            self.free_group_end()

    # --- the mapping

    def set_full_to_swa_mapping(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Give each of ``[k]`` full slots an SWA slot of ``[k]``; int32 or int64.

        Raises:
            PoolError: they are no indices, or the two differ in length.
        """
        check_indices(full_indices)
        check_indices(swa_indices)
        if full_indices.numel() != swa_indices.numel():
            raise PoolError(f"{full_indices.numel()} full slots cannot be given {swa_indices.numel()} SWA slots")
        self._settle()
        self._mapping.set(full_indices, swa_indices.to(torch.int64).contiguous())

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """``[k]`` int64 SWA slots of ``[k]`` full slots; 0 where there is none, -1 for -1.

        Raises:
            PoolError: they are neither int32 nor int64.
        """
        self._settle()
        return self._mapping.translate(kv_indices)

    # --- the whole

    def resize(self, config: PoolSizes) -> None:
        """Have pools of other sizes, with every slot free. O(pools).

        The mapping stays the tensor that it was where it is long enough, since the KV cache and captured graphs hold
        it; else the KV cache is given a longer one, and its strategies are selected as at construction.

        Args:
            config: Has ``full_max_total_num_tokens`` and ``swa_max_total_num_tokens``.

        Raises:
            PoolError: a size is not positive or no multiple of the page size; nothing has changed then.
            ProfileError, StrategyError, CalibrationError: a longer mapping is needed, and as at construction; likewise.
        """
        size, size_swa = int(config.full_max_total_num_tokens), int(config.swa_max_total_num_tokens)
        check_sizes(size=size, size_swa=size_swa, page_size=self.page_size)
        mapping = self._mapping
        with torch.inference_mode(mode=False):
            # All that may fail, before anything changes.
            if size + self.page_size + 1 > mapping.tensor.numel():
                mapping = FullToSWAMapping.allocate(size, self.page_size, mapping.tensor.device, self._overrides)
            lists = self.full_attn_allocator.free_list(size), self.swa_attn_allocator.free_list(size_swa)
        self._forget_group()
        if mapping is not self._mapping:
            self._use(mapping)
        for pool, free_list in zip((self.full_attn_allocator, self.swa_attn_allocator), lists, strict=True):
            pool.adopt(free_list)
        self.clear()

    def clear(self) -> None:
        """Make every slot free, clear the mapping, and forget an open free group. The sentinel stays. O(pools)."""
        self._forget_group()
        self.full_attn_allocator.clear()
        self.swa_attn_allocator.clear()
        self._mapping.reset()

    def _forget_group(self) -> None:
        if self._group is not None:
            self.clear_full_to_swa_mapping = self._group.clear
            self._group = None

    def _use(self, mapping: FullToSWAMapping) -> None:
        self._mapping = mapping
        # The bound callable itself, not a method around it: a frame saved on the decode path.
        self.clear_full_to_swa_mapping = mapping.clear
        if self._kvcache is not None:
            self._kvcache.register_mapping(mapping.tensor)

    def _settle(self) -> None:
        """Read and clear what an open free group has put off, so that the mapping is as callers believe it to be."""
        group = self._group
        if group is None or not group.swa_segments:
            return
        segments = group.swa_segments.copy()
        group.swa_segments.clear()
        full = self.full_attn_allocator
        try:
            pages = full.distinct(full.pages_of_leaders(joined(segments)))
            group.swa_pages.append(self._mapping.take_pages(pages))
        except Exception:  # noqa: BLE001 - whichever segment is at fault raises again below
            # The others are other callers': each by itself.
            with ExitStack() as stack:
                for slots in segments:
                    stack.callback(self._release_swa_now, slots)

    def _end_full(self, group: _FreeGroup) -> None:
        full = self.full_attn_allocator
        if group.full_segments:
            full.free_page_ids(full.pages_of_leaders(joined(group.full_segments)))

    def _end_swa(self, group: _FreeGroup) -> None:
        if group.swa_page_sets:
            group.swa_pages.append(united(group.swa_page_sets))
        if group.swa_pages:
            self.swa_attn_allocator.free_page_ids(joined(group.swa_pages))

    def _pages_of_set(self, free_index: torch.Tensor) -> torch.Tensor:
        check_indices(free_index)
        return self.full_attn_allocator.pages_of(free_index)

    def _release_swa(self, pages: torch.Tensor) -> None:
        """Give back the SWA side of a set of ``[k]`` full pages, whatever part of it there is."""
        self._settle()
        if self.page_size == 1:
            self._give_back_swa(self._mapping.take_pages(pages))
            return
        # All slots of a page are asked: an SWA tail may begin anywhere in it.
        peers = self._mapping.page_rows(pages)
        self._mapping.clear_pages(pages)
        swa_pages = self.swa_attn_allocator.pages_of(peers.view(-1))
        if self._group is not None:
            self._group.swa_page_sets.append(swa_pages)
        else:
            self.swa_attn_allocator.free_page_ids(swa_pages)

    def _free_leaders(self, slots: torch.Tensor) -> None:
        """Give back both sides of ``[k]`` pages, each named by its first slot."""
        if self._group is not None:
            self._group.swa_segments.append(slots)
            self._group.full_segments.append(slots)
        else:
            pages = self.full_attn_allocator.pages_of_leaders(slots)
            self._give_back_swa(self._mapping.take_pages(pages))
            self.full_attn_allocator.free_page_ids(pages)

    def _free_full_leaders(self, slots: torch.Tensor) -> None:
        """Give back the full side of ``[k]`` pages, each named by its first slot."""
        if self._group is not None:
            self._group.full_segments.append(slots)
        else:
            self.full_attn_allocator.free_page_ids(self.full_attn_allocator.pages_of_leaders(slots))

    def _release_swa_now(self, slots: torch.Tensor) -> None:
        """Read, clear and give back the SWA side of ``[k]`` pages, each named by its first slot."""
        pages = self.full_attn_allocator.pages_of_leaders(slots)
        self._give_back_swa(self._mapping.take_pages(pages))

    def _give_back_swa(self, pages: torch.Tensor) -> None:
        """Give back SWA pages that nobody else holds, at the end of the free group if one is open."""
        if self._group is not None:
            self._group.swa_pages.append(pages)
        else:
            self.swa_attn_allocator.free_page_ids(pages)
