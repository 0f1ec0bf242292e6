"""Playing a workload: the trace holds the calls that an engine under that traffic makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune.traffic.workload
from autotune.config import Caller, Workload
from autotune.traffic.workload import play, trace_of
from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.errors import TraceError
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

LOAD = Workload(
    name="small",
    size=4096,
    size_swa=2048,
    page_size=4,
    window=32,
    running_requests=6,
    prompt_tokens=120,
    output_tokens=200,
    prefill_chunk=64,
    eviction_interval=16,
    decode_steps=250,
    backlog_us=0.0,
)


def entries(trace: Trace, operation: str, target: str) -> list[TraceEntry]:
    return [entry for entry in trace.entries if (entry.operation, entry.target) == (operation, target)]


def slots(found: list[TraceEntry]) -> float:
    return sum(entry.count * entry.weight for entry in found)


def calls(found: list[TraceEntry]) -> float:
    return sum(entry.weight for entry in found)


@pytest.fixture
def allocators(monkeypatch: pytest.MonkeyPatch) -> list[SWATokenToKVPoolAllocator]:
    """The allocators that workloads are played on."""
    made: list[SWATokenToKVPoolAllocator] = []

    class Watched(SWATokenToKVPoolAllocator):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(autotune.traffic.workload, "SWATokenToKVPoolAllocator", Watched)
    return made


@pytest.mark.parametrize("caller", list(Caller))
@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_the_allocator_ends_empty(allocators: list[SWATokenToKVPoolAllocator], caller: Caller, page_size: int) -> None:
    trace = play(replace(LOAD, caller=caller, page_size=page_size))
    (allocator,) = allocators
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (
        allocator.size_full,
        allocator.size_swa,
    )
    mapping = allocator.full_to_swa_index_mapping
    assert int(mapping[-1]) == -1
    assert not mapping[:-1].any()
    assert (trace.size, trace.page_size) == (LOAD.size, page_size)


def by_count(found: list[TraceEntry], factor: int = 1) -> dict[int, float]:
    counts: dict[int, float] = {}
    for entry in found:
        counts[entry.count * factor] = counts.get(entry.count * factor, 0.0) + entry.weight
    return counts


@pytest.mark.parametrize("caller", list(Caller))
def test_windows_and_requests_are_freed_by_rows_of_an_int32_table(caller: Caller) -> None:
    takes = entries(play(replace(LOAD, caller=caller)), "take", "page")
    assert {entry.index_dtype for entry in takes} == {"int32"}
    assert {entry.layout for entry in takes} <= {"run", "scattered"}


@pytest.mark.parametrize("caller", list(Caller))
def test_a_take_is_also_the_clear_that_others_make_of_it(caller: Caller) -> None:
    trace = play(replace(LOAD, caller=caller))
    takes, clears = entries(trace, "take", "page"), entries(trace, "clear", "page")
    assert [entry._replace(operation="take") for entry in clears] == takes
    assert by_count(takes, LOAD.page_size) == by_count(entries(trace, "clear", "token"))


def test_there_are_no_pages_where_pages_are_slots() -> None:
    trace = play(replace(LOAD, page_size=1))
    assert {entry.target for entry in trace.entries} == {"token"}
    assert {entry.operation for entry in trace.entries} == {"clear", "set", "translate", "take"}


def test_a_decode_step_reads_and_sets_one_slot_of_each_running_request() -> None:
    # Nobody comes and nobody goes.
    load = replace(LOAD, size=16384, prompt_tokens=1, output_tokens=2000, decode_steps=50, running_requests=3)
    trace = play(replace(load, size_swa=load.size, page_size=1))
    assert by_count(entries(trace, "translate", "token")) == {3: 50}
    assert by_count(entries(trace, "set", "token")) == {1: 3, 3: 50}


def test_a_prompt_is_set_chunk_by_chunk_and_page_by_page() -> None:
    load = replace(LOAD, prompt_tokens=1000, output_tokens=1, prefill_chunk=64, decode_steps=1, running_requests=1)
    counts = by_count(entries(play(load), "set", "page"))
    last = min(counts)
    assert set(counts) == {16, last}
    # Half of the mean at least, and half as much again at most.
    assert 500 <= 64 * counts[16] <= 1500


def test_sglang_evicts_one_request_at_a_time_by_at_least_the_interval() -> None:
    # Prompts inside the window and no end: nothing but evictions while decoding, and the requests' ends.
    load = replace(
        LOAD,
        size=16384,
        size_swa=16384,
        prompt_tokens=4,
        output_tokens=2000,
        decode_steps=200,
        running_requests=3,
    )
    counts = by_count(entries(play(load), "take", "page"), load.page_size)
    evictions = counts.pop(16)
    # 200 steps outgrow a window of 32 by 160 tokens or a little more: ten evictions of each of three requests.
    assert evictions == pytest.approx(30, abs=3)
    # Whatever else there is, is what the three held at their ends: the window, and less than an interval and a page.
    assert sum(counts.values()) == 3
    assert all(count <= 32 + 16 + 2 * load.page_size for count in counts)


def test_swa_alloc_frees_for_all_requests_of_a_step_at_once() -> None:
    one_by_one, batched = play(LOAD), play(replace(LOAD, caller=Caller.swa_alloc))
    takes, batched_takes = entries(one_by_one, "take", "page"), entries(batched, "take", "page")
    assert calls(batched_takes) < calls(takes)
    # The same pages are freed either way, and what allocates does not care.
    assert slots(batched_takes) == slots(takes)
    assert max(entry.count for entry in batched_takes) > max(entry.count for entry in takes)
    assert by_count(entries(batched, "set", "token")) == by_count(entries(one_by_one, "set", "token"))


def test_no_free_is_larger_than_a_request_with_sglang() -> None:
    load = replace(LOAD, prompt_tokens=100, output_tokens=50)
    # Lengths spread by half of the mean on either side.
    longest = 150 + 75
    assert (
        max(entry.count for entry in entries(play(load), "take", "page")) * load.page_size <= longest + load.page_size
    )


def test_a_larger_interval_makes_fewer_and_larger_frees() -> None:
    often, seldom = play(LOAD), play(replace(LOAD, eviction_interval=64))
    assert calls(entries(seldom, "take", "page")) < calls(entries(often, "take", "page"))
    assert slots(entries(seldom, "take", "page")) == slots(entries(often, "take", "page"))


@pytest.mark.parametrize("caller", list(Caller))
def test_playing_twice_gives_the_same_trace(caller: Caller) -> None:
    load = replace(LOAD, caller=caller)
    first = play(load)
    assert play(load) == first
    assert play(load).digest == first.digest


def test_playing_leaves_the_threads_of_the_process_as_they_are() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        play(LOAD)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_another_traffic_gives_another_trace() -> None:
    assert play(LOAD).digest != play(replace(LOAD, output_tokens=201)).digest


@pytest.mark.parametrize("caller", list(Caller))
def test_pools_smaller_than_a_request_get_requests_that_fit(
    allocators: list[SWATokenToKVPoolAllocator], caller: Caller
) -> None:
    trace = play(replace(LOAD, size=64, size_swa=16, prompt_tokens=10_000, caller=caller))
    assert max(entry.count for entry in trace.entries) <= 16
    assert allocators[0].available_size() == 16


def test_time_and_memory_do_not_grow_with_a_pool_that_holds_every_request() -> None:
    # A list of its slots alone would be 8 TiB.
    trace = play(replace(LOAD, size=1 << 40, size_swa=1 << 40))
    assert (trace.size, trace.page_size) == (1 << 40, LOAD.page_size)


def test_a_recorded_trace_takes_the_place_of_playing(tmp_path: Path) -> None:
    recorded = Trace(SCHEMA, 640, 64, (TraceEntry("clear", "page", "int64", 3, "scattered", 2.0),))
    path = recorded.save(tmp_path / "clears.json")
    assert trace_of(replace(LOAD, path=str(path))) == recorded


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"schema": "swa_alloc.trace/9"}'])
def test_a_trace_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "clears.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=r"clears\.json"):
        trace_of(replace(LOAD, path=str(path)))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    page_size = draw(st.sampled_from([1, 2, 8]))
    return Workload(
        name="any",
        caller=draw(st.sampled_from(list(Caller))),
        size=page_size * draw(st.integers(1, 40)),
        size_swa=page_size * draw(st.integers(1, 40)),
        page_size=page_size,
        window=draw(st.integers(1, 40)),
        running_requests=draw(st.integers(1, 5)),
        prompt_tokens=draw(st.integers(1, 60)),
        output_tokens=draw(st.integers(1, 60)),
        prefill_chunk=draw(st.integers(1, 60)),
        eviction_interval=draw(st.integers(1, 40)),
        decode_steps=draw(st.integers(1, 30)),
        backlog_us=0.0,
    )


@given(load=workloads())
@settings(max_examples=100, deadline=None)
def test_any_traffic_on_any_pools_can_be_played_and_loses_no_slot(load: Workload) -> None:
    made: list[SWATokenToKVPoolAllocator] = []
    real = autotune.traffic.workload.SWATokenToKVPoolAllocator

    def watched(*args: Any, **kwargs: Any) -> SWATokenToKVPoolAllocator:
        made.append(real(*args, **kwargs))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autotune.traffic.workload, "SWATokenToKVPoolAllocator", watched)
        trace = play(load)
    (allocator,) = made
    for pool in (allocator.full_attn_allocator, allocator.swa_attn_allocator):
        pages = pool.get_all_free_pages().tolist()
        assert pool.available_size() == pool.size
        assert sorted(pages) == list(range(1, pool.size // load.page_size + 1))
    # Also raises for counts that the pools could not hold.
    trace.check()


@given(load=workloads(), factor=st.sampled_from([1, 8, 64]))
@settings(max_examples=100, deadline=None)
def test_slots_that_no_request_can_reach_make_no_difference(load: Workload, factor: int) -> None:
    load = replace(load, size=factor * load.size, size_swa=factor * load.size_swa)
    trace = play(load)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autotune.traffic.workload, "_without_idle_slots", lambda whole: whole)
        assert play(load) == trace
