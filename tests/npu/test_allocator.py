"""The whole allocator on npu tensors."""

from __future__ import annotations

import re
from pathlib import Path

from npu.npu_python import NpuPython
from rigs import ROOT

CONTRACT = Path(__file__).resolve().parent / "allocator_on_npu.py"


def test_the_allocator_keeps_its_contract() -> None:
    # A traceback with values would print tensors, for which the stand-in has no operators.
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=native", CONTRACT)
    done = NpuPython().run(*arguments, cwd=ROOT, timeout=180)
    assert done.returncode == 0, f"{done.stdout[-10_000:]}{done.stderr[-2000:]}"
    assert "skipped" not in done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    # So many tests does the contract have at least, at three page sizes.
    assert passed is not None
    assert int(passed[1]) > 500
