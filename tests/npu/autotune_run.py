"""``python -m autotune`` on the npu, with stores and run folders of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu.npu_python import NpuPython

from swa_alloc.evidence import CandidateMeasurement, Measurement
from swa_alloc.operations import INDEX_DTYPES, CallKind
from swa_alloc.profile import Decision, StrategyProfile
from swa_alloc.trace import SCHEMA, Trace, TraceEntry

SIZE = 65_536

# Enough rounds for an interval, and no more, of blocks so long that the hiccups of a busy machine drown in them. The
# budget is not what ends a run.
QUICK = (
    "calibration.budget_s=120",
    "calibration.tables=2",
    "calibration.rounds=16",
    "calibration.block_us=6000",
)


@dataclass(frozen=True)
class AutotuneRun:
    """A folder in which the command is run.

    Attributes:
        python: What runs it.
        folder: Holds the trace, the store and the run folders.
    """

    python: NpuPython
    folder: Path

    def __call__(self, *overrides: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """``python -m autotune device=npu`` on ``record``'s trace."""
        arguments = ("device=npu", "workload=trace", "workload.path=clears.json", *QUICK, *overrides)
        return self.python.run(
            *("-W", "error", "-m", "autotune", *arguments), timeout=timeout, cwd=self.folder, **self.stores()
        )

    def calibrated(self, *overrides: str) -> dict[str, Any]:
        """What it prints as JSON, when it must work."""
        done = self("format=json", *overrides)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def record(self, *sizes: int) -> None:
        """A trace of clears of so many slots, int32 and int64 alike, on pages of one."""
        entries = [TraceEntry("clear", "token", dtype, n, "scattered", 1.0) for dtype in INDEX_DTYPES for n in sizes]
        Trace(SCHEMA, SIZE, 1, tuple(entries)).save(self.folder / "clears.json")

    def stores(self) -> Mapping[str, str]:
        """Environment variables that keep it out of anybody's home."""
        return {
            "SWA_ALLOC_PROFILE_DIR": str(self.folder / "profiles"),
            "SWA_ALLOC_SYSTEM_PROFILE_DIR": str(self.folder / "system"),
            "AUTOTUNE_OUTPUT_DIR": str(self.folder / "runs"),
        }

    def profile(self) -> StrategyProfile:
        """The one that was saved."""
        return StrategyProfile.load(self.path())

    def path(self) -> Path:
        """Where it lies."""
        (path,) = (self.folder / "profiles").glob("*.profile-2.json")
        return path


def race(profile: StrategyProfile, dtype: str, indices: int) -> Measurement:
    """The race of clears of so many slots."""
    kind = CallKind("clear", "token", dtype)  # type: ignore[arg-type]  # a plain str
    (found,) = (m for m in profile.evidence.measurements if (m.kind, m.indices) == (kind, indices))
    return found


def candidates(profile: StrategyProfile, dtype: str, indices: int) -> dict[str, CandidateMeasurement]:
    """The candidates of one race of clears, by label."""
    return {candidate.label: candidate for candidate in race(profile, dtype, indices).candidates}


def decided(decisions: Sequence[Decision], dtype: str, indices: int) -> Decision:
    """Which clear serves so many indices."""
    return next(
        decision
        for decision in decisions
        if decision.kind == ("clear", "token", dtype)
        and (decision.max_indices is None or indices <= decision.max_indices)
    )
