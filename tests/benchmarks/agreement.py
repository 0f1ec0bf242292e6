"""How far calibrations in fresh processes agree: the share of pairs that do, and of those that contradict each other.

Two agree on a decision when each one's winner is among the other's winner and ties; they contradict each other when
neither's is. A decision whose two commonest winners differ, over all processes, by the switch margin give or take the
spread between processes has no answer that a process could find; it is set aside and listed.

Decisions under serving are what is judged; those under latency are printed beside them.

Run: python tests/benchmarks/agreement.py [WORKLOAD] [PROCESSES]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import median, pstdev
from typing import NamedTuple

from autotune.contest.race import OBJECTIVES
from swa_alloc import StrategyProfile
from swa_alloc.evidence import Measurement
from swa_alloc.operations import CallKind, Objective


class Choice(NamedTuple):
    """What one process serves a call with.

    Attributes:
        winner: The label that is called.
        acceptable: Labels that do as well.
        margin: Fraction by which another must beat the default.
        ratios: By label, the cost over the default's.
    """

    winner: str
    acceptable: frozenset[str]
    margin: float
    ratios: dict[str, float]


def calibrations(workload: str, processes: int) -> list[StrategyProfile]:
    profiles = []
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "AUTOTUNE_OUTPUT_DIR": folder, "OMP_NUM_THREADS": "1"}
        for number in range(processes):
            store = Path(folder, f"store{number}")
            command = [sys.executable, "-m", "autotune", "device=cpu", f"workload={workload}", f"profile.dir={store}"]
            # The seed decides orders and indices: another one each time, as the traffic would be.
            subprocess.run([*command, f"calibration.seed={number}"], env=env, check=True, capture_output=True)
            (path,) = store.glob("*.profile-2.json")
            profile = StrategyProfile.load(path)
            assert profile.evidence.measurements  # read before the folder goes
            profiles.append(profile)
    return profiles


def choice(profile: StrategyProfile, measurement: Measurement, objective: Objective) -> Choice:
    winner = next(
        decision.label
        for decision in profile.under(objective).decisions_for(measurement.kind)
        if decision.max_indices is None or measurement.indices <= decision.max_indices
    )
    verdict = measurement.verdicts[objective]
    standings = {candidate.label: candidate.standings[objective] for candidate in measurement.candidates}
    ratios = {label: standing.ratio for label, standing in standings.items() if standing.ratio is not None}
    acceptable = frozenset({winner, verdict.choice, *verdict.level, *verdict.ties})
    return Choice(winner, acceptable, verdict.margin, ratios)


def borderline(verdicts: Sequence[Choice]) -> str | None:
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


def agreement(profiles: Sequence[StrategyProfile], objective: Objective) -> str:
    """How far they agree under an objective, in words."""
    found: dict[tuple[CallKind, int], list[Choice]] = {}
    for profile in profiles:
        for m in profile.evidence.measurements:
            if objective in m.verdicts:
                found.setdefault((m.kind, m.indices), []).append(choice(profile, m, objective))
    # Sizes that a refinement added, or that one had no time for, belong to some processes only.
    found = {point: choices for point, choices in found.items() if len(choices) == len(profiles)}
    agree = contradict = pairs = 0
    lines = []
    for (kind, indices), choices in sorted(found.items()):
        reason = borderline(choices)
        if reason is not None:
            lines.append(f"  set aside {kind} at {indices}: {reason}")
            continue
        for a, b in combinations(choices, 2):
            one, other = a.winner in b.acceptable, b.winner in a.acceptable
            pairs += 1
            agree += one and other
            contradict += not one and not other
    shares = f"agree {agree / max(pairs, 1):.1%}, contradict {contradict / max(pairs, 1):.1%}"
    return "\n".join([f"{objective}: {len(found)} decisions, {pairs} pairs; {shares}", *lines])


def main() -> None:
    workload = sys.argv[1] if len(sys.argv) > 1 else "mimo_v2_flash"
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    profiles = calibrations(workload, processes)
    print(f"{workload} in {processes} fresh processes, of which {sum(p.complete for p in profiles)} had time for all")
    for objective in OBJECTIVES:
        print(agreement(profiles, objective))


if __name__ == "__main__":
    main()
