"""``python -m autotune device=npu`` sees what the device's operators cost, and allocators use what it chose."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from npu.autotune_run import SIZE, AutotuneRun, candidates, decided, race
from npu.known_calls import CLEARS
from npu.npu_python import A2_COSTS, SCRIPTS, NpuPython

from swa_alloc.profile import StrategyProfile

FEW, MANY = 64, 512
# With A2_COSTS, and with the clears of scripts/decode_loop.py, nine of FEW and one of MANY, a step takes 18 ms with the
# assignment, which fills a scalar first. With index_fill, which rewrites 65538 entries, it takes 87 ms.
MODEL_NS = 18_000_000 - 9 * (200_000 + 100_000 + FEW * 100) - (200_000 + 4_000_000 + MANY * 2000)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AutotuneRun:
    folder = tmp_path_factory.mktemp("tuned")
    return AutotuneRun(NpuPython(A2_COSTS, log=folder / "log"), folder)


@pytest.fixture(scope="module")
def result(run: AutotuneRun) -> dict[str, Any]:
    """Every clear has raced on either side of 100 indices."""
    run.record(FEW, MANY)
    return run.calibrated()


@pytest.fixture
def tuned(run: AutotuneRun, result: dict[str, Any]) -> StrategyProfile:
    assert result["path"] == str(run.path())
    return run.profile()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_another_strategy_is_chosen_on_either_side_of_a_hundred_indices(tuned: StrategyProfile, dtype: str) -> None:
    few, many = decided(tuned.decisions, dtype, FEW), decided(tuned.decisions, dtype, MANY)
    assert few.label in {"index_put", "int32_view(call=index_put)"}
    assert few.max_indices is not None
    assert FEW <= few.max_indices < 200
    assert {"aclnnInplaceIndexCopy", "aclnnScatterNdUpdate"} & set(CLEARS[many.label, dtype])
    assert not [decision.label for decision in tuned.decisions if "index_fill" in decision.label]
    # It had its chance: single calls show that it rewrites the table.
    assert candidates(tuned, dtype, 1)["index_fill"].state == "probed"


def test_what_an_operator_costs_is_seen(tuned: StrategyProfile) -> None:
    seen = {label: candidate.device_us for label, candidate in candidates(tuned, "int32", MANY).items()}
    expected = {
        # What single calls have ruled out, casts included, and what has raced.
        "index_put": 50 + 4000 + MANY * 2,
        "index_fill": 50 + 1000 + (SIZE + 1 + 1) * 0.102,
        "npu_scatter_nd_update(source=expand)": 400 + MANY * 0.02,
    }
    ratios = sorted(seen[label] / us for label, us in expected.items())
    # A busy machine may hold up one of them now and then; it cannot speed up any.
    assert ratios[0] > 0.9
    assert ratios[1] == pytest.approx(1, rel=0.1), ratios


def test_whoever_wins_waits_for_nothing_and_can_be_captured(tuned: StrategyProfile) -> None:
    for dtype in ("int32", "int64"):
        for count in (FEW, MANY):
            raced = candidates(tuned, dtype, count)
            winner = raced[race(tuned, dtype, count).verdicts["serving"].choice]
            assert (winner.stall, winner.stall_us, winner.capturable) == ("asynchronous", 0, True)
            # Of those that are slower nothing is asked that does not matter.
            assert {c.stall for c in raced.values()} <= {"asynchronous", None}
            assert {c.capturable for c in raced.values()} <= {True, None}


def test_report_and_profile_say_that_the_device_is_emulated(run: AutotuneRun, result: dict[str, Any]) -> None:
    assert result["profile"]["fingerprint"]["emulated"] is True
    assert json.loads(run.path().read_text())["fingerprint"]["emulated"] is True
    (report,) = (run.folder / "runs").glob("**/report.txt")
    assert "8.5.0-fake [EMULATED DEVICE: its times mean nothing elsewhere]" in report.read_text().splitlines()[0]


def test_no_real_machine_accepts_the_profile(tuned: StrategyProfile) -> None:
    made = tuned.fingerprint
    assert made.match(made).tier == "exact"
    # Even one that is like it in every other respect.
    match = made._replace(emulated=False).match(made)
    assert match.tier == "mismatch"
    assert match.differences == ("emulated is False here and True in the profile",)


def test_an_allocator_makes_the_calls_of_the_strategies_that_were_chosen(
    run: AutotuneRun, tuned: StrategyProfile
) -> None:
    done = run.python.run(SCRIPTS / "dispatch.py", run.path(), str(FEW), str(MANY))
    assert done.returncode == 0, done.stderr
    chosen = {
        f"{dtype} {count}": CLEARS[decided(tuned.decisions, dtype, count).label, dtype]
        for dtype in ("int32", "int64")
        for count in (FEW, MANY)
    }
    assert json.loads(done.stdout) == {**chosen, "left": 1024 - MANY}


def test_a_decode_step_with_the_tuned_allocator_is_as_short_as_with_the_best_strategy(
    run: AutotuneRun, tuned: StrategyProfile
) -> None:
    assert tuned.fingerprint.emulated
    done = run.python.run(SCRIPTS / "decode_loop.py", run.path(), str(MODEL_NS))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    steps = result["step_ms"]
    sys.stdout.write("EMULATED decode step in ms, the device's costs scripted (pytest -s):\n")
    sys.stdout.writelines(f"  {ms:7.2f}  {name}\n" for name, ms in sorted(steps.items(), key=lambda item: item[1]))
    assert result["emulated"] is True
    # What sglang PR 36759 reports for a token, before and after.
    assert steps["index_fill"] == pytest.approx(87, rel=0.01)
    assert steps["subscript_assign"] == pytest.approx(18, rel=0.01)
    tuned_ms = steps.pop("tuned")
    assert tuned_ms <= 1.02 * min(steps.values())
