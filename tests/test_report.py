"""The report: cold beside hot, what decided and what the choice rests on, each reason once, in a terminal's width."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import (
    decide,
    decide_everything,
    here,
    make_candidate,
    make_evidence,
    make_measurement,
    make_profile,
    make_provenance,
    make_standing,
    make_verdict,
)

from autotune.command.report import print_report, write_report
from autotune.config import Format
from autotune.once import Outcome
from swa_alloc import StrategyProfile
from swa_alloc.evidence import CandidateMeasurement, Evidence, Ineligible, Measurement
from swa_alloc.operations import CallKind

SAVED = Path("/store/p.json")
DEFAULTS = {"clear": "index_fill", "set": "index_copy", "translate": "subscript", "take": "read_then_clear"}


def told(profile: StrategyProfile, capsys: pytest.CaptureFixture[str], **changes: Any) -> list[str]:
    """The lines on stdout, under the objective ``serving``."""
    outcome: dict[str, Any] = {"path": SAVED, "reused": False, **changes}
    print_report(Outcome(profile.under("serving"), **outcome), Format.table)
    return capsys.readouterr().out.splitlines()


def the_line(lines: list[str], start: str) -> str:
    (found,) = [line for line in lines if line.startswith(start)]
    return found


def table(operation: str, lines: list[str]) -> list[str]:
    """From the headings of an operation to the empty line below it."""
    begin = next(i for i, line in enumerate(lines) if line.startswith(operation))
    return lines[begin : lines.index("", begin)]


def race(
    operation: str, indices: int, *, target: str = "token", ties: tuple[str, ...] = (), **changes: Any
) -> Measurement:
    """A race of the default, 20 us cold and 8 hot, that ``scatter`` wins in half the time."""
    default, winner = make_candidate(DEFAULTS[operation], cost_us=20.0), make_candidate("scatter", 0.5, cost_us=10.0)
    return make_measurement(
        *changes.pop("candidates", (winner._replace(wall_us=4.0), default._replace(wall_us=8.0))),
        verdict=make_verdict("scatter", ties),
        kind=CallKind(operation, target, "int64"),  # type: ignore[arg-type]  # plain strs where the fields are Literals
        indices=indices,
        **{"weight": 0.25, **changes},
    )


def on_host(candidate: CandidateMeasurement) -> CandidateMeasurement:
    """As a device has it on which a call is done when it returns."""
    return candidate._replace(device_us=candidate.wall_us)


def raced(*races: Measurement, ineligible: tuple[Ineligible, ...] = (), **changes: Any) -> StrategyProfile:
    """A profile in which ``scatter`` serves whatever raced, on a CPU."""
    kinds = dict.fromkeys(race.kind for race in races)
    races = tuple(race._replace(candidates=tuple(map(on_host, race.candidates))) for race in races)
    decisions = tuple(decide("scatter")._replace(kind=kind) for kind in kinds)
    return make_profile(**{"decisions": decisions, "evidence": Evidence(races, ineligible), **changes})


# The table


def test_each_size_shows_what_serves_it_cold_and_hot_and_the_default_that_it_is_compared_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heading, choice, row, *_ = table("clear", told(raced(race("clear", 64)), capsys))
    assert heading.split() == ["clear,", "us", "at", "cold", "hot", "default", "ratio"]
    assert choice == "token int64, any number: scatter; above 64: not timed"
    assert row.split() == ["64", "10.00", "4.00", "20.00", "0.500", "+-0.010"]
    assert len(row) == len(heading)


def test_the_default_is_compared_by_what_the_profile_minimizes(capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = make_candidate("scatter", 0.5), make_candidate(cost_us=20.0)
    slow = slow._replace(standings={**slow.standings, "latency": make_standing(cost_us=7.0)})
    profile = raced(race("clear", 64, candidates=(fast, slow)))
    assert table("clear", told(profile, capsys))[2].split()[3] == "20.00"
    print_report(Outcome(profile.under("latency"), SAVED, reused=False), Format.table)
    assert table("clear", capsys.readouterr().out.splitlines())[2].split()[3] == "7.00"


def test_device_times_have_a_column_where_they_are_not_the_hot_times(capsys: pytest.CaptureFixture[str]) -> None:
    winner = make_candidate("scatter", 0.5, cost_us=10.0, device_us=3.0, wall_us=30.0)
    measured = race("clear", 64, candidates=(winner, make_candidate(cost_us=20.0)))
    profile = make_profile(decisions=(decide("scatter"),), evidence=Evidence((measured,)))
    heading, _, row, *_ = table("clear", told(profile, capsys))
    assert heading.split()[2:] == ["at", "cold", "hot", "device", "default", "ratio"]
    assert row.split() == ["64", "10.00", "30.00", "3.00", "20.00", "0.500", "+-0.010"]


def test_a_default_that_nothing_beats_has_no_ratio_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    profile = raced(race("clear", 64), decisions=(decide("index_fill"),))
    assert table("clear", told(profile, capsys))[2].split() == ["64", "20.00", "8.00", "20.00", "default"]


def test_a_default_that_was_ruled_out_by_single_calls_leaves_a_ratio_without_an_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = make_standing(0.02)._replace(ratio_low=None, ratio_high=None)
    winner = make_candidate("scatter", cost_us=10.0, standings={"serving": alone})
    default = make_candidate(cost_us=5301.4, cold_us=None, rounds=0, state="probed")
    lines = told(raced(race("clear", 64, candidates=(winner, default))), capsys)
    assert table("clear", lines)[2].split() == ["64", "10.00", "10.00", "5301", "0.020"]
    assert "ruled out by single calls: index_fill 5301 us at 64" in lines


def test_a_cold_time_that_was_not_measured_is_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    measured = race("clear", 64, candidates=(make_candidate("scatter", None, cold_us=None),))
    assert table("clear", told(raced(measured), capsys))[2].split() == ["64", "-", "1.00"]


def test_a_size_that_is_not_settled_and_a_choice_that_waits_are_marked_in_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waiting = (make_candidate("scatter", 0.5, stall="partial"), make_candidate())
    profile = raced(
        race("clear", 8), race("clear", 64, settled=False), race("clear", 512, settled=False, candidates=waiting)
    )
    settled, unsettled, both = table("clear", told(profile, capsys))[2:5]
    assert settled.endswith("+-0.010")
    assert unsettled.endswith("+-0.010  unsettled")
    assert both.endswith("+-0.010  waits, unsettled")


def test_what_rests_on_no_measurement_is_said_once_for_each_kind_of_call(capsys: pytest.CaptureFixture[str]) -> None:
    races = (race("clear", 8), race("clear", 512), race("clear", 1, target="page"))
    decisions = (
        decide("index_fill", max_indices=63),
        decide("scatter"),
        decide("scatter", target="page", max_indices=22),
        decide("index_fill", target="page"),
    )
    choices = [line for line in told(raced(*races, decisions=decisions), capsys) if line[:4] in ("toke", "page")]
    assert choices == [
        "token int64, up to 63: index_fill",
        "token int64, 64 and more: scatter; above 512: not timed",
        "page int64, up to 22: scatter",
        "page int64, 23 and more: index_fill; not timed",
    ]


def test_no_row_is_wider_than_a_terminal_and_other_lines_are_broken_there_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"clear": "index_put"}
    winner = make_candidate("read_then_clear", 0.512, cost_us=345.67, params=params, stall="blocking", wall_us=23_456.7)
    default = make_candidate("read_then_clear", cost_us=456_789.0)
    races = tuple(race("take", size, target="page", candidates=(winner, default), settled=False) for size in (1, 16384))
    decisions = (decide("read_then_clear", operation="take", target="page", params=params),)
    profile = make_profile(decisions=decisions, evidence=Evidence(races), missing=("set.page.int64 at 253",) * 8)

    monkeypatch.setenv("COLUMNS", "80")
    plain = told(profile, capsys)
    assert max(map(len, table("take, us", plain)[:4])) == 80
    assert max(map(len, plain)) > 80

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    path = Path("/store", "as-long-as-it-may-be" * 6)
    broken = told(profile, capsys, path=path)
    assert all(len(line) <= 80 for line in broken if str(path) not in line)
    assert "".join(broken).replace(" ", "") == "".join(told(profile, capsys, path=path)).replace(" ", "")
    assert any(str(path) in line for line in broken)


# What is said about it


def test_what_stands_below_an_operation_is_about_that_one(capsys: pytest.CaptureFixture[str]) -> None:
    profile = raced(race("clear", 8), race("clear", 64), race("set", 8, weight=0.0))
    lines = told(profile, capsys)
    clear, setting = table("clear", lines), table("set", lines)
    assert "the workload's calls take 0.500 of the default's time" in clear
    assert "raced: scatter, index_fill" in clear
    assert "raced: scatter, index_copy" in setting
    # The workload has no such calls.
    assert not any(line.startswith("the workload's") for line in setting)
    assert not any(line.startswith(("translate", "take")) for line in lines)


def test_sizes_with_the_same_ties_are_told_together_and_unsettled_ones_not_at_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = ("index_put",), ("index_put", "index_copy")
    races = (race("clear", size, ties=ties) for size, ties in {8: one, 64: one, 512: two}.items())
    lines = told(raced(*races, race("clear", 4096, ties=two, settled=False)), capsys)
    assert the_line(lines, "not told apart") == (
        "not told apart from the choice: token int64 at 8, 64: index_put; token int64 at 512: index_put, index_copy"
    )


def test_ties_of_a_size_that_was_brought_into_line_with_its_neighbours_include_what_had_won_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = raced(race("clear", 8, ties=("index_fill",)), decisions=(decide("index_fill"),))
    assert "not told apart from the choice: token int64 at 8: scatter" in told(profile, capsys)


def test_what_single_calls_ruled_out_everywhere_has_its_figure_and_what_raced_somewhere_has_raced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hopeless, lucky = (
        make_candidate(name, None, cost_us=us, state="probed") for name, us in (("masked_fill", 5301.4), ("slow", 90.0))
    )
    common = race("clear", 8).candidates
    races = (
        race("clear", 64, candidates=(*common, hopeless, lucky)),
        race("clear", 512, candidates=(*common, hopeless._replace(wall_us=9999.0), lucky._replace(state="pruned"))),
    )
    lines = told(raced(*races), capsys)
    assert "raced: scatter, index_fill, slow" in lines
    assert "ruled out by single calls: masked_fill 5301 us at 64" in lines


def test_failures_are_told_with_their_reason_and_what_the_machine_lacks_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = race("clear", 8).kind, race("set", 8).kind
    ineligible = tuple(
        Ineligible(kind, name, {}, reason, detail)  # type: ignore[arg-type]  # plain strs where the fields are Literals
        for kind in kinds
        for name, reason, detail in (
            ("triton_fill", "unavailable", "Triton does not drive cpu"),
            ("int32_view", "unavailable", "it is for Ascend"),
            ("mine", "raised", "no such thing"),
        )
    )
    assert the_line(told(raced(race("clear", 8), ineligible=ineligible), capsys), "not raced") == (
        "not raced: mine for clear, set (raised: no such thing); 2 unavailable here (int32_view, triton_fill)"
    )


# The heading


def test_the_heading_says_which_objective_decides_and_what_ran_before_a_cold_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    provenance = make_provenance(config={"step": {"us": 126.5, "data_bytes": 3 << 19}})
    profile = raced(race("clear", 8), provenance=provenance)
    lines = told(profile, capsys)
    assert the_line(lines, "measured") == "measured  in 1.5 s, 640 rounds, complete"
    assert "serving: the longer of a cold call and the device's time" in the_line(lines, "decides")
    assert "stand-in for a model's step (126.5 us, 1.5 MiB written)" in the_line(lines, "cold")
    print_report(Outcome(profile.under("latency"), SAVED, reused=False), Format.table)
    assert "latency: the wall time" in the_line(capsys.readouterr().out.splitlines(), "decides")


@pytest.mark.parametrize("config", [{}, {"step": None}, {"step": {}}, {"step": {"us": "soon", "data_bytes": 1}}])
def test_a_step_that_is_not_on_record_is_not_described(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(raced(race("clear", 8), provenance=make_provenance(config=config)), capsys)
    assert the_line(lines, "cold").endswith("a model's step; hot: calls in a loop")


def test_an_emulated_device_is_labelled(capsys: pytest.CaptureFixture[str]) -> None:
    label = "[EMULATED DEVICE: its times mean nothing elsewhere]"
    assert label not in told(make_profile(), capsys)[0]
    assert told(make_profile(machine=here()._replace(emulated=True)), capsys)[0].endswith(label)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "clear.token.int32 at 0"),
        (3, "clear.token.int32 at 0, clear.token.int32 at 1, clear.token.int32 at 2"),
        (47, "clear.token.int32 at 0, clear.token.int32 at 1, clear.token.int32 at 2 and 44 more"),
    ],
)
def test_what_an_incomplete_profile_lacks_is_named_in_a_few_words(
    count: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = raced(race("clear", 8), missing=tuple(f"clear.token.int32 at {i}" for i in range(count)))
    lines = told(profile, capsys)
    assert the_line(lines, "measured").endswith("incomplete")
    assert the_line(lines, "missing") == f"missing   {words}; the next calibration goes on from there"
    # Where it lies nowhere nobody goes on from it, and where it is reused as much time again would add nothing.
    assert the_line(told(profile, capsys, path=None, unsaved="full"), "missing") == f"missing   {words}"
    reused = the_line(told(profile, capsys, reused=True), "missing")
    assert reused == f"missing   {words}; more calibration.budget_s goes on from there"


def test_a_complete_profile_lacks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any(line.startswith("missing") for line in told(make_profile(), capsys))


# Profiles with less in them


def test_what_was_decided_is_told_where_the_evidence_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(make_profile(decisions=decide_everything("scatter"), evidence=Evidence()), capsys)
    assert "evidence  is not kept, there are the decisions alone" in lines
    assert [line for line in lines if line in DEFAULTS] == list(DEFAULTS)
    assert "token int32, any number: scatter" in table("clear", lines)
    assert not any(line.startswith(("cold", "raced", "not", "the workload's")) for line in lines)


def test_a_pinned_profile_says_so_and_claims_no_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    provenance = make_provenance(method="pinned", measuring_s=0.0, rounds=0)
    lines = told(make_profile(decisions=(decide("scatter"),), evidence=Evidence(), provenance=provenance), capsys)
    assert lines[2:] == [
        "pinned    by hand, nothing was measured",
        "",
        "clear",
        "token int64, any number: scatter",
        "",
        f"saved     {SAVED}",
    ]


def test_a_profile_without_decisions_says_that_the_defaults_serve(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(make_profile(decisions=(), evidence=Evidence(), missing=("clear.token.int32 at 8",)), capsys)
    assert "decided   nothing: the defaults serve" in lines
    assert not any(line.startswith(("clear", "evidence")) for line in lines)


# Where it is


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({}, "saved     /store/p.json"),
        ({"replaced": "measured on 2026-01-01"}, "saved     /store/p.json, in place of one measured on 2026-01-01"),
        ({"reused": True}, "reused    /store/p.json (nothing measured; profile.reuse=never measures again)"),
        (
            {"path": None, "unsaved": "folder /store is full"},
            "not saved folder /store is full (kept in the run folder)",
        ),
    ],
)
def test_the_last_line_says_where_the_profile_is(
    changes: dict[str, Any], last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(make_profile(), capsys, **changes)[-1] == last


def test_the_file_holds_what_is_printed_even_a_path_that_is_no_utf_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = make_profile().under("serving")
    write_report(Outcome(profile, SAVED, reused=False), tmp_path / "report.txt")
    assert (tmp_path / "report.txt").read_text(encoding="utf-8").splitlines() == told(profile, capsys)
    write_report(Outcome(profile, Path("/store/\udcff.json"), reused=False), tmp_path / "report.txt")
    assert "saved     /store/\\udcff.json" in (tmp_path / "report.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [SAVED, None])
def test_json_has_profile_and_evidence_as_their_files_have_them(
    path: Path | None, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = make_profile()
    print_report(Outcome(profile, path, reused=False, unsaved=None if path else "full"), Format.json)
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "path": str(path) if path else None,
        "reused": False,
        "profile": json.loads(json.dumps(profile.document())),
        "evidence": json.loads(json.dumps(make_evidence().document())),
    }
