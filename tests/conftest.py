"""What every test starts from: no profile and no setting of the machine that runs it, and one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from swa_alloc.operations import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty stores, in folders of the test's own; the user store's folder. Subprocesses inherit them."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(("SWA_ALLOC_", "AUTOTUNE_", "HYDRA_", "TRITON_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("SWA_ALLOC_SYSTEM_PROFILE_DIR", str(home / "system"))
    # A test that wants a calibration asks for it.
    monkeypatch.setenv("SWA_ALLOC_ON_MISSING", "default")
    # Two test machines of different sizes must measure alike, and stray OpenMP threads make times jump.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    return home / "cache" / "swa_alloc" / "profiles"


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No third-party strategies, and none left behind."""
    monkeypatch.setattr("swa_alloc.strategies._registry._registered", {operation: {} for operation in OPERATIONS})


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """``run_python("-m", "autotune", ..., env={...}, cwd=...)``: a Python of its own, with its output as text."""

    def run(
        *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        return subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            env=environment,
            cwd=cwd or tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
