"""The command: what goes to stdout, to stderr, to the store and to the run folder, and with which exit code."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from swa_alloc.profile import FILE_SUFFIX, StrategyProfile
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

ROOT = Path(__file__).resolve().parent.parent

# Enough to measure everything in a second: few rounds, so that the budget never decides, on a busy machine neither.
FULL = (
    "device=cpu",
    "workload.size=4096",
    "workload.size_swa=4096",
    "workload.page_size=16",
    "workload.prompt_tokens=200",
    "workload.output_tokens=100",
    "workload.running_requests=8",
    "workload.decode_steps=100",
    "calibration.sizes=3",
    "calibration.tables=1",
    "calibration.rounds=8",
    "calibration.budget_s=60",
)
# Less will do where it does not matter what is measured. Nothing of this is left for translate and take.
QUICK = (*FULL, "strategies.include=[index_fill,index_put,scatter,index_copy]")

# Imports everything once and forks for each command line, which turns three seconds into a fraction of one. What a
# process of its own would do differently is tested with one, below.
SERVER = """
import json, os, sys, traceback
import autotune.command.cli
from autotune.__main__ import main

for line in sys.stdin:
    case = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    code = 0
    try:
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(case[name], os.O_WRONLY | os.O_CREAT), number)
        os.environ.clear()
        os.environ.update(case["env"])
        os.chdir(case["cwd"])
        sys.argv = ["autotune", *case["arguments"]]
        main()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        """The lines on stderr that are not INFO log lines."""
        return [line for line in self.err.splitlines() if not re.match(r"\d{4}-\d\d-\d\d [\d:,]+ INFO ", line)]


class Server:
    """Runs command lines, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        self._count = 0

    def run(self, arguments: tuple[str, ...], env: Mapping[str, str], cwd: Path) -> Finished:
        self._count += 1
        out, err = self._folder / f"{self._count}.out", self._folder / f"{self._count}.err"
        case = {"arguments": arguments, "env": dict(env), "cwd": str(cwd), "out": str(out), "err": str(err)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Finished(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


Command = Callable[..., Finished]


@pytest.fixture
def command(server: Server, tmp_path: Path) -> Command:
    """``command("key=value", ..., env={...}, cwd=...)``: ``python -m autotune`` with an empty store."""

    def run(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Finished:
        return server.run(arguments, {**os.environ, **(env or {})}, cwd or tmp_path)

    return run


def run_folders(cwd: Path) -> list[Path]:
    return sorted(path.parent.parent for path in cwd.glob("outputs/*/*/.hydra/config.yaml"))


def profiles(store: Path) -> list[Path]:
    return sorted(store.glob(f"*{FILE_SUFFIX}"))


def leftovers(store: Path) -> list[str]:
    """What is in a store besides profiles, their evidence, and its lock."""
    kept = re.compile(r"^(cpu-[^/]*\.(profile|evidence)-2\.json|\.[^/]*-cpu\.lock)$")
    return [path.name for path in store.iterdir() if not kept.match(path.name)] if store.is_dir() else []


def assert_refused(finished: Finished, code: int, *parts: str) -> None:
    """Exit code, and one line on stderr with these words in it; nothing on stdout."""
    assert finished.code == code, finished.err
    assert finished.out == ""
    (line,) = finished.complaints
    assert line.startswith("autotune: ")
    for part in parts:
        assert part in line


def assert_unsaved(finished: Finished, cwd: Path, *parts: str) -> None:
    """A result on stdout and in the run folder, and one warning with these words in it."""
    assert finished.code == 0, finished.err
    assert "device    cpu" in finished.out
    (line,) = finished.complaints
    copy = run_folders(cwd)[-1] / f"run{FILE_SUFFIX}"
    for part in (" WARNING ", "not saved", str(copy.relative_to(cwd)), *parts):
        assert part in line
    assert StrategyProfile.load(copy).evidence.measurements


KINDS = {"token.int32", "token.int64", "page.int32", "page.int64"}


def kinds_of(profile: StrategyProfile, operation: str) -> set[tuple[str, str]]:
    return {(d.kind.target, d.kind.index_dtype) for d in profile.decisions if d.kind.operation == operation}


# A whole run, in a process of its own


def test_a_run_saves_a_profile_and_leaves_everything_in_its_folder(
    run_python: Callable[..., subprocess.CompletedProcess[str]], isolated: Path, tmp_path: Path
) -> None:
    finished = run_python("-m", "autotune", *FULL, "studies=journal")
    assert finished.returncode == 0, finished.stderr

    (path,) = profiles(isolated)
    profile = StrategyProfile.load(path)
    assert (profile.workload.name, profile.workload.size) == ("mimo_v2_flash", 4096)
    assert profile.provenance.overrides == (*FULL, "studies=journal")
    assert profile.provenance.config["workload"]["page_size"] == 16
    assert leftovers(isolated) == []

    # stdout has the table and nothing else; stderr has the log, and no progress bar, being no terminal.
    assert finished.stdout.startswith("device    cpu: ")
    lines = finished.stdout.splitlines()
    headings = [line.split(",")[0] for line in lines if ", us " in line]
    assert headings == ["clear", "set", "translate", "take"]
    for operation in headings:
        kinds = {".".join(kind) for kind in kinds_of(profile, operation)}
        told = finished.stdout.partition(f"\n{operation}, us ")[2].partition("\n\n")[0]
        assert {kind for kind in KINDS if kind.replace(".", " ") + "," in told} == kinds
        assert "the workload's calls take " in told
        assert "\nraced: " in told
    assert sum(line.startswith("not raced: ") for line in lines) == 1
    assert finished.stdout.rstrip().endswith(f"saved     {path}")
    assert "\x1b" not in finished.stdout + finished.stderr
    log = finished.stderr.splitlines()
    assert all(" INFO " in line for line in log), finished.stderr
    assert any("measuring on cpu" in line for line in log)

    (folder,) = run_folders(tmp_path)
    config = yaml.safe_load((folder / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
    assert config["workload"]["size"] == 4096
    assert config["calibration"]["rounds"] >= 8
    assert (folder / "autotune.log").read_text(encoding="utf-8").splitlines() == log
    assert (folder / "report.txt").read_text(encoding="utf-8") == finished.stdout
    assert StrategyProfile.load(folder / f"run{FILE_SUFFIX}").document() == profile.document()
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    states = {
        trial.state.name
        for name in optuna.get_all_study_names(storage)
        for trial in optuna.load_study(study_name=name, storage=storage).trials
    }
    assert "COMPLETE" in states
    assert states <= {"COMPLETE", "PRUNED", "FAIL"}


# Saved profiles


def test_a_second_run_reuses_the_first_ones_profile_and_measures_nothing(command: Command, isolated: Path) -> None:
    first = command(*QUICK)
    (path,) = profiles(isolated)
    saved = path.read_bytes()
    again = command(*QUICK)
    assert (first.code, again.code) == (0, 0)
    assert path.read_bytes() == saved
    assert "measuring" not in again.err
    assert f"reused    {path}" in again.out
    assert "profile.reuse=never" in again.out
    # But for the last line the two say the same.
    assert again.out.splitlines()[:-1] == first.out.splitlines()[:-1]

    forced = command(*QUICK, "profile.reuse=never")
    assert forced.code == 0
    assert "measuring" in forced.err
    assert "saved" in forced.out
    assert path.read_bytes() != saved


def test_more_effort_answers_less_and_not_the_other_way_round(command: Command, isolated: Path) -> None:
    thorough = (*QUICK, "calibration.tables=2")
    assert "measuring" in command(*QUICK).err
    assert "measuring" in command(*thorough).err
    assert len(profiles(isolated)) == 1
    assert "reused" in command(*QUICK).out
    assert "reused" in command(*thorough).out


@pytest.mark.parametrize(
    "changed",
    [
        "strategies.require_capturable=true",
        "strategies.exclude=[scatter]",
        "calibration.switch_margin=0.1",
        "workload.window=64",
    ],
)
def test_another_question_is_not_answered_by_a_saved_profile(command: Command, changed: str) -> None:
    command(*QUICK)
    finished = command(*QUICK, changed)
    assert finished.code == 0
    assert "measuring" in finished.err


def test_another_objective_is_decided_from_the_same_measurements_and_stays(command: Command, isolated: Path) -> None:
    first = command(*QUICK, "format=json")
    again = command(*QUICK, "format=json", "objective=latency")
    assert again.code == 0
    assert "measuring" not in again.err
    served, hot = json.loads(first.out), json.loads(again.out)
    assert (served["profile"]["objective"], hot["profile"]["objective"]) == ("serving", "latency")
    assert hot["evidence"] == served["evidence"]
    assert hot["profile"]["answers"] == served["profile"]["answers"]
    (path,) = profiles(isolated)
    saved = StrategyProfile.load(path)
    assert saved.objective == "latency"
    assert saved.document() == hot["profile"]


def test_a_strategy_that_has_become_available_since_is_measured(command: Command, isolated: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")

    def unavailable() -> set[str]:
        (path,) = profiles(isolated)
        ineligible = StrategyProfile.load(path).evidence.ineligible
        return {out.strategy for out in ineligible if out.reason == "unavailable"}

    assert "measuring" in command(*FULL).err
    assert {"triton_take", "npu_scatter_nd_update"} <= unavailable()
    # Its interpreter makes the Triton fill available on a CPU, as an installation does on a GPU.
    assert "measuring" in command(*FULL, env={"TRITON_INTERPRET": "1"}).err
    assert "triton_take" not in unavailable()
    assert "npu_scatter_nd_update" in unavailable()


@pytest.mark.parametrize("text", ["", "{", '{"schema": "somebody else\'s"}'])
def test_a_corrupt_profile_is_measured_anew(command: Command, isolated: Path, text: str) -> None:
    command(*QUICK)
    (path,) = profiles(isolated)
    path.write_text(text, encoding="utf-8")
    finished = command(*QUICK)
    assert finished.code == 0
    assert finished.complaints == []
    assert "measuring" in finished.err
    StrategyProfile.load(path)


def test_another_machines_profile_is_never_overwritten_and_what_was_measured_is_not_lost(
    command: Command, isolated: Path, tmp_path: Path
) -> None:
    command(*QUICK)
    (path,) = profiles(isolated)
    document = json.loads(path.read_text(encoding="utf-8"))
    document["fingerprint"]["device_name"] = "another chip"
    path.write_text(json.dumps(document), encoding="utf-8")
    finished = command(*QUICK)
    assert_unsaved(finished, tmp_path, str(path), "another machine", "another chip", "profile.dir")
    assert json.loads(path.read_text(encoding="utf-8")) == document


def test_profiles_go_where_they_are_told_to(command: Command, isolated: Path, tmp_path: Path) -> None:
    for number, (arguments, env) in enumerate(
        (
            ([f"profile.dir={tmp_path}/by_key"], {"SWA_ALLOC_PROFILE_DIR": str(tmp_path / "unused")}),
            ([], {"SWA_ALLOC_PROFILE_DIR": str(tmp_path / "by_variable")}),
            (['profile.dir="~/by_home"'], {"HOME": str(tmp_path)}),
        )
    ):
        folder = tmp_path / ("by_key", "by_variable", "by_home")[number]
        finished = command(*QUICK, "strategies.pin=scatter", *arguments, env=env)
        assert finished.code == 0, finished.err
        (path,) = profiles(folder)
        assert str(path) in finished.out
    assert not isolated.exists()
    assert not (tmp_path / "unused").exists()


# What is printed, and where a run leaves its things


def test_json_is_one_document(command: Command, isolated: Path) -> None:
    for reused in (False, True):
        finished = command(*QUICK, "format=json")
        document = json.loads(finished.out)
        (path,) = profiles(isolated)
        assert document["path"] == str(path)
        assert document["reused"] is reused
        assert document["profile"] == StrategyProfile.load(path).document()
        assert document["evidence"] == StrategyProfile.load(path).evidence.document()


def test_two_runs_at_the_same_time_have_a_folder_each(
    command: Command, run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    arguments = (*QUICK, "strategies.pin=scatter")
    with ThreadPoolExecutor(2) as pool:
        codes = [run.returncode for run in pool.map(lambda _: run_python("-m", "autotune", *arguments), range(2))]
    assert codes == [0, 0]
    assert command(*arguments).code == command(*arguments).code == 0
    folders = run_folders(tmp_path)
    assert len(folders) == 4
    # A folder a second would have been one too few now and then.
    assert all(re.fullmatch(r"\d\d-\d\d-\d\d-\d{6}", folder.name) for folder in folders)
    assert all((folder / "report.txt").is_file() for folder in folders)


def test_a_variable_puts_the_run_folders_elsewhere(command: Command, tmp_path: Path) -> None:
    # /proc is a folder in which nobody can make anything.
    env = {"AUTOTUNE_OUTPUT_DIR": str(tmp_path / "elsewhere")}
    finished = command(*QUICK, "strategies.pin=scatter", env=env, cwd=Path("/proc"))
    assert finished.code == 0, finished.err
    assert len(list((tmp_path / "elsewhere").glob("*/*/report.txt"))) == 1


@pytest.mark.parametrize(("value", "folder"), [("", "cwd/outputs"), ("~/mine", "home/mine")])
def test_a_variable_is_read_as_a_shell_would_write_it(
    command: Command, tmp_path: Path, value: str, folder: str
) -> None:
    for name in ("cwd", "home"):
        (tmp_path / name).mkdir()
    env = {"AUTOTUNE_OUTPUT_DIR": value, "HOME": str(tmp_path / "home")}
    finished = command(*QUICK, "strategies.pin=scatter", env=env, cwd=tmp_path / "cwd")
    assert finished.code == 0, finished.err
    assert len(list((tmp_path / folder).glob("*/*/report.txt"))) == 1
    assert not (tmp_path / "cwd" / "~").exists()


def test_a_home_folder_that_is_none_makes_no_folder_of_that_name(command: Command, tmp_path: Path) -> None:
    finished = command(*QUICK, env={"AUTOTUNE_OUTPUT_DIR": "~nobody_has_this_name/mine"})
    assert_refused(finished, 2, "AUTOTUNE_OUTPUT_DIR", "no home folder ~nobody_has_this_name")
    assert list(tmp_path.iterdir()) == []


def test_folders_may_have_names_that_are_no_utf8(command: Command, tmp_path: Path) -> None:
    odd = os.fsdecode(b"n\xff")
    cwd, runs, store = (tmp_path / f"{name}{odd}" for name in ("cwd", "runs", "store"))
    cwd.mkdir()
    env = {"AUTOTUNE_OUTPUT_DIR": str(runs), "SWA_ALLOC_PROFILE_DIR": str(store)}
    finished = command(*QUICK, "studies=journal", env=env, cwd=cwd)
    assert finished.code == 0, finished.err
    assert finished.complaints == []
    assert len(profiles(store)) == 1
    (report,) = runs.glob("*/*/report.txt")
    assert "n\\udcff" in report.read_text(encoding="utf-8")
    assert "n\\udcff" in report.with_name("autotune.log").read_text(encoding="utf-8")


def test_nothing_but_the_configuration_is_printed_where_that_is_asked_for(command: Command, isolated: Path) -> None:
    finished = command("--cfg", "job", "device=cpu")
    assert (finished.code, finished.err) == (0, "")
    assert yaml.safe_load(finished.out)["device"] == {"kind": "cpu", "index": 0}
    shown = command("--help")
    assert shown.code == 0
    assert "python -m autotune --cfg job" in shown.out
    assert not isolated.exists()


# Who races


def test_included_and_excluded_strategies(command: Command, isolated: Path) -> None:
    finished = command(*QUICK, "strategies.include=[index_put,scatter,index_copy]", "strategies.exclude=[scatter]")
    assert finished.code == 0
    (path,) = profiles(isolated)
    evidence = StrategyProfile.load(path).evidence
    seen = {c.strategy for m in evidence.measurements for c in m.candidates} | {i.strategy for i in evidence.ineligible}
    # The defaults always race.
    assert seen == {"index_fill", "index_put", "index_copy"}


def test_the_default_alone_may_be_asked_for(command: Command, isolated: Path) -> None:
    finished = command(*QUICK, "strategies.include=[index_fill]")
    assert finished.code == 0, finished.err
    (path,) = profiles(isolated)
    assert {decision.strategy for decision in StrategyProfile.load(path).decisions} == {"index_fill"}


def test_an_operation_of_which_no_strategy_is_left_is_not_raced_and_keeps_its_default(
    command: Command, isolated: Path
) -> None:
    finished = command(*QUICK, "strategies.include=[tensor_take,index_fill]")
    assert finished.code == 0, finished.err
    (path,) = profiles(isolated)
    profile = StrategyProfile.load(path)
    assert {decision.kind.operation for decision in profile.decisions} == {"clear", "translate"}
    assert {out.kind.operation for out in profile.evidence.ineligible} <= {"clear", "translate"}
    # Not a word of the others.
    assert not re.search(r"^(set|take),", finished.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        (
            "scatter",
            {f"{operation}.{target}": "scatter" for operation in ("clear", "set") for target in ("token", "page")},
        ),
        (
            '"clear.token=index_fill,clear.page=index_copy"',
            {"clear.token": "index_fill", "clear.page": "index_copy"},
        ),
        # Nobody takes slots where pages have several.
        ("read_then_clear", {"take.page": "read_then_clear"}),
        ("'read_then_clear(clear=index_put)'", {"take.page": "read_then_clear(clear=index_put)"}),
    ],
)
def test_a_pin_writes_a_profile_and_measures_nothing(
    command: Command, isolated: Path, pin: str, expected: dict[str, str]
) -> None:
    finished = command(*QUICK, f"strategies.pin={pin}")
    assert finished.code == 0, finished.err
    assert "measuring" not in finished.err
    assert "nothing was measured" in finished.out
    (path,) = profiles(isolated)
    profile = StrategyProfile.load(path)
    assert profile.provenance.method == "pinned"
    assert {f"{d.kind.operation}.{d.kind.target}": d.label for d in profile.decisions} == expected
    assert {decision.max_indices for decision in profile.decisions} == {None}
    assert profile.evidence.measurements == ()


def test_a_pin_replaces_a_measured_profile_and_measuring_replaces_a_pin(command: Command, isolated: Path) -> None:
    command(*QUICK)
    command(*QUICK, "strategies.pin=scatter")
    (path,) = profiles(isolated)
    assert StrategyProfile.load(path).provenance.method == "pinned"
    # Nobody measured what this asks for.
    finished = command(*QUICK)
    assert "measuring" in finished.err
    assert StrategyProfile.load(path).provenance.method == "measured"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["strategies.pin=npu_scatter_nd_update"], ["npu_scatter_nd_update", "unavailable", "Ascend"]),
        (["strategies.pin=index_fil"], ["index_fil", "known", "for clear index_fill", "for take read_then_clear"]),
        (['strategies.pin="clear.slot=index_fill"'], ["clear.slot", "clear.token, clear.page, set.token"]),
        (['strategies.pin="take.token=read_then_clear"'], ["take.token", "nothing calls with pages of 16"]),
        (["strategies.include=[index_fil]"], ["strategies.include", "'index_fil'", "for clear index_fill"]),
        (["strategies.exclude=[index_fil]"], ["strategies.exclude", "'index_fil'", "for translate subscript"]),
        (["strategies.include=[scatter]", "strategies.exclude=[scatter]"], ["leave no strategy"]),
        (["strategies.include=[npu_scatter_nd_update]"], ["npu_scatter_nd_update", "unavailable", "Ascend"]),
        (["strategies.include=[triton_fill]"], ["strategies.include", "triton_fill", "unavailable"]),
        (["strategies.include=[]"], ["strategies.include", "leave no strategy"]),
    ],
)
def test_a_strategy_that_cannot_be_had_is_refused(
    command: Command, isolated: Path, arguments: list[str], parts: list[str]
) -> None:
    assert_refused(command(*QUICK, *arguments), 2, *parts)
    assert profiles(isolated) == []


# What is asked for wrongly


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["+workload.widow=3"], ["workload.widow", "did you mean workload.window"]),
        (["workload.widow=3"], ["unknown key workload.widow", "did you mean workload.window"]),
        (["workload=null"], ["string or a list"]),
        (["calibration.sizes=1000000000000"], ["calibration.sizes must be from 3 to 64"]),
        (["strategies.pin=','"], ["names no strategy"]),
        (["workload=mimo_v3_flash"], ["mimo_v3_flash", "mimo_v2_flash"]),
        (["device=tpu"], ["tpu", "npu"]),
        (["device.kind=tpu"], ["tpu", "npu"]),
        (["workload.size=-64"], ["workload.size", "-64"]),
        (["workload.page_size=7"], ["multiple", "page_size 7"]),
        (["workload.backlog_us=nan"], ["workload.backlog_us", "nan"]),
        (["workload.size=yes"], ["size", "yes"]),
        (["objective=fastest"], ["fastest", "latency"]),
        (["workload=trace"], ["workload.path=FILE"]),
        (["workload=trace", "workload.path=nowhere.json"], ["nowhere.json", "No such file"]),
        # Unquoted, a pin for two targets is no Hydra override: the line must say which one it is.
        (["strategies.pin=clear.token=index_fill,clear.page=scatter"], ["strategies.pin"]),
        (["nonsense"], ["nonsense"]),
        (["format=json", "--config-dir", "/dev/null/nowhere"], ["/dev/null/nowhere"]),
    ],
)
def test_a_wrong_request_has_one_line_and_leaves_no_profile(
    command: Command, isolated: Path, arguments: list[str], parts: list[str]
) -> None:
    assert_refused(command("device=cpu", *arguments), 2, *parts)
    assert not isolated.exists()


def test_a_pool_that_no_memory_holds_is_refused_before_it_is_played(command: Command) -> None:
    finished = command("device=cpu", f"workload.size={64 * 10**12}")
    assert_refused(finished, 3, "bytes", "lower workload.size")


def test_a_reader_that_goes_away_is_no_error_and_a_full_stdout_is_one(isolated: Path) -> None:
    command = f"{sys.executable} -m autotune {' '.join(QUICK)}"
    for sink, code in (("| true", 0), ("format=json | true", 0), (">&-", 0), ("> /dev/full", 2)):
        done = subprocess.run(
            ["/bin/bash", "-c", f"set -o pipefail; {command} {sink}"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "AUTOTUNE_OUTPUT_DIR": str(isolated / "runs")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        complaints = [line for line in done.stderr.splitlines() if " INFO " not in line]
        assert done.returncode == code, done.stderr
        expected = ["autotune: the result cannot be written to stdout: No space left on device"] if code else []
        assert complaints == expected
    assert len(profiles(isolated)) == 1


def test_help_may_be_read_in_part_and_not_be_lost(command: Command, tmp_path: Path) -> None:
    assert command("--help").out.startswith("Times each way")
    for sink, code in (("| head -1 > /dev/null", 0), ("| true", 0), ("> /dev/full", 2)):
        done = subprocess.run(
            ["/bin/bash", "-c", f"set -o pipefail; {sys.executable} -m autotune --help {sink}"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        expected = "autotune: the result cannot be written to stdout: No space left on device\n" if code else ""
        assert (done.returncode, done.stderr) == (code, expected)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "swa_alloc.trace/1"}', "\xff\xfe"])
def test_a_corrupt_trace_is_refused_by_name(command: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "clears.json").write_bytes(text.encode("latin-1"))
    finished = command("device=cpu", "workload=trace", "workload.path=clears.json")
    assert_refused(finished, 2, "clears.json", "swa_alloc.trace/1")


def test_a_recorded_trace_is_measured(command: Command, isolated: Path, tmp_path: Path) -> None:
    entries = (
        TraceEntry("clear", "token", "int64", 96, "scattered", 1.0),
        # One page of all: a layout that a recording of somebody else's may well have.
        TraceEntry("clear", "page", "int64", 1, "pages", 1.0),
    )
    Trace(SCHEMA, 2048, 32, entries).save(tmp_path / "clears.json")
    finished = command("device=cpu", "workload=trace", "workload.path=clears.json")
    assert finished.code == 0, finished.err
    (path,) = profiles(isolated)
    profile = StrategyProfile.load(path)
    assert (profile.workload.name, profile.workload.size, profile.workload.page_size) == ("trace", 2048, 32)
    # What it holds, and nothing else.
    assert {decision.kind.operation for decision in profile.decisions} == {"clear"}
    timed = {(str(found.kind), found.indices): found.weight for found in profile.evidence.measurements}
    assert timed["clear.token.int64", 96] == 0.5
    assert timed["clear.page.int64", 1] == 0.5


@pytest.mark.parametrize(
    "text", ["name: mine\n  size: [\n", "name: mine\nwidow: 3\n", "- a list\n", "a: b: c\n", "defaults: 5\n"]
)
def test_a_faulty_overlay_has_one_line_that_names_it(command: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "mine" / "workload").mkdir(parents=True)
    (tmp_path / "mine" / "workload" / "broken.yaml").write_text(text, encoding="utf-8")
    finished = command("--config-dir", str(tmp_path / "mine"), "device=cpu", "workload=broken")
    assert_refused(finished, 2, "widow" if "widow" in text else "broken")


def test_whoever_wants_the_traceback_gets_it(command: Command) -> None:
    finished = command("device=cpu", "workload.size=-64", env={"HYDRA_FULL_ERROR": "1"})
    assert finished.code == 1
    assert "Traceback" in finished.err
    assert "workload.size must be at least 1" in finished.err


# Where nothing can be written


def test_what_was_measured_is_printed_and_kept_where_it_cannot_be_saved(
    command: Command, isolated: Path, tmp_path: Path
) -> None:
    finished = command(*QUICK, "profile.dir=/dev/null/store")
    assert_unsaved(finished, tmp_path, "/dev/null/store", "profile.dir")
    assert json.loads(command(*QUICK, "profile.dir=/dev/null/store", "format=json").out)["path"] is None
    assert not isolated.exists()


@pytest.mark.parametrize("where", ["variable", "working directory"])
def test_a_run_folder_that_cannot_be_made_has_one_line(command: Command, isolated: Path, where: str) -> None:
    if where == "variable":
        finished = command(*QUICK, env={"AUTOTUNE_OUTPUT_DIR": "/dev/null/outputs"})
    else:
        # /proc is a folder in which nobody can make anything.
        finished = command(*QUICK, cwd=Path("/proc"))
    assert_refused(finished, 2, "cannot", "outputs", "AUTOTUNE_OUTPUT_DIR")
    assert not isolated.exists()


# The largest file that may be written, in bytes; what is larger fails as on a full disk.
WITH_A_LIMIT = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv = ["autotune", *sys.argv[2:]]
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""


def test_a_full_disk_that_has_no_room_for_the_run_folder_is_told_before_measuring(
    run_python: Callable[..., subprocess.CompletedProcess[str]], isolated: Path
) -> None:
    done = run_python("-c", WITH_A_LIMIT, "0", *QUICK)
    assert_refused(Finished(done.returncode, done.stdout, done.stderr), 2, "cannot write the run folder", "too large")
    assert not isolated.exists()


@pytest.mark.parametrize(
    ("limit", "arguments"),
    # Without Hydra's own files the log is the first thing that does not fit.
    [(0, ("hydra.output_subdir=null",)), (12_000, ())],
)
def test_a_disk_that_fills_up_loses_no_result_and_leaves_nothing_half_written(
    run_python: Callable[..., subprocess.CompletedProcess[str]], isolated: Path, limit: int, arguments: tuple[str, ...]
) -> None:
    done = run_python("-c", WITH_A_LIMIT, str(limit), *QUICK, *arguments)
    assert done.returncode == 0, done.stderr
    assert "the workload's calls take" in done.stdout
    (line,) = Finished(0, "", done.stderr).complaints
    for part in (str(isolated), "not saved", "File too large", "the run folder has no copy"):
        assert part in line
    assert profiles(isolated) == []
    # What fitted of the journal is there for the next run.
    assert [name for name in leftovers(isolated) if not name.endswith(".journal-2.jsonl")] == []


# Devices that are not there


def test_the_machines_own_device_is_found(command: Command, isolated: Path) -> None:
    finished = command(*QUICK, "device=auto")
    assert finished.code == 0
    assert finished.out.startswith("device    cpu: ")
    assert len(profiles(isolated)) == 1


@pytest.mark.parametrize(
    ("device", "parts"),
    [
        ("cuda", ["CUDA build of PyTorch", "device=cpu"]),
        ("rocm", ["ROCm build of PyTorch"]),
        ("xpu", ["XPU build of PyTorch"]),
        ("npu", ["torch_npu", "pip install torch_npu=="]),
        ("cpu device.index=3", ["3", "device.index"]),
    ],
)
def test_a_device_that_is_not_there_is_exit_code_three(
    command: Command, isolated: Path, device: str, parts: list[str]
) -> None:
    assert_refused(command(*QUICK, *f"device={device}".split()), 3, *parts)
    assert not isolated.exists()


def install_torch_npu(folder: Path, body: str) -> dict[str, str]:
    """A torch_npu that PyTorch loads by itself, as the real one; the environment in which it is installed."""
    (folder / "torch_npu").mkdir()
    (folder / "torch_npu" / "__init__.py").write_text(body, encoding="utf-8")
    info = folder / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n", encoding="utf-8")
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("raise ImportError('libhccl.so: cannot open shared object file')\n", ["libhccl.so", "set_env.sh"]),
        ("raise Exception('ASCEND_OPP_PATH\\nis not set')\n", ["ASCEND_OPP_PATH is not set", "CANN"]),
    ],
)
def test_torch_npu_without_cann_is_exit_code_three_and_no_obstacle_to_the_cpu(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
    isolated: Path,
    tmp_path: Path,
    body: str,
    parts: list[str],
) -> None:
    env = install_torch_npu(tmp_path, body)
    with ThreadPoolExecutor(2) as pool:
        asked, auto = pool.map(
            lambda device: run_python("-m", "autotune", *QUICK, device, "strategies.pin=scatter", env=env),
            ("device=npu", "device=auto"),
        )
    assert_refused(Finished(asked.returncode, asked.stdout, asked.stderr), 3, "torch_npu", *parts)
    assert auto.returncode == 0, auto.stderr
    assert auto.stdout.startswith("device    cpu: ")
    assert len(profiles(isolated)) == 1


# Another process


def test_a_command_that_waits_too_long_is_exit_code_three(command: Command, isolated: Path) -> None:
    isolated.mkdir(parents=True)
    lock = isolated / f".{socket.gethostname()}-cpu.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        finished = command(*QUICK, "calibration.budget_s=0.1", "calibration.wait_s=0")
    assert_refused(finished, 3, "another process", lock.name)
    assert "waiting for another process" in finished.err


# Interrupted

# Sends itself the signal that its first argument names: at the import of torch, ...
AT_AN_IMPORT = """
import os, runpy, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), number)

number = int(sys.argv.pop(1))
sys.meta_path.insert(0, Finder())
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""
# ... or at the call of the function that the second one names, once that has returned.
AT_A_CALL = """
import importlib, os, runpy, sys

number, (module, _, path) = int(sys.argv.pop(1)), sys.argv.pop(1).partition(":")
owner = importlib.import_module(module)
*parents, name = path.split(".")
for parent in parents:
    owner = getattr(owner, parent)
original = getattr(owner, name)

def interrupted(*args, **kwargs):
    original(*args, **kwargs)
    os.kill(os.getpid(), number)

setattr(owner, name, interrupted)
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_an_interruption_during_the_imports_has_one_line(
    run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, number: int, code: int
) -> None:
    done = run_python("-c", AT_AN_IMPORT, str(int(number)), *QUICK)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == "autotune: interrupted before anything was measured; nothing has changed\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_an_interruption_keeps_what_was_decided_and_the_same_command_goes_on_from_there(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
    command: Command,
    isolated: Path,
    number: int,
    code: int,
) -> None:
    done = run_python("-c", AT_A_CALL, str(int(number)), "autotune.journal:Journal.append", *QUICK)
    (path,) = profiles(isolated)
    kept = f"what was decided so far is kept, and serves from {path}; the same command goes on from there"
    assert_refused(Finished(done.returncode, done.stdout, done.stderr), code, f"interrupted; {kept}")
    assert not StrategyProfile.load(path).complete

    finished = command(*QUICK)
    assert finished.code == 0, finished.err
    assert "going on from" in finished.err
    assert StrategyProfile.load(path).complete


def test_an_interruption_says_that_the_earlier_profile_stands(
    run_python: Callable[..., subprocess.CompletedProcess[str]], command: Command, isolated: Path
) -> None:
    command(*QUICK)
    (path,) = profiles(isolated)
    saved = path.read_bytes()
    more = (*QUICK, "calibration.rounds=16")
    done = run_python("-c", AT_A_CALL, str(int(signal.SIGINT)), "autotune.journal:Journal.append", *more)
    assert_refused(Finished(done.returncode, done.stdout, done.stderr), 130, f"the earlier profile stands in {path}")
    assert path.read_bytes() == saved


def test_an_interruption_after_the_measuring_says_where_the_profile_is(
    run_python: Callable[..., subprocess.CompletedProcess[str]], isolated: Path
) -> None:
    pin = (*QUICK, "strategies.pin=scatter")
    done = run_python("-c", AT_A_CALL, str(int(signal.SIGINT)), "autotune.command.run:write_report", *pin)
    (path,) = profiles(isolated)
    assert_refused(Finished(done.returncode, done.stdout, done.stderr), 130, f"the profile is saved in {path}")


def test_the_command_needs_no_assertion_and_no_docstring(
    run_python: Callable[..., subprocess.CompletedProcess[str]], isolated: Path
) -> None:
    done = run_python("-OO", "-m", "autotune", *QUICK)
    assert done.returncode == 0, done.stderr
    (path,) = profiles(isolated)
    evidence = StrategyProfile.load(path).evidence
    assert any(candidate.params for found in evidence.measurements for candidate in found.candidates)
    assert {out.reason for out in evidence.ineligible} <= {"unavailable"}


# Without the extra

WITHOUT_EXTRA = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hydra", "omegaconf", "optuna", "filelock", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

COMMAND_WITHOUT_EXTRA = f"""{WITHOUT_EXTRA}
import runpy
sys.argv = ["autotune", "device=cpu"]
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""

ALLOCATOR_WITHOUT_EXTRA = f"""{WITHOUT_EXTRA}
import torch
from swa_alloc import SWATokenToKVPoolAllocator

allocator = SWATokenToKVPoolAllocator(64, 64, 1, torch.bfloat16, "cpu", None, on_missing="calibrate")
slots = allocator.alloc(8)
allocator.clear_full_to_swa_mapping(slots)
print(int(allocator.full_to_swa_index_mapping[:-1].abs().sum()))
"""


def test_without_the_extra_the_command_says_what_to_install_and_the_allocator_clears(
    run_python: Callable[..., subprocess.CompletedProcess[str]], isolated: Path
) -> None:
    with ThreadPoolExecutor(2) as pool:
        command, allocator = pool.map(
            lambda program: run_python("-c", program), (COMMAND_WITHOUT_EXTRA, ALLOCATOR_WITHOUT_EXTRA)
        )
    assert (command.returncode, command.stdout) == (2, "")
    (line,) = command.stderr.splitlines()
    assert "pip install 'swa-alloc[autotune]'" in line

    assert allocator.returncode == 0, allocator.stderr
    assert allocator.stdout == "0\n"
    (warning,) = allocator.stderr.splitlines()
    assert "pip install 'swa-alloc[autotune]'" in warning
    assert "python -m autotune device=cpu" in warning
    assert not isolated.exists()


# What a person at a terminal sees


def test_a_terminal_sees_a_bar_while_it_measures_and_a_pipe_does_not(isolated: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *QUICK],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=120,
        check=False,
    )
    os.close(theirs)
    seen = b""
    # A pseudo-terminal ends with an error once everybody has closed it.
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    assert done.returncode == 0
    assert b"of the budget" in seen
    assert b"of the budget" not in done.stdout
    assert len(profiles(isolated)) == 1
