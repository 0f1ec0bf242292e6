"""A real calibration, on the CPU that runs the tests."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import optuna
import pytest
import torch
from conftest import Run

import autotune.bench.bench
from autotune.bench.sandbox import Sandbox
from autotune.calibrate import calibrate, make_request, measure
from autotune.config import Calibration, Workload, load_group
from autotune.contest.race import OBJECTIVES
from autotune.devices import open_device
from swa_alloc import Strategy, StrategyProfile, SWATokenToKVPoolAllocator, register_strategy
from swa_alloc.errors import SWAAllocError, TraceError
from swa_alloc.fingerprint import fingerprint
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, CallKind, Target
from swa_alloc.strategies import Bound, names
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

LOAD = Workload(
    name="small",
    size=4096,
    size_swa=2048,
    page_size=16,
    window=64,
    running_requests=8,
    prompt_tokens=128,
    output_tokens=256,
    prefill_chunk=128,
    eviction_interval=32,
    decode_steps=100,
    backlog_us=100.0,
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def profile() -> StrategyProfile:
    # Made before any test's own surroundings are.
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        # A loaded machine needs several times the second that a quiet one does.
        return calibrate("cpu", LOAD, budget_s=20)


def test_every_operation_target_and_dtype_is_decided_for_every_number_of_indices(profile: StrategyProfile) -> None:
    for operation in OPERATIONS.values():
        for target in operation.targets(16):
            for dtype in INDEX_DTYPES:
                decisions = profile.decisions_for(CallKind(operation.name, target, dtype))
                assert decisions[-1].max_indices is None
                assert {decision.strategy for decision in decisions} <= set(names(operation.name))


def test_it_is_made_for_this_machine_and_workload(profile: StrategyProfile) -> None:
    assert profile.fingerprint == fingerprint(CPU)
    workload = profile.workload
    assert (workload.name, workload.size, workload.page_size, workload.backlog_us) == ("small", 4096, 16, 100.0)
    assert profile.match(fingerprint(CPU), 4096, 16).tier == "exact"
    assert profile.objective == "serving"


def test_its_evidence_speaks_of_every_size_and_every_strategy(profile: StrategyProfile) -> None:
    evidence = profile.evidence
    assert {measurement.kind for measurement in evidence.measurements} == {
        CallKind(operation.name, target, dtype)
        for operation in OPERATIONS.values()
        for target in operation.targets(16)
        for dtype in INDEX_DTYPES
    }
    known = {(m.kind.operation, c.strategy) for m in evidence.measurements for c in m.candidates}
    absent = {(i.kind.operation, i.strategy) for i in evidence.ineligible}
    assert known | absent == {(operation, name) for operation in OPERATIONS for name in names(operation)}
    assert {i.reason for i in evidence.ineligible} == {"unavailable"}
    assert ("clear", "npu_scatter_nd_update") in absent
    for measurement in evidence.measurements:
        assert measurement.noise_floor >= 0
        for objective in OBJECTIVES:
            assert measurement.verdicts[objective].margin >= 0.03
        for candidate in measurement.candidates:
            assert candidate.host_us > 0
            assert candidate.cold_us is None or candidate.cold_us > 0


def test_with_time_enough_it_is_complete(profile: StrategyProfile) -> None:
    assert profile.missing == ()
    assert profile.provenance.rounds >= 8 * len(profile.evidence.measurements)


def test_with_too_little_time_it_names_what_is_missing(profile: StrategyProfile) -> None:
    quick = calibrate("cpu", LOAD, budget_s=0.1)
    planned = {f"{measurement.kind} at {measurement.indices}" for measurement in profile.evidence.measurements}
    assert quick.missing
    assert set(quick.missing) <= planned
    assert quick.provenance.measuring_s < 1


def test_what_a_cold_call_follows_is_stated(profile: StrategyProfile) -> None:
    step = profile.provenance.config["step"]
    assert step["data_bytes"] >= 1 << 18
    assert step["us"] > 0


def test_it_survives_a_file(profile: StrategyProfile, tmp_path: Path) -> None:
    path = profile.save(tmp_path / "p.json")
    loaded = StrategyProfile.load(path)
    assert loaded.document() == profile.document()
    assert loaded.evidence == profile.evidence


def test_its_provenance_is_complete(profile: StrategyProfile) -> None:
    made = profile.provenance
    assert made.method == "measured"
    created = datetime.fromisoformat(made.created)
    assert created.utcoffset() == timedelta(0)
    assert abs(datetime.now(timezone.utc) - created) < timedelta(hours=1)
    assert made.measuring_s > 0
    assert re.fullmatch(r"[0-9a-f]{12}", made.request)
    assert made.effort["budget_s"] == 20
    assert made.config["workload"]["size"] == 4096
    assert made.config["workload"]["caller"] == "sglang"
    assert made.config["calibration"]["budget_s"] == 20
    assert made.environment["OMP_NUM_THREADS"] == "1"
    assert made.overrides == ()


def test_an_allocator_works_with_it(profile: StrategyProfile) -> None:
    allocator = SWATokenToKVPoolAllocator(4096, 2048, 16, torch.bfloat16, "cpu", None, profile=profile)
    slots = allocator.alloc(512)
    assert slots is not None
    allocator.clear_full_to_swa_mapping(slots[16:48].to(torch.int32))
    assert int((allocator.full_to_swa_index_mapping[:-1] > 0).sum()) == 480
    allocator.free_segment(slots[64:], start_pos=64)
    assert int((allocator.full_to_swa_index_mapping[:-1] > 0).sum()) == 32
    assert allocator.explain().count("decided by profile= argument") == 6


def test_a_trace_of_clears_alone_makes_a_profile_of_clears_and_the_defaults_serve_the_rest(tmp_path: Path) -> None:
    trace = Trace(SCHEMA, 4096, 16, (TraceEntry("clear", "page", "int32", 3, "scattered", 1.0),))
    load = replace(LOAD, path=str(trace.save(tmp_path / "clears.json")))
    profile = calibrate("cpu", load, budget_s=5)
    assert {decision.kind.operation for decision in profile.decisions} == {"clear"}
    allocator = SWATokenToKVPoolAllocator(4096, 2048, 16, torch.bfloat16, "cpu", None, profile=profile)
    layers = {line.partition(":")[0]: line for line in allocator.explain().splitlines() if "decided by" in line}
    assert "profile= argument" in layers["clear.token"]
    assert "decided by default" in layers["take.page"]


def test_nothing_to_time_is_an_error_that_says_what_the_trace_lacks() -> None:
    trace = Trace(SCHEMA, 4096, 16, (TraceEntry("clear", "page", "int32", 3, "scattered", 1.0),))
    settings: Calibration = load_group(Calibration, "calibration", "startup")
    request = make_request(open_device("cpu", 0), LOAD, settings, {"take": names("take")})
    with pytest.raises(TraceError, match="holds no call of take"):
        measure(replace(request, trace=trace))


@pytest.fixture
def sandboxes(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The tables that are measured on."""
    tables: list[torch.Tensor] = []

    class Watched(Sandbox):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]  # passed through
            tables.append(self.mapping)

    monkeypatch.setattr(autotune.bench.bench, "Sandbox", Watched)
    return tables


def test_a_live_allocator_is_left_untouched(sandboxes: list[torch.Tensor]) -> None:
    allocator = SWATokenToKVPoolAllocator(4096, 2048, 16, torch.bfloat16, "cpu", None)
    slots = allocator.alloc(1024)
    assert slots is not None
    allocator.free_swa(slots[:64])
    before = allocator.full_to_swa_index_mapping.clone()
    sizes = allocator.debug_print()
    calibrate(CPU, LOAD, budget_s=0.5)
    assert torch.equal(allocator.full_to_swa_index_mapping, before)
    assert allocator.debug_print() == sizes
    assert sandboxes
    live = allocator.full_to_swa_index_mapping.untyped_storage().data_ptr()
    assert all(table.untyped_storage().data_ptr() != live for table in sandboxes)
    assert {table.numel() for table in sandboxes} == {4096 + 16 + 1}


def test_an_allocator_that_calibrates_starts_with_an_empty_table(sandboxes: list[torch.Tensor]) -> None:
    allocator = SWATokenToKVPoolAllocator(
        2048, 1024, 16, torch.bfloat16, "cpu", None, on_missing="calibrate", strict_profile=True
    )
    mapping = allocator.full_to_swa_index_mapping
    assert not mapping[:-1].any()
    assert int(mapping[-1]) == -1
    assert sandboxes
    assert all(table.data_ptr() != mapping.data_ptr() for table in sandboxes)
    assert "calibration at start-up" in allocator.explain()


def test_random_numbers_of_the_process_are_left_alone() -> None:
    # Of eight ranks one measures: were its generators moved, it would sample other tokens than the rest.
    torch.manual_seed(7)
    before, python = torch.get_rng_state(), random.getstate()
    calibrate("cpu", LOAD, budget_s=0.5)
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python


def test_a_servers_log_level_of_optuna_is_left_alone() -> None:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        calibrate("cpu", LOAD, budget_s=0.5)
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(before)


@pytest.mark.usefixtures("empty_registry")
@pytest.mark.parametrize("how", ["with", "default"])
def test_a_mode_of_the_callers_is_not_on_the_way_of_any_call(how: str) -> None:
    modes: set[bool] = set()

    @register_strategy
    class Watching(Strategy):
        name = "watching"
        operation = "clear"

        def bind(self, target: Target) -> Bound:
            def clear(indices: torch.Tensor) -> None:
                modes.add(torch._C._is_torch_function_mode_enabled())  # noqa: SLF001 - there is no public way to ask
                target.table.index_fill_(0, indices.to(torch.int64), 0)

            return clear

    if how == "with":
        with torch.device("meta"):
            profile = calibrate("cpu", LOAD, budget_s=2)
    else:
        torch.set_default_device("meta")
        try:
            profile = calibrate("cpu", LOAD, budget_s=2)
        finally:
            torch.set_default_device(None)
    assert modes == {False}
    assert profile.decisions
    assert {entry.reason for entry in profile.evidence.ineligible} == {"unavailable"}


def test_an_optimized_python_calibrates_and_serves(run_python: Run) -> None:
    # Under -O asserts are gone; under -OO docstrings, too.
    script = """
from autotune.calibrate import make_request, measure
from autotune.config import Calibration, Workload, load_group
from autotune.devices import open_device
from swa_alloc import SWATokenToKVPoolAllocator
import torch

load = Workload(name="small", size=4096, size_swa=2048, page_size=16, window=64, running_requests=8, prompt_tokens=128,
                output_tokens=256, prefill_chunk=128, decode_steps=50, backlog_us=100.0)
settings = load_group(Calibration, "calibration", "startup", budget_s=10, rounds=8, sizes=3)
asked = make_request(open_device("cpu", 0), load, settings, {"take": ("read_then_clear", "triton_take")})
profile = measure(asked)
print({out.reason for out in profile.evidence.ineligible})
labels = {c.label for m in profile.evidence.measurements for c in m.candidates}
print(len([label for label in labels if label.startswith("read_then_clear(")]) > 1)
allocator = SWATokenToKVPoolAllocator(4096, 2048, 16, torch.bfloat16, "cpu", None, profile=profile)
allocator.clear_full_to_swa_mapping(allocator.alloc(512))
print(bool(allocator.full_to_swa_index_mapping[:-1].any()))
"""
    for optimized in ("-O", "-OO"):
        finished = run_python(optimized, "-c", script)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.splitlines() == ["{'unavailable'}", "True", "False"]


def test_a_recorded_trace_that_is_missing_is_an_error() -> None:
    with pytest.raises(TraceError, match=r"nowhere\.json"):
        calibrate("cpu", Workload(name="recorded", path="nowhere.json", backlog_us=0.0))


@pytest.mark.parametrize(("device", "workload"), [("tpu", "default"), ("cpu", "mimo_v3_flash")])
def test_a_name_that_does_not_exist_is_an_error_of_ours(device: str, workload: str) -> None:
    with pytest.raises(SWAAllocError, match=r"tpu|mimo_v3_flash"):
        calibrate(device, workload)
