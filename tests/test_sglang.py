"""Ours does what SGLang 0.5.23's own allocator does, and what it should have done where that goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from rigs import rig

# SGLang's import alone takes seconds, and a failure is made smaller before it is shown.
TIMEOUT_S = 600


@pytest.mark.skipif(sys.version_info < (3, 11), reason="SGLang 0.5.23 needs Python 3.11 or newer")
@pytest.mark.parametrize("module", ["side_by_side", "differences"])
def test_ours_beside_sglangs(module: str, tmp_path: Path) -> None:
    python = rig("sglang") / "bin" / "python"
    # A process of its own: SGLang and what it imports are in the rig's environment only.
    ran = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={tmp_path / 'peer'}",
            f"tests/peer/{module}.py",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
