"""What the search decides, on a device whose times are known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from scripted_device import (
    DEFAULT,
    SETTINGS,
    Clock,
    ScriptedDevice,
    ScriptedStrategy,
    measure,
    named,
    request,
    winners,
)

from autotune.contest.candidates import SMALL_SPACE, make_space
from swa_alloc import register_strategy
from swa_alloc.errors import CalibrationError
from swa_alloc.evidence import Ineligible
from swa_alloc.operations import CallKind
from swa_alloc.profile import StrategyProfile
from swa_alloc.strategies import _registry

Register = Callable[[type[ScriptedStrategy]], str]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def register() -> Iterator[Register]:
    """Registers a strategy until the test ends."""
    registered: list[str] = []

    def add(cls: type[ScriptedStrategy]) -> str:
        register_strategy(cls)
        registered.append(cls.name)
        return cls.name

    yield add
    for name in registered:
        # There is no public way to forget a strategy: only tests want one.
        del _registry._registered["clear"][name]  # noqa: SLF001 - only tests want to forget a strategy


def costs(**us: float) -> Callable[[str, int], float]:
    return lambda label, _count: us[label]


def raced(profile: StrategyProfile) -> set[str]:
    """The labels of all who had rounds of a race."""
    return {c.label for m in profile.evidence.measurements for c in m.candidates if c.rounds}


def sizes(profile: StrategyProfile, index_dtype: str = "int32") -> list[int]:
    """The timed numbers of indices of one kind."""
    return [m.indices for m in profile.evidence.measurements if m.kind.index_dtype == index_dtype]


def ineligible(profile: StrategyProfile, name: str) -> list[Ineligible]:
    return [entry for entry in profile.evidence.ineligible if entry.strategy == name]


# Who wins


def test_the_fastest_strategy_wins_at_every_size(clock: Clock, register: Register) -> None:
    register(named("fast"))
    register(named("slower"))
    device = ScriptedDevice(costs(index_fill=10.0, fast=7.0, slower=9.0), clock, noise=0.02)
    profile = measure(request(device, ["fast", "slower"]))
    assert winners(profile) == {("token", "int32"): {"fast"}, ("token", "int64"): {"fast"}}
    (decision,) = profile.decisions_for(CallKind("clear", "token", "int32"))
    assert decision.ties == ()


def test_each_size_gets_its_own_winner(clock: Clock, register: Register) -> None:
    register(named("flat"))
    # The two cost the same at 100 indices.
    device = ScriptedDevice(lambda label, count: 5.0 + count / 20 if label == DEFAULT else 10.0, clock, noise=0.02)
    profile = measure(request(device, ["flat"], counts=(8, 32, 256, 1024)))
    small, large = profile.decisions_for(CallKind("clear", "token", "int32"))
    assert (small.strategy, large.strategy) == (DEFAULT, "flat")
    assert 64 < (small.max_indices or 0) < 160


def test_a_machine_that_slows_down_does_not_change_the_winner(clock: Clock, register: Register) -> None:
    register(named("fast"))
    # Twice as slow every tenth of a second, while the difference is 12 %.
    device = ScriptedDevice(
        costs(index_fill=10.0, fast=8.8), clock, noise=0.02, drift=lambda now: 1 + 2 * math.sin(now * 60) ** 2
    )
    profile = measure(request(device, ["fast"]))
    assert winners(profile) == {("token", "int32"): {"fast"}, ("token", "int64"): {"fast"}}
    raced = [c for m in profile.evidence.measurements for c in m.candidates if c.strategy == "fast"]
    ratios = [candidate.standings["latency"].ratio for candidate in raced]
    assert ratios == [pytest.approx(0.88, abs=0.03)] * len(ratios)


@pytest.mark.parametrize("us", [9.9, 10.1])
def test_one_percent_in_five_percent_noise_keeps_the_default(clock: Clock, register: Register, us: float) -> None:
    register(named("alike"))
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0, alike=us), clock, noise=0.05), ["alike"]))
    for decision in profile.decisions:
        assert decision.strategy == DEFAULT
        assert decision.ties == ("alike",)


def test_a_strategy_that_wins_only_at_the_median_does_not_win(clock: Clock, register: Register) -> None:
    register(named("stalling"))
    calls = 0

    def cost(label: str, _count: int) -> float:
        nonlocal calls
        calls += label == "stalling"
        # Every fifth sample stalls, as OpenMP does in one process of twenty.
        return 10.0 if label == DEFAULT else 10_000.0 if calls % 5 == 0 else 7.0

    settings = replace(SETTINGS, budget_s=60.0)
    profile = measure(request(ScriptedDevice(cost, clock, noise=0.02), ["stalling"], settings=settings))
    assert {decision.strategy for decision in profile.decisions} == {DEFAULT}


def test_the_same_times_give_the_same_decisions(clock: Clock, register: Register) -> None:
    register(named("fast"))
    register(named("alike"))

    def decide() -> Any:
        device = ScriptedDevice(costs(index_fill=10.0, fast=8.0, alike=10.0), clock, noise=0.03)
        return measure(request(device, ["fast", "alike"])).decisions

    assert decide() == decide()


def test_both_targets_are_decided_where_pages_have_slots(clock: Clock, register: Register) -> None:
    register(named("fast"))
    device = ScriptedDevice(costs(index_fill=10.0, fast=7.0), clock)
    profile = measure(request(device, ["fast"], counts=(16, 256), page_size=16))
    expected = {(target, dtype): {"fast"} for target in ("token", "page") for dtype in ("int32", "int64")}
    assert winners(profile) == expected


# Who may not race


def raising(_self: ScriptedStrategy, _target: Any) -> Any:
    def clear(_indices: torch.Tensor) -> None:
        raise ZeroDivisionError("a bug\nof two lines")

    return clear


def one_too_many(_self: ScriptedStrategy, target: Any) -> Any:
    table = target.table

    def clear(indices: torch.Tensor) -> None:
        table.index_fill_(0, indices.to(torch.int64), 0)
        if indices.numel() > 1:
            table[0].zero_()

    return clear


def past_the_end(_self: ScriptedStrategy, target: Any) -> Any:
    def clear(indices: torch.Tensor) -> None:
        target.table.index_fill_(0, indices.to(torch.int64), 0)
        target.mapping[-1:].zero_()

    return clear


def with_a_memory(_self: ScriptedStrategy, target: Any) -> Any:
    mask = torch.zeros(target.table.shape[0], dtype=torch.bool)

    def clear(indices: torch.Tensor) -> None:
        # It forgets to reset its mask: right once, and wrong from the second call on.
        mask[indices.to(torch.int64)] = True
        target.table[mask] = 0

    return clear


def always_first(_self: ScriptedStrategy, target: Any) -> Any:
    table = target.table

    def clear(indices: torch.Tensor) -> None:
        # Right wherever there is a call to make; not where there is none.
        table.index_fill_(0, indices.to(torch.int64) if indices.numel() else torch.tensor([1]), 0)

    return clear


@pytest.mark.parametrize(
    ("clear", "reason", "detail"),
    [
        (raising, "raised", "ZeroDivisionError: a bug of two lines"),
        (one_too_many, "wrong_result", r"(row 0 became \[0\]|random indices: entry 0 became 0) and should be \[?1\]?$"),
        (past_the_end, "wrong_result", r"row 4097 became \[0\]|random indices: the sentinel became 0$"),
        (with_a_memory, "wrong_result", r"row \d+|duplicate indices: entry"),
        (always_first, "wrong_result", "empty indices: entry 1 became 0 and should be 2"),
    ],
)
def test_a_strategy_that_fails_is_left_out_with_its_reason_and_the_rest_goes_on(
    clock: Clock, register: Register, clear: Any, reason: str, detail: str
) -> None:
    register(named("fast"))
    register(named("broken", clear=clear))
    # It would win, were it right.
    device = ScriptedDevice(costs(index_fill=10.0, fast=7.0, broken=1.0), clock, noise=0.02)
    profile = measure(request(device, ["broken", "fast"]))
    assert {decision.strategy for decision in profile.decisions} == {"fast"}
    entries = ineligible(profile, "broken")
    assert {str(entry.kind) for entry in entries} == {"clear.token.int32", "clear.token.int64"}
    for entry in entries:
        assert entry.reason == reason
        assert re.match(detail, entry.detail)
    assert "broken" not in raced(profile)
    assert ineligible(profile, "fast") == []


def test_a_strategy_that_changes_its_indices_is_wrong(clock: Clock, register: Register) -> None:
    def clear(_self: ScriptedStrategy, target: Any) -> Any:
        def call(indices: torch.Tensor) -> None:
            target.table.index_fill_(0, indices.to(torch.int64), 0)
            indices.copy_(indices.flip(0))

        return call

    register(named("turning", clear=clear))
    register(named("fast"))
    device = ScriptedDevice(costs(index_fill=10.0, turning=1.0, fast=7.0), clock)
    profile = measure(request(device, ["turning", "fast"]))
    assert {decision.strategy for decision in profile.decisions} == {"fast"}
    for entry in ineligible(profile, "turning"):
        assert (entry.reason, entry.detail) == ("wrong_result", "random indices: the indices were changed")
    assert ineligible(profile, "turning")


def test_a_call_beyond_its_limit_rules_a_strategy_out(clock: Clock, register: Register) -> None:
    def clear(self: ScriptedStrategy, target: Any) -> Any:
        right = ScriptedStrategy.clear(self, target)

        def call(indices: torch.Tensor) -> None:
            right(indices)
            clock.advance(0.75)

        return call

    register(named("hanging", clear=clear))
    register(named("fast"))
    device = ScriptedDevice(costs(index_fill=10.0, fast=7.0, hanging=5.0), clock)
    profile = measure(request(device, ["hanging", "fast"]))
    assert {decision.strategy for decision in profile.decisions} == {"fast"}
    for entry in ineligible(profile, "hanging"):
        assert (entry.reason, entry.detail) == ("timed_out", "one call took 0.75 s and may take 0.5 s")


def test_a_workspace_that_does_not_fit_rules_a_strategy_out_before_it_is_bound(
    clock: Clock, register: Register
) -> None:
    def bind(_self: ScriptedStrategy, _target: Any) -> Any:
        pytest.fail("bound although there is no room")

    register(named("huge", bind=bind, workspace_bytes=lambda _self, _target: 1 << 40))
    register(named("fast"))
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0, fast=7.0), clock), ["huge", "fast"]))
    assert {decision.strategy for decision in profile.decisions} == {"fast"}
    for entry in ineligible(profile, "huge"):
        assert entry.reason == "out_of_memory"
        assert str(1 << 40) in entry.detail


def test_running_out_of_memory_while_binding_is_called_that(clock: Clock, register: Register) -> None:
    def bind(_self: ScriptedStrategy, _target: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    register(named("greedy", bind=bind))
    register(named("fast"))
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0, fast=7.0), clock), ["greedy", "fast"]))
    assert {entry.reason for entry in ineligible(profile, "greedy")} == {"out_of_memory"}
    assert {decision.strategy for decision in profile.decisions} == {"fast"}


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, 0.0, -3.0])
def test_impossible_times_make_a_strategy_unmeasurable_and_never_a_winner(
    clock: Clock, register: Register, nonsense: float
) -> None:
    register(named("odd"))
    register(named("fast"))
    device = ScriptedDevice(costs(index_fill=10.0, odd=nonsense, fast=7.0), clock)
    profile = measure(request(device, ["odd", "fast"]))
    assert {decision.strategy for decision in profile.decisions} == {"fast"}
    assert {entry.reason for entry in ineligible(profile, "odd")} == {"unmeasurable"}
    for measurement in profile.evidence.measurements:
        assert "odd" not in {candidate.strategy for candidate in measurement.candidates}


def test_a_rare_impossible_time_is_dropped_and_counted(clock: Clock, register: Register) -> None:
    register(named("fast"))
    calls = 0

    def cost(label: str, _count: int) -> float:
        nonlocal calls
        calls += 1
        return 10.0 if label == DEFAULT else -1.0 if calls % 40 == 0 else 7.0

    profile = measure(request(ScriptedDevice(cost, clock, noise=0.02), ["fast"]))
    assert {decision.strategy for decision in profile.decisions} == {"fast"}
    fast = [c for m in profile.evidence.measurements for c in m.candidates if c.strategy == "fast"]
    assert sum(candidate.dropped for candidate in fast) > 0
    assert ineligible(profile, "fast") == []


def test_a_strategy_that_fails_only_while_it_is_timed_leaves_the_race(clock: Clock, register: Register) -> None:
    calls = 0

    def clear(self: ScriptedStrategy, target: Any) -> Any:
        right = ScriptedStrategy.clear(self, target)

        def call(indices: torch.Tensor) -> None:
            nonlocal calls
            calls += 1
            if calls > 60:
                raise RuntimeError("the device is gone")
            right(indices)

        return call

    register(named("tiring", clear=clear))
    register(named("fast"))
    # As fast as the other, so that it has beaten nobody when it goes.
    device = ScriptedDevice(costs(index_fill=10.0, fast=7.0, tiring=7.0), clock, noise=0.02)
    profile = measure(request(device, ["tiring", "fast"]))
    assert {decision.strategy for decision in profile.decisions} == {"fast"}
    assert {entry.reason for entry in ineligible(profile, "tiring")} == {"raised"}
    assert {entry.detail for entry in ineligible(profile, "tiring")} == {"RuntimeError: the device is gone"}


def test_an_unavailable_strategy_says_why_and_gets_no_trial(clock: Clock, register: Register) -> None:
    register(named("elsewhere", unavailable=lambda _self, _target: "no such chip"))
    register(named("fast"))
    storage = optuna.storages.InMemoryStorage()
    device = ScriptedDevice(costs(index_fill=10.0, fast=7.0), clock)
    profile = measure(request(device, ["elsewhere", "fast"]), studies=storage)
    assert len(ineligible(profile, "elsewhere")) == 2
    for entry in ineligible(profile, "elsewhere"):
        assert (entry.reason, entry.detail) == ("unavailable", "no such chip")
    assert optuna.get_all_study_names(storage)
    for study in optuna.get_all_study_summaries(storage):
        trials = optuna.load_study(study_name=study.study_name, storage=storage).trials
        assert "elsewhere" not in {trial.user_attrs["candidate"] for trial in trials}


# The default itself


def test_a_default_that_has_no_rival_is_measured_and_chosen(clock: Clock) -> None:
    # As with strategies.include=[index_fill], or where everything else is unavailable.
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0), clock, noise=0.02), [DEFAULT]))
    assert winners(profile) == {("token", "int32"): {DEFAULT}, ("token", "int64"): {DEFAULT}}
    for measurement in profile.evidence.measurements:
        (only,) = measurement.candidates
        assert only.wall_us == pytest.approx(10.0, rel=0.05)
        assert measurement.noise_floor > 0


def test_a_default_whose_rivals_are_all_hopeless_is_measured_at_every_size(clock: Clock, register: Register) -> None:
    register(named("hopeless"))
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0, hopeless=99.0), clock), ["hopeless"]))
    assert {decision.strategy for decision in profile.decisions} == {DEFAULT}
    assert sizes(profile) == [1, 64, 1024]
    for measurement in profile.evidence.measurements:
        assert DEFAULT in {candidate.strategy for candidate in measurement.candidates}


def test_without_its_default_the_others_race_all_the_same(
    clock: Clock, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on Ascend 310P, which has no index_fill_ (vllm-ascend PR 11337).
    def bind(_self: Any, _target: Any) -> Any:
        raise NotImplementedError("no index_fill here")

    monkeypatch.setattr("swa_alloc.strategies.clear._index_fill.IndexFill.bind", bind)
    register(named("fast"))
    register(named("slower"))
    profile = measure(request(ScriptedDevice(costs(fast=7.0, slower=9.0), clock, noise=0.02), ["slower", "fast"]))
    assert {decision.strategy for decision in profile.decisions} == {"fast"}
    assert {entry.reason for entry in ineligible(profile, DEFAULT)} == {"raised"}


def test_a_default_that_fails_while_it_is_timed_is_not_the_choice(
    clock: Clock, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def bind(_self: Any, target: Any) -> Any:
        def call(indices: torch.Tensor) -> None:
            nonlocal calls
            calls += 1
            if calls > 60:
                raise RuntimeError("the device is gone")
            target.table.index_fill_(0, indices.to(torch.int64), 0)

        return call

    monkeypatch.setattr("swa_alloc.strategies.clear._index_fill.IndexFill.bind", bind)
    register(named("fast"))
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0, fast=7.0), clock, noise=0.02), ["fast"]))
    assert {entry.reason for entry in ineligible(profile, DEFAULT)} == {"raised"}
    assert {decision.strategy for decision in profile.decisions} == {"fast"}


@pytest.mark.parametrize("nonsense", [math.nan, 0.0, -1.0])
def test_a_timer_that_only_gives_nonsense_decides_nothing_and_all_of_it_is_missing(
    clock: Clock, register: Register, nonsense: float
) -> None:
    # pytorch issue 193658: a timer returned negative or infinite times.
    register(named("fast"))
    profile = measure(request(ScriptedDevice(lambda _label, _count: nonsense, clock), ["fast"], counts=(1, 64)))
    assert profile.decisions == ()
    assert profile.missing == tuple(f"clear.token.{dtype} at {n}" for dtype in ("int32", "int64") for n in (1, 64))
    assert {entry.reason for entry in profile.evidence.ineligible} == {"unmeasurable"}


def test_a_device_that_is_dead_decides_nothing_and_says_why(clock: Clock, register: Register) -> None:
    register(named("fast"))

    def cost(_label: str, _count: int) -> float:
        raise RuntimeError("device lost")

    profile = measure(request(ScriptedDevice(cost, clock), ["fast"]))
    assert profile.decisions == ()
    assert not profile.complete
    assert {entry.detail for entry in profile.evidence.ineligible} == {"RuntimeError: device lost"}


def test_a_device_that_dies_half_way_keeps_what_was_decided_before(clock: Clock, register: Register) -> None:
    # Default and challenger fail in one and the same round.
    register(named("fast"))
    calls = 0

    def cost(label: str, _count: int) -> float:
        nonlocal calls
        calls += 1
        if calls > 60:
            raise RuntimeError("device lost")
        return 10.0 if label == DEFAULT else 7.0

    profile = measure(request(ScriptedDevice(cost, clock, noise=0.02), ["fast"]))
    assert {decision.strategy for decision in profile.decisions} <= {"fast", DEFAULT}
    assert {entry.detail for entry in profile.evidence.ineligible} == {"RuntimeError: device lost"}
    assert len(profile.evidence.measurements) < 6
    assert not profile.complete


def test_no_room_for_the_table_is_a_calibration_error_before_anything_is_bound(clock: Clock) -> None:
    device = ScriptedDevice(costs(index_fill=10.0), clock)
    device.free = 100
    with pytest.raises(CalibrationError, match=r"32784 bytes, and 100 are free"):
        measure(request(device, []))
    assert device.timed == {}


# What Optuna is asked


def suggest_block(trial: Any) -> dict[str, Any]:
    return {"block": trial.suggest_int("block", 1, 64)}


def by_block(label: str, _count: int) -> float:
    """10 us for the default; the strategy is best, at 6 us, with a block of 40, and worst, at 12, far from it."""
    if label == DEFAULT:
        return 10.0
    block = int(label.partition("=")[2].rstrip(")")) if "=" in label else 1
    return 6.0 + min(6.0, abs(block - 40) / 4)


def test_a_large_space_is_proposed_by_optuna_and_a_better_candidate_is_found(clock: Clock, register: Register) -> None:
    register(named("blocky", suggest=staticmethod(suggest_block)))
    device = ScriptedDevice(by_block, clock, noise=0.01)
    profile = measure(request(device, ["blocky"], counts=(64,)))
    for measurement in profile.evidence.measurements:
        # More than a few, and not all 64 with the default.
        assert 4 <= len(measurement.candidates) < 65
    for decision in profile.decisions:
        assert decision.strategy == "blocky"
        assert by_block(decision.label, 64) < 10.0


def test_a_small_space_is_raced_completely(clock: Clock, register: Register) -> None:
    choices = tuple(range(8))
    register(
        named(
            "small",
            suggest=staticmethod(lambda trial: {"way": trial.suggest_categorical("way", choices)}),
        )
    )
    device = ScriptedDevice(
        lambda label, _count: 10.0 if label == DEFAULT else 7.0 if label == "small(way=5)" else 9.9, clock, noise=0.01
    )
    profile = measure(request(device, ["small"]))
    assert set(device.timed) == {DEFAULT, *(f"small(way={way})" for way in choices)}
    assert {decision.label for decision in profile.decisions} == {"small(way=5)"}
    assert {tuple(decision.params.items()) for decision in profile.decisions} == {(("way", 5),)}


def test_a_space_is_small_up_to_its_limit(register: Register) -> None:
    # The default is one candidate.
    for name, count in (("fits", SMALL_SPACE - 1), ("exceeds", SMALL_SPACE)):
        register(
            named(
                name,
                suggest=staticmethod(lambda trial, count=count: {"way": trial.suggest_int("way", 1, count)}),
            )
        )
    fits, exceeds = make_space("clear", DEFAULT, ["fits"]), make_space("clear", DEFAULT, ["exceeds"])
    assert (fits.open, len(fits.fixed)) == ((), SMALL_SPACE)
    assert exceeds.open == ("exceeds",)
    assert [candidate.label for candidate in exceeds.fixed] == [DEFAULT, "exceeds"]


def test_questions_that_depend_on_answers_make_every_point_once(register: Register) -> None:
    def suggest(trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("kind", ("plain", "blocks"))
        return {"kind": kind, **({"block": trial.suggest_int("block", 1, 3)} if kind == "blocks" else {})}

    register(named("nested", suggest=staticmethod(suggest)))
    labels = [candidate.label for candidate in make_space("clear", DEFAULT, ["nested"]).fixed]
    assert labels == [
        DEFAULT,
        "nested(block=1, kind=blocks)",
        "nested(block=2, kind=blocks)",
        "nested(block=3, kind=blocks)",
        "nested(kind=plain)",
    ]


def test_a_journal_can_be_opened_again_and_tells_what_became_of_every_trial(
    clock: Clock, register: Register, tmp_path: Path
) -> None:
    register(named("fast"))
    register(named("slow"))
    register(named("broken", clear=always_first))
    journal = tmp_path / "study.journal"
    device = ScriptedDevice(costs(index_fill=10.0, fast=7.0, slow=25.0, broken=8.0), clock, noise=0.02)
    measure(
        request(device, ["fast", "slow", "broken"], counts=(1, 512)),
        studies=JournalStorage(JournalFileBackend(str(journal))),
    )
    storage = JournalStorage(JournalFileBackend(str(journal)))
    names = optuna.get_all_study_names(storage)
    assert len(names) == 4
    assert len({name.rpartition("-")[0] for name in names}) == 4
    failed = []
    for name in names:
        trials = {t.user_attrs["candidate"]: t for t in optuna.load_study(study_name=name, storage=storage).trials}
        failed += [trials.pop("broken")] if "broken" in trials else []
        assert {label: trial.state for label, trial in trials.items()} == {
            DEFAULT: TrialState.COMPLETE,
            "fast": TrialState.COMPLETE,
            "slow": TrialState.PRUNED,
        }
        assert trials["fast"].value == pytest.approx(28.0, rel=0.05)  # cold
        assert trials["fast"].intermediate_values
    # Whoever is wrong takes part once for each kind of call.
    assert len(failed) == 2
    for trial in failed:
        assert trial.state is TrialState.FAIL
        assert trial.user_attrs["reason"] == "wrong_result"
        assert "empty indices" in trial.user_attrs["detail"]


def test_a_pruned_candidate_never_wins(clock: Clock, register: Register) -> None:
    # Hopeless at first, and the fastest from then on: it has left by then.
    register(named("late"))
    register(named("steady"))
    seen: dict[int, int] = {}

    def cost(label: str, count: int) -> float:
        if label != "late":
            return 10.0 if label == DEFAULT else 9.0
        seen[count] = seen.get(count, 0) + 1
        return 100.0 if seen[count] <= 12 else 1.0

    profile = measure(request(ScriptedDevice(cost, clock, noise=0.02), ["late", "steady"]))
    assert {decision.strategy for decision in profile.decisions} == {"steady"}


# Between the timed sizes


def test_a_border_is_refined_only_where_a_wrong_one_costs(clock: Clock, register: Register) -> None:
    register(named("flat"))
    # Far apart at 16 and at 1024; equal at 128.
    device = ScriptedDevice(lambda label, count: 4.0 + count / 16 if label == DEFAULT else 12.0, clock, noise=0.01)
    profile = measure(request(device, ["flat"], counts=(1, 16, 1024)))
    assert 128 in sizes(profile)
    assert len(sizes(profile)) > 2
    weights = {m.indices: m.weight for m in profile.evidence.measurements if m.kind.index_dtype == "int32"}
    assert weights[1] == weights[16] == weights[1024] == pytest.approx(1 / 3, rel=1e-4)
    assert weights[128] == 0

    near = ScriptedDevice(costs(index_fill=10.0, flat=7.0), clock)
    profile = measure(request(near, ["flat"], counts=(1, 16, 1024)))
    assert sizes(profile) == [1, 16, 1024]


# What goes wrong outside the calls


@pytest.mark.parametrize(
    "suggest",
    [
        lambda _cls, _trial: 1 / 0,
        lambda _cls, _trial: 5,
        lambda _cls, _trial: {"shape": object()},
        lambda _cls, trial: {"share": trial.suggest_float("share", 0.0, 1.0)},
    ],
    ids=["raises", "gives no parameters", "gives what no profile can hold", "asks for what there is not"],
)
def test_a_strategy_that_cannot_say_what_to_try_is_left_out_with_the_reason(
    clock: Clock, register: Register, suggest: Any
) -> None:
    register(named("odd", suggest=classmethod(suggest)))
    register(named("fast"))
    device = ScriptedDevice(costs(index_fill=10.0, fast=7.0), clock)
    profile = measure(request(device, ["odd", "fast"]))
    assert {entry.reason for entry in ineligible(profile, "odd")} == {"raised"}
    assert winners(profile)["token", "int32"] == {"fast"}


def test_a_strategy_that_becomes_wrong_in_the_course_of_the_race_does_not_win(clock: Clock, register: Register) -> None:
    def clear(_self: ScriptedStrategy, target: Any) -> Any:
        table, calls = target.table, iter(range(10**9))
        # Right for as long as the contract looks.
        return lambda indices: table.index_fill_(0, indices.long(), 0) if next(calls) < 12 else None

    register(named("fading", clear=clear))
    device = ScriptedDevice(costs(index_fill=10.0, fading=5.0), clock)
    profile = measure(request(device, ["fading"]))
    assert {entry.reason for entry in ineligible(profile, "fading")} == {"wrong_result"}
    assert winners(profile) == {("token", "int32"): {DEFAULT}, ("token", "int64"): {DEFAULT}}


def test_a_strategy_that_would_end_the_process_is_one_that_raised(clock: Clock, register: Register) -> None:
    def clear(_self: ScriptedStrategy, _target: Any) -> Any:
        def leave(_indices: torch.Tensor) -> None:
            raise SystemExit(0)

        return leave

    register(named("leaving", clear=clear))
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0), clock), ["leaving"]))
    assert {entry.reason for entry in ineligible(profile, "leaving")} == {"raised"}


def test_a_strategy_that_is_wrong_for_many_indices_only_is_found_out(clock: Clock, register: Register) -> None:
    def first_hundred(_self: Any, target: Any) -> Any:
        table = target.table
        return lambda indices: table.index_fill_(0, indices.long()[:100], 0)

    register(named("first_hundred", clear=first_hundred))
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0, first_hundred=5.0), clock), ["first_hundred"]))
    assert set.union(*winners(profile).values()) == {DEFAULT}
    assert {entry.reason for entry in ineligible(profile, "first_hundred")} == {"wrong_result"}


def test_a_reason_that_is_none_in_words_is_the_strategys_fault(clock: Clock, register: Register) -> None:
    register(named("slip", unavailable=lambda _self, _target: False))
    profile = measure(request(ScriptedDevice(costs(index_fill=10.0), clock), ["slip"]))
    assert {entry.reason for entry in ineligible(profile, "slip")} == {"raised"}
