"""Strategies that wait for the stream: seen as such, charged for it where that matters, and kept out of graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from npu.autotune_run import AutotuneRun, candidates, decided
from npu.npu_python import SCRIPTS, NpuPython

from swa_alloc.profile import StrategyProfile

# Of zeroing memory, of which the backlog is made: one far longer than a busy machine keeps a call from returning.
ZERO = "aclnnInplaceZero element_ns=50"
# On the device index_fill is much the cheapest; but it waits for all that was submitted before it. A hiccup of the host
# is shorter than the difference.
COSTS = f"{ZERO}; aclnnIndexPutImpl fixed_ns=8000000; aclnnInplaceIndexFill fixed_ns=3000000 sync"
INDICES = 16
# Of conf/workload/trace.yaml.
BACKLOG_US = 15_000
DTYPES = ("int32", "int64")


def made(python: NpuPython, folder: Path) -> AutotuneRun:
    run = AutotuneRun(python, folder)
    run.record(INDICES)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AutotuneRun:
    return made(NpuPython(COSTS), tmp_path_factory.mktemp("blocking"))


@pytest.fixture(scope="module")
def serving(run: AutotuneRun) -> StrategyProfile:
    """As it was before anybody asked for another objective."""
    run.calibrated("strategies.include=[index_fill,index_put]")
    profile = run.profile()
    profile.evidence  # noqa: B018 - read before the file changes
    return profile


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_injected_wait_is_seen_as_blocking(serving: StrategyProfile, dtype: str) -> None:
    waits = candidates(serving, dtype, INDICES)["index_fill"]
    assert (waits.stall, waits.stall_us) == ("blocking", BACKLOG_US)
    assert waits.stall_share == 1
    assert waits.capturable is False


@pytest.mark.parametrize("dtype", DTYPES)
def test_who_does_not_wait_is_charged_nothing_and_can_be_captured(serving: StrategyProfile, dtype: str) -> None:
    others = candidates(serving, dtype, INDICES)
    del others["index_fill"]
    assert {(c.stall, c.stall_us) for c in others.values()} == {("asynchronous", 0)}
    assert others[decided(serving.decisions, dtype, INDICES).label].capturable is True
    assert others["index_put"].device_us == pytest.approx(8000, rel=0.1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_blocking_strategy_loses_under_serving_though_it_is_cheapest_on_the_device(
    serving: StrategyProfile, dtype: str
) -> None:
    assert serving.objective == "serving"
    raced = candidates(serving, dtype, INDICES)
    assert min(raced, key=lambda label: raced[label].device_us) == "index_fill"
    assert min(raced, key=lambda label: raced[label].wall_us) == "index_fill"
    assert decided(serving.decisions, dtype, INDICES).strategy in {"index_put", "subscript_assign"}


def test_it_wins_under_latency_from_the_same_measurements(run: AutotuneRun, serving: StrategyProfile) -> None:
    done = run("strategies.include=[index_fill,index_put]", "objective=latency")
    assert done.returncode == 0, done.stderr
    assert "nothing measured" in done.stdout
    assert f"the profile is reused from {run.path()}" in done.stderr
    again = run.profile()
    assert again.objective == "latency"
    assert again.provenance == serving.provenance
    for dtype in DTYPES:
        assert decided(again.decisions, dtype, INDICES).strategy == "index_fill"
        before = candidates(serving, dtype, INDICES)
        for label, candidate in candidates(again, dtype, INDICES).items():
            assert (candidate.wall_us, candidate.device_us) == (before[label].wall_us, before[label].device_us)


def test_who_wants_graphs_leaves_it_out(tmp_path: Path) -> None:
    run = made(NpuPython(COSTS), tmp_path)
    run.calibrated("strategies.include=[index_fill]", "strategies.require_capturable=true")
    profile = run.profile()
    left_out = {(out.strategy, out.kind.index_dtype): out.reason for out in profile.evidence.ineligible}
    assert left_out == {("index_fill", dtype): "not_capturable" for dtype in DTYPES}
    assert {decision.strategy for decision in profile.decisions} == {"subscript_assign"}


def test_on_a_cann_without_its_operator_index_fill_is_seen_as_blocking(tmp_path: Path) -> None:
    run = made(NpuPython(f"{ZERO}; aclnnIndexPutImpl fixed_ns=8000000", old=True), tmp_path)
    run.calibrated("strategies.include=[index_fill]")
    profile = run.profile()
    for dtype in DTYPES:
        raced = candidates(profile, dtype, INDICES)
        assert (raced["index_fill"].stall, raced["index_fill"].capturable) == ("blocking", False)
        assert (raced["subscript_assign"].stall, raced["subscript_assign"].capturable) == ("asynchronous", True)
        assert decided(profile.decisions, dtype, INDICES).strategy == "subscript_assign"


def test_during_a_capture_an_allocator_does_not_calibrate_and_the_capture_goes_on(tmp_path: Path) -> None:
    stores = AutotuneRun(NpuPython(), tmp_path).stores()
    done = NpuPython().run(SCRIPTS / "calibrate_in_capture.py", cwd=tmp_path, **stores)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (warning,) = result["warnings"]
    assert "not calibrated: a graph is being captured" in warning
    assert "going on with the defaults" in warning
    assert "clear.token: decided by default" in result["explained"]
    assert result["replayed"] == [1, 2, 3, 0, 5, 0]
    assert result["available"] == 256
    assert not (tmp_path / "profiles").exists()
