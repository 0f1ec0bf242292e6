"""The GPU path on a real GPU: right, captured, classified, calibrated within its budget; and what it is worth.

Skipped without CUDA. Needs no network, and a few minutes. With ``-s`` it prints figures; no assertion rests on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import pytest
import torch

from autotune.bench.contract import violation
from autotune.bench.sandbox import Sandbox
from autotune.bench.stall import Stall, measure_stall
from autotune.calibrate import calibrate
from autotune.config import Workload, load_group
from autotune.devices import open_device
from autotune.traffic.plan import make_plan
from autotune.traffic.workload import trace_of
from swa_alloc import SWATokenToKVPoolAllocator
from swa_alloc.dispatch import bind, bind_choice
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, CallKind, Target, empty_mapping
from swa_alloc.profile import StrategyProfile
from swa_alloc.selection import Choice
from swa_alloc.strategies import builtin_names, candidate_label, create, strategy_class
from swa_alloc.testing import every_params

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here"),
]

WORKLOADS = ("mimo_v2_flash", "gpt_oss_120b")


@pytest.fixture(scope="module")
def gpu() -> Iterator[Any]:
    device = open_device("cuda", 0)
    with device.selected():
        yield device


def targets(gpu: Any, page_size: int = 64) -> Iterator[Target]:
    """A small mapping, addressed in every way that calls address it."""
    for operation in OPERATIONS.values():
        for name in operation.targets(page_size):
            for dtype in INDEX_DTYPES.values():
                mapping = empty_mapping(256 * page_size, page_size, gpu.torch_device)
                yield Target(operation.name, name, dtype, mapping, page_size)


def candidates(target: Target) -> Iterator[tuple[str, Any]]:
    """Every built-in strategy, with every set of parameters, that can run on ``target``."""
    for name in builtin_names(target.operation):
        for params in every_params(strategy_class(target.operation, name)):
            strategy = create(target.operation, name, params)
            if target.name in strategy.targets and strategy.unavailable(target) is None:
                yield candidate_label(name, params), strategy


def made(call: Callable[..., Any], *arguments: Any) -> Any:
    result = call(*arguments)
    torch.cuda.synchronize()
    return result


def test_every_strategy_is_right_to_the_bit(gpu: Any) -> None:
    for page_size in (1, 64):
        for target in targets(gpu, page_size):
            for label, strategy in candidates(target):
                assert violation(strategy, target, made) is None, (target.operation, target.name, label)


def test_triton_drives_the_gpu_and_its_kernels_can_be_captured(gpu: Any) -> None:
    names = {"clear": "triton_fill", "take": "triton_take"}
    for target in targets(gpu):
        name = names.get(target.operation)
        if name is None:
            continue
        strategy = create(target.operation, name)
        assert strategy.unavailable(target) is None
        call = bind(strategy, target)
        rows = torch.tensor([3, 1, 7], dtype=target.index_dtype, device=gpu.torch_device)
        replay = gpu.capture(partial(call, rows))
        target.table[:] = 64
        replay()
        torch.cuda.synchronize()
        assert target.table[[1, 3, 7]].sum().item() == 0
        assert target.table[2].ne(0).all()


def stall_of(gpu: Any, call: Callable[..., Any], block: Sequence[tuple[torch.Tensor, ...]]) -> Stall:
    own_us = gpu.time(call, block).host_us * len(block)
    stall = measure_stall(gpu, call, block, own_us, lambda: False)
    assert stall is not None
    return stall


def test_the_stall_of_every_strategy_is_told(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [torch.randperm(200, device=gpu.torch_device)[:64] + 1 for _ in range(4)]
    lines = []
    for target in targets(gpu):
        operation = OPERATIONS[target.operation]
        block = [operation.arguments(target.table, indices.to(target.index_dtype)) for indices in rows]
        for label, strategy in candidates(target):
            stall = stall_of(gpu, bind(strategy, target), block)
            kind = f"{target.operation}.{target.name} {target.index_dtype}"
            lines.append(f"{kind} {label}: {stall.kind} {stall.share:.3f}")
            if label == "index_fill":
                assert stall.kind == "asynchronous"
    with capsys.disabled():
        print("", torch.cuda.get_device_name(), torch.__version__, *lines, sep="\n")


def test_a_call_that_waits_for_the_stream_is_blocking(gpu: Any) -> None:
    rows = torch.arange(1, 65, device=gpu.torch_device)
    stall = stall_of(gpu, lambda indices: int(indices.sum()), [(rows,)] * 4)
    assert (stall.kind, stall.share) == ("blocking", 1.0)


def test_a_cold_call_takes_longer_to_return_than_one_in_a_loop(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    target = next(targets(gpu))
    call = bind(create("clear", "index_fill"), target)
    arguments = (torch.arange(64, 128, dtype=target.index_dtype, device=gpu.torch_device),)
    cold_us = median(gpu.cold_us(call, arguments) for _ in range(50))
    hot_us = median(gpu.time(call, [arguments] * 16).host_us for _ in range(50))
    assert cold_us > hot_us
    with capsys.disabled():
        print(f"\nindex_fill of 64: {hot_us:.1f} us hot, {cold_us:.1f} us cold; a step: {dict(gpu.step)}")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_calibrating_keeps_its_budget_and_choosing_loses_nothing(
    gpu: Any, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.perf_counter()
    profile = calibrate(gpu, workload)
    took_s = time.perf_counter() - start
    assert profile.provenance.measuring_s <= 1.1 * gpu.budget_s
    assert profile.objective == "serving"
    assert profile.complete, profile.missing
    with capsys.disabled():
        print(f"\n{workload}: calibrated in {took_s:.1f} s, {profile.provenance.measuring_s:.1f} s of it measuring")
        for line in regrets(profile):
            print(line)


def regrets(profile: StrategyProfile) -> Iterator[str]:
    """The tuned choice against each fixed strategy, at every size that was timed."""
    for m in profile.evidence.measurements:
        decided = profile.decisions_for(m.kind)
        choice = next(d for d in decided if d.max_indices is None or m.indices <= d.max_indices)
        costs = {c.label: c.standings[profile.objective].cost_us for c in m.candidates}
        tuned = costs.get(choice.label, float("nan"))
        others = ", ".join(f"{label} {us:.2f}" for label, us in sorted(costs.items(), key=lambda item: item[1]))
        yield f"  {m.kind} at {m.indices}: {choice.label} {tuned:.2f} us of {others}"


def test_a_decode_loop_with_each_strategy_fixed_and_with_the_tuned_dispatch(
    gpu: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    workload: Workload = load_group(Workload, "workload", "mimo_v2_flash")
    profile = calibrate(gpu, workload, budget_s=15.0)
    layers = DecodeStep(gpu.torch_device)
    clears = [
        torch.randperm(workload.size, device=gpu.torch_device)[:64].to(torch.int32) + workload.page_size
        for _ in range(32)
    ]
    fixed = [name for name in builtin_names("clear") if name not in ("masked_fill", "masked_scatter")]
    times = {}
    for name in ("tuned", *fixed):
        keywords: dict[str, Any] = {"profile": profile} if name == "tuned" else {"strategy": f"clear.token={name}"}
        allocator = SWATokenToKVPoolAllocator(
            workload.size,
            workload.size,
            workload.page_size,
            torch.bfloat16,
            gpu.torch_device,
            None,
            on_missing="default",
            **keywords,
        )
        if name != "tuned" and "clear.token: decided by strategy=" not in allocator.explain():
            continue
        times[name] = step_us(layers, allocator, clears)
    with capsys.disabled():
        print(f"\ndecode loop, {torch.cuda.get_device_name()}: us a step")
        for name, us in sorted(times.items(), key=lambda item: item[1]):
            print(f"  {name:24} {us:10.1f}")
    assert "tuned" in times


class DecodeStep:
    """A fixed stand-in for a model's decode step: a captured graph of matrix products, some 2 ms of them."""

    def __init__(self, device: torch.device) -> None:
        weights = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
        hidden = torch.randn(128, 4096, device=device, dtype=torch.bfloat16)
        for _ in range(3):
            hidden @ weights
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(200):
                hidden @ weights

    def __call__(self) -> None:
        self.graph.replay()


def step_us(step: DecodeStep, allocator: SWATokenToKVPoolAllocator, clears: Sequence[torch.Tensor]) -> float:
    """Microseconds a step: the model is queued, the clears of the step before are made, and it is waited for."""
    clear = allocator.clear_full_to_swa_mapping
    steps = []
    for _ in range(40):
        start = time.perf_counter_ns()
        step()
        for indices in clears:
            clear(indices)
        # The next step is queued while this one runs, as an overlapping scheduler does.
        step()
        torch.cuda.synchronize()
        steps.append((time.perf_counter_ns() - start) / 2e3)
    return sorted(steps)[len(steps) // 2]


def test_dispatching_costs_little_over_the_call_itself(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    profile = calibrate(gpu, "mimo_v2_flash", budget_s=15.0)
    mapping = Sandbox(1 << 20, 64, gpu).mapping
    decisions = profile.decisions_for(CallKind("clear", "token", "int64"))
    choice = Choice("clear", "token", "test", "", decisions, profile)
    dispatched = bind_choice(choice, mapping, 64)
    plain = bind(choice.strategy(decisions[0]), Target("clear", "token", torch.int64, mapping, 64))
    indices = torch.arange(64, 128, device=gpu.torch_device)
    with capsys.disabled():
        print(f"\ndispatch: {host_us(dispatched, indices):.2f} us a call, {host_us(plain, indices):.2f} without")


def host_us(call: Callable[..., Any], indices: torch.Tensor) -> float:
    samples = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(20):
            call(indices)
        samples.append((time.perf_counter_ns() - start) / 20e3)
    return sorted(samples)[len(samples) // 2]


def test_the_plan_of_each_workload_has_every_kind_of_call() -> None:
    for name in WORKLOADS:
        workload: Workload = load_group(Workload, "workload", name)
        kinds = {kind.operation for kind in make_plan(trace_of(workload), 6, tuple(OPERATIONS)).kinds}
        assert kinds == set(OPERATIONS)
