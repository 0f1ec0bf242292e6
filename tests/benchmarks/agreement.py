"""How far calibrations in fresh processes agree: the share of pairs that do, and of those that contradict each other.

Two agree on a decision when each one's winner is among the other's winner and ties; they contradict each other when
neither's is. A decision whose two commonest winners differ, over all processes, by the switch margin give or take the
spread between processes has no answer that a process could find; it is set aside and listed.

Run: python tests/benchmarks/agreement.py [WORKLOAD] [PROCESSES]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import combinations
from pathlib import Path
from statistics import median, pstdev
from typing import NamedTuple

from swa_alloc import StrategyProfile
from swa_alloc.evidence import Measurement

Point = tuple[str, str, str, int]


class Verdict(NamedTuple):
    winner: str
    acceptable: frozenset[str]
    margin: float
    ratios: dict[str, float]  # to the default


def calibrations(workload: str, processes: int) -> list[StrategyProfile]:
    profiles = []
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "AUTOTUNE_OUTPUT_DIR": folder, "OMP_NUM_THREADS": "1"}
        for number in range(processes):
            store = Path(folder, f"store{number}")
            command = [sys.executable, "-m", "autotune", "device=cpu", f"workload={workload}", f"profile.dir={store}"]
            # The seed decides orders and indices: another one each time, as the traffic would be.
            subprocess.run([*command, f"calibration.seed={number}"], env=env, check=True, capture_output=True)
            (path,) = store.glob("*.json")
            profile = StrategyProfile.load(path)
            assert profile.evidence
            profiles.append(profile)
    return profiles


def verdict(profile: StrategyProfile, measurement: Measurement) -> Verdict:
    kind = measurement.operation, measurement.target, measurement.index_dtype
    winner = next(
        decision.label
        for decision in profile.decisions_for(*kind)
        if decision.max_indices is None or measurement.indices <= decision.max_indices
    )
    ratios = {c.label: c.ratio for c in measurement.candidates if c.ratio is not None}
    return Verdict(winner, frozenset({winner, *measurement.ties}), measurement.margin, ratios)


def borderline(verdicts: list[Verdict]) -> str | None:
    """Why no process can be expected to decide, or None."""
    (first, _), *others = Counter(v.winner for v in verdicts).most_common()
    if not others:
        return None
    second = others[0][0]
    gaps = [v.ratios[first] / v.ratios[second] for v in verdicts if first in v.ratios and second in v.ratios]
    if len(gaps) < 2:
        return None
    gap, spread = abs(1 - median(gaps)), pstdev(gaps)
    margin = verdicts[0].margin
    if abs(gap - margin) <= spread or gap <= spread:
        return f"{first} against {second}: {gap:.1%} apart, spread {spread:.1%}, margin {margin:.1%}"
    return None


def main() -> None:
    workload = sys.argv[1] if len(sys.argv) > 1 else "mimo_v2_flash"
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    points: dict[Point, list[Verdict]] = {}
    for profile in calibrations(workload, processes):
        for m in profile.evidence.measurements:
            points.setdefault((m.operation, m.target, m.index_dtype, m.indices), []).append(verdict(profile, m))
    # Sizes that a refinement added belong to one process.
    points = {point: verdicts for point, verdicts in points.items() if len(verdicts) == processes}
    agree = contradict = pairs = 0
    for point, verdicts in sorted(points.items()):
        reason = borderline(verdicts)
        if reason is not None:
            print(f"set aside {'.'.join(map(str, point))}: {reason}")
            continue
        for a, b in combinations(verdicts, 2):
            one, other = a.winner in b.acceptable, b.winner in a.acceptable
            pairs += 1
            agree += one and other
            contradict += not one and not other
    print(f"{workload}: {len(points)} decisions in {processes} fresh processes, {pairs} pairs")
    print(f"agree      {agree / max(pairs, 1):.1%}")
    print(f"contradict {contradict / max(pairs, 1):.1%}")


if __name__ == "__main__":
    main()
