"""The command with the real torch_npu wheel on a machine that has no CANN."""

from __future__ import annotations

import os

from conftest import ROOT, Run
from rigs import rig


def without_cann() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join((str(ROOT), str(rig("torch_npu")))), "ASCEND_HOME_PATH": ""}


def test_device_npu_says_in_one_line_that_cann_is_missing(run_python: Run) -> None:
    done = run_python("-m", "autotune", "device=npu", env=without_cann())
    assert done.returncode == 3
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("autotune: torch_npu does not load")
    assert "libhccl.so" in line
    assert "install CANN" in line


def test_device_auto_falls_back_to_the_cpu_and_says_why(run_python: Run) -> None:
    done = run_python("-m", "autotune", "strategies.pin=index_fill", env=without_cann())
    assert done.returncode == 0
    assert "device    cpu" in done.stdout
    assert "no NPU: torch_npu does not load" in done.stderr
