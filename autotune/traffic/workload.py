"""From a workload to a trace: plays the traffic on the real allocator and takes down the calls that it makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
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
    """The calls that an engine under this traffic makes, on a host-side allocator with the workload's pools.

    Its time and memory do not grow with the pools once all the requests fit.
    """
    recorder = TraceRecorder()
    load = _without_idle_slots(workload)
    allocator = SWATokenToKVPoolAllocator(
        load.size, load.size_swa, load.page_size, torch.bfloat16, "cpu", None, strategy=recorder.strategies
    )
    with _one_thread():
        _Engine(load, allocator).run()
    return recorder.trace(workload.size, workload.page_size)


def _without_idle_slots(workload: Workload) -> Workload:
    """The workload on pools without the slots that no request can reach: it makes the same calls there."""
    reach = workload.running_requests * _whole_pages(_longest_request(workload), workload.page_size)
    return replace(workload, size=min(workload.size, reach), size_swa=min(workload.size_swa, reach))


def _longest_request(workload: Workload) -> int:
    """Tokens of the longest request that the traffic may bring."""
    return sum(mean + mean // 2 for mean in (workload.prompt_tokens, workload.output_tokens))


def _whole_pages(tokens: int, page_size: int) -> int:
    """Slots of the pages that so many tokens take up."""
    return -(-tokens // page_size) * page_size


@contextmanager
def _one_thread() -> Iterator[None]:
    """A second thread gains nothing here, and on a busy machine a call waits milliseconds until it gets a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(eq=False)
class _Request:
    """A request that runs; lengths in tokens."""

    row: int  # of the request table
    prompt_length: int
    final_length: int
    length: int = 0  # so far
    evicted: int = 0  # leading tokens whose SWA slots are freed


# What a step's frees are made in.
_FREES: Mapping[Caller, Callable[[SWATokenToKVPoolAllocator], AbstractContextManager[None]]] = MappingProxyType(
    {Caller.sglang: lambda _allocator: nullcontext(), Caller.swa_alloc: lambda allocator: allocator.free_group()}
)


class _Engine:
    """As much of a serving engine as allocates and frees: admission, chunked prefill, decode, eviction, completion.

    It calls the allocator as SGLang 0.5.23's scheduler does, with slices of an int32 request table.
    """

    def __init__(self, workload: Workload, allocator: SWATokenToKVPoolAllocator) -> None:
        self._load = workload
        self._allocator = allocator
        self._random = random.Random(0)  # noqa: S311 - lengths of made-up requests; the same every time
        self._running: list[_Request] = []
        # A pool smaller than a request gets requests that fit.
        self._longest = min(workload.size, workload.size_swa)
        means = (workload.prompt_tokens, workload.output_tokens)
        shortest = min(sum(mean - mean // 2 for mean in means), self._longest)
        rows = min(workload.running_requests, workload.size // _whole_pages(shortest, workload.page_size) + 1)
        width = min(_longest_request(workload), self._longest)
        self._table = torch.empty(rows, width, dtype=torch.int32, device="cpu")
        self._free_rows = list(range(rows))

    def run(self) -> None:
        """Play every step, then let the requests that still run end."""
        for _ in range(self._load.decode_steps):
            self._admit()
            self._decode()
        with self._frees():
            self._finish(self._running)

    def _frees(self) -> AbstractContextManager[None]:
        return _FREES[self._load.caller](self._allocator)

    def _admit(self) -> None:
        while len(self._running) < self._load.running_requests:
            prompt = self._length(self._load.prompt_tokens)
            final = min(prompt + self._length(self._load.output_tokens), self._longest)
            # Room for its end as well, as SGLang's scheduler reserves it: nothing is ever retracted.
            if self._running and self._reserved() + final > self._load.size:
                return
            request = _Request(self._free_rows.pop(), min(prompt, final), final)
            if not self._prefill(request):
                return
            self._running.append(request)

    def _length(self, mean: int) -> int:
        return self._random.randint(mean - mean // 2, mean + mean // 2)

    def _reserved(self) -> int:
        return sum(_whole_pages(request.final_length, self._load.page_size) for request in self._running)

    def _prefill(self, request: _Request) -> bool:
        while request.length < request.prompt_length:
            if not self._extend(request, min(request.length + self._load.prefill_chunk, request.prompt_length)):
                self._finish([request])
                return False
            self._leave_window(request, interval=0)
        return True

    def _extend(self, request: _Request, length: int) -> bool:
        row, before = self._table[request.row], request.length
        prefix, sequence = torch.tensor([before], device="cpu"), torch.tensor([length], device="cpu")
        last_loc = row[before - 1 : before].to(torch.int64) if before else torch.tensor([-1], device="cpu")
        slots = self._allocator.alloc_extend(prefix, prefix, sequence, sequence, last_loc, length - before)
        if slots is None:
            return False
        row[before:length] = slots
        request.length = length
        return True

    def _decode(self) -> None:
        done = [request for request in self._running if request.length == request.final_length]
        going = [request for request in self._running if request.length < request.final_length]
        if going and not self._extend_by_one(going):
            # The SWA pool is full: the youngest request gives way, as in an engine that retracts.
            done.append(going.pop())
        with self._frees():
            for request in going:
                self._leave_window(request, self._load.eviction_interval)
            self._finish(done)
        self._running = going

    def _extend_by_one(self, requests: list[_Request]) -> bool:
        rows = torch.tensor([request.row for request in requests], device="cpu")
        lengths = torch.tensor([request.length for request in requests], device="cpu")
        slots = self._allocator.alloc_decode(lengths + 1, lengths + 1, self._table[rows, lengths - 1])
        if slots is None:
            return False
        self._table[rows, lengths] = slots.to(torch.int32)
        for request in requests:
            request.length += 1
        return True

    def _leave_window(self, request: _Request, interval: int) -> None:
        """Free the SWA slots that fell behind the window, once there are ``interval`` of them; whole pages."""
        behind = (request.length - 1 - self._load.window) // self._load.page_size * self._load.page_size
        if behind > request.evicted and behind >= request.evicted + interval:
            slots = self._table[request.row, request.evicted : behind]
            self._allocator.free_swa_segment(slots, start_pos=request.evicted)
            request.evicted = behind

    def _finish(self, requests: Iterable[_Request]) -> None:
        for request in requests:
            row = self._table[request.row, : request.length]
            self._allocator.free_full_segment(row[: request.evicted], start_pos=0)
            self._allocator.free_segment(row[request.evicted :], start_pos=request.evicted)
            self._free_rows.append(request.row)
