"""The heavy parts that some tests need, made by the scripts in tests/rigs/."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def rig(name: str) -> Path:
    """The folder of a rig. Without it the test is skipped, and in CI, which makes them all, it fails."""
    folder = ROOT / ".rigs" / name
    if not folder.is_dir():
        reason = f"the rig {name} is not made; run tests/rigs/{name}.sh"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
