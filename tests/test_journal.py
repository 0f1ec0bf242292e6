"""What a calibration has found outlives whatever kills it, and is taken up where the same is asked for."""

from __future__ import annotations

import json
import logging
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune.journal import Journal, discard
from swa_alloc.evidence import CandidateMeasurement, Evidence, Measurement, Standing, Verdict
from swa_alloc.operations import CallKind

SUBJECT: dict[str, Any] = {"schema": 2, "workload": {"size": 64, "margins": (0.03, 0.05)}}


def found(indices: int, choice: str = "index_put", index_dtype: Any = "int32") -> Measurement:
    """What one race found, with a value in every field."""
    standing = Standing(4.5, 6.25, 0.75, 0.7, 0.8)
    candidate = CandidateMeasurement(
        strategy=choice,
        params={"source": "slice", "block": 128},
        cold_us=4.5,
        host_us=1.25,
        device_us=1.5,
        wall_us=2.0,
        stall="partial",
        stall_share=0.05,
        stall_us=900.0,
        capturable=True,
        standings={"serving": standing, "latency": standing._replace(ratio=None, ratio_low=None, ratio_high=None)},
        rounds=24,
        dropped=1,
        state="complete",
    )
    probed = candidate._replace(cold_us=None, stall=None, stall_share=None, capturable=None, state="probed")
    return Measurement(
        CallKind("clear", "token", index_dtype),
        indices=indices,
        layout="pages",
        weight=0.5,
        settled=True,
        noise_floor=0.01,
        verdicts={"serving": Verdict(choice, (choice, "scatter"), ("scatter",), 0.03)},
        candidates=(candidate, probed),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "begun.journal"


def journal(path: Path | None, subject: dict[str, Any] | None = None) -> Journal:
    return Journal(path, SUBJECT if subject is None else subject)


@contextmanager
def breaking_off(path: Path | None, known: Evidence = Evidence()) -> Iterator[Journal]:  # noqa: B008 - immutable
    """A journal of a calibration that breaks off at the end."""
    made = journal(path)
    made.start(known)
    yield made
    made.close()


def write(path: Path | None, *measurements: Measurement, known: Evidence = Evidence()) -> Journal:  # noqa: B008 - immutable
    """Find these, and break off."""
    with breaking_off(path, known) as made:
        for measurement in measurements:
            made.append(measurement)
    return made


def begun(path: Path, subject: dict[str, Any] | None = None) -> tuple[Measurement, ...]:
    return journal(path, subject).begun().measurements


# Taken up again


def test_what_was_found_is_found_again_as_it_comes(path: Path) -> None:
    with breaking_off(path) as made:
        for count in (1, 2, 3):
            made.append(found(count))
            assert begun(path) == tuple(found(i) for i in range(1, count + 1))


def test_a_second_look_at_the_same_calls_replaces_the_first(path: Path) -> None:
    write(path, found(1), found(2), found(1, "scatter"), found(1, index_dtype="int64"))
    assert begun(path) == (found(1, "scatter"), found(2), found(1, index_dtype="int64"))


def test_what_was_known_at_the_start_is_kept(path: Path) -> None:
    write(path, found(2), known=Evidence((found(1),)))
    assert begun(path) == (found(1), found(2))
    # The next one begins with it.
    write(path, found(3), known=journal(path).begun())
    assert begun(path) == (found(1), found(2), found(3))


def test_a_start_that_knows_nothing_begins_afresh(path: Path) -> None:
    write(path, found(1))
    write(path, found(2))
    assert begun(path) == (found(2),)


@pytest.mark.parametrize(
    "subject",
    [
        {},
        SUBJECT | {"schema": 3},
        SUBJECT | {"more": None},
        SUBJECT | {"workload": {"size": 65, "margins": (0.03, 0.05)}},
    ],
)
def test_what_was_found_of_another_subject_is_not_taken_up(path: Path, subject: dict[str, Any]) -> None:
    write(path, found(1))
    assert begun(path, subject) == ()
    assert begun(path, {"workload": {"margins": [0.03, 0.05], "size": 64}, "schema": 2}) == (found(1),)


# Broken files


def test_a_torn_last_line_is_as_if_it_were_not_there(path: Path) -> None:
    write(path, found(1), found(2))
    whole = path.read_bytes()
    first = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for end in {first, first + 1, (first + len(whole)) // 2, len(whole) - 2}:
        path.write_bytes(whole[:end])
        assert begun(path) == (found(1),)
    # Its end alone is missing.
    path.write_bytes(whole[:-1])
    assert begun(path) == (found(1), found(2))


def test_a_calibration_that_goes_on_behind_a_torn_line_loses_nothing_more(path: Path) -> None:
    write(path, found(1), found(2))
    path.write_bytes(path.read_bytes()[:-40])
    known = journal(path).begun()
    write(path, found(3), known=known)
    assert begun(path) == (found(1), found(3))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"no JSON\n",
        b"[]\n",
        b"null\n",
        b"\xff\xfe\n",
        b'{"schema": 2',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_journal_is_none(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert begun(path) == ()
    # And is replaced.
    write(path, found(1))
    assert begun(path) == (found(1),)


@pytest.mark.parametrize(
    "change", [{"indices": "many"}, {"indices": None}, {"kind": {}}, {"weight": float("nan")}, {"more": 1}]
)
def test_an_entry_that_is_no_measurement_ends_what_is_taken_up(path: Path, change: dict[str, Any]) -> None:
    write(path, found(1), found(2))
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | change)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert begun(path) == (found(1),)


# Nowhere to write


def test_without_a_path_nothing_is_kept() -> None:
    made = write(None, found(2), known=Evidence((found(1),)))
    assert made.begun() == Evidence()
    made.close()


def test_a_folder_that_cannot_be_written_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # In the place of the folder is a file, which stops root, too.
    (tmp_path / "store").touch()
    with caplog.at_level(logging.INFO, logger="autotune"):
        made = write(tmp_path / "store" / "begun.journal", found(1), found(2))
    assert len(caplog.messages) == 1
    assert "\n" not in caplog.text.rstrip()
    assert made.begun() == Evidence()
    made.close()


def test_a_folder_in_the_place_of_the_file_stops_nothing(path: Path) -> None:
    path.mkdir(parents=True)
    made = write(path, found(1))
    assert made.begun() == Evidence()
    made.close()
    assert path.is_dir()


def test_a_disk_that_fills_up_costs_what_comes_then(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with breaking_off(path, Evidence((found(1),))) as made:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, before[1]))
        try:
            with caplog.at_level(logging.INFO, logger="autotune"):
                made.append(found(2))
                made.append(found(3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(caplog.messages) == 1
    assert begun(path) == (found(1),)


# The end


def test_a_journal_that_has_served_is_gone(path: Path) -> None:
    with breaking_off(path) as made:
        made.append(found(1))
    discard(path)
    discard(path)
    assert list(path.parent.iterdir()) == []
    assert begun(path) == ()


def test_a_journal_that_was_broken_off_stays(path: Path) -> None:
    made = write(path, found(1))
    made.close()
    made.append(found(2))
    assert begun(path) == (found(1),)


KILLED = """
import os, signal, sys
from pathlib import Path
from test_journal import found, journal
from swa_alloc.evidence import Evidence

made = journal(Path(sys.argv[1]))
made.start(Evidence((found(1),)))
made.append(found(2))
# In the midst of the third.
made._file.write('{"kind": {"operation": "cl')
made._file.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_all_that_it_has_found(
    path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_python("-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{KILLED}", str(path))
    assert (done.returncode, done.stderr) == (-9, "")
    assert begun(path) == (found(1), found(2))
