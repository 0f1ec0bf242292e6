"""FullToSWAMapping: the table from full slots to SWA slots, and its operations, each bound to its tuned strategy."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from swa_alloc._stdio import one_line
from swa_alloc.dispatch import bind_choice
from swa_alloc.errors import PoolError, StrategyError
from swa_alloc.operations import CLEAR, PAGE, TOKEN, TargetName, empty_mapping, page_view
from swa_alloc.selection import Key, OnMissing, Overrides, Pin, Selection, default_choice, select

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from swa_alloc.operations import Objective
    from swa_alloc.profile import StrategyProfile
    from swa_alloc.strategies import Bound

logger = logging.getLogger("swa_alloc")


class FullToSWAMapping:
    """The mapping of one allocator.

    Args:
        tensor: ``[size + page_size + 1]`` int64 on the device, the last entry being the sentinel. It is used in place
            and must not be resized or replaced while this object lives.
        page_size: Slots in a page; divides ``size``.
        overrides: What the caller asked for; see ``Overrides``.

    Attributes:
        tensor: As passed in.
        page_size: As passed in.
        selection: Which strategy serves what, and why.
        clear: ``clear(indices)`` sets the entries of ``[k]`` full slots to 0. Like all that follow it takes int32 or
            int64 indices, in any order, duplicates, strided views and k = 0 allowed, and raises ``PoolError`` for
            another dtype.
        clear_pages: ``clear_pages(pages)`` does so for every slot of ``[k]`` full pages.
        set: ``set(indices, peers)`` gives ``[k]`` full slots their ``[k]`` int64 SWA slots.
        set_pages: ``set_pages(pages, peers)`` gives every slot of ``[k]`` full pages its own, ``[k, page_size]`` int64.
        translate: ``translate(indices)`` returns ``[k]`` int64 SWA slots of ``[k]`` full slots; 0 where there is none,
            -1 for the index -1.
        take_pages: ``take_pages(pages)`` returns ``[k]`` int64 SWA pages of ``[k]`` distinct full pages, 0 where there
            is none, and sets all their entries to 0. The SWA page of a full page is that of its first slot: the two
            pools page in step.

    Raises:
        PoolError: the tensor is not a mapping with that page size.
        ProfileError, StrategyError, CalibrationError: as ``Overrides`` asked for.
    """

    clear: Callable[[torch.Tensor], None]
    clear_pages: Callable[[torch.Tensor], None]
    set: Callable[[torch.Tensor, torch.Tensor], None]
    set_pages: Callable[[torch.Tensor, torch.Tensor], None]
    translate: Callable[[torch.Tensor], torch.Tensor]
    take_pages: Callable[[torch.Tensor], torch.Tensor]

    def __init__(self, tensor: torch.Tensor, page_size: int, overrides: Overrides | None = None) -> None:
        overrides = overrides or Overrides()
        size = _full_size(tensor, page_size)
        self.tensor = tensor
        self.page_size = page_size
        # Kept for its own sake: while a view of the table is alive, index_fill_, index_put_ and index_copy_ on it are
        # 0.4 to 0.7 us faster (torch 2.13, CPU). The calibrator's sandbox keeps one, too.
        self._pages = page_view(tensor, page_size)
        self.selection, bound = _bind(select(tensor.device, size, page_size, overrides), tensor, page_size, overrides)
        self.clear, self.set, self.translate = bound["clear", TOKEN], bound["set", TOKEN], bound["translate", TOKEN]
        # With one slot a page the two targets are one and the same.
        pages: TargetName = TOKEN if page_size == 1 else PAGE
        self.clear_pages, self.set_pages, self.take_pages = (
            bound["clear", pages],
            bound["set", pages],
            bound["take", pages],
        )

    @classmethod
    def allocate(
        cls, size: int, page_size: int, device: torch.device, overrides: Overrides | None = None
    ) -> FullToSWAMapping:
        """An empty mapping for ``size`` full slots."""
        return cls(empty_mapping(size, page_size, device), page_size, overrides)

    def page_rows(self, pages: torch.Tensor) -> torch.Tensor:
        """``[k, page_size]`` int64 SWA slots of every slot of ``[k]`` full pages; 0 where there is none."""
        return self._pages[pages]

    def reset(self) -> None:
        """Clear the whole table, and set the sentinel, which an index of -1 may have overwritten."""
        self._pages.zero_()
        self.tensor[-1:].fill_(-1)


def tuned_clear(
    mapping: torch.Tensor,
    *,
    page_size: int = 1,
    profile: StrategyProfile | str | Path | None = None,
    strategy: Pin | None = None,
    on_missing: OnMissing | None = None,
    strict_profile: bool = False,
    objective: Objective | None = None,
) -> Callable[[torch.Tensor], None]:
    """The fastest way to clear entries of a mapping that another allocator owns.

    Args:
        mapping: ``[size + page_size + 1]`` int64, as SGLang's ``full_to_swa_index_mapping``; written in place.
        page_size: Slots in a page.
        profile: As in ``SWATokenToKVPoolAllocator``, like all that follow.
        strategy: A pin.
        on_missing: What to do where no profile fits.
        strict_profile: Whether trouble with a profile raises.
        objective: What a profile is to have decided for.

    Returns:
        A callable that takes ``[k]`` int32 or int64 full slots and sets their entries to 0.

    Raises:
        PoolError: ``mapping`` is not a mapping with that page size.
        ProfileError, StrategyError, CalibrationError: as the arguments asked for.
    """
    overrides = Overrides(profile, strategy, on_missing, strict_profile, objective)
    size = _full_size(mapping, page_size)
    key: Key = (CLEAR.name, TOKEN)
    # What inference mode makes, workspaces among it, cannot be written outside it.
    with torch.inference_mode(mode=False):
        # Nothing else of it is called: for a pinned clear, nothing is looked for.
        selection = select(mapping.device, size, page_size, overrides, [key])
        clear: Any = _bind(selection, mapping, page_size, overrides)[1][key]
        # As in ``FullToSWAMapping``: it must live as long as what is called.
        clear.page_view = page_view(mapping, page_size)
    return clear  # type: ignore[no-any-return]  # Any, to be given an attribute


def _full_size(tensor: torch.Tensor, page_size: int) -> int:
    if page_size < 1:
        raise PoolError(f"page_size must be at least 1, not {page_size}")
    size = tensor.numel() - page_size - 1
    if tensor.dtype != torch.int64 or tensor.dim() != 1 or not tensor.is_contiguous():
        raise PoolError(
            f"the mapping must be a contiguous 1-D int64 tensor, not {tensor.dim()}-D {tensor.dtype} "
            f"with strides {tuple(tensor.stride())}"
        )
    if size < page_size or size % page_size:
        raise PoolError(
            f"a mapping of {tensor.numel()} entries has no size + {page_size} + 1 with a size that is a multiple of "
            f"page_size {page_size}; check the page size"
        )
    return size


def _bind(
    selection: Selection, tensor: torch.Tensor, page_size: int, overrides: Overrides
) -> tuple[Selection, dict[Key, Bound]]:
    """What was selected, bound, and the selection with what came of that: where it fails, the default serves."""
    choices, bound, troubles = dict(selection.choices), {}, list(selection.troubles)
    for key, choice in selection.choices.items():
        try:
            bound[key] = bind_choice(choice, tensor, page_size)
        except Exception as error:
            # Besides its own StrategyError a strategy may fail as it likes, out of memory included.
            if overrides.strict_profile:
                raise
            reason = str(error) if isinstance(error, StrategyError) else f"{type(error).__name__}: {error}"
            troubles.append(f"{choice.layer} {choice.source}: {reason}")
            choices[key] = default_choice(key, tensor.device.type)
            bound[key] = bind_choice(choices[key], tensor, page_size)
    # Token and page may fail alike.
    selection = selection._replace(choices=choices, troubles=tuple(dict.fromkeys(troubles)))
    _log(selection)
    return selection, bound


def _log(selection: Selection) -> None:
    for remark in selection.remarks:
        logger.info("%s", remark)
    if selection.troubles:
        defaulted = any(choice.layer == "default" for choice in selection.choices.values())
        fallback = "; going on with the defaults" if defaulted else ""
        logger.warning("%s", one_line(f"{'; '.join(selection.troubles)}{fallback}"))
    if selection.miss:
        _warn_once(one_line(selection.miss))


@cache
def _warn_once(line: str) -> None:
    """A server constructs several mappings, and one line about the same miss is enough."""
    logger.warning("%s", line)
