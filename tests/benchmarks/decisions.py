"""What the calibrator's decisions lose on virtual chips, against the best that their tables of costs allow.

Plan, search, race and decisions are the real ones, with the shipped settings; only the chip and its clock are made up
(``tests/virtual_chip.py``), and the truth is computed from its table alone. A line a table: what the workload loses to
the best choice at every size, in percent, with the defaults alone and as decided; the share of its calls, in percent,
that is left to the default because nothing raced there; the size that loses most of those that were timed, and of those
in between; the time used. Below that the goals, of which a miss makes the exit code 1.

Run: python tests/benchmarks/decisions.py [--tables FILE.json ...] [--random N --seed S] [--noise X] [--hiccups Y]
     [--drift Z] [--jobs J]

A file holds a list of tables, ``{"name", "slots", "page_size", "workload", "calls", "noise"?, "hiccups"?, "drift"?}``.
Their calls are ``{"call", "min_indices"?, "min_elements"?, "fixed_us"?, "element_ns"?, "index_ns"?, "host_us"?,
"sync"?}``. Of the entries that hold for a call the last counts, and a call without one takes 5 us of the host and 5 us
of the device. Without --tables those of ``tests/benchmarks/tables`` are run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import optuna
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from npu.known_calls import known_calls  # noqa: E402 - its folder is not on the path of a script
from virtual_chip import (  # noqa: E402 - as above
    CallCost,
    Table,
    TableError,
    VirtualChip,
    candidates_of,
    default_of,
    strategies_of,
    strategies_on,
)

from autotune.calibrate import make_request, measure  # noqa: E402 - as above
from autotune.config import Calibration, Workload, load_group  # noqa: E402 - as above
from autotune.traffic.plan import make_plan  # noqa: E402 - as above
from autotune.traffic.workload import play  # noqa: E402 - as above
from swa_alloc import StrategyProfile  # noqa: E402 - as above
from swa_alloc.operations import OPERATIONS, CallKind  # noqa: E402 - as above

# The goals, in percent.
MOST_LOSS, MEDIAN_LOSS, MOST_UNDECIDED, WORSE_THAN_DEFAULT, OVER_BUDGET = 3.0, 0.5, 2.0, 0.1, 10.0
# Of random chips: a choice is slow that loses more than this, and so many may be, in percent.
SLOW = 10.0
SLOW_TIMED_QUIET, SLOW_TIMED_NOISY, SLOW_BETWEEN = 1.0, 5.0, 3.0
# Up to this noise, and without hiccups, the goals of a quiet machine hold.
QUIET_NOISE = 0.05
# Sizes in between that are looked at, beside those at the table's steps.
GRID = 96
WORKLOADS = ("default", "gemma3_27b", "gpt_oss_120b", "mimo_v2_flash", "mimo_v2_flash_ascend", "step_3_5_flash")


@dataclass(frozen=True)
class Worst:
    """The size that loses most, in percent, and where it is."""

    loss: float = 0.0
    where: str = "-"

    def __str__(self) -> str:
        return f"{self.loss:.1f}" + (f" {self.where}" if self.loss >= 0.05 else "")


@dataclass(frozen=True)
class Outcome:
    """What became of one table; losses in percent."""

    name: str
    default_loss: float
    loss: float
    undecided: float
    timed: tuple[Worst, ...]
    between: tuple[Worst, ...]
    used_s: float
    budget_s: float
    real_s: float
    missing: tuple[str, ...]

    @property
    def over_budget(self) -> float:
        return 100 * (self.used_s / self.budget_s - 1)

    @property
    def line(self) -> str:
        used = f"{self.used_s:.1f}/{self.budget_s:g}"
        losses = f"{self.default_loss:8.1f} {self.loss:6.2f} {self.undecided:5.1f}"
        return f"{self.name:41} {losses} {used:>8}  {worst(self.timed)!s:48} {worst(self.between)}"


def worst(sizes: Sequence[Worst]) -> Worst:
    return max(sizes, key=lambda size: size.loss, default=Worst())


def recorded(table: Table, folder: Path) -> Workload:
    """The table's workload, to be read from a trace: several tables share what playing it takes."""
    load: Workload = load_group(Workload, "workload", table.workload)
    path = folder / f"{table.workload}-{table.slots}-{table.page_size}.json"
    if not path.exists():
        # The workload's own share of the slots, where it comes to whole pages at all.
        swa = table.slots * load.size_swa // load.size // table.page_size * table.page_size or table.slots
        play(replace(load, size=table.slots, size_swa=swa, page_size=table.page_size)).save(path)
    return replace(load, path=str(path))


def run(table: Table, folder: Path, seed: int) -> Outcome:
    """Calibrate the table's chip, and compare what comes of it with the truth."""
    torch.set_num_threads(1)
    load = recorded(table, folder)
    chip = VirtualChip(table, seed)
    strategies = {operation: strategies_of(operation) for operation in OPERATIONS}
    begin = time.perf_counter()
    with strategies_on(chip):
        request = make_request(chip, load, load_group(Calibration, "calibration", "startup"), strategies)
        request = replace(request, defaults={operation: default_of(operation) for operation in OPERATIONS})
        start = chip.clock()
        profile = measure(request, clock=chip.clock)
    used_s, real_s = chip.clock() - start, time.perf_counter() - begin
    calls: dict[CallKind, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for entry in request.trace.entries:
        calls[entry.kind][entry.count] += entry.weight
    plan = make_plan(request.trace, request.settings.sizes, strategies)
    truth = Truth(table, request.backlog_us, profile, {point.kind: set() for point in plan.points})
    for point in plan.points:
        truth.planned[point.kind].add(point.count)
    return Outcome(
        table.name,
        truth.workload_loss(calls, default=True),
        truth.workload_loss(calls, default=False),
        truth.undecided(calls),
        truth.timed(),
        truth.between(),
        used_s,
        request.budget_s,
        real_s,
        profile.missing,
    )


@dataclass(frozen=True)
class Truth:
    """What a profile's choices cost, as the table has it."""

    table: Table
    backlog_us: float
    profile: StrategyProfile
    planned: Mapping[CallKind, set[int]]

    @property
    def sizes(self) -> Mapping[CallKind, tuple[int, ...]]:
        """The timed numbers of indices, ascending."""
        found: dict[CallKind, set[int]] = defaultdict(set)
        for measurement in self.profile.evidence.measurements:
            found[measurement.kind].add(measurement.indices)
        return {kind: tuple(sorted(counts)) for kind, counts in found.items()}

    def choice(self, kind: CallKind, count: int) -> str:
        for decision in self.profile.decisions_for(kind):
            if decision.max_indices is None or count <= decision.max_indices:
                return decision.label
        return default_of(kind.operation)

    def cost_us(self, kind: CallKind, label: str, count: int) -> float:
        return self.table.cost_us(kind, label, count, self.backlog_us)

    def best_us(self, kind: CallKind, count: int) -> float:
        return min(self.cost_us(kind, label, count) for label in candidates_of(kind))

    def loss(self, kind: CallKind, count: int) -> Worst:
        label = self.choice(kind, count)
        lost = 100 * (self.cost_us(kind, label, count) / self.best_us(kind, count) - 1)
        return Worst(lost, f"{kind} {count} {label}")

    def workload_loss(self, calls: Mapping[CallKind, Mapping[int, float]], *, default: bool) -> float:
        total_us = best_us = 0.0
        for kind, counts in calls.items():
            for count, weight in counts.items():
                label = default_of(kind.operation) if default else self.choice(kind, count)
                total_us += weight * self.cost_us(kind, label, count)
                best_us += weight * self.best_us(kind, count)
        return 100 * (total_us / best_us - 1)

    def undecided(self, calls: Mapping[CallKind, Mapping[int, float]]) -> float:
        """Share of the calls, in percent, that the default serves because nothing raced at the nearest planned size."""
        undecided = total = 0.0
        for kind, counts in calls.items():
            raced = {n for n in self.sizes.get(kind, ()) if f"{kind} at {n}" not in self.profile.missing}
            for count, weight in counts.items():
                nearest = min(raced | self.planned[kind], key=lambda size: abs(math.log(size / count)))
                left = nearest not in raced and self.choice(kind, count) == default_of(kind.operation)
                total += weight
                undecided += weight * left
        return 100 * undecided / total

    def timed(self) -> tuple[Worst, ...]:
        return tuple(self.loss(kind, count) for kind, counts in self.sizes.items() for count in counts)

    def between(self) -> tuple[Worst, ...]:
        """Of sizes between timed ones, spread evenly by their logarithm, and on both sides of the table's steps."""
        steps = {step for entry in self.table.calls for step in (entry.min_indices, entry.min_elements)}
        found = []
        for kind, counts in self.sizes.items():
            low, high = counts[0], counts[-1]
            grid = {round(low * (high / low) ** (i / GRID)) for i in range(GRID)}
            grid = grid.union(steps, (step - 1 for step in steps)) - set(counts)
            found += [self.loss(kind, n) for n in sorted(grid) if low < n < high]
        return tuple(found)


def drawn(number: int, generator: random.Random) -> Table:
    """A random chip: costs over the ranges that chips have, some with steps, some with calls that wait."""

    def between(low: float, high: float) -> float:
        return math.exp(generator.uniform(math.log(low), math.log(high)))

    page_size = generator.choice((1, 1, 16, 64, 128))
    slots = round(between(1 << 15, 1 << 22)) // page_size * page_size
    host_us, fixed_us, index_ns = between(1, 60), between(0.7, 30), between(0.1, 30)
    calls = []
    for name in sorted({name for names in known_calls().values() for name in names}):
        whole = "Mask" in name or (name == "aclnnInplaceIndexFill" and generator.random() < 0.5)
        entry = CallCost(
            name,
            fixed_us=fixed_us * between(0.4, 3),
            element_ns=between(0.02, 20) if whole else 0.0,
            index_ns=index_ns * between(0.3, 3),
            host_us=host_us * between(0.6, 1.8),
            sync=generator.choices((0.0, 1.0, 0.05), (0.9, 0.07, 0.03))[0],
        )
        calls.append(entry)
        if generator.random() < 0.3:
            calls.append(
                replace(
                    entry,
                    min_indices=round(between(4, 6000)),
                    fixed_us=entry.fixed_us * between(0.3, 40),
                    index_ns=entry.index_ns * between(0.3, 10),
                    sync=generator.choices((entry.sync, 1.0), (0.9, 0.1))[0],
                )
            )
    workload = generator.choice(WORKLOADS)
    return Table(f"random {number}", slots, page_size, workload, tuple(calls), noise=QUIET_NOISE)


def tables_in(paths: Sequence[Path]) -> Iterator[Table]:
    """The tables of some files.

    Raises:
        TableError: one cannot be used, with the file.
    """
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(document, list) or not document:
                raise TableError("it must hold a list of tables")
            for entry in document:
                table = Table.read(entry)
                load_group(Workload, "workload", table.workload)
                yield table
        except (OSError, ValueError) as error:
            raise TableError(f"{path}: {error}") from error


def missed(outcomes: Sequence[Outcome]) -> list[str]:
    """The goals of tables of costs that were missed, in words."""
    goals = {
        f"loss at most {MOST_LOSS:g} % on each": [o.loss <= MOST_LOSS for o in outcomes],
        f"loss {MEDIAN_LOSS:g} % in the median": [median(o.loss for o in outcomes) <= MEDIAN_LOSS],
        f"undecided at most {MOST_UNDECIDED:g} %": [o.undecided <= MOST_UNDECIDED for o in outcomes],
        "never worse than the default": [
            (1 + o.loss / 100) <= (1 + o.default_loss / 100) * (1 + WORSE_THAN_DEFAULT / 100) for o in outcomes
        ],
        f"budget within {OVER_BUDGET:g} %": [o.over_budget <= OVER_BUDGET for o in outcomes],
    }
    return [f"{goal} (missed by {kept.count(False)} of {len(kept)})" for goal, kept in goals.items() if not all(kept)]


def missed_at_random(outcomes: Sequence[Outcome], *, quiet: bool) -> list[str]:
    """The goals of random chips that were missed, in words; prints the shares."""
    timed = _slow_share([size for o in outcomes for size in o.timed])
    between = _slow_share([size for o in outcomes for size in o.between])
    print(f"choices more than {SLOW:g} % slow: {timed:.2f} % at timed sizes, {between:.2f} % between them")
    most = SLOW_TIMED_QUIET if quiet else SLOW_TIMED_NOISY
    goals = {
        f"slow at timed sizes at most {most:g} %": timed <= most,
        f"slow between them at most {SLOW_BETWEEN:g} %": between <= SLOW_BETWEEN,
        f"budget within {OVER_BUDGET:g} %": all(o.over_budget <= OVER_BUDGET for o in outcomes),
    }
    return [goal for goal, kept in goals.items() if not kept]


def _slow_share(sizes: Sequence[Worst]) -> float:
    return 100 * sum(size.loss > SLOW for size in sizes) / max(1, len(sizes))


def summary(outcomes: Sequence[Outcome]) -> None:
    columns: Mapping[str, Sequence[float]] = {
        "default's loss %": [o.default_loss for o in outcomes],
        "loss %": [o.loss for o in outcomes],
        "undecided %": [o.undecided for o in outcomes],
        "worst timed %": [worst(o.timed).loss for o in outcomes],
        "worst between %": [worst(o.between).loss for o in outcomes],
        "time used / budget": [o.used_s / o.budget_s for o in outcomes],
        "real seconds": [o.real_s for o in outcomes],
    }
    for name, values in columns.items():
        print(f"{name:20} median {median(values):8.2f}   max {max(values):8.2f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, nargs="+", metavar="FILE.json", help="tables of costs; ours by default")
    parser.add_argument("--random", type=int, metavar="N", help="draw so many chips instead")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the draw, and of noise")
    parser.add_argument("--noise", type=float, metavar="X", help="in the place of every table's")
    parser.add_argument("--hiccups", type=float, metavar="Y", help="in the place of every table's")
    parser.add_argument("--drift", type=float, metavar="Z", help="in the place of every table's")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    given = {key: value for key in ("noise", "hiccups", "drift") if (value := getattr(asked, key)) is not None}
    if asked.random is None:
        try:
            tables = list(tables_in(asked.tables or sorted((HERE / "tables").glob("*.json"))))
        except TableError as error:
            print(error, file=sys.stderr)
            return 2
    else:
        tables = [drawn(n, random.Random(f"{asked.seed}/{n}")) for n in range(asked.random)]  # noqa: S311 - chips
    tables = [replace(table, **given) for table in tables]
    print(
        f"{'table':34} {'default %':>9} {'loss %':>7} {'left %':>6}  {'worst timed %':38} {'worst between %':38} used"
    )
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(asked.jobs) as pool:
        for outcome in pool.map(partial(run, folder=Path(folder), seed=asked.seed), tables):
            print(outcome.line, flush=True)
            outcomes.append(outcome)
    print()
    summary(outcomes)
    if asked.random is None:
        goals = missed(outcomes)
    else:
        quiet = all(table.noise <= QUIET_NOISE and not table.hiccups for table in tables)
        goals = missed_at_random(outcomes, quiet=quiet)
    print("MISSED: " + "; ".join(goals) if goals else "every goal was reached")
    return 1 if goals else 0


if __name__ == "__main__":
    sys.exit(main())
