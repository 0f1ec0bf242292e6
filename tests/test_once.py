"""Once a machine: of several processes that want a profile one measures, whatever happens to the others."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune.startup
from autotune.once import calibrate_once
from swa_alloc import StrategyProfile, SWATokenToKVPoolAllocator
from swa_alloc.errors import CalibrationError, ProfileError
from swa_alloc.evidence import Evidence
from swa_alloc.fingerprint import fingerprint
from swa_alloc.profile import Decision, ProfileWorkload, Provenance

ROOT = Path(__file__).resolve().parent.parent

# Eight ranks, forked once everything is imported and let go together by closing a pipe. Each says which profile it
# uses; whoever measures leaves a line in a file.
EIGHT_RANKS = """
import json, os, sys, traceback
import torch
import autotune.startup
from swa_alloc import SWATokenToKVPoolAllocator

folder = sys.argv[1]
torch.set_num_threads(1)
measure = autotune.startup.measure

def counted(request):
    with open(f"{folder}/measured", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return measure(request)

autotune.startup.measure = counted
gate, opener = os.pipe()
children = []
for rank in range(8):
    child = os.fork()
    if child:
        children.append(child)
        continue
    code = 1
    try:
        os.close(opener)
        os.read(gate, 1)
        allocator = SWATokenToKVPoolAllocator(
            1024, 1024, 16, torch.bfloat16, "cpu", None, on_missing="calibrate", strict_profile=True
        )
        with open(f"{folder}/rank{rank}", "w") as file:
            file.write(allocator.explain())
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)
os.close(gate)
os.close(opener)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(json.dumps(codes))
"""

# Takes the lock, says so, and never lets go.
HOLDER = """
import sys
from pathlib import Path
from autotune.once import calibrate_once

def make():
    print("holding", flush=True)
    sys.stdin.read()

calibrate_once(Path(sys.argv[1]), "cpu", 0.0, lambda: None, make)
"""

# The same, in the middle of writing the profile: the file is there, whole or not, and not yet renamed.
WRITER = """
import os, sys
from pathlib import Path
from autotune.once import calibrate_once
from swa_alloc import StrategyProfile

def stop(_handle):
    print("holding", flush=True)
    sys.stdin.read()

os.fsync = stop
profile = StrategyProfile.load(sys.argv[2])
calibrate_once(Path(sys.argv[1]), "cpu", 0.0, lambda: None, lambda: ("cpu-killed-000000000000", profile))
"""


def make_profile(strategy: str = "index_put") -> StrategyProfile:
    return StrategyProfile(
        fingerprint=fingerprint(torch.device("cpu")),
        workload=ProfileWorkload("w", 1024, 16, 0.0, "0" * 12),
        objective="latency",
        decisions=(Decision("clear", "token", "int32", None, strategy, {}, 0.03, ()),),
        provenance=Provenance("measured", "2026-01-01T00:00:00+00:00", 1.0, "0" * 12, {}, {}, (), {}),
        evidence=Evidence(),
    )


@contextmanager
def running(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """The lock held by somebody else: by another open file, which is what tells holders apart."""
    store.mkdir(parents=True, exist_ok=True)
    with (store / ".cpu.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def visible(store: Path) -> list[str]:
    """What is in a store, its lock apart."""
    return sorted(path.name for path in store.iterdir() if path.name != ".cpu.lock")


def never() -> Any:
    pytest.fail("measured although it should not")


def test_eight_ranks_that_start_together_measure_once(isolated: Path, tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", EIGHT_RANKS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == [0] * 8, finished.stderr
    assert len((tmp_path / "measured").read_text().splitlines()) == 1
    (name,) = visible(isolated)
    StrategyProfile.load(isolated / name)
    words = {(tmp_path / f"rank{rank}").read_text() for rank in range(8)}
    assert len(words) == 1
    assert name in words.pop()


def test_a_holder_that_is_killed_is_taken_over(tmp_path: Path) -> None:
    with running(HOLDER, str(tmp_path)) as holder:

        class KillWhenWaiting(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "waiting for another process" in record.getMessage():
                    holder.send_signal(signal.SIGKILL)

        handler, logger = KillWhenWaiting(), logging.getLogger("autotune.once")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            outcome = calibrate_once(tmp_path, "cpu", 60.0, lambda: None, lambda: ("cpu-w-1", make_profile()))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
        assert holder.wait() == -signal.SIGKILL
    assert outcome.reused is False
    assert visible(tmp_path) == ["cpu-w-1.json"]


def test_a_holder_that_is_killed_while_it_writes_leaves_no_torn_profile(isolated: Path, tmp_path: Path) -> None:
    source = make_profile().save(tmp_path / "source.json")
    with running(WRITER, str(isolated), str(source)):
        pass
    assert list(isolated.glob("cpu-*.json")) == []
    # The next one measures, and nobody stumbles over what was left.
    outcome = calibrate_once(isolated, "cpu", 0.0, lambda: None, lambda: ("cpu-w-1", make_profile()))
    assert StrategyProfile.load(outcome.path).decisions == make_profile().decisions
    allocator = SWATokenToKVPoolAllocator(1024, 1024, 16, torch.bfloat16, "cpu", None, strict_profile=True)
    assert "cpu-w-1.json" in allocator.explain()


def test_whoever_waited_uses_what_the_holder_saved(tmp_path: Path) -> None:
    made = make_profile()
    answers = iter([None, (made, tmp_path / "cpu-w-1.json")])
    outcome = calibrate_once(tmp_path, "cpu", 0.0, lambda: next(answers), never)
    assert (outcome.profile, outcome.reused) == (made, True)
    assert visible(tmp_path) == []


def test_a_saved_profile_needs_neither_lock_nor_a_writable_folder(tmp_path: Path) -> None:
    made = make_profile()
    folder = Path("/dev/null/store")
    outcome = calibrate_once(folder, "cpu", 0.0, lambda: (made, folder / "p.json"), never)
    assert outcome.reused is True
    with locked(tmp_path):
        assert calibrate_once(tmp_path, "cpu", 0.0, lambda: (made, tmp_path / "p.json"), never).reused is True


def test_waiting_longer_than_allowed_is_an_error_that_names_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(CalibrationError, match=r"more than 0\.05 s.*\.cpu\.lock"):
        calibrate_once(tmp_path, "cpu", 0.05, lambda: None, never)
    assert visible(tmp_path) == []


def test_another_kind_of_device_does_not_wait(tmp_path: Path) -> None:
    with locked(tmp_path):
        outcome = calibrate_once(tmp_path, "npu", 0.0, lambda: None, lambda: ("npu-w-1", make_profile()))
    assert outcome.path.is_file()


def test_a_failed_measurement_lets_go_of_the_lock(tmp_path: Path) -> None:
    def fail() -> Any:
        raise CalibrationError("no luck")

    with pytest.raises(CalibrationError, match="no luck"):
        calibrate_once(tmp_path, "cpu", 0.0, lambda: None, fail)
    outcome = calibrate_once(tmp_path, "cpu", 0.0, lambda: None, lambda: ("cpu-w-1", make_profile()))
    assert visible(tmp_path) == ["cpu-w-1.json"]
    assert outcome.reused is False


def test_a_folder_that_cannot_be_written_is_found_out_before_measuring() -> None:
    with pytest.raises(ProfileError, match=r"/dev/null/store cannot be written.*profile\.dir"):
        calibrate_once(Path("/dev/null/store"), "cpu", 0.0, lambda: None, never)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that waits a twentieth of a second for other processes."""

    def once(directory: Path, device_type: str, _wait_s: float, saved: Any, make: Any) -> Any:
        return calibrate_once(directory, device_type, 0.05, saved, make)

    monkeypatch.setattr(autotune.startup, "calibrate_once", once)


@pytest.mark.usefixtures("impatient")
def test_an_allocator_that_waits_too_long_warns_once_and_clears_with_the_default(
    isolated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with locked(isolated):
        allocator = SWATokenToKVPoolAllocator(1024, 1024, 16, torch.bfloat16, "cpu", None, on_missing="calibrate")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert ".cpu.lock" in warning
    assert "python -m autotune device=cpu" in warning
    assert "going on with the defaults" in warning
    slots = allocator.alloc(32)
    assert slots is not None
    allocator.clear_full_to_swa_mapping(slots)
    assert not allocator.full_to_swa_index_mapping[:-1].any()


@pytest.mark.usefixtures("impatient")
def test_an_allocator_that_is_strict_raises_instead(isolated: Path) -> None:
    with locked(isolated), pytest.raises(CalibrationError, match=r"\.cpu\.lock"):
        SWATokenToKVPoolAllocator(
            1024, 1024, 16, torch.bfloat16, "cpu", None, on_missing="calibrate", strict_profile=True
        )
