"""Checked modes: what a caller does wrong, found at the call before anything changes, or counted on the device.

``watch`` puts a check around each method of one allocator that takes indices. An allocator that is not watched is not
touched, so being unchecked costs nothing. What is freed through a sub-allocator directly is not seen.
"""

from __future__ import annotations

import functools
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch

from swa_alloc.errors import PoolError
from swa_alloc.pool import Segment, check_indices

if TYPE_CHECKING:
    from swa_alloc.allocator import SWATokenToKVPoolAllocator

logger = logging.getLogger("swa_alloc")

Checks = Literal["off", "async", "strict"]
# What to take down once a call has been made, from its result.
After = Callable[[Any], None]

# States of a full page. One that was freed as part of a set in the free group that is open may be named once more, by
# other slots of it, in another set.
_NEVER, _OWNED, _FREED, _IN_GROUP = 0, 1, 2, 3
# Most indices that an error names.
_NAMED = 8


class Violation(Enum):
    """What a caller can do wrong, in words."""

    OUT_OF_RANGE = "out of range"
    NEVER_ALLOCATED = "never allocated"
    DOUBLE_FREE = "double free"
    FOREIGN_PAGE = "foreign page"
    UNMAPPED_SWA = "unmapped SWA free"
    MAPPED_FULL = "full side freed before the SWA side"
    UNMAPPED_LAST = "grown after a slot without an SWA slot"
    MISPLACED_LAST = "last slot out of step with its length"


class Finding(NamedTuple):
    """Where a call violates one rule.

    Attributes:
        violation: The rule.
        bad: ``[k]`` bool on the device.
        indices: ``[k]`` of the call's indices, or of the page ids that it names.
    """

    violation: Violation
    bad: torch.Tensor
    indices: torch.Tensor


def watch(allocator: SWATokenToKVPoolAllocator, checks: Checks) -> None:
    """Put an allocator that was just made under checks.

    Raises:
        PoolError: there is no such mode.
    """
    if checks not in get_args(Checks):
        raise PoolError(f"checks is {checks!r}; expected one of {', '.join(get_args(Checks))}")
    if checks != "off":
        _AUDITORS[checks](allocator).attach()


class _Auditor(ABC):
    """Knows who owns each full page, and looks at every call before it is made."""

    def __init__(self, allocator: SWATokenToKVPoolAllocator) -> None:
        self._allocator = allocator
        self._page_size = allocator.page_size
        self._in_group: list[torch.Tensor] = []
        self._forget()

    def attach(self) -> None:
        """Put itself around the allocator's methods."""
        rules: dict[str, Callable[..., After]] = {
            "alloc": lambda **_others: self._own,
            "alloc_extend": self._extending,
            "alloc_extend_swa_tail": self._extending_swa_tail,
            "alloc_decode": self._decoding,
            "free": self._freeing_set,
            "free_swa": self._freeing_swa_set,
            "free_full": self._freeing_full_set,
            "free_segment": self._freeing_segment,
            "free_swa_segment": self._freeing_swa_segment,
            "free_full_segment": self._freeing_full_segment,
            "free_segments": self._freeing_segments,
            "free_full_segments": self._freeing_full_segments,
            "free_page_ids": self._freeing_pages,
            "free_group_begin": lambda: lambda _: self._open_group(),
            # Closed even if it raises because too much was given back.
            "free_group_end": self._closing_group,
            "set_full_to_swa_mapping": self._setting,
            "clear_full_to_swa_mapping": self._clearing,
            "translate_loc_from_full_to_swa": self._translating,
            "clear": lambda: lambda _: self._forget(),
            "resize": lambda **_others: lambda _: self._guard_clear(),
            "debug_print": lambda: _nothing,
        }
        # These wait for the device anyway.
        synchronizing = {"clear", "resize", "debug_print"}
        if self._page_size > 1:
            synchronizing |= {"free", "free_swa", "free_full"}
        for name, rule in rules.items():
            self._guard(name, rule, self.report if name in synchronizing else _nothing_to_report)

    def _guard(self, name: str, rule: Callable[..., After], report: Callable[[], None]) -> None:
        setattr(self._allocator, name, _checked(getattr(self._allocator, name), rule, report))

    def _guard_clear(self) -> None:
        """A longer mapping comes with a clear of its own."""
        if not hasattr(self._allocator.clear_full_to_swa_mapping, "__wrapped__"):
            self._guard("clear_full_to_swa_mapping", self._clearing, _nothing_to_report)

    @abstractmethod
    def judge(self, findings: Sequence[Finding]) -> None:
        """Do about findings what the mode demands."""

    @abstractmethod
    def report(self) -> None:
        """Say what has been found since the last report; the device may be waited for."""

    # --- rules: each looks at a call's arguments and gives what to take down after it

    def _extending(
        self, prefix_lens: torch.Tensor, seq_lens: torch.Tensor, last_loc: torch.Tensor, **_others: Any
    ) -> After:
        grows = seq_lens > prefix_lens
        self.judge([*self._last_slots(last_loc, prefix_lens), self._last_slots_mapped(last_loc, grows)])
        return self._own

    def _extending_swa_tail(self, prefix_lens: torch.Tensor, last_loc: torch.Tensor, **_others: Any) -> After:
        # Of several requests there is no tail, and the method itself says so.
        self.judge(self._last_slots(last_loc, prefix_lens) if last_loc.numel() == 1 else [])
        return self._own

    def _decoding(self, seq_lens: torch.Tensor, last_loc: torch.Tensor, **_others: Any) -> After:
        grows = torch.ones_like(last_loc, dtype=torch.bool)
        self.judge([*self._last_slots(last_loc, seq_lens - 1), self._last_slots_mapped(last_loc, grows)])
        return self._own

    def _freeing_set(self, free_index: torch.Tensor) -> After:
        self.judge([*self._set_owned(free_index), *self._set_mapped(free_index)])
        return self._disown_set(free_index)

    def _freeing_swa_set(self, free_index: torch.Tensor) -> After:
        self.judge([*self._set_owned(free_index), *self._set_mapped(free_index)])
        return _nothing

    def _freeing_full_set(self, free_index: torch.Tensor) -> After:
        self.judge([*self._set_owned(free_index), self._unmapped(free_index)])
        return self._disown_set(free_index)

    def _freeing_segment(self, free_index: torch.Tensor, *, start_pos: int) -> After:
        return self._freeing_segments([(free_index, start_pos)])

    def _freeing_full_segment(self, free_index: torch.Tensor, *, start_pos: int) -> After:
        return self._freeing_full_segments([(free_index, start_pos)])

    def _freeing_swa_segment(self, free_index: torch.Tensor, *, start_pos: int) -> After:
        leaders, found = self._segments_owned([(free_index, start_pos)])
        self.judge([*found, self._mapped(leaders)])
        return _nothing

    def _freeing_segments(self, segments: Sequence[Segment]) -> After:
        leaders, found = self._segments_owned(segments)
        self.judge([*found, self._mapped(leaders)])
        return self._disown(self._pages(leaders))

    def _freeing_full_segments(self, segments: Sequence[Segment]) -> After:
        leaders, found = self._segments_owned(segments)
        self.judge([*found, *(self._unmapped(free_index) for free_index, _ in segments)])
        return self._disown(self._pages(leaders))

    def _freeing_pages(self, page_ids: torch.Tensor) -> After:
        check_indices(page_ids)
        leaders = page_ids.to(torch.int64) * self._page_size
        found = [*self._owned(leaders), self._outside(leaders), self._mapped(leaders)]
        self.judge([finding._replace(indices=page_ids) for finding in found])
        return self._disown(self._pages(leaders))

    def _closing_group(self) -> After:
        self._grouped = False
        for pages in self._in_group:
            self._enter(pages, _FREED)
        self._in_group.clear()
        return _nothing

    def _setting(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> After:
        check_indices(full_indices)
        check_indices(swa_indices)
        swa_end = self._allocator.size_swa + self._page_size
        beyond = (swa_indices < 0) | (swa_indices >= swa_end)
        self.judge([self._outside(full_indices), Finding(Violation.OUT_OF_RANGE, beyond, swa_indices)])
        return _nothing

    def _clearing(self, indices: torch.Tensor) -> After:
        self.judge([self._outside(indices)])
        return _nothing

    def _translating(self, kv_indices: torch.Tensor) -> After:
        finding = self._outside(kv_indices)
        self.judge([finding._replace(bad=finding.bad & (kv_indices != -1))])
        return _nothing

    # --- findings

    def _outside(self, indices: torch.Tensor) -> Finding:
        beyond = (indices < 0) | (indices >= self._end)
        return Finding(Violation.OUT_OF_RANGE, beyond, indices)

    def _last_slots(self, last_loc: torch.Tensor, lengths: torch.Tensor) -> list[Finding]:
        """``lengths`` are those that the last slots end, on the device."""
        check_indices(last_loc)
        if last_loc.numel() != lengths.numel():
            # The method itself says so.
            return []
        outside, begun = self._outside(last_loc), last_loc != -1
        owned = self._state[self._pages(last_loc)] == _OWNED
        misplaced = (last_loc + 1 - lengths) % self._page_size != 0
        # Two requests may share a prefix, and then go on on pages of their own.
        shared, goes_on = _repeated(last_loc), (last_loc + 1) % self._page_size != 0
        return [
            outside._replace(bad=outside.bad & begun),
            Finding(Violation.FOREIGN_PAGE, begun & ~outside.bad & ~owned, last_loc),
            Finding(Violation.MISPLACED_LAST, misplaced | (shared & goes_on), last_loc),
        ]

    def _last_slots_mapped(self, last_loc: torch.Tensor, grows: torch.Tensor) -> Finding:
        """In a page that was begun, the SWA slot of the next token is the one after the last token's."""
        stranded = ((last_loc + 1) % self._page_size != 0) & (self._owned_entries(last_loc) == 0)
        # Where their numbers differ, the method itself says so.
        bad = stranded & grows if grows.numel() == last_loc.numel() else torch.zeros_like(stranded)
        return Finding(Violation.UNMAPPED_LAST, bad, last_loc)

    def _set_owned(self, indices: torch.Tensor) -> list[Finding]:
        """Padding in a set is passed over, and so is a page that is named by several of its slots."""
        check_indices(indices)
        padding = indices < self._page_size
        outside = self._outside(indices)
        found = [finding._replace(bad=finding.bad & ~padding) for finding in self._owned(indices)]
        return [outside, *(found if self._page_size == 1 else found[:-2])]

    def _segments_owned(self, segments: Sequence[Segment]) -> tuple[torch.Tensor, list[Finding]]:
        """One slot a page of all segments, and what is wrong with them besides their SWA side."""
        page_size, found = self._page_size, []
        # What is no segment at all is refused here, as the method would.
        leaders = self._allocator.full_attn_allocator.leaders_of(segments)
        for indices, _ in segments:
            pages = self._pages(indices[::page_size]).repeat_interleave(page_size)[: indices.numel()]
            offsets = torch.arange(indices.numel(), device=indices.device) % page_size
            outside = self._outside(indices)
            strays = ~outside.bad & (indices != pages * page_size + offsets)
            found += [outside, Finding(Violation.FOREIGN_PAGE, strays, indices)]
        return leaders, [*found, *self._owned(leaders)]

    def _owned(self, slots: torch.Tensor) -> list[Finding]:
        """Pages that nobody owns, and last those that a set may name, and those that are named twice."""
        pages = self._pages(slots)
        inside, state = ~self._outside(slots).bad, self._state[pages]
        return [
            Finding(Violation.NEVER_ALLOCATED, inside & (state == _NEVER), slots),
            Finding(Violation.DOUBLE_FREE, inside & (state == _FREED), slots),
            Finding(Violation.DOUBLE_FREE, inside & (state == _IN_GROUP), slots),
            Finding(Violation.DOUBLE_FREE, inside & _repeated(pages), slots),
        ]

    def _set_mapped(self, indices: torch.Tensor) -> list[Finding]:
        """With more slots a page, sets may name slots whose SWA side is gone."""
        if self._page_size > 1:
            return []
        finding = self._mapped(indices)
        return [finding._replace(bad=finding.bad & (indices > 0))]

    def _mapped(self, slots: torch.Tensor) -> Finding:
        return Finding(Violation.UNMAPPED_SWA, self._owned_entries(slots) == 0, slots)

    def _unmapped(self, slots: torch.Tensor) -> Finding:
        return Finding(Violation.MAPPED_FULL, self._owned_entries(slots) > 0, slots)

    def _owned_entries(self, slots: torch.Tensor) -> torch.Tensor:
        """The entries of slots that somebody owns, -1 for the others: one violation is told once."""
        entries = self._allocator.full_to_swa_index_mapping[slots.clamp(0, self._end - 1)]
        owned = (self._state[self._pages(slots)] == _OWNED) & ~self._outside(slots).bad
        return torch.where(owned, entries, -1)

    # --- the ledger

    def _forget(self) -> None:
        """Begin anew, with every page free."""
        allocator = self._allocator
        self._end = allocator.size_full + self._page_size
        mapping = allocator.full_to_swa_index_mapping
        self._grouped, self._in_group = False, []
        # What inference mode makes cannot be written outside it.
        with torch.inference_mode(mode=False):
            self._state = torch.zeros(self._end // self._page_size, dtype=torch.int8, device=mapping.device)

    def _own(self, slots: torch.Tensor | None) -> None:
        if slots is not None:
            self._enter(self._pages(slots), _OWNED)

    def _disown(self, pages: torch.Tensor) -> After:
        return lambda _: self._enter(pages, _FREED)

    def _disown_set(self, free_index: torch.Tensor) -> After:
        pages = self._pages(free_index)
        if not self._grouped or self._page_size == 1:
            return self._disown(pages)

        def named(_result: Any) -> None:
            self._in_group.append(pages)
            self._enter(pages, _IN_GROUP)

        return named

    def _open_group(self) -> None:
        self._grouped = True

    def _enter(self, pages: torch.Tensor, state: int) -> None:
        self._state.index_fill_(0, pages, state)
        # Padding has no owner and never gets one.
        self._state[:1].zero_()

    def _pages(self, slots: torch.Tensor) -> torch.Tensor:
        return slots.to(torch.int64).clamp(0, self._end - 1) // self._page_size


class _StrictAuditor(_Auditor):
    """Raises at the call."""

    def judge(self, findings: Sequence[Finding]) -> None:
        """See ``_Auditor.judge``."""
        told = []
        for violation, bad, indices in findings:
            offending = indices[bad].tolist()
            if offending:
                more = f" and {len(offending) - _NAMED} more" if len(offending) > _NAMED else ""
                told.append(f"{violation.value}: {', '.join(map(str, offending[:_NAMED]))}{more}")
        if told:
            raise PoolError("; ".join(told))

    def report(self) -> None:
        """See ``_Auditor.report``. Whatever there was has been raised."""


class _AsyncAuditor(_Auditor):
    """Counts on the device, and logs the counts where the device has been waited for."""

    _order = tuple(Violation)

    def __init__(self, allocator: SWATokenToKVPoolAllocator) -> None:
        super().__init__(allocator)
        self._counts = torch.zeros(len(self._order), dtype=torch.int64, device=self._state.device)

    def judge(self, findings: Sequence[Finding]) -> None:
        """See ``_Auditor.judge``."""
        for violation, bad, _ in findings:
            self._counts[self._order.index(violation)].add_(bad.sum())

    def report(self) -> None:
        """See ``_Auditor.report``."""
        counts = self._counts.tolist()
        if any(counts):
            self._counts.zero_()
            told = (f"{v.value}: {count}" for v, count in zip(self._order, counts, strict=True) if count)
            logger.error("the allocator was misused (%s); checks='strict' names the calls", "; ".join(told))


_AUDITORS: Mapping[str, type[_Auditor]] = MappingProxyType({"async": _AsyncAuditor, "strict": _StrictAuditor})


def _repeated(values: torch.Tensor) -> torch.Tensor:
    """``[k]`` bool: which of ``[k]`` values came before. Sorting has a fixed shape, and so nothing waits for it."""
    ordered, order = values.sort()
    again = torch.zeros_like(values, dtype=torch.bool)
    again[order[1:]] = ordered[1:] == ordered[:-1]
    return again


def _checked(plain: Callable[..., Any], rule: Callable[..., After], report: Callable[[], None]) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def call(*arguments: Any, **keywords: Any) -> Any:
        named = signature.bind(*arguments, **keywords).arguments
        if "segments" in named:
            # They may come from a generator, and are gone through twice.
            named["segments"] = list(named["segments"])
        after = rule(**named)
        result = plain(**named)
        after(result)
        report()
        return result

    return call


def _nothing(_result: Any) -> None:
    """Take nothing down."""


def _nothing_to_report() -> None:
    """Where the device is not waited for, there is nothing to tell."""
