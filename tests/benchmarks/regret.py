"""What the tuned choice loses against the best candidate that an exhaustive run in the same process finds.

Every candidate runs many interleaved rounds at every size, on several fresh sandboxes. The regret at a size is the
time of what the quick calibration chose over the time of the fastest, less one.

Run: python tests/benchmarks/regret.py [WORKLOAD ...]
"""

from __future__ import annotations

import random
import sys
from math import ceil
from statistics import median, quantiles

import optuna
import torch

from autotune.bench import Bench
from autotune.calibrate import make_request, measure
from autotune.config import Calibration, Workload, load_group
from autotune.devices import open_device
from autotune.plan import Point, make_plan
from autotune.request import Request
from autotune.sandbox import Sandbox
from autotune.screening import Rejected, Screener
from autotune.space import make_space
from swa_alloc import StrategyProfile
from swa_alloc.operations import OPERATIONS
from swa_alloc.strategies import names

SANDBOXES, ROUNDS = 6, 40
HOPELESS = 3.0


def exhaustive(request: Request, points: list[Point]) -> dict[Point, dict[str, float]]:
    """Median microseconds of every candidate that is not three times slower than the best, at every point."""
    spaces = {
        operation: make_space(operation, OPERATIONS[operation].default_strategy("cpu"), who)
        for operation, who in request.strategies.items()
    }
    shuffler = random.Random(1)  # noqa: S311 - orders of rounds
    times: dict[Point, dict[str, list[float]]] = {point: {} for point in points}
    for number in range(SANDBOXES):
        sandbox = Sandbox(request.trace.size, request.trace.page_size, request.device, number)
        bench = Bench(sandbox, request.device, Screener(request.device, 1.0))
        for point in points:
            labels = []
            for candidate in spaces[point.operation].fixed:
                try:
                    bench.bind(point, candidate)
                    labels.append(candidate.label)
                except Rejected:
                    continue
            first = {label: min(bench.sample(point, label, 1).wall_us for _ in range(5)) for label in labels}
            labels = [label for label in labels if first[label] <= HOPELESS * min(first.values())]
            calls = {label: 4 * ceil(60 / 4 / first[label]) for label in labels}
            for _ in range(ROUNDS):
                shuffler.shuffle(labels)
                for label in labels:
                    sample = bench.sample(point, label, min(calls[label], 256))
                    times[point].setdefault(label, []).append(sample.wall_us)
    # A candidate that was hopeless on some sandbox has not run everywhere, and is not the best.
    return {
        point: {label: median(values) for label, values in found.items() if len(values) == SANDBOXES * ROUNDS}
        for point, found in times.items()
    }


def chosen(profile: StrategyProfile, point: Point) -> str:
    return next(
        decision.label
        for decision in profile.decisions_for(*point.kind)
        if decision.max_indices is None or point.count <= decision.max_indices
    )


def main() -> None:
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    device = open_device("cpu", 0)
    settings: Calibration = load_group(Calibration, "calibration", "startup")
    regrets: list[float] = []
    for workload in sys.argv[1:] or ["mimo_v2_flash", "gpt_oss_120b"]:
        load: Workload = load_group(Workload, "workload", workload)
        request = make_request(device, load, settings, {operation: names(operation) for operation in OPERATIONS})
        profile = measure(request)
        # More sizes than were tuned: borders count, too.
        for point, found in exhaustive(request, list(make_plan(request.trace, 2 * settings.sizes))).items():
            choice, best = chosen(profile, point), min(found, key=found.__getitem__)
            regret = found[choice] / found[best] - 1 if choice in found else float("inf")
            regrets.append(regret)
            where = f"{'.'.join(point.kind)} {point.count}"
            print(f"{workload} {where}: {choice} loses {regret:.1%}" + (f" to {best}" if regret else ""))
    print(f"{len(regrets)} decisions: median regret {median(regrets):.2%}, ", end="")
    print(f"95th percentile {quantiles(regrets, n=20)[-1]:.2%}, maximum {max(regrets):.2%}")


if __name__ == "__main__":
    main()
