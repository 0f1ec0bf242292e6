"""StrategyProfile: what is written is what is read, nothing wrong is read, and no file is ever torn or lost."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders import (
    PROPERTY,
    decide,
    elsewhere,
    here,
    make_candidate,
    make_document,
    make_evidence,
    make_evidence_document,
    make_measurement,
    make_profile,
    make_provenance,
    next_patch,
    one_line,
    write_json,
)
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import swa_alloc
from swa_alloc import StrategyProfile
from swa_alloc._json import encode
from swa_alloc._schema import profile_schema
from swa_alloc.errors import ProfileError
from swa_alloc.evidence import Evidence, Figures, cost_us
from swa_alloc.operations import CallKind
from swa_alloc.profile import IN_VAIN, Decision, evidence_path

if TYPE_CHECKING:
    from conftest import Run

Keys = tuple[str | int, ...]


def replaced(**changes: Any) -> StrategyProfile:
    """The default profile with other arguments."""
    profile = make_profile()
    arguments: dict[str, Any] = {
        "fingerprint": profile.fingerprint,
        "workload": profile.workload,
        "objective": profile.objective,
        "answers": profile.answers,
        "provenance": profile.provenance,
        "evidence": profile.evidence,
    }
    return StrategyProfile(**{**arguments, **changes})


# --- what is written is what is read


def test_a_profile_survives_the_file(tmp_path: Path) -> None:
    saved = make_profile()
    loaded = StrategyProfile.load(saved.save(tmp_path / "profile.json"))
    for field in ("fingerprint", "workload", "objective", "answers", "missing", "provenance", "evidence", "file_name"):
        assert getattr(loaded, field) == getattr(saved, field), field
    assert loaded.document() == saved.document()


finite = st.floats(0, allow_nan=False, allow_infinity=False)
text = st.text(max_size=20)


@PROPERTY
@given(
    bounds=st.lists(st.integers(1, 10**9), unique=True, max_size=5).map(sorted),
    strategy=text,
    params=st.dictionaries(text, st.integers() | text | st.booleans() | st.none(), max_size=3),
    number=finite,
    words=st.lists(text, max_size=3),
    ratio=st.none() | finite,
)
def test_any_profile_survives_the_file_bit_for_bit(
    tmp_path: Path,
    bounds: list[int],
    strategy: str,
    params: dict[str, Any],
    number: float,
    words: list[str],
    ratio: float | None,
) -> None:
    decisions = tuple(
        Decision(CallKind("clear", "token", "int32"), bound, strategy, params, number, tuple(words))
        for bound in (*bounds, None)
    )
    race = make_measurement(make_candidate(strategy, ratio), weight=number)
    saved = make_profile(
        decisions=decisions,
        provenance=make_provenance(overrides=tuple(words), measuring_s=number, config=params),
        evidence=Evidence((race,), ()),
    )
    loaded = StrategyProfile.load(saved.save(tmp_path / "profile.json"))
    assert loaded.decisions == decisions
    assert loaded.provenance == saved.provenance
    assert loaded.evidence == saved.evidence


def test_keys_are_sorted_and_equal_contents_are_equal_bytes(tmp_path: Path) -> None:
    provenance = make_provenance(config={"b": 1, "a": {"d": 1, "c": 2}}, environment={"Z": "1", "A": "2"})
    shuffled = make_provenance(config={"a": {"c": 2, "d": 1}, "b": 1}, environment={"A": "2", "Z": "1"})
    first = make_profile(provenance=provenance).save(tmp_path / "first.json").read_bytes()
    second = make_profile(provenance=shuffled).save(tmp_path / "second.json").read_bytes()
    assert first == second
    again = StrategyProfile.load(tmp_path / "first.json").save(tmp_path / "third.json").read_bytes()
    assert again == first

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert keys == sorted(keys)
        return dict(pairs)

    json.loads(first, object_pairs_hook=check)


def test_a_whole_number_is_read_where_a_float_is_meant(tmp_path: Path) -> None:
    # What other programs write: 250, not 250.0.
    document = make_document()
    document["workload"]["backlog_us"] = 250
    loaded = StrategyProfile.load(write_json(tmp_path / "profile.json", document))
    assert loaded.workload.backlog_us == 250.0
    assert type(loaded.workload.backlog_us) is float


def test_the_file_name_tells_people_the_device_and_machines_the_rest() -> None:
    name = make_profile().file_name
    assert re.fullmatch(r"cpu-tests-[0-9a-f]{12}\.profile-2\.json", name)
    # What was decided does not change where it is kept; for what and on what does.
    assert make_profile("scatter").file_name == name
    others = (make_profile(size=512), make_profile(page_size=8), make_profile(machine=elsewhere()))
    assert len({name, *(other.file_name for other in others)}) == 4


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("cpu-tests-0123.profile-2.json", "cpu-tests-0123.evidence-2.json"),
        ("profile.json", "profile.evidence-2.json"),
        ("mine", "mine.evidence-2.json"),
    ],
)
def test_the_evidence_lies_beside_the_profile_whatever_that_is_called(name: str, beside: str, tmp_path: Path) -> None:
    path = make_profile().save(tmp_path / name)
    assert evidence_path(path) == tmp_path / beside
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([name, beside])
    assert StrategyProfile.load(path).evidence == make_evidence()


def test_a_profile_without_its_evidence_works_and_a_copy_of_it_does(tmp_path: Path) -> None:
    path = make_profile().save(tmp_path / "profile.json")
    evidence_path(path).unlink()
    loaded = StrategyProfile.load(path)
    assert loaded.decisions == make_profile().decisions
    assert loaded.evidence == Evidence()
    assert StrategyProfile.load(loaded.save(tmp_path / "copy.json")).document() == loaded.document()


def test_a_profile_that_is_replaced_takes_its_evidence_with_it(tmp_path: Path) -> None:
    path = make_profile().save(tmp_path / "profile.json")
    make_profile(evidence=Evidence()).save(path)
    assert StrategyProfile.load(path).evidence == Evidence()


@pytest.mark.parametrize(
    ("objective", "figures", "expected"),
    [
        ("serving", Figures(cold_us=30.0, host_us=4.0, device_us=8.0, wall_us=12.0), 35.0),
        ("serving", Figures(cold_us=3.0, host_us=4.0, device_us=8.0, wall_us=12.0), 13.0),
        ("latency", Figures(cold_us=30.0, host_us=4.0, device_us=8.0, wall_us=12.0), 12.0),
    ],
)
def test_serving_pays_the_cold_call_or_the_device_and_the_stall_and_latency_the_hot_loop(
    objective: Any, figures: Figures, expected: float
) -> None:
    assert cost_us(objective, figures, stall_us=5.0) == expected


# --- one answer an objective


def test_another_objective_is_answered_from_the_same_file(tmp_path: Path) -> None:
    answers: Any = {"serving": (decide("scatter"),), "latency": (decide("index_put"),)}
    profile = replaced(answers=answers)
    loaded = StrategyProfile.load(profile.save(tmp_path / "profile.json"))
    assert loaded.decisions == answers["latency"]
    relabelled = loaded.under("serving")
    assert (relabelled.objective, relabelled.decisions) == ("serving", answers["serving"])
    assert relabelled.evidence == loaded.evidence
    assert relabelled.under("latency").document() == loaded.document()


def test_an_objective_that_was_not_decided_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="decides nothing for objective serving"):
        replaced(answers={"latency": (decide("index_put"),)}).under("serving")
    with pytest.raises(ValueError, match="answers must hold one for latency"):
        replaced(answers={"serving": (decide("index_put"),)})
    document = make_document()
    del document["answers"]["latency"]
    with pytest.raises(ProfileError, match="answers must hold one for latency"):
        StrategyProfile.load(write_json(tmp_path / "profile.json", document))


# --- complete and incomplete


def test_a_profile_is_complete_when_nothing_is_missing(tmp_path: Path) -> None:
    partial = make_profile(missing=("clear.token.int32 at 384",))
    assert make_profile().complete
    assert not partial.complete
    loaded = StrategyProfile.load(partial.save(tmp_path / "profile.json"))
    assert (loaded.complete, loaded.missing) == (False, ("clear.token.int32 at 384",))
    assert not loaded.under("serving").complete


def test_only_a_profile_that_misses_something_may_hold_no_decision(tmp_path: Path) -> None:
    nothing = make_profile(decisions=(), missing=("everything",))
    assert StrategyProfile.load(nothing.save(tmp_path / "nothing.json")).decisions == ()
    with pytest.raises(ValueError, match="at least one decision each where nothing is missing"):
        make_profile(decisions=())


@pytest.mark.parametrize(
    ("missing", "in_vain_s", "unfinished"), [((), 0.0, False), (("x",), 0.0, True), (("x",), 5.0, False)]
)
def test_a_profile_is_unfinished_if_it_lacks_something_that_as_much_time_again_may_add(
    missing: tuple[str, ...],
    in_vain_s: float,
    unfinished: bool,  # noqa: FBT001 - a case
) -> None:
    provenance = make_provenance(effort={"budget_s": 5.0, IN_VAIN: in_vain_s})
    assert make_profile(missing=missing, provenance=provenance).unfinished is unfinished


@pytest.mark.parametrize(
    "bounds",
    [(8,), (None, None), (8, 8, None), (16, 8, None), (None, 8), (8, None, 16), (8, 16)],
    ids=str,
)
def test_decisions_that_leave_a_number_of_indices_without_an_answer_or_with_two_are_refused(
    bounds: tuple[int | None, ...], tmp_path: Path
) -> None:
    decisions = tuple(decide("index_put", max_indices=bound) for bound in bounds)
    with pytest.raises(ValueError, match=r"clear\.token\.int64 must ascend in max_indices and end with null"):
        make_profile(decisions=decisions)
    document = make_document()
    first = document["answers"]["serving"][0]
    document["answers"]["serving"] = [{**first, "max_indices": bound} for bound in bounds]
    with pytest.raises(ProfileError, match=r"clear\.token\.int64 must ascend in max_indices") as error:
        StrategyProfile.load(write_json(tmp_path / "profile.json", document))
    one_line(error.value)


def test_each_kind_of_decision_ascends_by_itself() -> None:
    decisions = (decide("a", max_indices=64), decide("b", index_dtype="int32"), decide("c"))
    profile = make_profile(decisions=decisions)
    assert profile.decisions_for(CallKind("clear", "token", "int64")) == (decisions[0], decisions[2])
    assert profile.decisions_for(CallKind("clear", "token", "int32")) == (decisions[1],)
    assert profile.decisions_for(CallKind("clear", "page", "int32")) == ()


def test_the_evidence_is_read_when_it_is_asked_for_and_once() -> None:
    asked: list[int] = []

    def give() -> Evidence:
        asked.append(1)
        return make_evidence()

    lazy = replaced(evidence=give)
    assert asked == []
    assert lazy.evidence == lazy.evidence == make_evidence()
    assert asked == [1]


# --- nothing wrong is read: the reader, and the JSON Schema file beside it, agree

SCHEMA = json.loads(Path(swa_alloc.__file__).with_name("profile.schema.json").read_text(encoding="utf-8"))
DOCUMENTS = {"profile": make_document(), "evidence": make_evidence_document()}
VALIDATORS = {
    file: Draft202012Validator({**SCHEMA, "oneOf": [{"$ref": f"#/$defs/{record}"}]})
    for file, record in {"profile": "ProfileDocument", "evidence": "EvidenceDocument"}.items()
}

# Objects whose keys are free, and what lies in them: any JSON.
FREE = {"params", "config"}
# Objects with as many keys as one likes, and whose values are not free.
DICTIONARIES = {"settings", "environment", "effort", "answers", "standings", "verdicts"}


def nodes(value: Any, at: Keys = ()) -> Iterator[Keys]:
    """Where every value of the documents lies, free-form parts left out; the first key is the document's."""
    if at:
        yield at
    if at and at[-1] in FREE:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from nodes(item, (*at, key))


def spell(at: Keys) -> str:
    """A place as the reader names it."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at[1:]).lstrip(".")


def label(at: Keys) -> str:
    return f"{at[0]}-{spell(at)}"


def get(document: Any, at: Keys) -> Any:
    for key in at:
        document = document[key]
    return document


def with_value(at: Keys, value: Any) -> Any:
    """The document that ``at`` lies in, changed there."""
    documents = copy.deepcopy(DOCUMENTS)
    get(documents, at[:-1])[at[-1]] = value
    return documents[str(at[0])]


def without(at: Keys) -> Any:
    documents = copy.deepcopy(DOCUMENTS)
    del get(documents, at[:-1])[at[-1]]
    return documents[str(at[0])]


def shape(at: Keys) -> tuple[Keys, type]:
    """What a place has in common with its like: all decisions, say, and all answers."""
    above = (None, *at)
    general = tuple("*" if isinstance(key, int) or above[i] in DICTIONARIES else key for i, key in enumerate(at))
    return general, type(get(DOCUMENTS, at))


# One of each shape: there are hundreds of places.
NODES = list({shape(at): at for at in nodes(DOCUMENTS) if len(at) > 1}.values())
RECORDS = [
    at
    for at in (("profile",), ("evidence",), *NODES)
    if isinstance(get(DOCUMENTS, at), dict) and at[-1] not in FREE | DICTIONARIES
]
FIELDS = [at for at in NODES if at[:-1] in RECORDS]


def read_fault(folder: Path, file: str | int, document: object) -> str | None:
    """What the reader says where one of the documents is another one; None where it is content."""
    path = folder / "profile.json"
    paths = {"profile": path, "evidence": evidence_path(path)}
    evidence_path(path).unlink(missing_ok=True)
    write_json(path, DOCUMENTS["profile"])
    write_json(paths[str(file)], document)
    try:
        _ = StrategyProfile.load(path).evidence
    except ProfileError as error:
        message = one_line(error)
        assert str(paths[str(file)]) in message
        return message
    return None


# What the schema cannot express.
ONLY_THE_READER = ("must ascend in max_indices", "answers must hold")


def check_agreement(folder: Path, file: str | int, document: object) -> None:
    fault, validator = read_fault(folder, file, document), VALIDATORS[str(file)]
    valid = validator.is_valid(document)
    if fault is not None and valid:
        assert any(rule in fault for rule in ONLY_THE_READER), fault
    else:
        assert (fault is None) is valid, fault or list(validator.iter_errors(document))


def test_the_schema_file_is_that_of_the_records() -> None:
    # To be made again with: python -m swa_alloc._schema > swa_alloc/profile.schema.json
    assert profile_schema() == SCHEMA
    assert encode(SCHEMA) == Path(swa_alloc.__file__).with_name("profile.schema.json").read_text(encoding="utf-8")


def test_the_schema_is_a_schema_and_takes_what_the_writer_writes() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    for document in (*DOCUMENTS.values(), make_profile().document(), Evidence().document()):
        Draft202012Validator(SCHEMA).validate(document)
    for file, document in DOCUMENTS.items():
        assert [name for name, validator in VALIDATORS.items() if validator.is_valid(document)] == [file]


def test_every_field_is_described() -> None:
    records = SCHEMA["$defs"].values()
    assert all(field["description"] for record in records for field in record["properties"].values())


def test_the_documents_under_test_hold_every_kind_of_field() -> None:
    # Else the tests below would prove little.
    fields = {frozenset(get(DOCUMENTS, at)) for at in RECORDS}
    assert fields == {frozenset(record["properties"]) for record in SCHEMA["$defs"].values()}
    assert {bool(get(DOCUMENTS, at)) for at in NODES if isinstance(get(DOCUMENTS, at), list)} == {True, False}


@pytest.mark.parametrize("at", FIELDS, ids=label)
def test_a_field_that_is_missing_is_named(at: Keys, tmp_path: Path) -> None:
    fault = read_fault(tmp_path, at[0], without(at))
    assert fault is not None
    # A document without a schema is some other document, and is called that.
    assert ("its schema is None" if at[1:] == ("schema",) else f"{spell(at)} is missing") in fault
    assert not VALIDATORS[str(at[0])].is_valid(without(at))


@pytest.mark.parametrize("at", RECORDS, ids=label)
def test_a_field_that_is_unknown_is_named(at: Keys, tmp_path: Path) -> None:
    document = with_value((*at, "streams"), 4)
    fault = read_fault(tmp_path, at[0], document)
    assert fault is not None
    assert f"{spell((*at, 'streams'))} is not a known field" in fault
    assert not VALIDATORS[str(at[0])].is_valid(document)


def test_an_answer_to_an_objective_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    document = with_value(("profile", "answers", "thrift"), [])
    fault = read_fault(tmp_path, "profile", document)
    assert fault is not None
    assert "a name in answers must be one of serving, latency, not 'thrift'" in fault


@pytest.mark.parametrize("at", [("streams\nof\r",), ("provenance", "environment", "A\nB")], ids=repr)
def test_a_name_with_line_breaks_is_refused_in_one_line_all_the_same(at: Keys, tmp_path: Path) -> None:
    # Anybody's file may lie in a store, and its names go to a log and a terminal.
    assert read_fault(tmp_path, "profile", with_value(("profile", *at), 4)) is not None


# Of every JSON type; 1.0 is left out, which JSON Schema takes for a whole number, and this reader does not.
POOL: list[Any] = [None, True, False, 0, -1, 1, 7, 0.5, -0.5, "", "x", "int64", "page", [], ["x"], [1], {}, {"a": 1}]


@pytest.mark.parametrize("at", NODES, ids=label)
def test_reader_and_schema_agree_on_every_value_in_every_place(at: Keys, tmp_path: Path) -> None:
    for value in POOL:
        check_agreement(tmp_path, at[0], with_value(at, value))


@pytest.mark.parametrize("at", NODES, ids=label)
def test_a_value_of_another_type_is_refused_where_it_lies(at: Keys, tmp_path: Path) -> None:
    value = get(DOCUMENTS, at)
    wrong = {"a": 1} if isinstance(value, (list, str, int, float)) or value is None else ["x"]
    fault = read_fault(tmp_path, at[0], with_value(at, wrong))
    assert fault is not None
    assert ("its schema is" if at[1:] == ("schema",) else f"{spell(at)} must be") in fault


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str | int, Any]:
    """One of the documents with one thing changed, at any place."""
    kind = draw(st.sampled_from(["set", "add", "drop", "repeat"]))
    if kind == "add":
        at: Keys = (*draw(st.sampled_from(RECORDS)), draw(st.text(max_size=8)))
        return at[0], with_value(at, draw(json_values))
    at = draw(st.sampled_from(NODES))
    if kind == "set":
        return at[0], with_value(at, draw(json_values))
    if kind == "drop":
        return at[0], without(at)
    documents = copy.deepcopy(DOCUMENTS)
    parent = get(documents, at[:-1])
    if isinstance(parent, list):
        parent.append(parent[int(at[-1])])
    return at[0], documents[str(at[0])]


@PROPERTY
@given(mutation=mutations())
def test_reader_and_schema_agree_on_any_single_change(mutation: tuple[str | int, Any], tmp_path: Path) -> None:
    check_agreement(tmp_path, *mutation)


@PROPERTY
@given(document=json_values)
@pytest.mark.parametrize("file", DOCUMENTS)
def test_json_that_is_something_else_is_refused_in_one_line(file: str, document: Any, tmp_path: Path) -> None:
    fault = read_fault(tmp_path, file, document)
    assert fault is not None
    assert "its schema is" in fault


NUMBERS = [at for at in NODES if isinstance(get(DOCUMENTS, at), float)]
BOUND = ("profile", "answers", "serving", 0, "max_indices")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [*NUMBERS, ("profile", "workload", "size"), BOUND], ids=label)
def test_a_number_that_is_not_finite_is_refused(at: Keys, value: float, tmp_path: Path) -> None:
    # JSON has no such number, Python's writes them all the same.
    assert read_fault(tmp_path, at[0], with_value(at, value)) is not None


@pytest.mark.parametrize(
    "at",
    [
        ("profile", "answers", "serving", 0, "params", "block"),
        ("profile", "provenance", "config", "budget_s"),
        ("evidence", "measurements", 0, "candidates", 0, "params", "block"),
    ],
    ids=label,
)
def test_a_number_that_is_not_finite_is_refused_in_a_free_form_part_too(at: Keys, tmp_path: Path) -> None:
    # Such a profile could be read and used, and not be saved again.
    assert read_fault(tmp_path, at[0], with_value(at, math.nan)) is not None


@pytest.mark.parametrize(
    "at",
    [
        ("profile", "workload", "backlog_us"),
        ("profile", "answers", "serving", 0, "margin"),
        ("evidence", "measurements", 0, "candidates", 0, "standings", "serving", "ratio"),
        ("profile", "provenance", "effort", "rounds"),
    ],
    ids=label,
)
def test_a_whole_number_too_large_for_a_float_is_refused(at: Keys, tmp_path: Path) -> None:
    fault = read_fault(tmp_path, at[0], with_value(at, 10**400))
    assert fault is not None
    assert spell(at) in fault


@pytest.mark.parametrize(
    ("at", "value", "least"),
    [
        (("profile", "workload", "size"), 0, 1),
        (("profile", "workload", "page_size"), -4, 1),
        (("profile", "workload", "backlog_us"), -0.5, 0),
        (BOUND, 0, 1),
        (("profile", "answers", "serving", 0, "margin"), -0.5, 0),
        (("evidence", "measurements", 0, "indices"), 0, 1),
    ],
    ids=lambda case: label(case) if isinstance(case, tuple) else None,
)
def test_an_impossible_number_is_refused_by_both(at: Keys, value: float, least: int, tmp_path: Path) -> None:
    fault = read_fault(tmp_path, at[0], with_value(at, value))
    assert fault is not None
    assert f"{spell(at)} must be at least {least}, not {value}" in fault
    assert not VALIDATORS[str(at[0])].is_valid(with_value(at, value))


# --- files that are no profiles


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe\x00", b"\x00" * 64, b"[" * 100_000, b"\xef\xbb\xbf{}", b"1" * 5000],
    ids=lambda content: repr(content[:8]),
)
def test_a_file_that_is_no_profile_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="is not usable") as error:
        StrategyProfile.load(path)
    assert str(path) in one_line(error.value)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    path = make_profile().save(tmp_path / "profile.json")
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[: int(len(whole) * share)], encoding="utf-8")
    with pytest.raises(ProfileError, match="it is not JSON"):
        StrategyProfile.load(path)


def test_a_profile_of_another_version_says_which_version_is_read(tmp_path: Path) -> None:
    path = write_json(tmp_path / "profile.json", {**make_document(), "schema": "swa_alloc.profile/1"})
    with pytest.raises(ProfileError, match=r"its schema is 'swa_alloc\.profile/1' .* reads 'swa_alloc\.profile/2'"):
        StrategyProfile.load(path)


def test_a_file_that_cannot_be_read_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    (tmp_path / "a directory.json").mkdir()
    # Unreadable for every user, the superuser included.
    (tmp_path / "a loop.json").symlink_to(tmp_path / "a loop.json")
    (tmp_path / "a file").touch()
    reasons = {
        "missing.json": "No such file",
        "a directory.json": "directory",
        "a loop.json": "symbolic links",
        "a file/profile.json": "Not a directory",
    }
    for name, reason in reasons.items():
        with pytest.raises(ProfileError, match="cannot be read") as error:
            StrategyProfile.load(tmp_path / name)
        assert reason in one_line(error.value)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    # Opening a FIFO waits for a writer, and this device never ends.
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    for name in ("fifo.json", "endless.json"):
        with pytest.raises(ProfileError, match="no regular file"):
            StrategyProfile.load(tmp_path / name)


def test_wrong_evidence_does_not_keep_a_server_from_starting_and_is_told_when_asked_for(tmp_path: Path) -> None:
    path = make_profile().save(tmp_path / "profile.json")
    write_json(evidence_path(path), with_value(("evidence", "measurements", 0, "weight"), "heavy"))
    profile = StrategyProfile.load(path)
    assert profile.decisions
    for ask in (lambda: profile.evidence, lambda: profile.save(tmp_path / "copy.json")):
        with pytest.raises(ProfileError, match=r"measurements\[0\]\.weight must be a number") as error:
            ask()
        assert str(evidence_path(path)) in one_line(error.value)
    assert not (tmp_path / "copy.json").exists()


def test_evidence_that_cannot_be_read_is_told_with_the_systems_reason(tmp_path: Path) -> None:
    path = make_profile().save(tmp_path / "profile.json")
    evidence_path(path).unlink()
    evidence_path(path).mkdir()
    with pytest.raises(ProfileError, match=r"evidence .* cannot be read: Is a directory"):
        _ = StrategyProfile.load(path).evidence


# --- no file is torn, lost, or overwritten that is another's


def test_saving_makes_the_folder_and_leaves_nothing_else_in_it(tmp_path: Path) -> None:
    path = make_profile().save(tmp_path / "new" / "folder" / "profile.json")
    assert set(path.parent.iterdir()) == {path, evidence_path(path)}
    # Readable by others: a system store serves every user.
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o644}


def test_saving_replaces_this_machines_earlier_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    make_profile("scatter").save(path)
    make_profile("index_put").save(path)
    assert StrategyProfile.load(path).decisions[0].strategy == "index_put"
    make_profile("scatter", machine=here()._replace(torch=next_patch(here().torch))).save(path)
    assert StrategyProfile.load(path).decisions[0].strategy == "scatter"


def test_another_machines_profile_is_never_overwritten(tmp_path: Path) -> None:
    path = make_profile("scatter", machine=elsewhere()).save(tmp_path / "profile.json")
    before = path.read_bytes()
    with pytest.raises(ProfileError, match="another machine's profile") as error:
        make_profile("index_put").save(path)
    assert "device_name" in one_line(error.value)
    assert path.read_bytes() == before
    assert StrategyProfile.load(path).evidence == make_evidence()


def test_a_file_that_may_not_be_read_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody here can tell whose it is; the superuser, who may run this, can read any.
    path = make_profile("scatter").save(tmp_path / "profile.json")
    before = path.read_bytes()

    def refuse(_path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_bytes", refuse)
        with pytest.raises(ProfileError, match="cannot be read: Permission denied"):
            make_profile("index_put").save(path)
    assert path.read_bytes() == before


def test_what_is_no_profile_at_all_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for content in ("{torn", '{"schema": "swa_alloc.profile/1"}'):
        path.write_text(content, encoding="utf-8")
        make_profile().save(path)
    assert StrategyProfile.load(path).decisions


def test_a_path_that_cannot_be_written_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a directory").mkdir()
    (tmp_path / "a directory" / "kept").touch()
    for name in ("a file/profile.json", "a directory", "x" * 300):
        with pytest.raises(ProfileError, match="cannot be written") as error:
            make_profile().save(tmp_path / name)
        assert "SWA_ALLOC_PROFILE_DIR" in one_line(error.value)
    assert not list(tmp_path.rglob("*.tmp"))
    assert (tmp_path / "a directory" / "kept").exists()


def test_a_profile_that_json_cannot_hold_is_refused_as_a_profile_error(tmp_path: Path) -> None:
    path = make_profile("scatter").save(tmp_path / "profile.json")
    before = path.read_bytes()
    with pytest.raises(ProfileError):
        make_profile(provenance=make_provenance(measuring_s=math.nan)).save(path)
    assert path.read_bytes() == before


# The child forks, so that torch is imported once. A fork is killed at the moment that its first argument says, and at
# random ones; the parent then looks at the file.
KILLED = """
import os, signal, sys
from pathlib import Path
from builders import make_profile, make_provenance
from swa_alloc import StrategyProfile

path = Path(sys.argv[1])
# Long enough that a write takes many system calls.
long = make_provenance(overrides=("x" * 2_000_000,))
profiles = [make_profile(name, provenance=long) for name in ("scatter", "index_put")]
whole = []
for profile in profiles:
    profile.save(path)
    whole.append(path.read_bytes())
assert whole[0] != whole[1]

def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)

def in_a_fork(patch, rounds):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        owner, name = patch or (None, None)
        if owner:
            setattr(owner, name, die)
        for i in range(rounds):
            os.write(writing, b".")
            profiles[i % 2].save(path)
        os._exit(0)
    os.close(writing)
    return child, reading

for patch in [(os, "fsync"), (os, "replace"), (os, "rename"), (Path, "replace"), (Path, "rename"), (Path, "chmod")]:
    child, reading = in_a_fork(patch, 2)
    os.waitpid(child, 0)
    os.close(reading)
    assert path.read_bytes() in whole, patch

killed = 0
for saves in range(1, 21):
    child, reading = in_a_fork(None, 10_000)
    for _ in range(saves):
        os.read(reading, 1)
        assert path.read_bytes() in whole, "a reader saw a part"
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    killed += os.WIFSIGNALED(status)
    assert path.read_bytes() in whole, saves
    StrategyProfile.load(path)
print("killed", killed)
"""

TESTS = Path(__file__).resolve().parent
# Newer Pythons warn of a fork beside threads, and numeric libraries may keep some.
FORKING = ("-W", "ignore::DeprecationWarning")


def _path_of_tests() -> dict[str, str]:
    return {"PYTHONPATH": f"{TESTS.parent}:{TESTS}"}


def test_a_process_that_is_killed_while_it_saves_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, run_python: Run
) -> None:
    ran = run_python(*FORKING, "-c", KILLED, str(tmp_path / "profile.json"), env=_path_of_tests())
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["killed", "20"]


# A limit on a file's size stands in for a full disk: writing fails half-way in the same place.
DISK_FULL = """
import resource, sys
from pathlib import Path
from builders import make_profile, make_provenance
from swa_alloc import StrategyProfile
from swa_alloc.errors import ProfileError

path = Path(sys.argv[1])
make_profile("scatter").save(path)
before = path.read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    make_profile("index_put", provenance=make_provenance(overrides=("x" * 100_000,))).save(path)
except ProfileError as error:
    print(error)
else:
    raise AssertionError("the disk was not full")
assert path.read_bytes() == before
assert len(list(path.parent.iterdir())) == 2, list(path.parent.iterdir())
"""


def test_a_full_disk_leaves_the_old_file_and_no_rubbish(tmp_path: Path, run_python: Run) -> None:
    path = tmp_path / "store" / "profile.json"
    ran = run_python("-c", DISK_FULL, str(path), env=_path_of_tests())
    assert ran.returncode == 0, ran.stderr
    assert f"profile {path} cannot be written: File too large" in ran.stdout
    assert len(ran.stdout.splitlines()) == 1
