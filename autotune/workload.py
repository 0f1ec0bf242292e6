"""From a workload to a trace: plays the traffic on the real allocator and takes down the clears that it makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from autotune.config import Caller, Workload
from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.trace import Trace, TraceRecorder


def trace_of(workload: Workload) -> Trace:
    """The workload's recorded trace, or what playing it gives.

    Raises:
        TraceError: the recorded trace cannot be used.
    """
    return play(workload) if workload.path is None else Trace.load(workload.path)


def play(workload: Workload) -> Trace:
    """The clears that an engine under this traffic makes, on a host-side allocator with the workload's pools."""
    recorder = TraceRecorder()
    allocator = SWATokenToKVPoolAllocator(
        workload.size, workload.size_swa, workload.page_size, torch.bfloat16, "cpu", None, strategy=recorder
    )
    _Engine(workload, allocator).run()
    return recorder.trace(workload.size, workload.page_size)


@dataclass(eq=False)
class _Request:
    """A running request; lengths in tokens."""

    row: torch.Tensor  # [max_length] int32, the request's row of the request table
    length: int
    final_length: int
    allocated: int = 0  # whole pages
    evicted: int = 0  # leading tokens whose SWA slots are freed


FreeSWA = Callable[[SWATokenToKVPoolAllocator, list[torch.Tensor]], None]


def _one_by_one(allocator: SWATokenToKVPoolAllocator, rows: list[torch.Tensor]) -> None:
    for row in rows:
        allocator.free_swa(row)


def _batched(allocator: SWATokenToKVPoolAllocator, rows: list[torch.Tensor]) -> None:
    if rows:
        allocator.free_swa(torch.cat(rows))


_FREE_SWA: Mapping[Caller, FreeSWA] = MappingProxyType({Caller.sglang: _one_by_one, Caller.swa_alloc: _batched})


class _Engine:
    """As much of a serving engine as allocates and frees: admission, chunked prefill, decode, eviction, completion."""

    def __init__(self, workload: Workload, allocator: SWATokenToKVPoolAllocator) -> None:
        self._load = workload
        self._allocator = allocator
        self._free_swa = _FREE_SWA[workload.caller]
        self._random = random.Random(0)  # noqa: S311 - lengths of made-up requests; the same every time
        self._running: list[_Request] = []

    def run(self) -> None:
        """Play every step, then let the requests that still run end."""
        for _ in range(self._load.decode_steps):
            self._admit()
            self._decode()
        self._finish(self._running)

    def _admit(self) -> None:
        while len(self._running) < self._load.running_requests:
            request = self._new_request()
            # Room for its end as well, as SGLang's scheduler reserves it: nothing is ever retracted.
            if self._running and self._reserved() + request.final_length > self._load.size:
                return
            if not self._prefill(request):
                return
            self._running.append(request)

    def _new_request(self) -> _Request:
        # A pool smaller than one request gets requests that fit.
        prompt = self._length(self._load.prompt_tokens)
        final = max(1, min(prompt + self._length(self._load.output_tokens), self._load.size, self._load.size_swa))
        row = torch.zeros(self._whole_pages(final), dtype=torch.int32, device="cpu")
        return _Request(row, length=min(prompt, final), final_length=final)

    def _length(self, mean: int) -> int:
        return self._random.randint(mean - mean // 2, mean + mean // 2)

    def _reserved(self) -> int:
        return sum(self._whole_pages(request.final_length) for request in self._running)

    def _prefill(self, request: _Request) -> bool:
        for start in range(0, request.length, self._load.prefill_chunk):
            length = min(start + self._load.prefill_chunk, request.length)
            if not self._grow({request: length}):
                self._finish([request])
                return False
            self._free_swa(self._allocator, self._leave_window(request, length, interval=0))
        return True

    def _decode(self) -> None:
        done = [request for request in self._running if request.length == request.final_length]
        going = [request for request in self._running if request.length < request.final_length]
        if self._grow({request: request.length + 1 for request in going}):
            evicted: list[torch.Tensor] = []
            for request in going:
                request.length += 1
                evicted += self._leave_window(request, request.length, self._load.eviction_interval)
            self._free_swa(self._allocator, evicted)
        else:
            # The SWA pool is full: the youngest request gives way, as in an engine that retracts.
            done.append(going.pop())
        self._finish(done)
        self._running = going

    def _grow(self, lengths: dict[_Request, int]) -> bool:
        """Allocate, for all at once, the pages that the requests need to reach their new lengths."""
        need = {request: self._whole_pages(length) - request.allocated for request, length in lengths.items()}
        growing = {request: slots for request, slots in need.items() if slots > 0}
        slots = self._allocator.alloc(sum(growing.values()))
        if slots is None:
            return False
        for request, own in zip(growing, torch.split(slots, list(growing.values())), strict=True):
            request.row[request.allocated : request.allocated + own.numel()] = own
            request.allocated += own.numel()
        return True

    def _leave_window(self, request: _Request, length: int, interval: int) -> list[torch.Tensor]:
        """The slots that fell behind the window, once there are ``interval`` of them; whole pages."""
        behind = (length - 1 - self._load.window) // self._load.page_size * self._load.page_size
        if behind <= request.evicted or behind < request.evicted + interval:
            return []
        slots = request.row[request.evicted : behind]
        request.evicted = behind
        return [slots]

    def _finish(self, requests: list[_Request]) -> None:
        live = [request.row[request.evicted : request.allocated] for request in requests]
        self._free_swa(self._allocator, [slots for slots in live if slots.numel()])
        for request in requests:
            self._allocator.free_full(request.row[: request.allocated])

    def _whole_pages(self, tokens: int) -> int:
        return -(-tokens // self._load.page_size) * self._load.page_size
