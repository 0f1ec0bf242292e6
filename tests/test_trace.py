"""Traces: what is written is what is read, nothing wrong is read, and the recorder sees what the allocator does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import CPU, PROPERTY, one_line, write_json
from hypothesis import given
from hypothesis import strategies as st

from swa_alloc import FullToSWAMapping, Overrides, SWATokenToKVPoolAllocator
from swa_alloc.errors import TraceError
from swa_alloc.strategies import Strategy
from swa_alloc.testing import SetContract, StrategyContract, TakeContract, TranslateContract
from swa_alloc.trace import SCHEMA, Trace, TraceEntry, TraceRecorder, layout_of


def make_trace(**changes: Any) -> Trace:
    entries = (
        TraceEntry("clear", "token", "int32", 128, "pages", 3.0),
        TraceEntry("clear", "page", "int64", 2, "scattered", 0.5),
    )
    return Trace(SCHEMA, 256, 64, entries)._replace(**changes)


def make_document(**changes: Any) -> dict[str, Any]:
    entries = [entry._asdict() for entry in make_trace().entries]
    return {"schema": SCHEMA, "size": 256, "page_size": 64, "entries": entries, **changes}


# --- files


def test_a_trace_survives_the_file(tmp_path: Path) -> None:
    path = make_trace().save(tmp_path / "new folder" / "trace.json")
    assert Trace.load(path) == make_trace()
    assert Trace.load(path).digest == make_trace().digest
    assert list(path.parent.iterdir()) == [path]


def test_the_digest_tells_traces_apart() -> None:
    assert make_trace().digest != make_trace(size=512).digest
    assert make_trace().digest != make_trace(entries=make_trace().entries[:1]).digest


def test_equal_traces_are_equal_files(tmp_path: Path) -> None:
    first, second = make_trace().save(tmp_path / "a.json"), make_trace().save(tmp_path / "b.json")
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"


def test_a_document_as_described_is_a_trace(tmp_path: Path) -> None:
    assert Trace.load(write_json(tmp_path / "trace.json", make_document())) == make_trace()


ENTRY = make_document()["entries"][0]

BAD = {
    "another schema": ({"schema": "swa_alloc.profile/1"}, "schema must be"),
    "no pages": ({"page_size": 0}, "multiple of page_size"),
    "size below a page": ({"size": 0}, "multiple of page_size"),
    "size that is no multiple": ({"size": 100}, "multiple of page_size"),
    "size as text": ({"size": "256"}, "size must be a whole number"),
    "no entries": ({"entries": []}, "entries must hold at least one call"),
    "entries as object": ({"entries": {}}, "entries must be a list"),
    "no weight": ({"entries": [{**ENTRY, "weight": 0}]}, "weight above 0"),
    "negative weight": ({"entries": [{**ENTRY, "weight": -1.0}]}, r"entries\[0\].*weight at least 0"),
    "NaN weight": ({"entries": [{**ENTRY, "weight": math.nan}]}, "NaN is no JSON number"),
    "weight beyond any float": ({"entries": [{**ENTRY, "weight": 10**400}]}, r"entries\[0\]\.weight"),
    "no indices": ({"entries": [{**ENTRY, "count": 0}]}, r"entries\[0\].*count must be at least 1"),
    "more than the pool": ({"entries": [{**ENTRY, "count": 257}]}, r"entries\[0\]\.count is 257 .* only 256 rows"),
    "more pages than there are": (
        {"entries": [{**ENTRY, "target": "page", "count": 5}]},
        r"entries\[0\]\.count is 5 .* only 4 rows",
    ),
    "unknown layout": ({"entries": [{**ENTRY, "layout": "rows"}]}, r"entries\[0\]\.layout must be one of run, pages"),
    "unknown dtype": ({"entries": [{**ENTRY, "index_dtype": "int16"}]}, r"index_dtype must be one of int32, int64"),
    "unknown operation": ({"entries": [{**ENTRY, "operation": "fill"}]}, r"operation must be one of clear, set"),
    "unknown field": ({"entries": [{**ENTRY, "stream": 1}]}, r"entries\[0\]\.stream is not a known field"),
    "missing field": ({"entries": [{"operation": "clear"}]}, r"entries\[0\]\.count is missing"),
    "pages of one slot": (
        {"page_size": 1, "entries": [{**ENTRY, "target": "page"}]},
        r"entries\[0\]\.target is page, and with page_size 1 that is token",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), BAD.values(), ids=BAD)
def test_an_impossible_trace_is_refused_in_one_line_that_says_where(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = write_json(tmp_path / "trace.json", make_document(**changes))
    with pytest.raises(TraceError, match=reason) as error:
        Trace.load(path)
    assert str(path) in one_line(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\x00", '{"schema": 1}'])
def test_a_file_that_is_no_trace_is_refused_and_what_is_expected_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TraceError, match="is not usable") as error:
        Trace.load(path)
    assert SCHEMA in one_line(error.value)


def test_a_file_that_cannot_be_read_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "missing.json", "No such file"), (tmp_path, "directory")):
        with pytest.raises(TraceError, match="cannot be read") as error:
            Trace.load(path)
        assert reason in one_line(error.value)


def test_a_path_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(TraceError, match="cannot be written"):
        make_trace().save(tmp_path / "a file" / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


# --- layouts


@pytest.mark.parametrize(
    ("indices", "page_size", "layout"),
    [
        ([], 4, "run"),
        ([7], 4, "run"),
        ([5, 6, 7], 4, "run"),
        ([4, 5, 6, 7, 8, 9, 10, 11], 4, "run"),
        ([8, 9, 10, 11, 4, 5, 6, 7], 4, "pages"),
        ([4, 5, 6, 7, 12, 13, 14, 15], 4, "pages"),
        ([5, 6, 7, 8, 13, 14, 15, 16], 4, "scattered"),
        ([4, 5, 6, 7, 12, 13, 14], 4, "scattered"),
        ([4, 5, 7, 6, 12, 13, 14, 15], 4, "scattered"),
        ([7, 6, 5, 4], 4, "scattered"),
        ([4, 4], 1, "scattered"),
        ([3, 1], 1, "scattered"),
        ([3, 4], 1, "run"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_layout_is_a_run_whole_pages_or_scattered(
    indices: list[int], page_size: int, layout: str, dtype: torch.dtype
) -> None:
    assert layout_of(torch.tensor(indices, dtype=dtype), page_size) == layout
    strided = torch.tensor(indices, dtype=dtype).repeat_interleave(2)[::2]
    assert layout_of(strided, page_size) == layout


@PROPERTY
@given(pages=st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True), page_size=st.sampled_from([2, 4, 64]))
def test_whole_pages_in_any_order_are_pages_unless_they_are_one_run(pages: list[int], page_size: int) -> None:
    indices = torch.tensor([page * page_size + offset for page in pages for offset in range(page_size)])
    one_run = pages == list(range(pages[0], pages[0] + len(pages)))
    assert layout_of(indices, page_size) == ("run" if one_run else "pages")
    # Without its first slot it is no whole page any more.
    if not one_run:
        assert layout_of(indices[1:], page_size) == "scattered"


# --- the recorder


def recording(operation: str) -> dict[str, Strategy]:
    return {s.name: s for s in TraceRecorder().strategies if s.operation == operation}


class TestTheRecorderClearsLikeAnyStrategy(StrategyContract):
    candidates = recording("clear")


class TestTheRecorderSetsLikeAnyStrategy(SetContract):
    candidates = recording("set")


class TestTheRecorderTranslatesLikeAnyStrategy(TranslateContract):
    candidates = recording("translate")


class TestTheRecorderTakesLikeAnyStrategy(TakeContract):
    candidates = recording("take")


def record(page_size: int, *, size: int = 16) -> tuple[TraceRecorder, FullToSWAMapping]:
    """A recorder, and a mapping over so many pages that it records."""
    recorder = TraceRecorder()
    overrides = Overrides(strategy=recorder.strategies, strict_profile=True)
    return recorder, FullToSWAMapping.allocate(size * page_size, page_size, CPU, overrides)


def int32(*indices: int) -> torch.Tensor:
    return torch.tensor(indices, dtype=torch.int32)


def int64(*indices: int) -> torch.Tensor:
    return torch.tensor(indices, dtype=torch.int64)


def test_a_clear_of_pages_is_entered_for_both_targets_and_one_of_slots_for_its_own() -> None:
    recorder, mapping = record(4)
    mapping.clear_pages(int64(1))
    mapping.clear_pages(int64(2, 4))
    mapping.clear(int32(24, 21))
    mapping.clear(int32(26, 20))
    trace = recorder.trace(64, 4)
    assert (trace.size, trace.page_size) == (64, 4)
    assert set(trace.entries) == {
        TraceEntry("clear", "page", "int64", 1, "run", 1.0),
        TraceEntry("clear", "token", "int64", 4, "run", 1.0),
        TraceEntry("clear", "page", "int64", 2, "scattered", 1.0),
        TraceEntry("clear", "token", "int64", 8, "pages", 1.0),
        TraceEntry("clear", "token", "int32", 2, "scattered", 2.0),
    }


def test_a_set_of_pages_is_entered_for_both_targets_and_one_of_slots_for_its_own() -> None:
    recorder, mapping = record(4)
    mapping.set_pages(int64(3, 4), torch.ones(2, 4, dtype=torch.int64))
    for slot in (7, 9):
        mapping.set(int64(slot), int64(5))
    assert set(recorder.trace(64, 4).entries) == {
        TraceEntry("set", "page", "int64", 2, "run", 1.0),
        TraceEntry("set", "token", "int64", 8, "run", 1.0),
        TraceEntry("set", "token", "int64", 1, "run", 2.0),
    }


def test_a_read_is_entered_whatever_it_reads() -> None:
    recorder, mapping = record(4)
    assert mapping.translate(int32(-1, 9, -1)).tolist() == [-1, 0, -1]
    mapping.translate(int32(-1))
    assert set(recorder.trace(64, 4).entries) == {
        TraceEntry("translate", "token", "int32", 3, "scattered", 1.0),
        TraceEntry("translate", "token", "int32", 1, "run", 1.0),
    }


def test_a_take_is_entered_as_the_clear_that_others_make_of_it_too() -> None:
    recorder, mapping = record(4)
    mapping.take_pages(int32(3, 9))
    assert set(recorder.trace(64, 4).entries) == {
        TraceEntry("take", "page", "int32", 2, "scattered", 1.0),
        TraceEntry("clear", "page", "int32", 2, "scattered", 1.0),
        TraceEntry("clear", "token", "int32", 8, "pages", 1.0),
    }


def test_with_one_slot_a_page_there_are_only_tokens() -> None:
    recorder, mapping = record(1)
    mapping.take_pages(int64(1, 2, 3))
    mapping.set_pages(int64(5, 4), int64(7, 8))
    assert recorder.trace(16, 1).entries == (
        TraceEntry("clear", "token", "int64", 3, "run", 1.0),
        TraceEntry("set", "token", "int64", 2, "scattered", 1.0),
        TraceEntry("take", "token", "int64", 3, "run", 1.0),
    )


def test_an_allocators_calls_are_recorded_saved_and_used_again(tmp_path: Path) -> None:
    recorder = TraceRecorder()
    allocator = SWATokenToKVPoolAllocator(
        64, 64, 4, torch.bfloat16, "cpu", None, strategy=recorder.strategies, strict_profile=True
    )
    slots = allocator.alloc(8)
    assert slots is not None
    allocator.free_segment(slots, start_pos=0)
    trace = recorder.trace(64, 4)
    assert {entry.operation for entry in trace.entries} == {"clear", "set", "take"}
    assert Trace.load(trace.save(tmp_path / "trace.json")) == trace


def test_calls_of_nothing_are_not_entered_and_a_run_without_calls_is_no_trace() -> None:
    recorder, mapping = record(4)
    for call in (mapping.clear, mapping.clear_pages, mapping.translate, mapping.take_pages):
        call(int64())
    mapping.set(int64(), int64())
    with pytest.raises(TraceError, match="at least one call") as error:
        recorder.trace(16, 4)
    one_line(error.value)


def test_two_recorders_keep_their_own_calls() -> None:
    (first, mapping), (second, _) = record(4), record(4)
    mapping.clear(int64(4))
    assert len(first.trace(64, 4).entries) == 1
    with pytest.raises(TraceError, match="at least one call"):
        second.trace(64, 4)
