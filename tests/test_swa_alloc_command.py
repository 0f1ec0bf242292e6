"""``python -m swa_alloc`` as a person meets it: exit codes, one line on stderr, and no Hydra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders import (
    decide,
    elsewhere,
    make_candidate,
    make_evidence,
    make_evidence_document,
    make_measurement,
    make_profile,
    make_provenance,
    save_in,
    write_json,
)
from conftest import ROOT

from swa_alloc.__main__ import main
from swa_alloc.evidence import Evidence
from swa_alloc.operations import INDEX_DTYPES, CallKind
from swa_alloc.profile import evidence_path

if TYPE_CHECKING:
    from conftest import Run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_profile("scatter").save(tmp_path / "profile.json")


def with_wrong_evidence(folder: Path) -> Path:
    path = make_profile().save(folder / "profile.json")
    document = make_evidence_document()
    document["measurements"][0]["weight"] = "heavy"
    write_json(evidence_path(path), document)
    return path


def fails_with_one_line(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Runs the command in this process, which takes a hundredth of the time of one of its own."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:  # argparse's way out
        code = error.code  # type: ignore[assignment]  # a SystemExit may carry text, and none here does
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    return err


def prints(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# --- processes of their own


def test_show_prints_what_a_profile_decides_and_exits_with_0(run_python: Run, file: Path) -> None:
    ran = run_python("-m", "swa_alloc", "show", str(file))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "int64 any number: scatter" in ran.stdout


def test_what_is_no_profile_exits_with_2_and_one_line_without_traceback(run_python: Run, tmp_path: Path) -> None:
    path = tmp_path / "corrupt.json"
    path.write_text("{", encoding="utf-8")
    ran = run_python("-m", "swa_alloc", "validate", str(path))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"swa_alloc: profile {path} is not usable: it is not JSON")
    assert len(ran.stderr.splitlines()) == 1


START = """
import sys
import torch
from swa_alloc import SWATokenToKVPoolAllocator

allocator = SWATokenToKVPoolAllocator(256, 256, 4, torch.bfloat16, "cpu", None, strict_profile=True, on_missing="error")
allocator.free(allocator.alloc(8))
loaded = {name.partition(".")[0] for name in sys.modules}
assert "decided by user store" in allocator.explain()
from swa_alloc.__main__ import main
from swa_alloc.evidence import Evidence
from swa_alloc.operations import INDEX_DTYPES, CallKind
from swa_alloc.profile import evidence_path
assert main(["explain", "--size", "256", "--page-size", "4"]) == 0
assert main(["path"]) == 0
loaded |= {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"hydra", "omegaconf", "optuna", "autotune", "yaml", "rich", "triton", "filelock", "sqlalchemy"}))
"""


def test_a_start_with_a_cached_profile_and_the_command_import_nothing_that_measures(
    run_python: Run, isolated: Path
) -> None:
    save_in(isolated, make_profile("scatter"))
    ran = run_python("-c", START)
    assert ran.returncode == 0, ran.stderr
    *explained, loaded = ran.stdout.splitlines()
    assert "clear.token: decided by user store" in explained[0]
    assert loaded == "[]"


def test_a_start_with_a_cached_profile_reads_no_evidence(run_python: Run, isolated: Path) -> None:
    path = save_in(isolated, make_profile("scatter"))
    start, _, _ = START.partition("loaded =")
    check = 'assert "swa_alloc.evidence" not in sys.modules'
    ran = run_python("-c", f"{start}{check}")
    assert ran.returncode == 0, ran.stderr
    # And has no use for it.
    evidence_path(path).unlink()
    assert run_python("-c", START).returncode == 0


# --- show


def test_show_tells_machine_workload_decisions_evidence_and_what_was_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    decisions = (
        decide("scatter", max_indices=48),
        decide("index_put", ties=("index_fill",)),
        decide("index_copy", target="page", index_dtype="int32", params={"source": "slice"}),
    )
    profile = make_profile(decisions=decisions)
    out = prints(capsys, "show", profile.save(tmp_path / "profile.json"))
    for words in (
        "measured on 2026-09-30T12:00:00Z: cpu, ",
        profile.fingerprint.device_name,
        "256 slots in pages of 4, objective latency",
        "clear.token:\n",
        "int64 up to 48: scatter, not measured",
        "int64 49 and more: index_put (of the default's time: 0.75 at 64; ties with index_fill)",
        "clear.page:\n",
        "int32 any number: index_copy(source=slice)",
        "left out: triton_fill for clear (unavailable: Triton is not installed)",
    ):
        assert words in out


def test_show_tells_what_several_operations_lack_for_one_reason_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = make_evidence().ineligible[0]._replace(strategy="npu_scatter_nd_update", detail="no NPU")
    kinds = [(operation, dtype) for operation in ("clear", "set") for dtype in ("int32", "int64")]
    entries = tuple(out._replace(kind=CallKind(operation, "token", dtype)) for operation, dtype in kinds)  # type: ignore[arg-type]  # plain strs where the fields are Literals
    profile = make_profile(evidence=make_evidence()._replace(ineligible=(*entries, out._replace(detail="another"))))
    shown = prints(capsys, "show", profile.save(tmp_path / "profile.json"))
    assert [line for line in shown.splitlines() if line.startswith("left out")] == [
        "left out: npu_scatter_nd_update for clear (unavailable: another)",
        "left out: npu_scatter_nd_update for clear, set (unavailable: no NPU)",
    ]


def test_show_marks_what_is_emulated_and_what_is_pinned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    machine = elsewhere()._replace(emulated=True)
    pinned = make_profile("scatter", machine=machine, provenance=make_provenance(method="pinned"))
    out = prints(capsys, "show", pinned.save(tmp_path / "profile.json"))
    assert "EMULATED" in out
    assert "scatter, pinned in the profile" in out


def test_show_and_validate_take_a_profile_without_its_evidence(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    evidence_path(file).unlink()
    assert "int64 any number: scatter, its evidence is not kept" in prints(capsys, "show", file)
    assert "from 0 races" in prints(capsys, "validate", file)


def test_show_and_validate_say_what_an_incomplete_profile_lacks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = ("clear.token.int32 at 384", "clear.token.int32 at 4096")
    path = make_profile(missing=missing).save(tmp_path / "profile.json")
    out = prints(capsys, "show", path)
    assert "incomplete, still to be measured: clear.token.int32 at 384, clear.token.int32 at 4096" in out
    assert "int32 any number: index_put, not raced for want of time" in out
    assert "incomplete: 2 missing" in prints(capsys, "validate", path)


def test_show_says_what_a_default_has_won_and_what_was_not_raced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kinds = [CallKind("clear", "token", dtype) for dtype in INDEX_DTYPES]
    alone = make_measurement(make_candidate("index_fill"), kind=kinds[0], settled=False)
    won = make_measurement(make_candidate("index_fill"), make_candidate("scatter", 1.2), kind=kinds[1])
    page = CallKind("clear", "page", "int32")
    both = [won._replace(kind=page, indices=8), alone._replace(kind=page, indices=512)]
    evidence = Evidence((alone, won, *both), ())
    out = prints(capsys, "show", make_profile("index_fill", evidence=evidence).save(tmp_path / "profile.json"))
    assert "int32 any number: index_fill, the default, not raced for want of time\n" in out
    assert "int64 any number: index_fill, the default, which nothing beats\n" in out
    assert "int32 any number: index_fill, the default, not raced for want of time at 512\n" in out


def test_show_refuses_wrong_evidence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    err = fails_with_one_line(capsys, "show", with_wrong_evidence(tmp_path))
    assert "measurements[0].weight must be a number" in err


def test_show_refuses_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "No such file" in fails_with_one_line(capsys, "show", tmp_path / "missing.json")


# --- validate


def test_validate_accepts_profiles_of_any_machine(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    foreign = make_profile(machine=elsewhere()).save(tmp_path / "foreign.json")
    out = prints(capsys, "validate", file, foreign)
    assert [line.partition(":")[0] for line in out.splitlines()] == [str(file), str(foreign)]
    assert elsewhere().device_name in out


def test_validate_reads_the_evidence_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    err = fails_with_one_line(capsys, "validate", with_wrong_evidence(tmp_path))
    assert "measurements[0].weight must be a number" in err


def test_validate_tells_every_file_that_is_wrong_a_line_each(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    wrong = [tmp_path / "missing.json", write_json(tmp_path / "empty.json", {})]
    assert main(["validate", str(wrong[0]), str(file), str(wrong[1])]) == 2
    out, err = capsys.readouterr()
    assert str(file) in out
    assert len(out.splitlines()) == 1
    lines = err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"swa_alloc: profile {path} ") for line, path in zip(lines, wrong, strict=True))


# --- explain


def test_explain_says_what_an_allocator_would_use_and_why(capsys: pytest.CaptureFixture[str], isolated: Path) -> None:
    path = save_in(isolated, make_profile("scatter"))
    out = prints(capsys, "explain", "--size", 256, "--page-size", 4)
    assert f"clear.token: decided by user store ({path})" in out
    assert "int32 any number: scatter" in out


def test_explain_says_that_a_profile_is_incomplete_and_not_that_none_fits(
    capsys: pytest.CaptureFixture[str], isolated: Path
) -> None:
    path = save_in(isolated, make_profile(decisions=(), missing=("everything",)))
    out = prints(capsys, "explain", "--size", 256, "--page-size", 4)
    assert "clear.token: decided by default" in out
    assert f"note: {path} is incomplete: 1 missing (everything); calibrating again completes it" in out
    assert "no profile fits" not in out


def test_explain_says_why_a_profile_was_not_taken(capsys: pytest.CaptureFixture[str], isolated: Path) -> None:
    save_in(isolated, make_profile("scatter"))
    out = prints(capsys, "explain", "--size", 4096, "--page-size", 4)
    assert "decided by default" in out
    assert "size is 4096 here and 256 in the profile" in out


def test_explain_never_measures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWA_ALLOC_ON_MISSING", "calibrate")
    monkeypatch.setattr("swa_alloc.startup.calibrate_at_startup", pytest.fail)
    assert "decided by default" in prints(capsys, "explain", "--size", 64)


def test_explain_tells_the_trouble_that_an_allocator_would_have(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWA_ALLOC_STRATEGY", "index_fil")
    out = prints(capsys, "explain", "--size", 64)
    assert "decided by default" in out
    assert "trouble: " in out
    assert "'index_fil'" in out


def test_explain_does_not_promise_a_strategy_that_cannot_run_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # An allocator would fall back, and say so.
    monkeypatch.setenv("SWA_ALLOC_STRATEGY", "npu_scatter_nd_update")
    out = prints(capsys, "explain", "--size", 64)
    assert "Ascend operator" in out
    assert "decided by default" in out


@pytest.mark.parametrize(("size", "page_size"), [(0, 1), (64, 0), (-64, 1), (64, -1), (65, 64)])
def test_explain_refuses_sizes_that_no_pool_has(capsys: pytest.CaptureFixture[str], size: int, page_size: int) -> None:
    err = fails_with_one_line(capsys, "explain", "--size", size, "--page-size", page_size)
    assert f"{size} and {page_size}" in err


@pytest.mark.parametrize("device", ["nonsense", "npu", "cpu:x", "meta", "mps", ""])
def test_explain_refuses_a_device_that_is_not_here(capsys: pytest.CaptureFixture[str], device: str) -> None:
    err = fails_with_one_line(capsys, "explain", "--size", 64, "--device", device)
    assert f"--device {device}" in err


# --- path


def test_path_prints_where_profiles_are_looked_for_in_order(
    capsys: pytest.CaptureFixture[str], isolated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_in(isolated, make_profile())
    named, user, system = prints(capsys, "path").splitlines()
    assert named == "SWA_ALLOC_PROFILE: not set"
    assert user == f"user store: {isolated} (profiles: 1)"
    assert system.startswith("system store: ")
    assert system.endswith("(profiles: 0)")
    monkeypatch.setenv("SWA_ALLOC_PROFILE", "/some/file.json")
    assert prints(capsys, "path").startswith("SWA_ALLOC_PROFILE: /some/file.json\n")


@pytest.mark.parametrize("folder", ["/dev/null/profiles", "x" * 300, "~nobody-of-that-name/x"])
def test_path_survives_a_folder_that_cannot_be_searched(
    capsys: pytest.CaptureFixture[str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWA_ALLOC_PROFILE_DIR", folder)
    assert folder in prints(capsys, "path")


# --- the command line itself


@pytest.mark.parametrize(
    "arguments",
    [[], ["shwo"], ["show"], ["explain", "--size", "many"]],
    ids=" ".join,
)
def test_a_wrong_command_line_is_one_line_that_says_what(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    fails_with_one_line(capsys, *arguments)


@pytest.mark.parametrize(("sink", "code"), [("| true", 0), (">&-", 0), ("> /dev/full", 2)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error_and_a_full_stdout_is_one(sink: str, code: int, unbuffered: str) -> None:
    # Unbuffered, it is the print that fails, and not the flush after it.
    done = subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {sys.executable} -m swa_alloc path {sink}"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    expected = "swa_alloc: the result cannot be written to stdout: No space left on device\n" if code else ""
    assert done.stderr == expected
