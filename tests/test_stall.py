"""Who waits for the stream is told from who does not, however the times jitter; and what that decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scripted_device import DEFAULT, Clock, ScriptedDevice, measure, named, recorded, request, winners

from autotune.devices import Sample
from autotune.devices.cpu import Cpu
from autotune.stall import Stall, measure_stall
from swa_alloc.profile import StrategyProfile
from swa_alloc.strategies import register_strategy

BLOCK = [(torch.arange(8),)] * 4


def hiccups(generator: np.random.Generator) -> float:
    """A busy host: microseconds as a rule, a millisecond now and then."""
    return float(generator.exponential(3.0) + (generator.random() < 0.05) * generator.uniform(200.0, 2000.0))


def stall_of(share: float, **script: Any) -> Stall:
    device = ScriptedDevice(lambda _label, _count: 3.0, Clock(), stall=lambda _label: share, **script)
    stall = measure_stall(device, lambda _indices: None, BLOCK)
    assert stall is not None
    return stall


def test_500_noisy_devices_are_all_classified_right() -> None:
    for seed in range(500):
        blocking = seed % 2 == 0
        share = 1.0 if blocking else 0.0
        found = stall_of(share, noise=0.3, jitter=hiccups, seed=seed)
        assert found.kind == ("blocking" if blocking else "asynchronous"), (seed, found)


@pytest.mark.parametrize(
    ("share", "kind"),
    [(0.0, "asynchronous"), (0.05, "asynchronous"), (0.3, "partial"), (0.8, "blocking"), (1.0, "blocking")],
)
def test_a_share_of_the_backlog_has_a_class(share: float, kind: str) -> None:
    found = stall_of(share)
    assert found.kind == kind
    assert found.low == pytest.approx(share)
    assert found.high == pytest.approx(share)


def test_asynchronous_costs_nothing_blocking_everything_and_partial_the_worst_that_was_seen() -> None:
    assert Stall("asynchronous", -0.02, 0.09).cost_us(18_000.0) == 0.0
    assert Stall("blocking", 0.7, 0.9).cost_us(18_000.0) == 18_000.0
    assert Stall("partial", 0.2, 0.4).cost_us(18_000.0) == 7_200.0
    assert Stall("partial", -3.0, 2.0).cost_us(18_000.0) == 18_000.0


def test_impossible_times_are_passed_over() -> None:
    found = stall_of(1.0, jitter=lambda generator: float(generator.choice([0.0, np.inf, np.nan], p=[0.6, 0.2, 0.2])))
    assert found.kind == "blocking"


def test_a_cpu_has_no_backlog_and_so_no_stall() -> None:
    assert measure_stall(Cpu(), lambda _indices: None, BLOCK) is None


# --- what it decides

STEP_US = 18_000.0


@pytest.fixture
def strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """``waits`` and ``goes_on``, both right."""
    monkeypatch.setattr("swa_alloc.strategies._registry._registered", {"clear": {}})
    for name in ("waits", "goes_on"):
        register_strategy(named(name))


def raced(monkeypatch: pytest.MonkeyPatch, cost: Any, *, waits: float = 1.0, **keywords: Any) -> StrategyProfile:
    """Races the default, ``waits`` and ``goes_on``, of which ``waits`` waits for the backlog."""
    clock = Clock()
    clock.rule(monkeypatch)
    script = {name: keywords.pop(name) for name in ("noise", "jitter", "captures") if name in keywords}
    device = ScriptedDevice(cost, clock, stall=lambda label: waits if label == "waits" else 0.0, **script)
    return measure(request(device, ["waits", "goes_on"], backlog_us=STEP_US, **keywords))


# Fastest on an idle stream, whichever way one looks at it.
IDLE_US = {DEFAULT: 20.0, "waits": 5.0, "goes_on": 12.0}


@pytest.mark.usefixtures("strategies")
def test_a_blocking_strategy_that_is_fastest_when_idle_loses_under_serving_and_wins_under_latency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = raced(monkeypatch, lambda label, _count: IDLE_US[label], objective="serving", noise=0.02)
    assert set.union(*winners(profile).values()) == {"goes_on"}
    # The other objective's answer comes from the same measurements.
    other = profile.under("latency")
    assert set.union(*winners(other).values()) == {"waits"}
    assert other.under("serving").decisions == profile.decisions
    assert other.provenance == profile.provenance


@pytest.mark.usefixtures("strategies")
def test_the_stall_is_in_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = raced(monkeypatch, lambda label, _count: IDLE_US[label], objective="serving")
    for measurement in profile.evidence.measurements:
        stalls = {c.label: (c.stall, c.stall_us, c.capturable) for c in measurement.candidates}
        assert stalls == {
            DEFAULT: ("asynchronous", 0.0, None),
            "waits": ("blocking", STEP_US, False),
            "goes_on": ("asynchronous", 0.0, None),
        }
    survivor = next(c for c in profile.evidence.measurements[0].candidates if c.label == "goes_on")
    assert survivor.cost_us("serving") == 12.0


@pytest.mark.usefixtures("strategies")
def test_a_default_that_waits_is_left_for_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.rule(monkeypatch)
    device = ScriptedDevice(
        lambda label, _count: IDLE_US[label] * (0.2 if label == DEFAULT else 1.0),
        clock,
        stall=lambda label: 1.0 if label in (DEFAULT, "waits") else 0.0,
    )
    profile = measure(request(device, ["waits", "goes_on"], backlog_us=STEP_US, objective="serving"))
    assert set.union(*winners(profile).values()) == {"goes_on"}


@pytest.mark.usefixtures("strategies")
def test_jitter_never_turns_an_asynchronous_strategy_into_a_loser_by_its_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Half as expensive as the default; a raw product with 18 ms would bury that.
    cost = {DEFAULT: 20.0, "waits": 10.0, "goes_on": 40.0}
    profile = raced(
        monkeypatch, lambda label, _count: cost[label], waits=0.0, objective="serving", noise=0.05, jitter=hiccups
    )
    assert set.union(*winners(profile).values()) == {"waits"}


@pytest.mark.usefixtures("strategies")
def test_host_and_device_time_decide_under_serving_and_the_wall_under_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {
        DEFAULT: Sample(10.0, 10.0, 30.0),
        "waits": Sample(8.0, 4.0, 40.0),
        "goes_on": Sample(4.0, 50.0, 20.0),
    }
    profile = raced(monkeypatch, lambda label, _count: samples[label], waits=0.0, objective="serving")
    assert set.union(*winners(profile).values()) == {"waits"}
    assert set.union(*winners(profile.under("latency")).values()) == {"goes_on"}


@pytest.mark.usefixtures("strategies")
def test_recorded_measurements_replayed_decide_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    def crossing(label: str, count: int) -> float:
        return {DEFAULT: 20.0, "waits": 5.0 + count / 20, "goes_on": 15.0}[label]

    profile = raced(monkeypatch, crossing, waits=0.0, objective="serving", noise=0.03)
    assert len(set.union(*winners(profile).values())) == 2
    again = raced(monkeypatch, recorded(profile), waits=0.0, objective="serving")
    assert [d[:6] for d in again.decisions] == [d[:6] for d in profile.decisions]


# --- capture


@pytest.mark.usefixtures("strategies")
def test_who_cannot_be_captured_may_win_unless_that_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = {DEFAULT: 20.0, "waits": 5.0, "goes_on": 12.0}
    script: dict[str, Any] = {
        "waits": 0.0,
        "objective": "serving",
        "captures": lambda label: label != "waits",
    }
    free = raced(monkeypatch, lambda label, _count: cost[label], **script)
    assert set.union(*winners(free).values()) == {"waits"}
    capturable = {c.label: c.capturable for m in free.evidence.measurements for c in m.candidates}
    assert capturable == {DEFAULT: True, "waits": False, "goes_on": True}
    bound = raced(monkeypatch, lambda label, _count: cost[label], require_capturable=True, **script)
    assert set.union(*winners(bound).values()) == {"goes_on"}
    assert {(out.strategy, out.reason) for out in bound.evidence.ineligible} == {("waits", "not_capturable")}


@pytest.mark.usefixtures("strategies")
def test_a_blocking_call_is_not_tried_in_a_capture_which_it_would_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def captures(label: str) -> bool:
        tried.append(label)
        return True

    profile = raced(monkeypatch, lambda label, _count: IDLE_US[label], objective="serving", captures=captures)
    assert "waits" not in tried
    assert {c.capturable for m in profile.evidence.measurements for c in m.candidates if c.label == "waits"} == {False}


class Late(ScriptedDevice):
    """``waits`` waits for the backlog from 512 indices on, and raises behind one where ``raises`` is set."""

    raises = False

    def return_us(self, call: Any, block: Any, kernels: int) -> float | None:
        if getattr(call, "label", DEFAULT) != "waits":
            return 10.0
        if self.raises:
            raise RuntimeError("device says no")
        return 10.0 + (kernels * self.kernel_us if block[0][0].numel() >= 512 else 0.0)


@pytest.mark.usefixtures("strategies")
def test_who_waits_with_many_indices_only_is_not_capturable(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.rule(monkeypatch)
    device = Late(lambda label, _count: IDLE_US[label], clock, captures=lambda _label: True)
    free = measure(request(device, ["waits", "goes_on"], objective="latency"))
    assert {c.capturable for m in free.evidence.measurements for c in m.candidates if c.label == "waits"} == {False}
    bound = measure(request(device, ["waits", "goes_on"], objective="latency", require_capturable=True))
    assert set.union(*winners(bound).values()) == {"goes_on"}


@pytest.mark.usefixtures("strategies")
def test_a_call_that_raises_behind_a_backlog_is_one_strategys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.rule(monkeypatch)
    device = Late(lambda label, _count: IDLE_US[label], clock)
    monkeypatch.setattr(Late, "raises", True)
    profile = measure(request(device, ["waits", "goes_on"], objective="serving"))
    assert set.union(*winners(profile).values()) == {"goes_on"}
    assert {(out.strategy, out.reason) for out in profile.evidence.ineligible} == {("waits", "raised")}
