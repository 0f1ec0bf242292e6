"""The report: an operation at a time, each reason once, and nothing that a terminal has to break."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import decide, decide_everything, make_candidate, make_evidence, make_profile

from autotune.config import Format
from autotune.once import Outcome
from autotune.report import print_report
from swa_alloc import StrategyProfile
from swa_alloc.evidence import Evidence, Measurement


def told(profile: StrategyProfile, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_report(Outcome(profile, Path("/store/p.json"), reused=False, replaced=None), Format.table)
    return capsys.readouterr().out.splitlines()


def race(operation: str, indices: int, *, ties: tuple[str, ...] = (), weight: float = 0.25) -> Measurement:
    changes = {"operation": operation, "indices": indices, "ties": ties, "weight": weight}
    (measured,) = make_evidence().measurements
    candidates = (
        make_candidate("scatter", 0.5),
        make_candidate("index_fill" if operation == "clear" else "index_copy"),
    )
    return measured._replace(candidates=candidates, **changes)  # type: ignore[arg-type]  # plain strs where the fields are Literals


RACED = make_profile(
    decisions=(decide("scatter"), decide("scatter", operation="set")),
    evidence=Evidence(
        (
            race("clear", 8, ties=("index_put",)),
            race("clear", 64, ties=("index_put",)),
            race("clear", 512, ties=("index_put", "index_copy")),
            race("set", 8, weight=0.0),
        ),
        (),
    ),
)


def test_each_operation_has_one_heading_and_what_is_said_below_it_is_about_that_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = told(RACED, capsys)
    clear, setting = (lines.index(next(line for line in lines if line.startswith(name))) for name in ("clear ", "set "))
    assert clear < setting
    below_clear, below_set = lines[clear + 1 : setting], lines[setting + 1 :]
    assert [line.split()[0:3] for line in below_clear[:1]] == [["token", "int64,", "any"]]
    assert "the workload's calls take 0.500 of the default's time" in below_clear
    assert "raced: scatter, index_fill" in below_clear
    assert "raced: scatter, index_copy" in below_set
    # The workload has no such calls.
    assert not any(line.startswith("the workload's") for line in below_set)
    assert not any(line.startswith(("translate", "take")) for line in lines)


def test_sizes_with_the_same_ties_are_told_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "not told apart from the choice: token int64 at 8, 64: index_put; token int64 at 512: index_put, index_copy"
        in (told(RACED, capsys))
    )


def test_the_tables_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    names = {
        "clear": "index_copy",
        "set": "index_copy",
        "translate": "index_select",
        "take": "read_then_clear",
    }
    decisions = tuple(
        decide(name, operation=operation, target="page" if operation == "take" else "token", max_indices=bound)
        for operation, name in names.items()
        for bound in (123, None)
    )
    candidate = make_candidate("index_put", 0.75, wall_us=123.45)
    races = tuple(
        race(decision.operation, indices)._replace(
            target=decision.target, candidates=(candidate._replace(strategy=decision.strategy),)
        )
        for decision, indices in zip(decisions, (64, 20000) * 4, strict=True)
    )
    tables = [
        line
        for line in told(make_profile(decisions=decisions, evidence=Evidence(races, ())), capsys)[3:]
        if "  " in line
    ]
    assert len(tables) == 4 * 3 + 1
    assert max(map(len, tables[:-1])) <= 80


def test_what_was_decided_without_a_measurement_is_told_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(make_profile(decisions=decide_everything("scatter"), evidence=Evidence()), capsys)
    assert [line.split()[0] for line in lines if line.split()[1:] == ["strategy"]] == [
        "clear",
        "set",
        "translate",
        "take",
    ]
    assert not any(line.startswith(("raced", "not", "the workload's")) for line in lines)
