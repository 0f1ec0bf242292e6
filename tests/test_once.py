"""Once a machine: of several processes that want a profile one measures, whatever happens to the others."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_profile as build_profile
from builders import make_provenance
from filelock import FileLock
from scripted_device import SETTINGS, Clock, ScriptedDevice, measure, request

import autotune.startup
from autotune.config import Reuse
from autotune.once import Outcome, calibrate_once, measure_into
from swa_alloc import StrategyProfile, SWATokenToKVPoolAllocator
from swa_alloc.errors import CalibrationError, ProfileError
from swa_alloc.evidence import Evidence

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
LOCK = f".{socket.gethostname()}-cpu.lock"

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

def counted(request, **options):
    with open(f"{folder}/measured", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return measure(request, **options)

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
import torch
from autotune.once import calibrate_once

def make(_directory):
    print("holding", flush=True)
    sys.stdin.read()

calibrate_once(Path(sys.argv[1]), torch.device("cpu"), 0.0, lambda: None, lambda: None, make)
"""

# The same, in the middle of writing the profile: the file is there, whole or not, and not yet renamed.
WRITER = """
import os, sys
from pathlib import Path
import torch
from autotune.once import calibrate_once
from swa_alloc import StrategyProfile

profile = StrategyProfile.load(sys.argv[2])

def stop(*_arguments):
    print("holding", flush=True)
    sys.stdin.read()

def make(_directory):
    os.replace = os.rename = os.fsync = stop
    return profile

calibrate_once(Path(sys.argv[1]), torch.device("cpu"), 0.0, lambda: None, lambda: None, make)
"""


def make_profile(strategy: str = "index_put", **changes: Any) -> StrategyProfile:
    return build_profile(strategy, size=1024, page_size=16, **changes)


def once(
    store: Path | None,
    make: Any = make_profile,
    *,
    wait_s: float = 0.0,
    saved: Any = lambda: None,
    serving: Any = lambda: None,
    device: torch.device = CPU,
) -> Outcome:
    return calibrate_once(store, device, wait_s, saved, serving, lambda _directory: make())


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
    with (store / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def visible(store: Path) -> list[str]:
    """What is in a store, its locks apart."""
    return sorted(path.name for path in store.iterdir() if path.suffix != ".lock")


def profiles(store: Path) -> list[str]:
    """The profiles in a store."""
    return sorted(path.name for path in store.glob("*.profile-2.json"))


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
    (name,) = profiles(isolated)
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
            outcome = once(tmp_path, wait_s=60.0)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
        assert holder.wait() == -signal.SIGKILL
    assert outcome.reused is False
    assert profiles(tmp_path) == [make_profile().file_name]


def test_a_holder_that_is_killed_while_it_writes_leaves_no_torn_profile(isolated: Path, tmp_path: Path) -> None:
    source = make_profile().save(tmp_path / "source.json")
    with running(WRITER, str(isolated), str(source)):
        pass
    assert profiles(isolated) == []
    # The next one measures, and nobody stumbles over what was left.
    outcome = once(isolated)
    assert outcome.path is not None
    assert StrategyProfile.load(outcome.path).decisions == make_profile().decisions
    allocator = SWATokenToKVPoolAllocator(1024, 1024, 16, torch.bfloat16, "cpu", None, strict_profile=True)
    assert outcome.path.name in allocator.explain()


def test_whoever_waited_uses_what_the_holder_saved_even_if_it_is_incomplete(tmp_path: Path) -> None:
    half = make_profile(missing=("set.token.int32 at 384",))
    with running(HOLDER, str(tmp_path)) as holder:

        def serving() -> Any:
            return half, tmp_path / half.file_name

        class LetGoWhenWaiting(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "waiting for another process" in record.getMessage():
                    holder.kill()

        handler, logger = LetGoWhenWaiting(), logging.getLogger("autotune.once")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            outcome = once(tmp_path, never, wait_s=60.0, serving=serving)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
    assert (outcome.profile, outcome.reused) == (half, True)


def test_what_another_process_has_saved_meanwhile_is_used(tmp_path: Path) -> None:
    made = make_profile()
    answers = iter([None, (made, tmp_path / "p.json")])
    outcome = once(tmp_path, never, saved=lambda: next(answers))
    assert (outcome.profile, outcome.reused) == (made, True)
    assert visible(tmp_path) == []


def test_an_incomplete_profile_that_serves_does_not_keep_who_has_not_waited_from_measuring(tmp_path: Path) -> None:
    half = make_profile(missing=("set.token.int32 at 384",))
    outcome = once(tmp_path, serving=lambda: (half, tmp_path / half.file_name))
    assert outcome.reused is False


def test_a_saved_profile_needs_neither_lock_nor_a_writable_folder(tmp_path: Path) -> None:
    made = make_profile()
    folder = Path("/dev/null/store")
    assert once(folder, never, saved=lambda: (made, folder / "p.json")).reused is True
    with locked(tmp_path):
        assert once(tmp_path, never, saved=lambda: (made, tmp_path / "p.json")).reused is True


def test_waiting_longer_than_allowed_is_an_error_that_names_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(CalibrationError, match=rf"more than 0\.05 s.*{LOCK}"):
        once(tmp_path, never, wait_s=0.05)
    assert visible(tmp_path) == []


@pytest.mark.parametrize("device", ["npu", "cpu:0", "npu:1"])
def test_another_device_does_not_wait(tmp_path: Path, device: str) -> None:
    kind, _, index = device.partition(":")
    other = type("Named", (), {"type": kind, "index": int(index) if index else None})()
    with locked(tmp_path):
        outcome = once(tmp_path, device=other)
    assert outcome.path is not None
    assert outcome.path.is_file()


def test_another_host_that_shares_the_store_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(tmp_path):
        monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
        assert once(tmp_path).reused is False
    assert (tmp_path / ".another-host-cpu.lock").exists()


def test_every_user_of_a_store_may_take_its_lock_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        once(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o666


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOLCK, "No locks available"),
        OSError(errno.EOPNOTSUPP, "Operation not supported"),
        OSError(errno.EINVAL, "Invalid argument"),
        OSError(errno.ENOSYS, "Function not implemented"),
        NotImplementedError("FileSystem does not appear to support flock; use SoftFileLock instead"),
    ],
    ids=["ENOLCK", "EOPNOTSUPP", "EINVAL", "ENOSYS", "filelock's own"],
)
def test_where_the_file_system_has_no_locks_calibration_goes_on_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def acquire(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(FileLock, "acquire", acquire)
    outcome = once(tmp_path)
    assert outcome.path is not None
    assert outcome.path.is_file()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(tmp_path) in warning
    assert "has no locks" in warning


def test_a_lock_that_fails_in_another_way_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*_arguments: Any, **_options: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(ProfileError, match="cannot be locked: Input/output error"):
        once(tmp_path, never)


def test_a_failed_measurement_lets_go_of_the_lock(tmp_path: Path) -> None:
    def fail() -> Any:
        raise CalibrationError("no luck")

    with pytest.raises(CalibrationError, match="no luck"):
        once(tmp_path, fail)
    assert once(tmp_path).reused is False
    assert profiles(tmp_path) == [make_profile().file_name]


# --- where nothing can be saved


@pytest.mark.parametrize("store", [None, Path("/dev/null/store")])
def test_what_cannot_be_saved_is_used_all_the_same(store: Path | None) -> None:
    outcome = once(store)
    assert outcome.profile.decisions == make_profile().decisions
    assert (outcome.path, outcome.reused) == (None, False)
    assert outcome.unsaved is not None
    assert len(outcome.unsaved.splitlines()) == 1


def test_a_disk_that_is_full_when_all_is_measured_costs_nothing_but_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(_self: StrategyProfile, path: Path) -> Path:
        raise ProfileError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr(StrategyProfile, "save", save)
    outcome = once(tmp_path)
    assert outcome.path is None
    assert outcome.unsaved is not None
    assert "No space left" in outcome.unsaved


def test_a_store_that_cannot_be_written_is_found_out_before_measuring(tmp_path: Path) -> None:
    passed: list[Path | None] = []

    def make(directory: Path | None) -> StrategyProfile:
        passed.append(directory)
        return make_profile()

    calibrate_once(Path("/dev/null/store"), CPU, 0.0, lambda: None, lambda: None, make)
    calibrate_once(tmp_path, CPU, 0.0, lambda: None, lambda: None, make)
    # Nobody keeps a journal where there is no place for it.
    assert passed == [None, tmp_path]


def test_a_start_that_cannot_save_serves_what_it_measured_and_warns_once(
    isolated: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    isolated.parent.mkdir(parents=True)
    isolated.write_text("in the way of the folder")
    monkeypatch.setattr(autotune.startup, "measure", lambda _request, **_options: make_profile("scatter"))
    allocator = SWATokenToKVPoolAllocator(1024, 1024, 16, torch.bfloat16, "cpu", None, on_missing="calibrate")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "the next start measures again" in warning
    assert str(isolated) in warning
    assert "scatter" in allocator.explain()


# --- where nothing could be measured


def test_that_nothing_could_be_measured_is_an_error_which_is_remembered_for_as_long_as_nothing_changes(
    tmp_path: Path,
) -> None:
    clock, tried = Clock(), 0

    def slow(_label: str, _count: int) -> float:
        clock.advance(0.2)
        return 2e5

    def start(budget_s: float) -> Outcome:
        asked = request(ScriptedDevice(slow, clock), [], settings=replace(SETTINGS, budget_s=budget_s))

        def go_on(known: Evidence, keep: Any) -> StrategyProfile:
            nonlocal tried
            tried += 1
            return measure(asked, known=known, keep=keep)

        return once(
            tmp_path,
            lambda: measure_into(tmp_path, asked, go_on),
            saved=lambda: asked.answer(tmp_path, Reuse.exact),
        )

    for _ in range(2):
        with pytest.raises(CalibrationError, match=r"within 0\.1 s on cpu; raise calibration\.budget_s"):
            start(0.1)
    assert tried == 1
    # With more time it may be another matter.
    assert start(60.0).profile.decisions
    assert tried == 2


def test_why_nothing_could_be_measured_is_in_the_error(tmp_path: Path) -> None:
    def cost(_label: str, _count: int) -> float:
        raise RuntimeError("device lost")

    with pytest.raises(CalibrationError, match=r"index_fill: RuntimeError: device lost"):
        once(tmp_path, lambda: measure(request(ScriptedDevice(cost, Clock()), [])))


def test_a_profile_that_is_replaced_is_named(tmp_path: Path) -> None:
    once(tmp_path, lambda: make_profile(provenance=make_provenance("2026-01-01T00:00:00Z")))
    assert once(tmp_path).replaced == "measured on 2026-01-01T00:00:00Z"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that waits a twentieth of a second for other processes."""

    def hurried(directory: Path, device: torch.device, _wait_s: float, *others: Any) -> Outcome:
        return calibrate_once(directory, device, 0.05, *others)

    monkeypatch.setattr(autotune.startup, "calibrate_once", hurried)


@pytest.mark.usefixtures("impatient")
def test_an_allocator_that_waits_too_long_warns_once_and_clears_with_the_default(
    isolated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with locked(isolated):
        allocator = SWATokenToKVPoolAllocator(1024, 1024, 16, torch.bfloat16, "cpu", None, on_missing="calibrate")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert LOCK in warning
    assert "python -m autotune device=cpu" in warning
    assert "going on with the defaults" in warning
    slots = allocator.alloc(32)
    assert slots is not None
    allocator.clear_full_to_swa_mapping(slots)
    assert not allocator.full_to_swa_index_mapping[:-1].any()


@pytest.mark.usefixtures("impatient")
def test_an_allocator_that_is_strict_raises_instead(isolated: Path) -> None:
    with locked(isolated), pytest.raises(CalibrationError, match=LOCK):
        SWATokenToKVPoolAllocator(
            1024, 1024, 16, torch.bfloat16, "cpu", None, on_missing="calibrate", strict_profile=True
        )
