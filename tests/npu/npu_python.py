"""Runs Python on the real torch_npu wheel, over the stand-in for CANN that tests/rigs/cann_stand_in.sh builds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rigs import ROOT, rig

SCRIPTS = Path(__file__).resolve().parent / "scripts"

# Device costs shaped as on Ascend's A2, by its operators' sources; the figures are made up, and large and far apart, so
# that the device and not this host paces a block of calls. index_fill rewrites the table; index_put is cheap up to 100
# indices and then runs on the AICPU, as scatter and masked_fill always do; index_copy and scatter_nd_update are cheap
# for any number. Zeroing memory is what the calibrator makes its backlog of.
A2_COSTS = """
    * fixed_ns=50000;
    aclnnInplaceFillScalar fixed_ns=200000;
    aclnnInplaceIndexFill fixed_ns=1000000 element_ns=102;
    aclnnIndexPutImpl fixed_ns=100000 index_ns=100;
    aclnnIndexPutImpl indices>100 fixed_ns=4000000 index_ns=2000;
    aclnnIndexPutImpl elements>5400000 fixed_ns=4000000 index_ns=2000;
    aclnnInplaceIndexCopy fixed_ns=400000 index_ns=20;
    aclnnScatterNdUpdate fixed_ns=400000 index_ns=20;
    aclnnInplaceScatterValue fixed_ns=4000000 index_ns=2000;
    aclnnInplaceMaskedFillScalar fixed_ns=4000000 element_ns=10;
    aclnnInplaceMaskedScatter fixed_ns=400000 element_ns=10;
    aclnnInplaceZero element_ns=30;
    aclnnSleep element_ns=1
"""

# What the machine that runs the tests may have set; it changes what torch_npu does.
_FOREIGN = ("ASCEND_", "CANN_STAND_IN_", "TASK_QUEUE_", "PYTORCH_NPU_", "NPU_")


@dataclass(frozen=True)
class NpuPython:
    """A Python that has an npu device.

    Attributes:
        script: What the device is and what its calls cost; README.md describes the language.
        old: Whether CANN lacks aclnnInplaceIndexFill.
        log: Where the names of the calls go, one a line.
    """

    script: str = ""
    old: bool = False
    log: Path | None = None

    def environment(self, **more: str) -> dict[str, str]:
        """The whole environment of such a process. Skips the test where a rig is absent."""
        home = rig("cann_stand_in") / ("old" if self.old else "")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(rig("torch_npu")), str(SCRIPTS))),
            "LD_LIBRARY_PATH": str(home / "lib"),
            "ASCEND_HOME_PATH": str(home),
            "ASCEND_OPP_PATH": str(home / "opp"),
            # Otherwise every `import torch` loads torch_npu as well.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "OMP_NUM_THREADS": "1",
            "CANN_STAND_IN_SCRIPT": self.script,
            **({} if self.log is None else {"CANN_STAND_IN_LOG": str(self.log)}),
            **more,
        }

    def run(
        self, *arguments: str | Path, timeout: float = 60, cwd: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """``python *arguments``, with its output as text; ``more`` is added to the environment."""
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self.environment(**more),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
