"""What the search decides for a server: by cold calls, by who waits behind a busy device, by who works in a graph."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_device import DEFAULT, Clock, Cost, ScriptedDevice, measure, named, recorded, request, winners

from autotune.devices import Sample
from swa_alloc import register_strategy
from swa_alloc.operations import Objective
from swa_alloc.profile import StrategyProfile

pytestmark = pytest.mark.usefixtures("empty_registry")

STEP_US = 18_000.0
# Fastest on an idle stream, whichever way one looks at it.
IDLE_US = {DEFAULT: 20.0, "waits": 5.0, "goes_on": 12.0}


@pytest.fixture(autouse=True)
def strategies(empty_registry: None) -> None:
    """``waits`` and ``goes_on``, both right."""
    del empty_registry
    for name in ("waits", "goes_on"):
        register_strategy(named(name))


def idle(label: str, _count: int) -> float:
    return IDLE_US[label]


def raced(cost: Cost, *, waits: float = 1.0, **keywords: Any) -> StrategyProfile:
    """Races the default, ``waits`` and ``goes_on``, of which ``waits`` waits for a share of the backlog."""
    script = {name: keywords.pop(name) for name in ("noise", "jitter", "captures", "cold") if name in keywords}
    device = ScriptedDevice(cost, Clock(), stall=lambda label, _count: waits if label == "waits" else 0.0, **script)
    return measure(request(device, ["waits", "goes_on"], backlog_us=STEP_US, **keywords))


def chosen(profile: StrategyProfile, objective: Objective) -> set[str]:
    """The labels of all decisions under an objective."""
    return set.union(*winners(profile.under(objective)).values())


def hiccups(generator: Any) -> float:
    """Up to 2 us, and now and then a few milliseconds."""
    return float(generator.uniform(0, 2) + (generator.random() < 0.03) * generator.uniform(0, 5000))


# --- cold and hot


def test_cold_calls_decide_under_serving_while_latency_stays_hot() -> None:
    cold = {DEFAULT: 2.0, "waits": 2.0, "goes_on": 8.0}
    # In a loop goes_on is the fastest, and behind a model's step the slowest.
    cost = {DEFAULT: 20.0, "waits": 15.0, "goes_on": 10.0}
    profile = raced(lambda label, _count: cost[label], waits=0.0, cold=lambda label: cold[label], noise=0.02)
    assert chosen(profile, "serving") == {"waits"}
    assert chosen(profile, "latency") == {"goes_on"}
    for measurement in profile.evidence.measurements:
        (winner,) = (c for c in measurement.candidates if c.strategy == "waits")
        assert winner.cold_us == pytest.approx(30.0, rel=0.05)
        assert winner.host_us == pytest.approx(15.0, rel=0.05)


def test_serving_is_what_every_device_minimizes_unless_told_otherwise() -> None:
    assert raced(idle).objective == "serving"


def test_host_and_device_time_decide_under_serving_and_the_wall_under_latency() -> None:
    samples = {
        DEFAULT: Sample(10.0, 10.0, 30.0),
        "waits": Sample(8.0, 4.0, 40.0),
        "goes_on": Sample(4.0, 50.0, 20.0),
    }
    profile = raced(lambda label, _count: samples[label], waits=0.0, cold=lambda _label: 1.0)
    assert chosen(profile, "serving") == {"waits"}
    assert chosen(profile, "latency") == {"goes_on"}


# --- calls that wait


def test_a_blocking_strategy_that_is_fastest_when_idle_loses_under_serving_and_wins_under_latency() -> None:
    profile = raced(idle, noise=0.02)
    assert chosen(profile, "serving") == {"goes_on"}
    # The other objective's answer comes from the same measurements.
    assert chosen(profile, "latency") == {"waits"}
    assert profile.under("latency").under("serving").decisions == profile.decisions


def test_the_stall_is_in_the_evidence() -> None:
    for measurement in raced(idle).evidence.measurements:
        found = {c.label: (c.stall, c.stall_us) for c in measurement.candidates}
        assert found["waits"] == ("blocking", STEP_US)
        assert found["goes_on"] == ("asynchronous", 0.0)


def test_a_default_that_waits_is_left_for_one_that_does_not() -> None:
    device = ScriptedDevice(
        lambda label, _count: IDLE_US[label] * (0.2 if label == DEFAULT else 1.0),
        Clock(),
        stall=lambda label, _count: 1.0 if label in (DEFAULT, "waits") else 0.0,
    )
    profile = measure(request(device, ["waits", "goes_on"], backlog_us=STEP_US))
    assert chosen(profile, "serving") == {"goes_on"}


def test_a_strategy_that_waits_above_100_indices_loses_above_100_indices_only() -> None:
    device = ScriptedDevice(
        idle, Clock(), noise=0.02, stall=lambda label, count: float(label == "waits" and count > 100)
    )
    profile = measure(request(device, ["waits", "goes_on"], counts=(1, 62, 384, 1024), backlog_us=STEP_US))
    for decisions in (profile.decisions[:2], profile.decisions[2:]):
        small, large = decisions
        assert (small.strategy, large.strategy) == ("waits", "goes_on")
        # Between the timed sizes the border is found, and on the side where an error costs little.
        assert 91 <= (small.max_indices or 0) <= 100
    assert chosen(profile, "latency") == {"waits"}


def test_waits_that_come_now_and_then_are_charged_on_average() -> None:
    class NowAndThen(ScriptedDevice):
        """``waits`` waits for the whole backlog in one call of twenty."""

        def return_us(self, call: Any, block: Any, backlog_us: float) -> tuple[float, float] | None:
            returned = super().return_us(call, block, backlog_us)
            assert returned is not None
            late = getattr(call, "label", DEFAULT) == "waits" and self._random.random() < 1 - 0.95 ** len(block)
            return returned[0] + backlog_us * late, backlog_us

    device = NowAndThen(idle, Clock(), noise=0.02, stall=lambda _label, _count: 0.0)
    profile = measure(request(device, ["waits", "goes_on"], counts=(1,), backlog_us=STEP_US))
    # 5 % of a step are 900 us a call, against 7 us that it is faster.
    assert chosen(profile, "serving") == {"goes_on"}
    assert chosen(profile, "latency") == {"waits"}


def test_jitter_never_turns_an_asynchronous_strategy_into_a_loser_by_its_stall() -> None:
    # Half as expensive as the default; a raw product with 18 ms would bury that.
    cost = {DEFAULT: 20.0, "waits": 10.0, "goes_on": 40.0}
    profile = raced(lambda label, _count: cost[label], waits=0.0, noise=0.05, jitter=hiccups)
    assert chosen(profile, "serving") == {"waits"}


def test_a_strategy_that_waits_rules_nobody_out_however_fast_it_is_when_idle() -> None:
    cost = {DEFAULT: 200.0, "waits": 1.0, "goes_on": 100.0}
    profile = raced(lambda label, _count: cost[label], noise=0.02)
    assert chosen(profile, "serving") == {"goes_on"}


def test_recorded_measurements_replayed_decide_as_they_did() -> None:
    def crossing(label: str, count: int) -> float:
        return {DEFAULT: 20.0, "waits": 5.0 + count / 20, "goes_on": 15.0}[label]

    profile = raced(crossing, waits=0.0, noise=0.01)
    assert len(chosen(profile, "latency")) == 2
    again = raced(recorded(profile), waits=0.0)
    first, second = (found.under("latency").decisions for found in (profile, again))
    assert [(d.kind, d.label) for d in second] == [(d.kind, d.label) for d in first]
    # Borders are refined down to sizes that are close to each other.
    assert [d.max_indices or 0 for d in second] == pytest.approx([d.max_indices or 0 for d in first], rel=0.1)


# --- graphs


def test_who_cannot_be_captured_may_win_unless_that_is_required() -> None:
    script: dict[str, Any] = {"waits": 0.0, "captures": lambda label: label != "waits"}
    free = raced(idle, **script)
    assert chosen(free, "serving") == {"waits"}
    capturable = {c.label: c.capturable for m in free.evidence.measurements for c in m.candidates}
    assert capturable["waits"] is False
    bound = raced(idle, require_capturable=True, **script)
    assert chosen(bound, "serving") == {"goes_on"}
    assert {(out.strategy, out.reason) for out in bound.evidence.ineligible} == {("waits", "not_capturable")}


def test_a_blocking_call_is_not_tried_in_a_capture_which_it_would_end() -> None:
    tried: list[str] = []

    def captures(label: str) -> bool:
        tried.append(label)
        return True

    profile = raced(idle, captures=captures)
    assert "waits" not in tried
    assert {c.capturable for m in profile.evidence.measurements for c in m.candidates if c.label == "waits"} == {False}


def test_who_waits_with_many_indices_only_is_not_capturable() -> None:
    device = ScriptedDevice(
        idle,
        Clock(),
        stall=lambda label, count: float(label == "waits" and count >= 512),
        captures=lambda _label: True,
    )
    free = measure(request(device, ["waits", "goes_on"], objective="latency"))
    assert {c.capturable for m in free.evidence.measurements for c in m.candidates if c.label == "waits"} == {False}
    bound = measure(request(device, ["waits", "goes_on"], objective="latency", require_capturable=True))
    assert chosen(bound, "latency") == {"goes_on"}


def test_a_call_that_raises_behind_a_backlog_is_one_strategys_fault() -> None:
    class Raising(ScriptedDevice):
        def return_us(self, call: Any, block: Any, backlog_us: float) -> tuple[float, float] | None:
            if getattr(call, "label", DEFAULT) == "waits":
                raise RuntimeError("device says no")
            return super().return_us(call, block, backlog_us)

    profile = measure(
        request(Raising(idle, Clock(), stall=lambda _label, _count: 0.0), ["waits", "goes_on"], backlog_us=STEP_US)
    )
    assert chosen(profile, "serving") == {"goes_on"}
    assert {(out.strategy, out.reason) for out in profile.evidence.ineligible} == {("waits", "raised")}
