"""What allocating, freeing and clearing cost beside SGLang 0.5.23's own allocator, on one CPU thread.

Ours calibrates when it is constructed, as it does for its users; the profiles are forgotten at the end.

Run: tests/rigs/sglang.sh && .rigs/sglang/bin/python tests/benchmarks/allocator.py
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any

import torch

from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.fingerprint import fingerprint
from swa_alloc.stores import SYSTEM_VARIABLE, USER_VARIABLE

Make = Callable[[int, int, int], Any]
# Does a round's work and returns the nanoseconds of it that count.
Round = Callable[[], float]

KI, MI = 1 << 10, 1 << 20
PAGE = 64
REQUESTS, TOKENS, WINDOW = 64, 4096, 128


def make_tuned(size: int, size_swa: int, page_size: int) -> SWATokenToKVPoolAllocator:
    """Ours as its users have it: calibrated when the first of its kind is constructed."""
    return SWATokenToKVPoolAllocator(size, size_swa, page_size, torch.bfloat16, "cpu", None, on_missing="calibrate")


def repeated(call: Callable[[], object], calls: int) -> Round:
    def run() -> float:
        start = perf_counter_ns()
        for _ in range(calls):
            call()
        return (perf_counter_ns() - start) / calls

    return run


def one_token(make: Make, size: int, calls: int) -> Round:
    allocator = make(size, size // 2, 1)
    return repeated(lambda: allocator.free(allocator.alloc(1)), calls)


def lengths(values: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """On the device and on the host, as SGLang passes them."""
    return torch.tensor(values), torch.tensor(values)


def prompt(make: Make, tokens: int) -> Round:
    """A prompt comes and goes; writing its slots into the int32 row that is freed is not counted."""
    allocator = make(MI, MI // 2, PAGE)
    arguments = (*lengths([0]), *lengths([tokens]), torch.tensor([-1]), tokens)
    row = torch.zeros(tokens, dtype=torch.int32)

    def run() -> float:
        start = perf_counter_ns()
        slots = allocator.alloc_extend(*arguments)
        allocated = perf_counter_ns()
        row.copy_(slots)
        freeing = perf_counter_ns()
        allocator.free_segment(row, start_pos=0)
        return perf_counter_ns() - freeing + allocated - start

    return run


def decode_step(make: Make) -> Round:
    """Running requests grow by a token, one of them onto a new page, and the window leaves a page of each behind."""
    allocator = make(MI, MI // 2, PAGE)
    # One token apart, so that each step begins one page.
    before = [TOKENS + request for request in range(REQUESTS)]
    prompts = (*lengths([0] * REQUESTS), *lengths(before), torch.full((REQUESTS,), -1), sum(before))
    seq_lens = lengths([length + 1 for length in before])
    table = torch.zeros(REQUESTS, max(before), dtype=torch.int32)
    left = TOKENS - WINDOW - PAGE
    pages = [table[request, left : left + PAGE] for request in range(REQUESTS)]
    last = (torch.arange(REQUESTS), torch.tensor(before) - 1)

    def run() -> float:
        # The same state for each round.
        allocator.clear()
        for row, slots in zip(table, allocator.alloc_extend(*prompts).split(before), strict=True):
            row[: len(slots)] = slots
        last_loc = table[last]
        start = perf_counter_ns()
        allocator.alloc_decode(*seq_lens, last_loc)
        allocator.free_group_begin()
        for page in pages:
            allocator.free_swa_segment(page, start_pos=left)
        allocator.free_group_end()
        return perf_counter_ns() - start

    return run


def clear(make: Make, dtype: torch.dtype) -> Round:
    allocator = make(MI, MI // 2, PAGE)
    row = torch.arange(PAGE, 2 * PAGE, dtype=dtype)
    # Looked up at each call, as callers do.
    return repeated(lambda: allocator.clear_full_to_swa_mapping(row), 100)


def compare(name: str, left: Round, right: Round, rounds: int, bound: str) -> None:
    """Print a line of the table. The two take turns, and each round gives a ratio."""
    for _ in range(max(3, rounds // 10)):
        left()
        right()
    pairs = [(left(), right()) for _ in range(rounds)]
    ratio = median(second / first for first, second in pairs)
    first, second = (median(times) / 1000 for times in zip(*pairs, strict=True))
    print(f"{name:<46} {first:>10.2f} {second:>10.2f} {ratio:>8.2f}   {bound}", flush=True)


def main() -> None:
    if importlib.util.find_spec("sglang") is None:
        print("SGLang is not here; run tests/rigs/sglang.sh, then this with .rigs/sglang/bin/python", file=sys.stderr)
        sys.exit(2)
    # The driver that the tests share; scripts see their own folder only.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from peer.sglang_peer import make_sglang

    torch.set_num_threads(1)
    with TemporaryDirectory() as profiles:
        os.environ |= {USER_VARIABLE: profiles, SYSTEM_VARIABLE: profiles}
        compare_all(make_tuned, make_sglang)


def compare_all(make_ours: Make, make_sglang: Make) -> None:
    device = fingerprint(torch.device("cpu")).device_name
    print(f"torch {torch.__version__}, sglang {version('sglang')}, one thread, {device}")
    print(f"{'medians in us':<46} {'ours':>10} {'sglang':>10} {'ratio':>8}   floor")
    for label, size, calls, rounds, floor in (
        ("16 Ki", 16 * KI, 50, 300, 1.8),
        ("1 Mi", MI, 5, 150, 30),
        ("4 Mi", 4 * MI, 1, 60, 300),
    ):
        ours, theirs = one_token(make_ours, size, 50), one_token(make_sglang, size, calls)
        compare(f"alloc and free a token, {label} slots", ours, theirs, rounds, f"{floor}")
    small, large = one_token(make_ours, 16 * KI, 50), one_token(make_ours, 4 * MI, 50)
    compare("  ours: 16 Ki slots, 4 Mi slots", small, large, 300, "at most 1.2")
    compare("alloc_extend and free_segment, 8192 tokens", prompt(make_ours, 8192), prompt(make_sglang, 8192), 200, "7")
    compare("decode step of 64, a page of each freed", decode_step(make_ours), decode_step(make_sglang), 200, "5")
    for dtype in (torch.int64, torch.int32):
        compare(f"clear of 64 {dtype} indices", clear(make_ours, dtype), clear(make_sglang, dtype), 300, "1.3")


if __name__ == "__main__":
    main()
