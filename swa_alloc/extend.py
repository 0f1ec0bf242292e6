"""How the tokens that requests grow by lie on pages: the rest of a page that was begun, then new pages."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch

from swa_alloc.errors import PoolError
from swa_alloc.pool import check_indices

if TYPE_CHECKING:
    from collections.abc import Sequence


class Extension(NamedTuple):
    """A batch of requests that grow, as known on the host; nothing here looks at the device.

    Attributes:
        page_size: Slots in a page.
        heads: For each request, tokens that go into the page that its prefix ends in.
        bodies: For each request, tokens that go onto new pages.
    """

    page_size: int
    heads: tuple[int, ...]
    bodies: tuple[int, ...]

    @property
    def new_pages(self) -> int:
        """Pages that the batch needs."""
        return sum(-(-body // self.page_size) for body in self.bodies)

    @property
    def has_heads(self) -> bool:
        """Whether any request goes on in a page that it has begun."""
        return any(self.heads)

    @property
    def gaps(self) -> tuple[int, ...]:
        """For each request, slots of its last new page that no token takes."""
        return tuple(-body % self.page_size for body in self.bodies)

    def head_slots(self, last_loc: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """For each request, the slots that follow its own of ``[requests]`` last ones."""
        width = max(self.heads)
        following = last_loc.unsqueeze(1) + torch.arange(1, width + 1, device=last_loc.device)
        pieces = _alternating(self.heads, [width - head for head in self.heads])
        return following.view(-1).split_with_sizes(pieces)[::2]

    def in_order(self, heads: Sequence[torch.Tensor], new_slots: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` slots, request by request, from the heads, if any, and ``[new_pages * page_size]`` new slots."""
        if not heads and not any(self.gaps):
            return new_slots
        bodies = new_slots.split_with_sizes(_alternating(self.bodies, self.gaps))[::2]
        return joined(list(chain.from_iterable(zip(heads, bodies, strict=True))) if heads else bodies)

    def without_gaps(self, new_rows: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        """``[new_pages, page_size]`` rows with 0 in the slots that no token takes."""
        if not any(self.gaps):
            return new_rows
        pieces = new_rows.view(-1).split_with_sizes(_alternating(self.bodies, self.gaps))
        filled = [zeros[: piece.numel()] if i % 2 else piece for i, piece in enumerate(pieces)]
        return torch.cat(filled).view(new_rows.shape)


def plan_extension(
    prefix_lens_cpu: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    last_loc: torch.Tensor,
    extend_num_tokens: int,
    page_size: int,
) -> Extension:
    """How ``[requests]`` grow from their prefix lengths to their sequence lengths, both in tokens and on the host.

    Raises:
        PoolError: ``last_loc`` holds no indices, a sequence is shorter than its prefix, the three are not of one
            length, or the requests do not grow by ``extend_num_tokens`` in all.
    """
    check_indices(last_loc)
    prefixes, lengths = prefix_lens_cpu.tolist(), seq_lens_cpu.tolist()
    if not len(prefixes) == len(lengths) == last_loc.numel():
        raise PoolError(
            f"{len(prefixes)} prefix lengths, {len(lengths)} sequence lengths and {last_loc.numel()} last slots; "
            "a request has one of each"
        )
    heads, bodies = [], []
    for prefix, length in zip(prefixes, lengths, strict=True):
        if not 0 <= prefix <= length:
            raise PoolError(f"a sequence of {length} tokens cannot have a prefix of {prefix}")
        head = min(-prefix % page_size, length - prefix)
        heads.append(head)
        bodies.append(length - prefix - head)
    tokens = sum(lengths) - sum(prefixes)
    if tokens != extend_num_tokens:
        raise PoolError(f"extend_num_tokens is {extend_num_tokens}, and the requests grow by {tokens} in all")
    return Extension(page_size, tuple(heads), tuple(bodies))


def joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor of several; of one, itself."""
    return pieces[0] if len(pieces) == 1 else torch.cat(tuple(pieces))


def _alternating(kept: Sequence[int], dropped: Sequence[int]) -> list[int]:
    return list(chain.from_iterable(zip(kept, dropped, strict=True)))
