"""What CONTRIBUTING.md says of strategies, devices and operations of one's own, followed to the letter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, Run

from autotune import devices
from autotune.config import ConfigError
from autotune.devices import known_devices, open_device, open_torch_device, register_device
from autotune.devices.cpu import open_cpu
from swa_alloc.errors import DeviceError
from swa_alloc.profile import StrategyProfile
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

PACKAGES = ROOT / "tests" / "packages"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

# Few rounds, and room for the first call of a device that loads half of itself then.
QUICK = ("calibration.rounds=8", "calibration.sizes=3", "calibration.call_limit_s=5", "calibration.budget_s=5")
SLOTS, PAGE_SIZE = 1024, 16


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages of a strategy and of a device are installed, and one whose device does not load."""
    folder = tmp_path_factory.mktemp("packages")
    site = folder / "site"
    sources = [shutil.copytree(PACKAGES / name, folder / name) for name in ("strategy", "device")]
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    installed = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", str(site), *map(str, sources)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr
    broken = site / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", encoding="utf-8")
    (broken / "entry_points.txt").write_text("[autotune.devices]\nbroken = no_such_module:opener\n", encoding="utf-8")
    return site


@pytest.fixture
def run_with(run_python: Run, site: Path) -> Run:
    """``run_python``, with the packages installed."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_python(*arguments, env={"PYTHONPATH": os.pathsep.join((str(ROOT), str(site)))}, **options)

    return run


def calibrated(run: Callable[..., subprocess.CompletedProcess[str]], folder: Path, *overrides: str) -> StrategyProfile:
    """The profile that the command saves."""
    trace = Trace(
        SCHEMA,
        SLOTS,
        PAGE_SIZE,
        (
            TraceEntry("clear", "token", "int64", 64, "pages", 1.0),
            TraceEntry("set", "token", "int64", 64, "pages", 1.0),
        ),
    )
    path = trace.save(folder / "trace.json")
    workload = ("workload=trace", f"workload.path={path}", f"profile.dir={folder}")
    ran = run("-m", "autotune", *workload, *QUICK, *overrides)
    assert ran.returncode == 0, ran.stderr
    (saved,) = folder.glob("*.profile-*.json")
    return StrategyProfile.load(saved)


def raced(profile: StrategyProfile) -> set[str]:
    return {candidate.strategy for found in profile.evidence.measurements for candidate in found.candidates}


# --- the text


@pytest.mark.parametrize("language", ["python", "toml"])
def test_what_the_text_shows_is_what_the_packages_are_made_of(language: str) -> None:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", CONTRIBUTING, flags=re.MULTILINE | re.DOTALL)
    suffix = {"python": "py", "toml": "toml"}[language]
    sources = [path.read_text(encoding="utf-8") for path in PACKAGES.glob(f"*/**/*.{suffix}")]
    assert blocks
    assert not [block for block in blocks if not any(block in source for source in sources)]


def test_whatever_the_text_names_is_there() -> None:
    # A path begins at the root, or in a package or a room of it.
    tops = [ROOT / name for name in ("swa_alloc", "autotune", "tests")]
    homes = [ROOT, *tops, *(folder for top in tops for folder in top.glob("**/"))]
    named = set(re.findall(r"(?:`|python )([\w./]+(?:\.(?:py|md|json|toml|sh)|/))", CONTRIBUTING))
    assert len(named) > 30
    gone = {name for name in named if not any((home / name).exists() for home in homes)}
    # Those that somebody else makes.
    assert gone <= {"_multiply.py", ".rigs/", "swa_alloc/strategies/OPERATION/"}


# --- a strategy


def test_a_strategy_of_an_installed_package_races_on_the_command_line(run_with: Run, tmp_path: Path) -> None:
    profile = calibrated(run_with, tmp_path, "device=cpu", "strategies.include=[index_fill,multiply]")
    assert raced(profile) == {"index_fill", "multiply"}


def test_a_strategy_of_an_installed_package_can_be_pinned(run_with: Run) -> None:
    pinned = """
import torch
from swa_alloc import tuned_clear

mapping = torch.tensor([0, 7, 8, 9, 0, -1])
tuned_clear(mapping, strategy="multiply", strict_profile=True)(torch.tensor([2]))
assert mapping.tolist() == [0, 7, 0, 9, 0, -1]
"""
    ran = run_with("-c", pinned)
    assert ran.returncode == 0, ran.stderr


def test_a_strategy_of_another_package_is_tested_by_the_shipped_contract(run_with: Run, site: Path) -> None:
    # The copy, above which there is no configuration of ours.
    ran = run_with("-m", "pytest", "-q", "-k", "does_what_it_must", str(site.parent / "strategy" / "tests"))
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^\d+ passed", ran.stdout, re.MULTILINE)


# --- a device

SERVE = f"""
import torch
from my_device.backend import start
from swa_alloc import FullToSWAMapping, Overrides

start()
overrides = Overrides(on_missing="error", strict_profile=True)
mapping = FullToSWAMapping.allocate({SLOTS}, {PAGE_SIZE}, torch.device("lazy", 0), overrides)
print({{choice.layer for choice in mapping.selection.choices.values()}})
mapping.set(torch.tensor([17], device="lazy"), torch.tensor([5], device="lazy"))
print(mapping.translate(torch.tensor([17], device="lazy")).tolist())
"""


def test_a_device_of_an_installed_package_is_measured_and_served(
    run_with: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = calibrated(run_with, tmp_path, "device=lazy", "strategies.include=[index_fill,index_put,index_copy]")
    facts = profile.fingerprint
    assert (facts.device_type, facts.device_name, facts.device_arch) == ("lazy", "TorchScript", "host")
    assert facts.settings == {"LTC_TS_CUDA": "0"}
    assert raced(profile) >= {"index_fill", "index_put", "index_copy"}
    monkeypatch.setenv("SWA_ALLOC_PROFILE_DIR", str(tmp_path))
    served = run_with("-c", SERVE)
    assert served.returncode == 0, served.stderr
    assert "user store" in served.stdout.splitlines()[0]
    assert served.stdout.splitlines()[1] == "[5]"


# Imports once for all the command lines, each of which has a process of its own.
COMMANDS = """
import os, sys
from autotune.__main__ import main

for arguments in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        sys.argv = ["autotune", *arguments.split()]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_device_that_cannot_be_opened_costs_one_line(run_with: Run) -> None:
    ran = run_with("-c", COMMANDS, "device=lazy device.index=1", "device=broken", "device=tpu")
    assert ran.stdout.split() == ["3", "3", "2"]
    refused, broken, unknown = ran.stderr.splitlines()
    assert refused == "autotune: there is one lazy device, 0, not 1; drop device.index"
    assert "no_such_module:opener" in broken
    assert all(known in unknown for known in ("tpu", "auto", "cpu", "cuda", "npu", "broken", "lazy"))


@pytest.fixture
def no_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_registered", {})


@pytest.mark.usefixtures("no_other_devices")
def test_a_registered_device_is_opened_by_its_name_and_for_tensors_of_its_type() -> None:
    opened: list[int] = []

    def opener(index: int) -> devices.Device:
        opened.append(index)
        return open_cpu(0)

    register_device("privateuseone", opener)
    register_device("privateuseone", opener)
    assert known_devices()[-1] == "privateuseone"
    open_device("privateuseone", 3)
    open_torch_device(torch.device("privateuseone", 2))
    open_torch_device(torch.device("privateuseone"))
    assert opened == [3, 2, 0]


@pytest.mark.usefixtures("no_other_devices")
def test_a_device_takes_no_name_that_is_taken_and_no_opener_that_is_none() -> None:
    with pytest.raises(DeviceError, match="registered already; choose another name"):
        register_device("cpu", open_cpu)
    with pytest.raises(DeviceError, match="must be callable"):
        register_device("mine", None)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigError, match=r"unknown device.kind 'mine'; known: auto, cpu, "):
        open_device("mine", 0)


# --- an operation

# What the text says to write into files that are there: a file, what stands there, and what it becomes.
EDITS = (
    ("operations.py", '"translate", "take"]', '"translate", "take", "read"]'),
    ("operations.py", "(CLEAR, SET, TRANSLATE, TAKE)", "(CLEAR, SET, TRANSLATE, TAKE, READ)"),
    (
        "operations.py",
        "OPERATIONS: Mapping[str, Operation] =",
        """READ = Operation(name="read", paged_targets=(PAGE,), reference=_translate_reference, fallback="subscript")

OPERATIONS: Mapping[str, Operation] =""",
    ),
    (
        "strategies/_registry.py",
        '    "take": (',
        '    "read": ("subscript", "index_select"),\n    "take": (',
    ),
    (
        "testing/_contracts.py",
        "class TakeContract(_Reads):",
        '''class ReadContract(_Reads):
    """The same for ``read``."""

    layouts = FEW_LAYOUTS
    operation = "read"

    def expect(self, table: Table, rows: list[int], values: list[Any] | None) -> list[Any]:
        """See ``StrategyContract.expect``."""
        del values
        found = [[table.expected[place] for place in table.places(row)] for row in rows]
        return [entry for (entry,) in found] if table.target.name == TOKEN else found


class TakeContract(_Reads):''',
    ),
    ("testing/__init__.py", "    SetContract,\n", "    ReadContract,\n    SetContract,\n"),
    ("testing/__init__.py", '    "SetContract",\n', '    "ReadContract",\n    "SetContract",\n'),
    (
        "mapping.py",
        "    @classmethod\n    def allocate(",
        '        self.read_pages = bound["read", pages]\n\n    @classmethod\n    def allocate(',
    ),
)

ITS_CONTRACT = """
from swa_alloc.strategies import builtin_names, strategy_class
from swa_alloc.testing import ReadContract, candidates_of

class TestRead(ReadContract):
    candidates = candidates_of(*(strategy_class("read", name) for name in builtin_names("read")))
"""

RECORD = f"""
import torch
from swa_alloc import FullToSWAMapping, Overrides
from swa_alloc.trace import TraceRecorder

recorder = TraceRecorder()
overrides = Overrides(strategy=recorder.strategies)
mapping = FullToSWAMapping.allocate({SLOTS}, {PAGE_SIZE}, torch.device("cpu"), overrides)
mapping.read_pages(torch.tensor([3, 1, 2, 7]))
recorder.trace({SLOTS}, {PAGE_SIZE}).save("trace.json")
"""

SERVE_ALL = f"""
import glob, torch
from swa_alloc._schema import profile_schema
from autotune.bench.contract import violation
from swa_alloc import FullToSWAMapping, Overrides, Strategy, StrategyProfile
from swa_alloc.operations import Target, empty_mapping

(path,) = glob.glob("*.profile-*.json")
profile = StrategyProfile.load(path)
print({{decision.kind[:2] for decision in profile.decisions}})
print(sorted({{entrant.strategy for found in profile.evidence.measurements for entrant in found.candidates}}))
overrides = Overrides(profile=profile, strict_profile=True)
mapping = FullToSWAMapping.allocate({SLOTS}, {PAGE_SIZE}, torch.device("cpu"), overrides)
mapping.set_pages(torch.tensor([2]), torch.arange(32, 48).view(1, 16))
print(mapping.selection.choices["read", "page"].layer, mapping.read_pages(torch.tensor([2, 0])).sum(1).tolist())

class Elsewhere(Strategy):
    name = "elsewhere"
    operation = "read"

    def bind(self, target):
        return lambda indices: target.table[indices.flip(0)]

target = Target("read", "page", torch.int64, mapping.tensor, {PAGE_SIZE})
print(violation(Elsewhere(), target, lambda call, *arguments: call(*arguments)))
print(profile_schema()["$defs"]["CallKind"]["properties"]["operation"]["enum"])
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project to which an operation was added."""
    tree = tmp_path_factory.mktemp("operation") / "tree"
    for name in ("autotune", "conf", "swa_alloc"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGES / "operation", tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in EDITS:
        path = tree / "swa_alloc" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, (name, before)
        path.write_text(text.replace(before, after), encoding="utf-8")
    return tree


@pytest.fixture
def run_there(run_python: Run, tree: Path) -> Run:
    """``run_python`` on that copy."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        ran = run_python(*arguments, env={"PYTHONPATH": str(tree)}, **options)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    return run


def test_an_operation_of_ones_own_is_recorded_checked_raced_decided_and_dispatched(
    run_there: Run, tmp_path: Path
) -> None:
    run_there("-c", RECORD)
    workload = ("workload=trace", f"workload.path={tmp_path / 'trace.json'}", f"profile.dir={tmp_path}")
    report = run_there("-m", "autotune", "device=cpu", *workload, *QUICK).stdout
    assert re.search(r"^read, us ", report, re.MULTILINE)
    decided, raced, dispatched, wrong, legal = run_there("-c", SERVE_ALL).stdout.splitlines()
    assert decided == "{('read', 'page')}"
    assert raced == "['index_select', 'subscript']"
    assert dispatched == f"profile= argument [{sum(range(32, 48))}, 0]"
    assert "the result is wrong" in wrong
    assert legal == "['clear', 'set', 'translate', 'take', 'read']"


def test_an_operation_of_ones_own_has_a_contract(run_there: Run, tmp_path: Path) -> None:
    tests = tmp_path / "test_read.py"
    tests.write_text(ITS_CONTRACT, encoding="utf-8")
    ran = run_there("-m", "pytest", "-q", "-k", "does_what_it_must", str(tests))
    assert re.search(r"^\d+ passed", ran.stdout, re.MULTILINE)
