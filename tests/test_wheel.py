"""The wheel: what is in it, and that it works where only it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent

# What a checkout has and a fresh clone does not.
NOT_IN_GIT = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "dist", "build")


def run(*command: str, cwd: Path) -> None:
    finished = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=NOT_IN_GIT)
    # As after a run: what it leaves must not be shipped.
    (source / "outputs" / "2026-01-01").mkdir(parents=True)
    (source / "outputs" / "2026-01-01" / "report.txt").write_text("mine", encoding="utf-8")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), cwd=source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    target = wheel.parent / "site-packages"
    pip = ("-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", "--target")
    run(sys.executable, *pip, str(target), str(wheel), cwd=wheel.parent)
    return target


def test_the_wheel_holds_the_packages_their_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        info = {name.partition("/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(info["METADATA"]).decode()
        entry_points = archive.read(info["entry_points.txt"]).decode()
    assert {name.partition("/")[0] for name in files} == {"autotune", "swa_alloc"}
    assert {
        "autotune/conf/config.yaml",
        "autotune/conf/hydra/job_logging/stderr.yaml",
        "autotune/py.typed",
        "swa_alloc/py.typed",
        "swa_alloc/profile.schema.json",
    } <= files
    shipped = {f"autotune/conf/{file.relative_to(ROOT / 'conf').as_posix()}" for file in ROOT.glob("conf/**/*.yaml")}
    assert {name for name in files if name.startswith("autotune/conf/")} == shipped
    sources = {
        file.relative_to(ROOT).as_posix() for part in ("autotune", "swa_alloc") for file in ROOT.glob(f"{part}/**/*.py")
    }
    assert {name for name in files if name.endswith(".py")} == sources
    assert "licenses/LICENSE" in info
    assert "autotune = autotune.__main__:main" in entry_points
    assert "Requires-Dist: torch>=2.6" in metadata
    # Nothing else without an extra: a serving process gets torch alone.
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert required == ["Requires-Dist: torch>=2.6"]


CALIBRATE = """
import runpy, sys
import autotune, swa_alloc
sys.stderr.write(f"{autotune.__file__}\\n{swa_alloc.__file__}\\n")
sys.argv = ["autotune", *sys.argv[1:]]
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""


def test_the_installed_copy_works_from_any_folder(
    run_python: Callable[..., subprocess.CompletedProcess[str]], installed: Path, isolated: Path, tmp_path: Path
) -> None:
    env = {"PYTHONPATH": str(installed), "AUTOTUNE_OUTPUT_DIR": str(tmp_path / "runs")}
    shown = run_python("-m", "autotune", "--cfg", "job", env=env, cwd=Path("/"))
    assert shown.returncode == 0, shown.stderr
    assert yaml.safe_load(shown.stdout)["workload"]["name"] == "mimo_v2_flash"

    small = ("workload.size=8192", "workload.size_swa=8192", "workload.decode_steps=64")
    quick = ("calibration.sizes=3", "calibration.tables=1", "calibration.rounds=8")
    arguments = ("device=cpu", *small, *quick, "format=json")
    finished = run_python("-c", CALIBRATE, *arguments, env=env, cwd=Path("/"))
    assert finished.returncode == 0, finished.stderr
    where = finished.stderr.splitlines()[:2]
    assert all(Path(file).is_relative_to(installed) for file in where), where
    document = json.loads(finished.stdout)
    assert Path(document["path"]).parent == isolated
    (folder,) = (tmp_path / "runs").glob("*/*")
    assert (folder / "run.profile-2.json").is_file()


def test_the_console_script_is_the_same_command(installed: Path, tmp_path: Path) -> None:
    script = installed / "bin" / "autotune"
    env = {**os.environ, "PYTHONPATH": str(installed)}
    finished = subprocess.run(
        [sys.executable, str(script), "device=tpu"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (finished.returncode, finished.stdout) == (2, "")
    (line,) = finished.stderr.splitlines()
    assert line.startswith("autotune: ")
    assert "tpu" in line
