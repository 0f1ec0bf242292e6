"""What a calibration has found outlives what ends it: the next one measures what is missing, and nothing else."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run
from scripted_device import SETTINGS, Clock, ScriptedDevice, measure, named, request

from autotune.once import Interrupted, Outcome, calibrate_once, measure_into
from autotune.request import Request
from swa_alloc import StrategyProfile, register_strategy
from swa_alloc.evidence import Evidence, Measurement
from swa_alloc.operations import CallKind

pytestmark = pytest.mark.usefixtures("empty_registry")

COUNTS = (1, 16, 64, 256, 1024)


@pytest.fixture(autouse=True)
def strategies(empty_registry: None) -> None:
    """Some that are best at different sizes."""
    del empty_registry
    for name in ("small", "large", "alike"):
        register_strategy(named(name))


def cost(label: str, count: int) -> float:
    return {"small": 5.0 + count / 20, "large": 12.0, "alike": 19.9}.get(label, 20.0)


def asked(**changes: Any) -> Request:
    device = ScriptedDevice(cost, Clock(), noise=0.02)
    settings = replace(SETTINGS, **changes)
    return request(device, ["small", "large", "alike"], counts=COUNTS, page_size=16, settings=settings)


class Watched:
    """Calibrations in a store, and which calls each of them measured."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.measured: list[list[tuple[CallKind, int]]] = []

    def run(self, wanted: Request, *, interrupt_after: int | None = None, from_start: bool = False) -> Outcome:
        """Calibrate as a start does; with Ctrl-C after so many measurements."""
        found: list[tuple[CallKind, int]] = []
        self.measured.append(found)

        def go_on(known: Evidence, keep: Any) -> StrategyProfile:
            def watched(measurement: Measurement, so_far: Any) -> None:
                keep(measurement, so_far)
                found.append((measurement.kind, measurement.indices))
                if len(found) == interrupt_after:
                    os.kill(os.getpid(), signal.SIGINT)

            return measure(wanted, known=known, keep=watched)

        return calibrate_once(
            self.store,
            wanted.device.torch_device,
            0.0,
            lambda: None,
            lambda: None,
            lambda directory: measure_into(directory, wanted, go_on, from_start=from_start),
        )


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "store")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrategyProfile]:
    """What a calibration says that nothing has ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swa_alloc.strategies._registry._registered", {"clear": {}})
        for name in ("small", "large", "alike"):
            register_strategy(named(name))
        yield Watched(tmp_path_factory.mktemp("unbroken")).run(asked()).profile


def journals(store: Path) -> list[Path]:
    return list(store.glob("*.journal-2.jsonl"))


def assert_agree(one: StrategyProfile, other: StrategyProfile) -> None:
    """Each one's choice is the other's, or level or tied with it."""
    for objective in ("serving", "latency"):
        found = {(m.kind, m.indices): m.verdicts[objective] for m in one.evidence.measurements}
        for measurement in other.evidence.measurements:
            theirs = measurement.verdicts[objective]
            # Borders may have been refined in another order.
            ours = found.get((measurement.kind, measurement.indices), theirs)
            assert ours.choice in {theirs.choice, *theirs.level, *theirs.ties}
            assert theirs.choice in {ours.choice, *ours.level, *ours.ties}


# --- Ctrl-C


@pytest.mark.parametrize("after", [1, 7, 15])
def test_what_was_decided_before_ctrl_c_is_kept_and_the_next_run_measures_the_rest(
    watched: Watched, unbroken: StrategyProfile, after: int
) -> None:
    with pytest.raises(
        Interrupted, match=r"what was decided so far is kept, and serves from .*; the same command goes"
    ):
        watched.run(asked(), interrupt_after=after)
    (path,) = watched.store.glob("*.profile-2.json")
    half = StrategyProfile.load(path)
    assert not half.complete
    assert {decision.kind for decision in half.decisions} == {kind for kind, _ in watched.measured[0]}
    whole = watched.run(asked()).profile
    assert whole.complete
    # What had been looked at without being settled is looked at again, and no more than that.
    unsettled = {(m.kind, m.indices) for m in half.evidence.measurements if not m.settled}
    assert set(watched.measured[0]) & set(watched.measured[1]) <= unsettled
    assert_agree(whole, unbroken)
    assert StrategyProfile.load(path).complete
    assert journals(watched.store) == []


def test_interrupted_before_anything_was_decided_nothing_is_left(watched: Watched) -> None:
    def broken_off(_known: Evidence, _keep: Any) -> StrategyProfile:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"^interrupted; nothing is saved$"):
        measure_into(watched.store, asked(), broken_off)
    assert list(watched.store.glob("*.profile-2.json")) == []


def test_an_earlier_complete_profile_stands_while_a_more_thorough_run_is_interrupted(watched: Watched) -> None:
    first = watched.run(asked())
    assert first.path is not None
    with pytest.raises(Interrupted, match="the earlier profile stands in"):
        watched.run(asked(rounds=1024, sizes=12), interrupt_after=3)
    standing = StrategyProfile.load(first.path)
    assert standing.document() == first.profile.document()
    # And what the thorough run had found is not lost.
    last = watched.run(asked(rounds=1024, sizes=12))
    assert last.profile.complete
    assert not set(watched.measured[1]) & set(watched.measured[2])


def test_an_earlier_complete_profile_stands_beside_a_more_thorough_one_that_ran_out_of_time(watched: Watched) -> None:
    first = watched.run(asked())
    assert first.path is not None
    second = watched.run(asked(rounds=1024, sizes=12, budget_s=0.05))
    assert (second.profile.complete, second.path) == (False, None)
    assert str(first.path) in str(second.unsaved)
    assert StrategyProfile.load(first.path).document() == first.profile.document()


def test_a_run_that_asks_for_something_else_takes_up_nothing(watched: Watched) -> None:
    with pytest.raises(Interrupted):
        watched.run(asked(), interrupt_after=5)
    watched.run(asked(switch_margin=0.1))
    assert set(watched.measured[0]) <= set(watched.measured[1])


def test_a_run_that_is_to_begin_afresh_takes_up_nothing(watched: Watched) -> None:
    with pytest.raises(Interrupted):
        watched.run(asked(), interrupt_after=5)
    watched.run(asked(), from_start=True)
    assert set(watched.measured[0]) <= set(watched.measured[1])


def test_more_time_goes_on_with_what_little_time_has_found(watched: Watched) -> None:
    first = watched.run(asked(budget_s=0.1))
    assert not first.profile.complete
    assert first.profile.decisions
    settled = {(m.kind, m.indices) for m in first.profile.evidence.measurements if m.settled}
    assert settled
    last = watched.run(asked(budget_s=5.0))
    assert last.profile.complete
    raced_anew = settled & set(watched.measured[1])
    assert not raced_anew
    assert journals(watched.store) == []


def test_whoever_is_killed_between_the_last_race_and_the_saved_profile_has_lost_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_self: StrategyProfile, _path: Path) -> Path:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(StrategyProfile, "save", killed)
        with pytest.raises(SystemExit):
            watched.run(asked())
    assert watched.run(asked()).profile.complete
    assert watched.measured[0]
    assert watched.measured[1] == []


def test_a_fault_of_ours_keeps_what_was_found(watched: Watched) -> None:
    def fails(known: Evidence, keep: Any) -> StrategyProfile:
        def watching(measurement: Measurement, so_far: Any) -> None:
            keep(measurement, so_far)
            raise ZeroDivisionError

        return measure(asked(), known=known, keep=watching)

    with pytest.raises(ZeroDivisionError):
        measure_into(watched.store, asked(), fails)
    (journal,) = journals(watched.store)
    assert len(journal.read_text().splitlines()) == 2


# --- signals that nothing can be done about

# Forks calibrations of one store, kills each at a random moment, and lets the last one finish. It prints, for each,
# what was known when it began, what it measured, and how it ended.
KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from test_resume import Watched, asked
from scripted_device import named
from swa_alloc import register_strategy
import autotune.once

store, kills, seed, sent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), getattr(signal, sys.argv[4])
for name in ("small", "large", "alike"):
    register_strategy(named(name))
chance = random.Random(seed)

def lines():
    return [line for path in store.glob("*.journal-2.jsonl") for line in path.read_text().splitlines()[1:]]

def child(folder, number):
    wanted = asked()
    notes = open(f"{sys.argv[1]}-notes-{number}", "w")
    begun = autotune.once.Journal.begun
    def noted(self):
        known = begun(self)
        for m in known.measurements:
            print(json.dumps(["known", str(m.kind), m.indices, m.settled]), file=notes, flush=True)
        return known
    autotune.once.Journal.begun = noted
    append = autotune.once.Journal.append
    def measured(self, m):
        append(self, m)
        print(json.dumps(["measured", str(m.kind), m.indices, m.settled]), file=notes, flush=True)
    autotune.once.Journal.append = measured
    Watched(folder).run(wanted)

def start(folder, number):
    pid = os.fork()
    if pid == 0:
        try:
            child(folder, number)
            os._exit(0)
        finally:
            os._exit(1)
    return pid

# What is imported and compiled at first is there from here on.
Watched(Path(sys.argv[1] + "-warm")).run(asked())
began = time.monotonic()
os.waitpid(start(Path(sys.argv[1] + "-whole"), "whole"), 0)
takes_s = time.monotonic() - began
ends = []
for number in range(kills):
    pid = start(store, number)
    time.sleep(chance.uniform(0, takes_s))
    os.kill(pid, sent)
    ends.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(lines())])
ends.append([os.waitstatus_to_exitcode(os.waitpid(start(store, kills), 0)[1]), len(lines())])
print(json.dumps(ends))
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM], ids=lambda sent: sent.name)
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(
    run_python: Run, tmp_path: Path, unbroken: StrategyProfile, sent: signal.Signals
) -> None:
    kills = int(os.environ.get("CALIBRATION_KILLS", "5")) if sent is signal.SIGKILL else 2
    seed = random.randrange(10**6)  # noqa: S311 - moments
    store = tmp_path / "store"
    finished = run_python(
        "-c", KILLED, str(store), str(kills), str(seed), sent.name, env={"PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    )
    assert finished.returncode == 0, finished.stderr
    ends = json.loads(finished.stdout)
    told = f"CALIBRATION_KILLS={kills}, seed {seed}: {ends}"
    assert ends[-1] == [0, 0], f"{told}\n{finished.stderr}"
    # One may have been quick enough to finish before it was to be killed; the next then began afresh.
    assert {code for code, _ in ends[:-1]} <= {-sent, 0}, told
    taken_up = 0
    for path in tmp_path.glob("store-notes-*"):
        # The last line may be torn.
        notes = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        settled = {(kind, indices) for what, kind, indices, is_settled in notes if what == "known" and is_settled}
        again = {(kind, indices) for what, kind, indices, _ in notes if what == "measured"}
        assert not settled & again, told
        taken_up += len(settled)
    # Two may both have come too early.
    assert taken_up or kills < 5, told
    (path,) = store.glob("*.profile-2.json")
    profile = StrategyProfile.load(path)
    assert profile.complete, told
    assert_agree(profile, unbroken)
    assert journals(store) == []
