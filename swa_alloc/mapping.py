"""FullToSWAMapping: the table from full slots to SWA slots, and its operations, each bound to its tuned strategy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from swa_alloc._stdio import one_line
from swa_alloc.dispatch import bind_choice
from swa_alloc.errors import PoolError, StrategyError
from swa_alloc.operations import PAGE, TOKEN, empty_mapping, page_view
from swa_alloc.selection import Choice, Key, OnMissing, Overrides, Selection, default_choice, select

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from swa_alloc.profile import StrategyProfile
    from swa_alloc.strategies import Bound, Strategy

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
        clear: ``clear(indices)`` sets the entries of ``[k]`` full slots to 0. int32 or int64, any order, duplicates
            and strided views allowed, k = 0 allowed. Raises ``PoolError`` for another dtype.
        clear_pages: ``clear_pages(pages)`` does so for every slot of ``[k]`` full pages.

    Raises:
        PoolError: the tensor is not a mapping with that page size.
        ProfileError, StrategyError, CalibrationError: as ``Overrides`` asked for.
    """

    clear: Callable[[torch.Tensor], None]
    clear_pages: Callable[[torch.Tensor], None]

    def __init__(self, tensor: torch.Tensor, page_size: int, overrides: Overrides | None = None) -> None:
        overrides = overrides or Overrides()
        size = _full_size(tensor, page_size)
        self.tensor = tensor
        self.page_size = page_size
        # Kept for its own sake: while a view of the table is alive, index_fill_, index_put_ and index_copy_ on it are
        # 0.4 to 0.7 us faster (torch 2.13, CPU). The calibrator's sandbox keeps one, too.
        self._pages = page_view(tensor, page_size)
        selection = select(tensor.device, size, page_size, overrides)
        choices, bound, troubles = _bind_all(selection, tensor, page_size, overrides)
        self.selection = selection._replace(
            choices=choices, troubles=tuple(dict.fromkeys((*selection.troubles, *troubles)))
        )
        self.clear = bound["clear", TOKEN]
        # With one slot a page the two targets are one and the same.
        self.clear_pages = bound.get(("clear", PAGE), self.clear)
        _log(self.selection)

    @classmethod
    def allocate(
        cls, size: int, page_size: int, device: torch.device, overrides: Overrides | None = None
    ) -> FullToSWAMapping:
        """An empty mapping for ``size`` full slots."""
        return cls(empty_mapping(size, page_size, device), page_size, overrides)

    def set(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Give each of ``[k]`` full slots its SWA slot, from ``[k]`` SWA slots."""
        self.tensor[full_indices] = swa_indices.to(torch.int64)

    def translate(self, full_indices: torch.Tensor) -> torch.Tensor:
        """``[k]`` int64 SWA slots of ``[k]`` full slots; 0 where there is none, -1 for the index -1."""
        return self.tensor[full_indices]

    def page_peers(self, pages: torch.Tensor) -> torch.Tensor:
        """``[k]`` int64 SWA slots of the first slot of ``[k]`` full pages; 0 where there is none."""
        return self._pages[:, 0][pages]

    def reset(self) -> None:
        """Clear the whole table, and set the sentinel, which an index of -1 may have overwritten."""
        self._pages.zero_()
        self.tensor[-1:].fill_(-1)


def tuned_clear(
    mapping: torch.Tensor,
    *,
    page_size: int = 1,
    profile: StrategyProfile | str | Path | None = None,
    strategy: str | Strategy | None = None,
    on_missing: OnMissing | None = None,
    strict_profile: bool = False,
) -> Callable[[torch.Tensor], None]:
    """The fastest way to clear entries of a mapping that another allocator owns.

    Args:
        mapping: ``[size + page_size + 1]`` int64, as SGLang's ``full_to_swa_index_mapping``; written in place.
        page_size: Slots in a page.
        profile: As in ``SWATokenToKVPoolAllocator``, like all that follow.
        strategy: A pin.
        on_missing: What to do where no profile fits.
        strict_profile: Whether trouble with a profile raises.

    Returns:
        A callable that takes ``[k]`` int32 or int64 full slots and sets their entries to 0.

    Raises:
        PoolError: ``mapping`` is not a mapping with that page size.
        ProfileError, StrategyError, CalibrationError: as the arguments asked for.
    """
    overrides = Overrides(profile, strategy, on_missing, strict_profile)
    # What inference mode makes, workspaces among it, cannot be written outside it.
    with torch.inference_mode(mode=False):
        owner = FullToSWAMapping(mapping, page_size, overrides)
    clear: Any = owner.clear
    # What the object keeps alive, its page view above all, must live as long as what is called.
    clear.owner = owner
    return owner.clear


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


def _bind_all(
    selection: Selection, tensor: torch.Tensor, page_size: int, overrides: Overrides
) -> tuple[dict[Key, Choice], dict[Key, Bound], list[str]]:
    choices, bound, troubles = dict(selection.choices), {}, []
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
    return choices, bound, troubles


def _log(selection: Selection) -> None:
    for remark in selection.remarks:
        logger.info("%s", remark)
    if selection.troubles:
        defaults = {choice.decisions[0].label for choice in selection.choices.values() if choice.layer == "default"}
        fallback = f"; clearing with the default, {', '.join(sorted(defaults))}" if defaults else ""
        logger.warning("%s", one_line(f"{'; '.join(selection.troubles)}{fallback}"))
