"""What a server pays at its start: importing swa_alloc and constructing an allocator with ten profiles in the store.

Run: python tests/benchmarks/start.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from swa_alloc import StrategyProfile
from swa_alloc.profile import FILE_SUFFIX

PROCESSES = 15
# Beside the one that is taken: half of them for other pools, half for other workloads on the same pool.
OTHERS = 9
SIZE, SIZE_SWA, PAGE_SIZE = 1 << 20, 1 << 19, 64

START = f"""
import json, sys, time
begin = time.perf_counter()
import torch
imported_torch = time.perf_counter()
import swa_alloc
imported = time.perf_counter()
allocator = swa_alloc.SWATokenToKVPoolAllocator({SIZE}, {SIZE_SWA}, {PAGE_SIZE}, torch.bfloat16, "cpu", None)
done = time.perf_counter()
assert "user store" in allocator.explain()
heavy = sorted({{"hydra", "omegaconf", "optuna"}} & set(sys.modules))
print(json.dumps([imported_torch - begin, imported - imported_torch, done - imported, heavy]))
"""


def fill(store: Path, env: dict[str, str]) -> None:
    """Measure one profile, and save it for other pools and workloads as well."""
    workload = [f"workload.size={SIZE}", f"workload.size_swa={SIZE_SWA}", f"workload.page_size={PAGE_SIZE}"]
    command = [sys.executable, "-m", "autotune", "device=cpu", *workload]
    subprocess.run(command, env={**env, "AUTOTUNE_OUTPUT_DIR": str(store)}, check=True, capture_output=True)
    (path,) = store.glob(f"*{FILE_SUFFIX}")
    measured = StrategyProfile.load(path)
    for number in range(OTHERS):
        size = SIZE >> (number + 2) if number % 2 else SIZE
        other = StrategyProfile(
            fingerprint=measured.fingerprint,
            workload=measured.workload._replace(name=f"other{number}", size=size),
            objective=measured.objective,
            answers=measured.answers,
            provenance=measured.provenance,
            evidence=measured.evidence,
            missing=measured.missing,
        )
        other.save(store / other.file_name)


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        env = {**os.environ, "SWA_ALLOC_PROFILE_DIR": store, "OMP_NUM_THREADS": "1"}
        # Python's own cache of compiled modules belongs to an installed package.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        fill(Path(store), env)
        runs = [
            json.loads(subprocess.run([sys.executable, "-c", START], env=env, check=True, capture_output=True).stdout)
            for _ in range(PROCESSES + 1)
        ][1:]
    torch_s, import_s, construct_s = (median(run[i] for run in runs) for i in range(3))
    print(f"medians of {PROCESSES} processes; {SIZE} slots in pages of {PAGE_SIZE}, {OTHERS + 1} profiles in the store")
    print(f"import torch      {torch_s * 1e3:8.1f} ms")
    print(f"import swa_alloc  {import_s * 1e3:8.1f} ms")
    print(f"construct         {construct_s * 1e3:8.1f} ms")
    added_s = import_s + construct_s
    print(f"added             {added_s * 1e3:8.1f} ms, {added_s / torch_s:.2%} of importing torch")
    print(f"imported of hydra, omegaconf, optuna: {', '.join(runs[0][3]) or 'none'}")


if __name__ == "__main__":
    main()
