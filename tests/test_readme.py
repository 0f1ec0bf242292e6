"""The README's commands and examples, run as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Run

BASH = shutil.which("bash") or "/bin/bash"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every shell line, less the set-up before it: CI runs the set-up line itself, in a fresh clone."""
    lines = [line.rpartition("&& ")[2] for block in blocks("sh") for line in block.splitlines()]
    # The suite would run itself.
    return [line for line in lines if "-m pytest" not in line]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_works(command: str, tmp_path: Path) -> None:
    assert ".venv/bin/python" in command
    runnable = command.replace(".venv/bin/python", f"{sys.executable} -W error")
    done = subprocess.run(
        [BASH, "-euc", runnable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("example", blocks("python"))
def test_an_example_of_the_readme_runs(example: str, run_python: Run) -> None:
    done = run_python("-c", example)
    assert done.returncode == 0, done.stderr


def test_the_set_up_lines_install_what_the_project_declares() -> None:
    installs = re.findall(r"pip install -c constraints.txt -e '\.\[([\w,]+)\]'", README)
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert installs == ["autotune", "autotune,dev"]
    assert all(f"\n{extra} = [" in declared for extra in ",".join(installs).split(","))


def test_every_shipped_workload_device_and_strategy_is_named() -> None:
    conf = ROOT / "conf"
    names = [path.stem for group in ("device", "workload") for path in (conf / group).glob("*.yaml")]
    names += [
        line.split("=")[1].strip().strip('"')
        for path in (ROOT / "swa_alloc" / "strategies").glob("*/_*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith('    name = "')
    ]
    assert not [name for name in names if not re.search(rf"[`=]{name}[` ]", README)]
