"""What runs before a cold call: it works whatever a server has set, and leaves nothing of itself behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.devices.cpu import Cpu
from autotune.devices.step import Step

HOST = torch.device("cpu")


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Seen(TorchDispatchMode):
    """Notes the operators that run, and the dtypes and devices of what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.made: set[tuple[torch.dtype, str]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        self.operators.append(func.overloadpacket.__name__)
        for out in result if isinstance(result, tuple | list) else (result,):
            if isinstance(out, torch.Tensor):
                self.made.add((out.dtype, out.device.type))
        return result


def seen_in(step: Step) -> Seen:
    step.run()
    with Seen() as seen:
        step.run()
    return seen


@pytest.fixture(scope="module")
def plain() -> Seen:
    return seen_in(Step(HOST))


def test_a_step_is_some_twenty_operators_on_the_host(plain: Seen) -> None:
    assert 15 <= len(plain.operators) <= 60
    assert plain.made == {(torch.float32, "cpu"), (torch.int64, "cpu")}


MODES: list[Callable[[], AbstractContextManager[Any]]] = [
    lambda: default_device("meta"),
    lambda: torch.device("meta"),
    lambda: default_dtype(torch.float64),
    lambda: default_dtype(torch.bfloat16),
    torch.no_grad,
]
NAMES = ["default device", "device mode", "float64", "bfloat16", "no gradients"]


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_step_is_the_same_whatever_the_server_has_set_when_it_is_made(
    mode: Callable[[], AbstractContextManager[Any]], plain: Seen
) -> None:
    with mode():
        seen = seen_in(Step(HOST))
    assert seen.made == plain.made
    assert seen.operators == plain.operators


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_step_is_the_same_whatever_the_server_sets_later(
    mode: Callable[[], AbstractContextManager[Any]], plain: Seen
) -> None:
    step = Step(HOST)
    with mode():
        seen = seen_in(step)
    assert seen.made == plain.made
    assert seen.operators == plain.operators
    # And it goes on behind it.
    step.run()


def test_a_step_runs_in_inference_mode_and_behind_it() -> None:
    step = Step(HOST)
    with torch.inference_mode():
        step.run()
        Step(HOST).run()
    step.run()


def test_a_step_leaves_the_servers_random_numbers_and_modes_alone() -> None:
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    Step(HOST).run()
    assert torch.equal(torch.get_rng_state(), random)
    assert (torch.get_default_device(), torch.get_default_dtype()) == (HOST, torch.float32)
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == threads


def test_a_step_makes_no_graph_for_gradients() -> None:
    with Seen() as seen:
        Step(HOST).run()
    assert not any("backward" in name for name in seen.operators)
    step = Step(HOST)
    step.run()
    assert not any(value.requires_grad for value in vars(step).values() if isinstance(value, torch.Tensor))


def test_its_footprint_is_stated() -> None:
    step = Step(HOST)
    footprint = step.footprint
    assert set(footprint) == {"data_bytes", "us"}
    # As large as a core's second-level cache, and never so large that it takes long.
    assert 1 << 18 <= footprint["data_bytes"] <= 4 << 20
    written = max(value.nbytes for value in vars(step).values() if isinstance(value, torch.Tensor))
    assert footprint["data_bytes"] == written
    assert footprint["us"] > 0
    # Once, since it is measured.
    assert step.footprint is footprint


def test_a_cpus_step_is_the_one_before_its_cold_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Cpu()
    assert device.step["data_bytes"] > 0
    happened: list[str] = []
    monkeypatch.setattr(Step, "run", lambda _step: happened.append("step"))
    indices = torch.arange(3)
    us = device.cold_us(lambda given: happened.append(f"call of {given.numel()}"), (indices,))
    assert happened == ["step", "call of 3"]
    assert us > 0
