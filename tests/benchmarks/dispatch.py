"""What dispatching a clear costs: against a strategy that does nothing, and beside the bare winning call.

Run: python tests/benchmarks/dispatch.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter_ns

import torch

from swa_alloc import FullToSWAMapping, Overrides, Strategy, StrategyProfile
from swa_alloc.evidence import Evidence
from swa_alloc.fingerprint import fingerprint
from swa_alloc.operations import INDEX_DTYPES, CallKind, Target, empty_mapping
from swa_alloc.profile import Decision, ProfileWorkload, Provenance
from swa_alloc.strategies import Bound, register_strategy

CPU = torch.device("cpu")
SIZE = 1 << 20
ROUNDS, CALLS = 600, 100
THREE_SIZES = (32, 512, None)


def nothing(_indices: torch.Tensor) -> None:
    pass


@register_strategy
class DoNothing(Strategy):
    name = "do_nothing"

    def bind(self, target: Target) -> Bound:
        del target
        return nothing


def clear(strategy: str, borders: tuple[int | None, ...]) -> Callable[[torch.Tensor], None]:
    """The dispatcher of a profile that gives ``strategy`` every size, in as many decisions as there are borders."""
    kinds = [CallKind("clear", "token", dtype) for dtype in INDEX_DTYPES]
    decisions = tuple(Decision(kind, border, strategy, {}, 0.0, ()) for kind in kinds for border in borders)
    profile = StrategyProfile(
        fingerprint=fingerprint(CPU),
        workload=ProfileWorkload("benchmark", SIZE, 1, 0.0, ""),
        objective="latency",
        answers={"latency": decisions},
        provenance=Provenance("pinned", "", 0.0, "", {}, 0, {}, (), {}),
        evidence=Evidence(),
    )
    return FullToSWAMapping(empty_mapping(SIZE, 1, CPU), 1, Overrides(profile=profile, strict_profile=True)).clear


def interleaved(calls: Mapping[str, Callable[[torch.Tensor], None]], indices: torch.Tensor) -> dict[str, float]:
    """Median nanoseconds a call, rounds taking turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = perf_counter_ns()
            for _ in range(CALLS):
                call(indices)
            times[name].append((perf_counter_ns() - start) / CALLS)
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    one, three = clear("do_nothing", (None,)), clear("do_nothing", THREE_SIZES)
    table = empty_mapping(SIZE, 1, CPU)
    print(f"torch {torch.__version__}, one thread, {fingerprint(CPU).device_name}; medians of {ROUNDS} rounds, int64")
    print(f"{'indices':>8} {'one size':>12} {'three sizes':>12} {'bare call':>12}   share of the bare call")
    for count in (1, 64, 1024, 4096, 16384):
        indices = torch.randperm(SIZE)[:count] + 1

        def bare(indices: torch.Tensor) -> None:
            table.index_fill_(0, indices, 0)

        found = interleaved({"nothing": nothing, "one": one, "three": three, "bare": bare}, indices)
        overhead = {name: found[name] - found["nothing"] for name in ("one", "three")}
        shares = " and ".join(f"{overhead[name] / found['bare']:.1%}" for name in overhead)
        print(f"{count:>8} {overhead['one']:>9.0f} ns {overhead['three']:>9.0f} ns {found['bare']:>9.0f} ns   {shares}")


if __name__ == "__main__":
    main()
