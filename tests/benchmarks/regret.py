"""What the tuned choices lose against the best candidate that an exhaustive run in the same process finds.

Every candidate runs many interleaved rounds at every size, on several fresh tables, cold and hot. The regret at a size
is what the calibration's choice costs over what the fastest costs, less one: of cold calls for the choice under
serving, of calls in a loop for the one under latency.

Run: python tests/benchmarks/regret.py [WORKLOAD ...]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Mapping, Sequence
from math import ceil
from statistics import median, quantiles
from time import monotonic

import torch

from autotune.bench.bench import Bench
from autotune.bench.sandbox import ROTATION
from autotune.bench.screening import Rejected, Screener
from autotune.calibrate import make_request, measure
from autotune.config import Calibration, Workload, load_group
from autotune.contest.candidates import Entrant, make_space
from autotune.contest.race import OBJECTIVES
from autotune.devices import open_device
from autotune.request import Request
from autotune.traffic.plan import Point, make_plan
from swa_alloc import StrategyProfile
from swa_alloc.evidence import cost_us
from swa_alloc.operations import OPERATIONS, Objective
from swa_alloc.strategies import names

TABLES, ROUNDS = 6, 40
HOPELESS = 3.0
# As long as the calibrator's own blocks, twice over.
BLOCK_US, MAX_BLOCK = 60.0, 256

Costs = Mapping[Objective, Mapping[str, float]]


def exhaustive(request: Request, point: Point, choices: Collection[str]) -> Costs:
    """Median microseconds under each objective, of the choices and of all who are not three times slower than the best.

    Args:
        request: What was calibrated.
        point: What is called.
        choices: Labels that are measured in any case.
    """
    bench = Bench(request.trace, Screener(request.device, 1.0, monotonic), TABLES, seed=1)
    space = make_space(
        point.kind.operation, request.defaults[point.kind.operation], request.strategies[point.kind.operation]
    )
    single: dict[Entrant, float] = {}
    for candidate in space.fixed:
        entrant = Entrant(point.kind, candidate)
        try:
            single[entrant] = min(bench.single(point, entrant, turn).wall_us for turn in range(5))
        except Rejected:
            continue
    limit_us = HOPELESS * min(single.values())
    racing = [entrant for entrant, us in single.items() if us <= limit_us or entrant.label in choices]
    shuffler = random.Random(1)  # noqa: S311 - orders of rounds
    found: dict[Objective, dict[str, list[float]]] = {
        objective: {entrant.label: [] for entrant in racing} for objective in OBJECTIVES
    }
    for turn in range(TABLES * ROUNDS):
        shuffler.shuffle(racing)
        for entrant in racing:
            calls = min(ROTATION * ceil(BLOCK_US / ROTATION / single[entrant]), MAX_BLOCK)
            figures = bench.figures(point, entrant, calls, turn)
            for objective in OBJECTIVES:
                found[objective][entrant.label].append(cost_us(objective, figures, 0.0))
    return {objective: {label: median(costs) for label, costs in of_all.items()} for objective, of_all in found.items()}


def chosen(profile: StrategyProfile, point: Point, default: str) -> str:
    """The label that serves a call; the default's where nothing was decided."""
    decisions = profile.decisions_for(point.kind)
    return next((d.label for d in decisions if d.max_indices is None or point.count <= d.max_indices), default)


def tell(regrets: Sequence[float]) -> str:
    """The benchmark's figures, of many regrets."""
    percentile = quantiles(regrets, n=20)[-1]
    return f"median {median(regrets):.2%}, 95th percentile {percentile:.2%}, maximum {max(regrets):.2%}"


def main() -> None:
    torch.set_num_threads(1)
    device = open_device("cpu", 0)
    settings: Calibration = load_group(Calibration, "calibration", "startup")
    regrets: dict[Objective, list[float]] = {objective: [] for objective in OBJECTIVES}
    for workload in sys.argv[1:] or ["mimo_v2_flash", "gpt_oss_120b"]:
        load: Workload = load_group(Workload, "workload", workload)
        request = make_request(device, load, settings, {operation: names(operation) for operation in OPERATIONS})
        profile = measure(request)
        races = profile.evidence.measurements
        settled = sum(race.settled for race in races)
        took = f"{profile.provenance.measuring_s:.1f} s"
        print(f"{workload}: {took}, {len(races)} races, {settled} settled, {len(profile.missing)} missing")
        # More sizes than were tuned: borders count, too.
        for point in make_plan(request.trace, 2 * settings.sizes).points:
            default = request.defaults[point.kind.operation]
            choices = {objective: chosen(profile.under(objective), point, default) for objective in OBJECTIVES}
            costs = exhaustive(request, point, choices.values())
            for objective, choice in choices.items():
                found = costs[objective]
                best = min(found, key=found.__getitem__)
                regret = found[choice] / found[best] - 1
                regrets[objective].append(regret)
                print(f"  {point.kind} at {point.count}, {objective}: {choice} loses {regret:.1%} to {best}")
    for objective, lost in regrets.items():
        print(f"{objective}: {len(lost)} sizes, regret {tell(lost)}")


if __name__ == "__main__":
    main()
