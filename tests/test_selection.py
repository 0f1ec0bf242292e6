"""Selection: which layer decides, that each beats the one below it, and that every trouble ends with the default."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import (
    CPU,
    PAGE_SIZE,
    SIZE,
    decide,
    decide_all,
    decide_everything,
    elsewhere,
    here,
    make_document,
    make_profile,
    make_provenance,
    next_patch,
    one_line,
    save_in,
    write_json,
)

from swa_alloc import StrategyProfile, SWATokenToKVPoolAllocator
from swa_alloc.errors import CalibrationError, ProfileError, StrategyError, SWAAllocError
from swa_alloc.profile import IN_VAIN
from swa_alloc.selection import Overrides, Selection, select
from swa_alloc.stores import stores
from swa_alloc.trace import TraceRecorder


def allocate(**keywords: Any) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(SIZE, SIZE, PAGE_SIZE, torch.bfloat16, "cpu", None, **keywords)


def choose(**keywords: Any) -> Selection:
    return select(CPU, SIZE, PAGE_SIZE, Overrides(**keywords))


# Of a calibration that used up its budget, and of one that something ended early.
IN_VAIN_TWICE = make_provenance(effort={"budget_s": 5.0, IN_VAIN: 5.0})
UNFINISHED = make_provenance(effort={"budget_s": 5.0})

# Pins whatever can be called.
EVERYTHING = "index_put,subscript,read_then_clear"


def strategies_of(selection: Selection, target: str) -> set[str]:
    """Those that clear a target."""
    choice = {key[1]: choice for key, choice in selection.choices.items() if key[0] == "clear"}[target]
    # Both dtypes are served.
    assert {decision.kind.index_dtype for decision in choice.decisions} == {"int32", "int64"}
    return {decision.strategy for decision in choice.decisions}


def layers_of(selection: Selection) -> dict[str, str]:
    """Who decided how each target is cleared."""
    return {key[1]: choice.layer for key, choice in selection.choices.items() if key[0] == "clear"}


def assert_names_the_command(message: str) -> None:
    command = message.partition("`")[2].partition("`")[0].split()
    assert command[:4] == ["python", "-m", "autotune", "device=cpu"]
    assert {f"workload.size={SIZE}", f"workload.page_size={PAGE_SIZE}"} <= set(command)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(len(warning.splitlines()) == 1 for warning in warnings)
    return warnings


# --- precedence: one layer after the other, each with a strategy of its own


class Layers:
    """Sets up one layer at a time; each returns the keywords that the allocator then gets, and says how it is named."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, user: Path, tmp_path: Path) -> None:
        self._patch, self._user, self._folder = monkeypatch, user, tmp_path

    def argument_pin(self) -> dict[str, Any]:
        return {"strategy": "subscript_assign"}

    def variable_pin(self) -> dict[str, Any]:
        self._patch.setenv("SWA_ALLOC_STRATEGY", "index_put")
        return {}

    def argument_profile(self) -> dict[str, Any]:
        return {"profile": make_profile("index_copy")}

    def variable_profile(self) -> dict[str, Any]:
        self._patch.setenv("SWA_ALLOC_PROFILE", str(make_profile("scatter").save(self._folder / "named.json")))
        return {}

    def user_store(self) -> dict[str, Any]:
        save_in(self._user, make_profile("masked_fill"))
        return {}

    def system_store(self) -> dict[str, Any]:
        save_in(stores()[1].directory, make_profile("masked_scatter"))
        return {}

    def calibration(self) -> dict[str, Any]:
        measured = make_profile(decisions=decide_all("index_copy", {"source": "slice"}))
        self._patch.setattr("swa_alloc.startup.calibrate_at_startup", lambda *_: (measured, Path("measured.json")))
        return {"on_missing": "calibrate"}

    def default(self) -> dict[str, Any]:
        return {}


# Highest first: how to set it up, what explain calls it, and what it decides.
ORDER: list[tuple[Callable[[Layers], dict[str, Any]], str, str]] = [
    (Layers.argument_pin, "strategy= argument", "subscript_assign"),
    (Layers.variable_pin, "SWA_ALLOC_STRATEGY", "index_put"),
    (Layers.argument_profile, "profile= argument", "index_copy"),
    (Layers.variable_profile, "SWA_ALLOC_PROFILE", "scatter"),
    (Layers.user_store, "user store", "masked_fill"),
    (Layers.system_store, "system store", "masked_scatter"),
    (Layers.calibration, "calibration at start-up", "index_copy(source=slice)"),
    (Layers.default, "default", "index_fill"),
]


@pytest.mark.parametrize("position", range(len(ORDER)), ids=[name for _, name, _ in ORDER])
def test_each_layer_beats_all_below_it_and_explain_names_it(
    position: int, monkeypatch: pytest.MonkeyPatch, isolated: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layers = Layers(monkeypatch, isolated, tmp_path)
    keywords: dict[str, Any] = {}
    for set_up, _, _ in ORDER[position:]:
        keywords |= set_up(layers)
    allocator = allocate(**keywords)
    _, layer, label = ORDER[position]
    words = allocator.explain()
    for target in ("token", "page"):
        assert f"clear.{target}: decided by {layer} (" in words
    clears, _, _ = words.partition("set.")
    assert clears.count(f": {label}") == 4  # two targets, two dtypes
    assert warnings_of(caplog) == []


def test_explain_names_the_file_or_the_value_that_decided(isolated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_in(isolated, make_profile())
    assert f"decided by user store ({path})" in allocate().explain()
    monkeypatch.setenv("SWA_ALLOC_STRATEGY", "clear.token=index_put,clear.page=scatter")
    assert "decided by SWA_ALLOC_STRATEGY (clear.token=index_put,clear.page=scatter)" in allocate().explain()


def test_explain_gives_the_ranges_and_the_evidence(isolated: Path) -> None:
    decisions = (
        decide("index_put", max_indices=1),
        decide("scatter", max_indices=48),
        decide("index_put", ties=("index_fill",)),
        decide("index_fill", index_dtype="int32", max_indices=16),
        decide("index_put", index_dtype="int32"),
        *decide_all("index_fill")[2:],
    )
    save_in(isolated, make_profile(decisions=decisions))
    words = allocate().explain()
    assert "int64 1: index_put, not measured" in words
    assert "int64 2 to 48: scatter, not measured" in words
    assert "int64 49 and more: index_put (of the default's time: 0.75 at 64; ties with index_fill)" in words
    assert "int32 up to 16: index_fill" in words
    assert "int32 17 and more: index_put" in words


# --- pins


def test_a_pin_of_one_target_leaves_the_other_to_the_layers_below(isolated: Path) -> None:
    save_in(isolated, make_profile("scatter"))
    selection = choose(strategy="clear.page=index_put")
    assert layers_of(selection) == {"token": "user store", "page": "strategy= argument"}
    assert strategies_of(selection, "token") == {"scatter"}
    assert strategies_of(selection, "page") == {"index_put"}


def test_two_layers_may_pin_one_target_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWA_ALLOC_STRATEGY", "clear.token=index_put,clear.page=index_put")
    selection = choose(strategy="clear.page=scatter")
    assert layers_of(selection) == {"token": "SWA_ALLOC_STRATEGY", "page": "strategy= argument"}
    assert strategies_of(selection, "token") == {"index_put"}
    assert strategies_of(selection, "page") == {"scatter"}


def test_a_pin_of_everything_and_one_of_a_target_combine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWA_ALLOC_STRATEGY", " index_put , clear.page = scatter ,")
    selection = choose()
    assert strategies_of(selection, "token") == {"index_put"}
    assert strategies_of(selection, "page") == {"scatter"}


def test_pins_of_every_target_leave_the_stores_unread(isolated: Path) -> None:
    isolated.mkdir(parents=True)
    (isolated / "cpu-corrupt.profile-2.json").write_text("{", encoding="utf-8")
    assert choose(strategy=EVERYTHING).troubles == ()
    assert len(choose(strategy="index_put").troubles) == 1


def test_a_bare_name_pins_every_operation_that_has_such_a_strategy_and_no_other() -> None:
    choices = choose(strategy="index_put").choices
    pinned = {key for key, choice in choices.items() if choice.layer == "strategy= argument"}
    assert pinned == {("clear", "token"), ("clear", "page"), ("set", "token"), ("set", "page")}


def test_bare_names_of_different_operations_pin_one_each() -> None:
    choices = choose(strategy=EVERYTHING).choices
    assert {choice.layer for choice in choices.values()} == {"strategy= argument"}
    assert {key[0]: choice.decisions[0].strategy for key, choice in choices.items()} == {
        "clear": "index_put",
        "set": "index_put",
        "translate": "subscript",
        "take": "read_then_clear",
    }


def test_a_pin_may_give_parameters_and_means_the_operations_that_take_them() -> None:
    def pinned_to(pin: str) -> dict[str, set[str]]:
        choices = choose(strategy=pin).choices.values()
        return {
            f"{choice.operation}.{choice.target}": {decision.label for decision in choice.decisions}
            for choice in choices
            if choice.layer == "strategy= argument"
        }

    take = "read_then_clear(clear=index_copy(source=slice), read=rows)"
    assert pinned_to(take) == {"take.page": {take}}
    # Sets have an index_copy as well, but no source.
    copy = "index_copy(source=slice)"
    assert pinned_to(copy) == {"clear.token": {copy}, "clear.page": {copy}}
    several = f"clear.token = {copy} , take.page={take}, tensor_take"
    assert pinned_to(several) == {"clear.token": {copy}, "take.page": {take}, "translate.token": {"tensor_take"}}


def test_an_allocator_takes_a_pin_with_parameters() -> None:
    take = "read_then_clear(clear=index_put, read=rows)"
    allocator = allocate(strategy=take, strict_profile=True)
    assert take in allocator.explain()
    slots = allocator.alloc(PAGE_SIZE)
    allocator.free_swa(slots)
    assert allocator.full_to_swa_index_mapping[slots].tolist() == [0] * PAGE_SIZE


def test_several_instances_pin_an_operation_each() -> None:
    recorders = TraceRecorder().strategies
    choices = choose(strategy=recorders).choices
    assert {choice.layer for choice in choices.values()} == {"strategy= argument"}
    assert {choice.operation: choice.instance for choice in choices.values()} == {
        recorder.operation: recorder for recorder in recorders
    }


@pytest.mark.parametrize("pin", [7, ["index_put"], TraceRecorder()])
def test_what_is_no_strategy_is_a_wrong_pin(pin: Any) -> None:
    with pytest.raises(StrategyError, match="the name of a strategy, a Strategy instance or several of them, not"):
        choose(strategy=pin, strict_profile=True)


def test_an_empty_pin_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWA_ALLOC_STRATEGY", "")
    assert set(layers_of(choose()).values()) == {"default"}


@pytest.mark.parametrize(
    ("pin", "reason"),
    [
        ("index_fil", "unknown strategy 'index_fil'; known: for clear index_fill, .*; for set subscript_assign"),
        ("index_fill,index_put", "says twice what serves clear.token"),
        ("clear.token=index_fill,clear.token=index_put", "says twice what serves clear.token"),
        ("translate.page=subscript", "names no known target"),
        ("clear.token=index_fil", "unknown clear strategy 'index_fil'"),
        ("clear.row=index_fill", "'clear.row=index_fill' names no known target"),
        ("set.token=index_fill", "unknown set strategy 'index_fill'"),
        ("=index_fill", "names no known target"),
        ("clear.token=", "unknown clear strategy ''"),
        ("clear.page=index_put,clear.token=index_fil", "unknown clear strategy 'index_fil'"),
        ("index_copy(source=thin)", "'index_copy' does not take the parameters {'source': 'thin'}: source must be one"),
        ("set.token=index_copy(source=slice)", r"set strategy 'index_copy' does not take .* \(it has none\)"),
        ("index_fill(block=3),set.token=scatter", "clear strategy 'index_fill' does not take the parameters"),
        ("read_then_clear(clear=index_fil)", "unknown clear strategy 'index_fil'; known"),
        ("read_then_clear(clear=index_put", r"cannot be read: a parenthesis .*; write NAME or NAME\(PARAMETER=VALUE"),
        ("index_copy(source=slice),clear.token=index_put,clear.token=scatter", "says twice what serves clear.token"),
    ],
)
@pytest.mark.parametrize("layer", ["argument", "variable"])
def test_a_pin_that_is_wrong_is_one_warning_and_the_default_clears(
    pin: str, reason: str, layer: str, monkeypatch: pytest.MonkeyPatch, isolated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_in(isolated, make_profile("scatter"))
    keywords = {"strategy": pin}
    if layer == "variable":
        monkeypatch.setenv("SWA_ALLOC_STRATEGY", pin)
        keywords = {}
    allocator = allocate(**keywords)
    (warning,) = warnings_of(caplog)
    assert re.search(reason, warning)
    # As with a named profile: going on with the stores would hide the mistake.
    assert "clear.token: decided by default" in allocator.explain()
    with pytest.raises(StrategyError, match=reason) as error:
        allocate(**keywords, strict_profile=True)
    one_line(error.value)


def test_the_warning_about_a_wrong_pin_says_where_it_was_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A variable may have been set far away from the code that runs.
    monkeypatch.setenv("SWA_ALLOC_STRATEGY", "index_fil")
    allocate()
    monkeypatch.delenv("SWA_ALLOC_STRATEGY")
    allocate(strategy="index_fil")
    in_variable, in_argument = warnings_of(caplog)
    assert "SWA_ALLOC_STRATEGY" in in_variable
    assert "strategy= argument" in in_argument


# --- compatible, foreign and broken profiles


def test_a_compatible_profile_is_used_and_said_so(isolated: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save_in(isolated, make_profile("scatter", machine=here()._replace(torch=next_patch(here().torch))))
    with caplog.at_level(logging.INFO, "swa_alloc"):
        allocator = allocate(strict_profile=True)
    assert f"decided by user store ({path})" in allocator.explain()
    assert f"note: {path} is compatible, not exact: torch is " in allocator.explain()
    assert [record.getMessage() for record in caplog.records if "compatible" in record.getMessage()]
    assert warnings_of(caplog) == []


def test_profiles_that_do_not_fit_are_one_warning_once_with_all_differences_and_the_way_out(
    isolated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Somebody shipped them, and nobody would know that they are not used.
    path = save_in(isolated, make_profile("scatter", machine=here()._replace(python="3.1"), size=4096))
    for number in range(40):
        save_in(isolated, make_profile(machine=elsewhere()._replace(python="3.1", threads=2), workload=f"w{number}"))
    allocator = allocate(strict_profile=True)
    assert "clear.token: decided by default" in allocator.explain()
    (warning,) = warnings_of(caplog)
    python = f"python is {here().python!r} here and '3.1' in the profile"
    assert (
        f"no profile for this cpu with {SIZE} slots in pages of {PAGE_SIZE}, the defaults serve; the nearest of 41, "
        f"{path}, differs: size is {SIZE} here and 4096 in the profile; {python} "
        "(a profile serves pools of 1/2 to 2 times its own size); make one with `python -m autotune "
    ) in warning
    assert_names_the_command(warning)
    # A server constructs several mappings, and whoever asks is told again.
    assert f"note: {warning}" in allocate().explain()
    assert len(warnings_of(caplog)) == 1


def test_profiles_that_do_not_fit_are_not_worth_a_line_where_one_does(
    isolated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_in(isolated, make_profile("scatter"))
    save_in(isolated, make_profile("scatter", machine=elsewhere()))
    with caplog.at_level(logging.INFO, "swa_alloc"):
        assert elsewhere().device_name not in allocate().explain()
    assert caplog.records == []


# --- incomplete profiles


def test_an_incomplete_profile_serves_with_one_line_that_says_so(
    isolated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = tuple(f"set.token.int32 at {size}" for size in (1, 8, 64, 512))
    path = save_in(isolated, make_profile("scatter", missing=missing, provenance=IN_VAIN_TWICE))
    with caplog.at_level(logging.INFO, "swa_alloc"):
        allocator = allocate(strict_profile=True, on_missing="calibrate")
    line = (
        f"{path} is incomplete: 4 missing (set.token.int32 at 1, set.token.int32 at 8, set.token.int32 at 64, ...); "
        "calibrating again completes it"
    )
    assert [record.getMessage() for record in caplog.records] == [line]
    assert f"note: {line}" in allocator.explain()
    assert f"clear.token: decided by user store ({path})" in allocator.explain()


def test_that_nothing_could_be_measured_is_no_trouble_and_is_not_tried_again(
    isolated: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("swa_alloc.startup.calibrate_at_startup", pytest.fail)
    save_in(isolated, make_profile(decisions=(), missing=("everything",), provenance=IN_VAIN_TWICE._replace(rounds=0)))
    selection = choose(strict_profile=True, on_missing="calibrate")
    assert set(layers_of(selection).values()) == {"default"}
    assert (selection.troubles, selection.miss) == ((), "")
    assert "is incomplete: 1 missing (everything)" in selection.remarks[0]
    assert warnings_of(caplog) == []


def test_what_is_unfinished_is_taken_up_by_the_next_start_that_may_measure(
    isolated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_in(isolated, make_profile("scatter", missing=("set.token.int32 at 1",), provenance=UNFINISHED))
    completed = make_profile("index_put")
    monkeypatch.setattr("swa_alloc.startup.calibrate_at_startup", lambda *_: (completed, path))
    assert strategies_of(choose(on_missing="calibrate"), "token") == {"index_put"}
    for on_missing in ("default", "error"):
        assert strategies_of(choose(on_missing=on_missing), "token") == {"scatter"}


def test_what_is_unfinished_serves_where_it_cannot_be_taken_up(isolated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any) -> None:
        raise CalibrationError("the device is busy")

    save_in(isolated, make_profile("scatter", missing=("set.token.int32 at 1",), provenance=UNFINISHED))
    monkeypatch.setattr("swa_alloc.startup.calibrate_at_startup", fail)
    selection = choose(on_missing="calibrate", strict_profile=True)
    assert strategies_of(selection, "token") == {"scatter"}
    assert selection.troubles == ()
    assert selection.remarks[0] == "not calibrated: the device is busy"


def test_what_was_measured_and_cannot_be_saved_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swa_alloc.startup.calibrate_at_startup", lambda *_: (make_profile("scatter"), None))
    words = allocate(on_missing="calibrate").explain()
    assert "clear.token: decided by calibration at start-up (not saved)" in words


def test_a_calibration_that_fails_names_the_nearest_profile_in_the_same_warning(
    isolated: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "autotune.startup", None)
    path = save_in(isolated, make_profile(machine=elsewhere()))
    allocate(on_missing="calibrate")
    (warning,) = warnings_of(caplog)
    assert f"the nearest of 1, {path}, differs: device_name is " in warning


def test_a_corrupt_file_in_a_store_is_one_warning_and_the_default_clears(
    isolated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    isolated.mkdir(parents=True)
    path = isolated / "cpu-corrupt.profile-2.json"
    path.write_text("{", encoding="utf-8")
    allocator = allocate()
    (warning,) = warnings_of(caplog)
    assert str(path) in warning
    assert "going on with the defaults" in warning
    assert "trouble: profile" in allocator.explain()
    slots = allocator.alloc(PAGE_SIZE)
    assert slots is not None
    allocator.free(slots)
    with pytest.raises(ProfileError, match="it is not JSON"):
        allocate(strict_profile=True)


def test_a_corrupt_file_beside_a_good_one_is_one_warning_and_the_good_one_is_used(
    isolated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_in(isolated, make_profile(decisions=decide_everything("scatter")))
    (isolated / "cpu-corrupt.profile-2.json").write_text("{", encoding="utf-8")
    allocator = allocate()
    (warning,) = warnings_of(caplog)
    assert "default" not in warning
    assert "clear.token: decided by user store" in allocator.explain()


def _missing(folder: Path) -> Path:
    return folder / "missing.json"


def _corrupt(folder: Path) -> Path:
    path = folder / "corrupt.json"
    path.write_text("{", encoding="utf-8")
    return path


def _foreign(folder: Path) -> Path:
    return make_profile("scatter", machine=elsewhere()).save(folder / "foreign.json")


def _other_mapping(folder: Path) -> Path:
    return make_profile("scatter", page_size=64, size=256).save(folder / "other.json")


def _overflowing(folder: Path) -> Path:
    document = make_document()
    document["workload"]["backlog_us"] = 10**400
    return write_json(folder / "overflowing.json", document)


NAMED_WRONGLY = {
    "missing": (_missing, "No such file"),
    "corrupt": (_corrupt, "it is not JSON"),
    "foreign": (_foreign, "another machine or mapping: device_name is "),
    "for another page size": (_other_mapping, "page_size is 4 here and 64 in the profile"),
    "a directory": (lambda folder: folder, "directory"),
    "holding a number beyond any float": (_overflowing, "backlog_us"),
}


@pytest.mark.parametrize("layer", ["argument", "variable"])
@pytest.mark.parametrize(("make", "reason"), NAMED_WRONGLY.values(), ids=NAMED_WRONGLY)
def test_a_named_profile_that_cannot_be_used_is_one_warning_and_the_default_clears(
    make: Callable[[Path], Path],
    reason: str,
    layer: str,
    monkeypatch: pytest.MonkeyPatch,
    isolated: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Looking elsewhere would hide the mistake.
    save_in(isolated, make_profile("index_put"))
    path = make(tmp_path)
    keywords = {"profile": path}
    if layer == "variable":
        monkeypatch.setenv("SWA_ALLOC_PROFILE", str(path))
        keywords = {}
    allocator = allocate(**keywords, on_missing="calibrate")
    (warning,) = warnings_of(caplog)
    assert str(path) in warning
    assert reason in warning
    assert "going on with the defaults" in warning
    assert "clear.token: decided by default" in allocator.explain()
    with pytest.raises(ProfileError, match="profile") as error:
        allocate(**keywords, strict_profile=True)
    assert reason in one_line(error.value)


def test_a_foreign_profile_object_is_refused_like_a_file(caplog: pytest.LogCaptureFixture) -> None:
    foreign = make_profile("scatter", machine=elsewhere())
    assert "decided by default" in allocate(profile=foreign).explain()
    (warning,) = warnings_of(caplog)
    assert "device_name" in warning


def test_a_named_profile_may_be_given_as_text_or_path(tmp_path: Path) -> None:
    path = make_profile("scatter").save(tmp_path / "named.json")
    for named in (path, str(path), StrategyProfile.load(path)):
        assert strategies_of(choose(profile=named), "token") == {"scatter"}


def test_a_kind_of_index_that_a_profile_says_nothing_about_gets_the_default() -> None:
    partial = make_profile(decisions=(decide("scatter", index_dtype="int64"),))
    selection = choose(profile=partial)
    assert layers_of(selection) == {"token": "profile= argument", "page": "default"}
    by_dtype = {
        decision.kind.index_dtype: decision.strategy for decision in selection.choices["clear", "token"].decisions
    }
    assert by_dtype == {"int32": "index_fill", "int64": "scatter"}


# --- nothing found


def test_on_missing_default_clears_with_the_default_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    assert "decided by default" in allocate(on_missing="default").explain()
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("layer", ["argument", "variable"])
def test_on_missing_error_says_where_was_looked_and_what_to_run(
    layer: str,
    strict: bool,  # noqa: FBT001 - a case
    isolated: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keywords = {"on_missing": "error"} if layer == "argument" else {}
    if layer == "variable":
        monkeypatch.setenv("SWA_ALLOC_ON_MISSING", "error")
    with pytest.raises(ProfileError) as error:
        allocate(**keywords, strict_profile=strict)
    message = one_line(error.value)
    assert_names_the_command(message)
    for place in (str(isolated), os.environ["SWA_ALLOC_SYSTEM_PROFILE_DIR"]):
        assert place in message


def test_on_missing_error_names_the_field_that_kept_a_profile_from_fitting(isolated: Path) -> None:
    # cases.md 11: a profile under a label that the machine never reports is silently never found.
    save_in(isolated, make_profile(machine=elsewhere()))
    with pytest.raises(ProfileError, match="device_name"):
        allocate(on_missing="error")


def test_on_missing_error_is_content_with_a_profile_or_a_pin(isolated: Path) -> None:
    assert "decided by strategy= argument" in allocate(on_missing="error", strategy=EVERYTHING).explain()
    save_in(isolated, make_profile())
    assert "decided by user store" in allocate(on_missing="error").explain()


def test_the_argument_on_missing_beats_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWA_ALLOC_ON_MISSING", "error")
    assert "decided by default" in allocate(on_missing="default").explain()


@pytest.mark.parametrize("layer", ["argument", "variable"])
def test_garbage_in_on_missing_is_one_warning_and_the_default_clears(
    layer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keywords = {"on_missing": "measure"} if layer == "argument" else {}
    if layer == "variable":
        monkeypatch.setenv("SWA_ALLOC_ON_MISSING", "measure")
    assert "decided by default" in allocate(**keywords).explain()
    (warning,) = warnings_of(caplog)
    assert "on_missing is 'measure'; expected one of calibrate, default, error" in warning
    with pytest.raises(ProfileError, match="on_missing is 'measure'"):
        allocate(**keywords, strict_profile=True)


def test_calibration_is_what_happens_when_nobody_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWA_ALLOC_ON_MISSING")
    asked: list[tuple[Any, ...]] = []

    def calibrate(*arguments: Any) -> tuple[StrategyProfile, Path]:
        asked.append(arguments)
        return make_profile("scatter"), Path("/store/measured.json")

    monkeypatch.setattr("swa_alloc.startup.calibrate_at_startup", calibrate)
    assert "decided by calibration at start-up (/store/measured.json)" in allocate().explain()
    assert asked == [(CPU, SIZE, PAGE_SIZE)]


@pytest.mark.parametrize("kind", [CalibrationError, ProfileError])
def test_a_calibration_that_fails_is_one_warning_with_the_command_and_the_default_clears(
    kind: type[SWAAllocError], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: Any) -> None:
        raise kind("the device is busy")

    monkeypatch.setattr("swa_alloc.startup.calibrate_at_startup", fail)
    assert "decided by default" in allocate(on_missing="calibrate").explain()
    (warning,) = warnings_of(caplog)
    assert "the device is busy" in warning
    assert_names_the_command(warning)
    with pytest.raises(CalibrationError, match="the device is busy"):
        allocate(on_missing="calibrate", strict_profile=True)


def test_without_the_autotune_extra_the_one_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "autotune", None)
    monkeypatch.setitem(sys.modules, "autotune.startup", None)
    assert "decided by default" in allocate(on_missing="calibrate").explain()
    (warning,) = warnings_of(caplog)
    assert "pip install 'swa-alloc[autotune]'" in warning
    assert "going on with the defaults" in warning
