"""Stores: where profiles are looked for, in which order, and which of several is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import (
    decide_all,
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

from swa_alloc.errors import ProfileError
from swa_alloc.profile import Provenance
from swa_alloc.stores import Search, find, stores, user_directory


@pytest.fixture
def system() -> Path:
    return stores()[1].directory


def look(size: int = 256, page_size: int = 4) -> Search:
    return find(here(), size, page_size)


# --- which folders


def test_the_users_store_comes_before_the_systems() -> None:
    assert [store.layer for store in stores()] == ["user store", "system store"]


def test_the_users_store_lies_in_the_cache_folder(isolated: Path) -> None:
    assert user_directory() == isolated


def test_without_a_cache_folder_it_lies_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".cache" / "swa_alloc" / "profiles"
    # The base directory specification: empty is unset, and a relative path is to be ignored.
    for cache in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert user_directory() == expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_directory() == expected


def test_a_folder_of_ones_own_replaces_the_users_store_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: Path
) -> None:
    monkeypatch.setenv("SWA_ALLOC_PROFILE_DIR", str(tmp_path))
    assert [store.directory for store in stores()] == [tmp_path, system]


def test_a_tilde_in_the_folder_of_ones_own_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SWA_ALLOC_PROFILE_DIR", "~/profiles")
    assert user_directory() == tmp_path / "profiles"


def test_the_systems_store_has_a_place_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWA_ALLOC_SYSTEM_PROFILE_DIR", str(tmp_path))
    assert stores()[1].directory == tmp_path
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("SWA_ALLOC_SYSTEM_PROFILE_DIR")
        else:
            monkeypatch.setenv("SWA_ALLOC_SYSTEM_PROFILE_DIR", unset)
        assert stores()[1].directory == Path("/etc/swa_alloc/profiles")


@pytest.mark.parametrize("folder", ["/no/such/folder", "/dev/null/profiles", "x" * 300])
def test_a_folder_that_cannot_be_searched_is_an_empty_one(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mistake in a variable must not keep a server from starting.
    monkeypatch.setenv("SWA_ALLOC_PROFILE_DIR", folder)
    monkeypatch.setenv("SWA_ALLOC_SYSTEM_PROFILE_DIR", folder)
    assert look() == Search(None)


def test_a_user_without_a_home_folder_has_no_store_and_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: Path
) -> None:
    # As in a container that runs under a number: no HOME, and no entry in /etc/passwd.
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    monkeypatch.chdir(tmp_path)
    path = save_in(system, make_profile())
    assert [store.layer for store in stores()] == ["system store"]
    search = look()
    assert search.hit is not None
    assert search.hit.path == path
    (line,) = search.remarks
    assert line == (
        "there is no user store: the user's cache is ~/.cache, and there is no home folder ~; "
        "set SWA_ALLOC_PROFILE_DIR to a folder"
    )
    with pytest.raises(ProfileError, match="there is no home folder"):
        user_directory()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "layer"),
    [("SWA_ALLOC_PROFILE_DIR", "user store"), ("SWA_ALLOC_SYSTEM_PROFILE_DIR", "system store")],
)
def test_a_tilde_that_stands_for_nobody_is_no_folders_name(
    variable: str, layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "~nobody-of-that-name/x")
    assert layer not in [store.layer for store in stores()]
    (line,) = look().remarks
    assert line.startswith(f"there is no {layer}: {variable} is ~nobody-of-that-name/x, and there is no home folder")


# --- which profile


def test_nothing_is_found_where_nothing_is() -> None:
    assert look() == Search(None)


@pytest.mark.parametrize("layer", ["user store", "system store"])
def test_a_fitting_profile_is_found_in_either_store(layer: str) -> None:
    directory = {store.layer: store.directory for store in stores()}[layer]
    path = save_in(directory, make_profile())
    hit = look().hit
    assert hit is not None
    assert (hit.path, hit.layer, hit.match.tier) == (path, layer, "exact")
    assert hit.profile.decisions == make_profile().decisions


def test_the_systems_exact_profile_beats_the_users_compatible_one(isolated: Path, system: Path) -> None:
    save_in(isolated, make_profile(size=200))
    save_in(system, make_profile(size=256))
    hit = look().hit
    assert hit is not None
    assert (hit.layer, hit.match.tier) == ("system store", "exact")


def test_of_profiles_that_are_as_good_the_users_is_taken(isolated: Path, system: Path) -> None:
    for directory in (system, isolated):
        save_in(directory, make_profile())
    hit = look().hit
    assert hit is not None
    assert hit.layer == "user store"


def test_the_systems_profile_is_used_where_the_users_do_not_fit(isolated: Path, system: Path) -> None:
    save_in(isolated, make_profile(machine=elsewhere()))
    save_in(system, make_profile())
    hit = look().hit
    assert hit is not None
    assert hit.layer == "system store"


def test_an_exact_profile_beats_a_newer_compatible_one(isolated: Path) -> None:
    save_in(isolated, make_profile("scatter", provenance=make_provenance("2026-01-01T00:00:00Z")))
    patched = here()._replace(torch=next_patch(here().torch))
    save_in(isolated, make_profile("index_put", machine=patched, provenance=make_provenance("2026-09-01T00:00:00Z")))
    hit = look().hit
    assert hit is not None
    assert hit.profile.decisions[0].strategy == "scatter"
    assert hit.match.tier == "exact"


def test_of_compatible_profiles_the_nearest_pool_size_is_taken(isolated: Path) -> None:
    for size in (132, 240, 300, 508):
        save_in(isolated, make_profile(size=size))
    for size, nearest in ((256, 240), (280, 300), (400, 508), (144, 132)):
        hit = look(size).hit
        assert hit is not None
        assert hit.profile.workload.size == nearest


def save_named(directory: Path, **provenances: Provenance) -> None:
    """Profiles that fit alike, each with a strategy of its file's name."""
    for name, provenance in provenances.items():
        make_profile(name, provenance=provenance).save(directory / f"cpu-{name}.profile-2.json")


def taken() -> str:
    """The strategy of the profile that is taken."""
    hit = look().hit
    assert hit is not None
    return hit.profile.decisions[0].strategy


@pytest.mark.parametrize("newest_first", [False, True])
def test_of_equal_efforts_the_newest_is_taken(isolated: Path, newest_first: bool) -> None:  # noqa: FBT001 - a case
    # By what they say, whatever their names' order; the newest in UTC is none in text.
    times = ["2026-02-01T00:00:00Z", "2026-09-01T01:00:00+02:00", "2026-08-31T23:30:00Z"]
    if newest_first:
        times.reverse()
    save_named(isolated, **{name: make_provenance(created) for name, created in zip("abc", times, strict=True)})
    hit = look().hit
    assert hit is not None
    assert hit.profile.provenance.created == "2026-08-31T23:30:00Z"


@pytest.mark.parametrize("nonsense", ["zzz", "2099-01-01T00:00:00Z", "", "9999-12-31T23:59:59-23:59"])
def test_what_is_no_date_or_is_still_to_come_is_older_than_any(nonsense: str, isolated: Path) -> None:
    save_named(isolated, a=make_provenance(nonsense), b=make_provenance("2020-01-01"), c=make_provenance(nonsense))
    assert taken() == "b"


def test_the_effort_that_was_achieved_beats_the_date_and_not_the_one_that_was_asked_for(isolated: Path) -> None:
    quick = make_provenance("2026-09-01T00:00:00Z", rounds=64, effort={"rounds": 1024.0})
    save_named(isolated, quick=quick, thorough=make_provenance("2026-01-01T00:00:00Z", rounds=640))
    assert taken() == "thorough"


def test_what_a_person_pinned_beats_what_was_measured(isolated: Path) -> None:
    save_named(isolated, measured=make_provenance(), pinned=make_provenance(method="pinned", rounds=0))
    assert taken() == "pinned"


def test_a_complete_profile_beats_an_incomplete_one_that_fits_as_well(isolated: Path) -> None:
    save_named(isolated, whole=make_provenance(rounds=64))
    partial = make_profile("partial", missing=("clear.token.int32 at 384",), provenance=make_provenance(rounds=640))
    save_in(isolated, partial)
    assert taken() == "whole"


def test_that_nothing_could_be_measured_is_remembered_where_it_fits_exactly(isolated: Path) -> None:
    save_in(isolated, make_profile(decisions=(), missing=("everything",), provenance=make_provenance(rounds=0)))
    hit = look().hit
    assert hit is not None
    assert hit.profile.decisions == ()
    # Another pool may well be measured.
    assert look(size=200).hit is None
    # And any decision is better than none.
    save_in(isolated, make_profile("scatter", size=200))
    assert taken() == "scatter"


def test_a_foreign_profile_is_ignored_with_the_field_that_differs(isolated: Path) -> None:
    path = save_in(isolated, make_profile(machine=elsewhere()))
    search = look()
    assert search.hit is None
    (miss,) = search.misses
    assert miss.path == path
    assert [difference.partition(" ")[0] for difference in miss.differences] == ["device_name"]


@pytest.mark.parametrize(("size", "page_size", "field"), [(4096, 4, "size"), (256, 8, "page_size")])
def test_a_profile_for_another_mapping_is_ignored_with_the_field_that_differs(
    isolated: Path, size: int, page_size: int, field: str
) -> None:
    path = save_in(isolated, make_profile())
    search = look(size, page_size)
    assert search.hit is None
    (miss,) = search.misses
    assert miss.path == path
    assert miss.differences[0].startswith(f"{field} is {size if field == 'size' else page_size} here and ")


def test_the_nearest_miss_comes_first(isolated: Path) -> None:
    save_in(isolated, make_profile(machine=elsewhere(), size=4096))
    for size in (1024, 2048, 8):
        save_in(isolated, make_profile(size=size))
    assert [(miss.size, len(miss.differences)) for miss in look().misses] == [(1024, 1), (2048, 1), (8, 1), (4096, 2)]


def test_an_emulated_devices_profile_is_ignored(isolated: Path) -> None:
    save_in(isolated, make_profile(machine=here()._replace(emulated=True)))
    search = look()
    assert search.hit is None
    assert "emulated" in search.misses[0].differences[0]


def test_a_file_that_is_no_profile_is_told_and_does_not_hide_the_others(isolated: Path) -> None:
    save_in(isolated, make_profile())
    (isolated / "cpu-0-corrupt.profile-2.json").write_text("{", encoding="utf-8")
    (isolated / "cpu-directory.profile-2.json").mkdir()
    search = look()
    assert search.hit is not None
    assert ["is not usable" in one_line(error) for error in search.unusable] == [True, False]
    assert "cannot be read" in str(search.unusable[1])


def test_a_name_that_lies_about_the_device_does_not_make_a_profile_fit(isolated: Path) -> None:
    gpu = here()._replace(device_type="cuda", device_name="NVIDIA H200")
    make_profile(machine=gpu).save(isolated / "cpu-tests-0123456789ab.profile-2.json")
    search = look()
    assert search.hit is None
    assert "device_type" in search.misses[0].differences[0]


def test_of_profiles_that_fit_one_that_is_damaged_where_nobody_looked_gives_way_to_the_next(isolated: Path) -> None:
    path = save_in(isolated, make_profile("scatter"))
    document = make_document()
    # It would be taken: more rounds, and nothing missing.
    document["provenance"]["rounds"] = 10_000
    document |= {"answers": {"latency": [{"strategy": "index_fill"}]}, "missing": []}
    damaged = write_json(isolated / "cpu-damaged.profile-2.json", document)
    search = look()
    assert search.hit is not None
    assert search.hit.path == path
    assert str(damaged) in one_line(search.unusable[0])


def test_a_profile_that_somebody_laid_out_anew_is_found_as_well(isolated: Path) -> None:
    path = save_in(isolated, make_profile())
    document = json.loads(path.read_text(encoding="utf-8"))
    for layout in ({"indent": 4}, {"separators": (",", ":")}, {"indent": 1, "sort_keys": True}):
        document = dict(reversed(document.items()))
        path.write_text(json.dumps(document, **layout), encoding="utf-8")
        assert taken() == "index_put"


def test_a_name_that_looks_like_the_files_layout_does_not_mislead(isolated: Path) -> None:
    # Only what is taken is read as a whole; the rest is skipped by its layout.
    params = {'\n "fingerprint": ': '\n "fingerprint": {', "fingerprint": {"fingerprint": 1}}
    save_in(isolated, make_profile(decisions=decide_all("index_put", params)))
    assert taken() == "index_put"


def test_what_is_no_profile_of_this_version_is_not_looked_at(isolated: Path) -> None:
    save_in(isolated, make_profile())
    (isolated / ".cpu-tests-0123456789ab.profile-2.json.x1y2.tmp").write_text("{", encoding="utf-8")
    write_json(isolated / "cpu-tests-0123456789ab.profile-3.json", {})
    write_json(isolated / "cpu-tests-0123456789ab.json", {})
    write_json(isolated / "cpu.lock", {})
    assert look().unusable == ()
    assert len(stores()[0].files()) == len(stores()[0].files("cpu")) == 1
    assert stores()[0].files("cuda") == []
