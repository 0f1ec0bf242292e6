"""``python -m autotune device=npu`` where something of an NPU is missing: one line that says what, and exit code 3.

Without CANN altogether: tests/test_torch_npu.py.
"""

from __future__ import annotations

from pathlib import Path

from npu.npu_python import NpuPython
from rigs import ROOT, rig


def stores(folder: Path) -> dict[str, str]:
    return {"AUTOTUNE_OUTPUT_DIR": str(folder / "runs"), "SWA_ALLOC_PROFILE_DIR": str(folder / "profiles")}


def complaint(python: NpuPython, folder: Path, **environment: str) -> str:
    """The only line that the command prints."""
    done = python.run("-W", "error", "-m", "autotune", "device=npu", cwd=folder, **stores(folder), **environment)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("autotune: ")
    return line


def test_torch_npu_is_not_installed(tmp_path: Path) -> None:
    line = complaint(NpuPython(), tmp_path, PYTHONPATH=str(ROOT))
    assert "needs torch_npu, which is not installed; pip install torch_npu==" in line


def test_there_is_no_device(tmp_path: Path) -> None:
    line = complaint(NpuPython("machine devices=0"), tmp_path)
    assert "torch_npu and CANN are there, but no NPU is" in line
    assert "npu-smi info" in line


def test_the_device_is_none_that_torch_npu_knows(tmp_path: Path) -> None:
    line = complaint(NpuPython("machine soc=Ascend999"), tmp_path)
    assert "torch_npu cannot use NPU 0 (Unsupported soc version: Ascend999)" in line


def test_cann_has_no_operator_package(tmp_path: Path) -> None:
    line = complaint(NpuPython(), tmp_path, ASCEND_OPP_PATH="/nonexistent")
    assert "half set up" in line
    assert "ASCEND_OPP_PATH : /nonexistent does not exist" in line


def test_cann_lacks_a_library(tmp_path: Path) -> None:
    for library in (rig("cann_stand_in") / "lib").iterdir():
        if library.name != "libge_runner.so":
            (tmp_path / library.name).symlink_to(library)
    line = complaint(NpuPython(), tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert "libge_runner.so: cannot open shared object file" in line
    assert "install CANN" in line


def test_device_auto_does_without_a_device_that_cannot_be_used(tmp_path: Path) -> None:
    python = NpuPython("machine soc=Ascend999")
    done = python.run("-m", "autotune", "strategies.pin=index_fill", cwd=tmp_path, **stores(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "device    cpu" in done.stdout
    assert "no NPU: torch_npu cannot use NPU 0 (Unsupported soc version: Ascend999)" in done.stderr
