"""Stores: where profiles are looked for, in which order, and which of several is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import elsewhere, here, make_profile, make_provenance, next_patch, one_line, save_in, write_json

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


@pytest.mark.parametrize("folder", ["/no/such/folder", "/dev/null/profiles", "x" * 300, "~nobody-of-that-name/x"])
def test_a_folder_that_cannot_be_searched_is_an_empty_one(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mistake in a variable must not keep a server from starting.
    monkeypatch.setenv("SWA_ALLOC_PROFILE_DIR", folder)
    monkeypatch.setenv("SWA_ALLOC_SYSTEM_PROFILE_DIR", folder)
    assert look() == Search(None, (), ())


# --- which profile


def test_nothing_is_found_where_nothing_is() -> None:
    assert look() == Search(None, (), ())


@pytest.mark.parametrize("layer", ["user store", "system store"])
def test_a_fitting_profile_is_found_in_either_store(layer: str) -> None:
    directory = {store.layer: store.directory for store in stores()}[layer]
    path = save_in(directory, make_profile())
    hit = look().hit
    assert hit is not None
    assert (hit.path, hit.layer, hit.match.tier) == (path, layer, "exact")
    assert hit.profile.decisions == make_profile().decisions


def test_the_users_compatible_profile_beats_the_systems_exact_one(isolated: Path, system: Path) -> None:
    save_in(isolated, make_profile(size=200))
    save_in(system, make_profile(size=256))
    hit = look().hit
    assert hit is not None
    assert (hit.layer, hit.match.tier) == ("user store", "compatible")


def test_the_systems_profile_is_used_where_the_users_do_not_fit(isolated: Path, system: Path) -> None:
    save_in(isolated, make_profile(machine=elsewhere()))
    save_in(system, make_profile())
    hit = look().hit
    assert hit is not None
    assert hit.layer == "system store"


def test_within_a_store_an_exact_profile_beats_a_newer_compatible_one(isolated: Path) -> None:
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
    for size, nearest in ((256, 240), (280, 300), (400, 300), (144, 132)):
        hit = look(size).hit
        assert hit is not None
        assert hit.profile.workload.size == nearest


@pytest.mark.parametrize("newest_first", [False, True])
def test_of_equally_near_profiles_the_newest_is_taken(isolated: Path, newest_first: bool) -> None:  # noqa: FBT001 - a case
    # By what they say, whatever their names' order.
    times = sorted(("2026-02-01T00:00:00Z", "2026-09-01T00:00:00Z", "2025-12-31T00:00:00Z"), reverse=newest_first)
    for name, created in zip("abc", times, strict=True):
        make_profile(provenance=make_provenance(created)).save(isolated / f"cpu-{name}.json")
    hit = look().hit
    assert hit is not None
    assert hit.profile.provenance.created == "2026-09-01T00:00:00Z"


def test_a_foreign_profile_is_ignored_with_the_field_that_differs(isolated: Path) -> None:
    path = save_in(isolated, make_profile(machine=elsewhere()))
    search = look()
    assert search.hit is None
    (line,) = search.ignored
    assert line.startswith(f"{path}: device_name is ")


@pytest.mark.parametrize(("size", "page_size", "field"), [(4096, 4, "size"), (256, 8, "page_size")])
def test_a_profile_for_another_mapping_is_ignored_with_the_field_that_differs(
    isolated: Path, size: int, page_size: int, field: str
) -> None:
    path = save_in(isolated, make_profile())
    search = look(size, page_size)
    assert search.hit is None
    (line,) = search.ignored
    assert line.startswith(f"{path}: {field} is {size if field == 'size' else page_size} here and ")


def test_an_emulated_devices_profile_is_ignored(isolated: Path) -> None:
    save_in(isolated, make_profile(machine=here()._replace(emulated=True)))
    search = look()
    assert search.hit is None
    assert "emulated" in search.ignored[0]


def test_a_file_that_is_no_profile_is_told_and_does_not_hide_the_others(isolated: Path) -> None:
    save_in(isolated, make_profile())
    (isolated / "cpu-0-corrupt.json").write_text("{", encoding="utf-8")
    (isolated / "cpu-directory.json").mkdir()
    search = look()
    assert search.hit is not None
    assert ["is not usable" in one_line(error) for error in search.unusable] == [True, False]
    assert "cannot be read" in str(search.unusable[1])


def test_a_name_that_lies_about_the_device_does_not_make_a_profile_fit(isolated: Path) -> None:
    gpu = here()._replace(device_type="cuda", device_name="NVIDIA H200")
    make_profile(machine=gpu).save(isolated / "cpu-tests-0123456789ab.json")
    search = look()
    assert search.hit is None
    assert "device_type" in search.ignored[0]


def test_half_written_files_are_not_looked_at(isolated: Path) -> None:
    save_in(isolated, make_profile())
    (isolated / ".cpu-tests-0123456789ab.json.x1y2.tmp").write_text("{", encoding="utf-8")
    write_json(isolated / "cpu.lock", {})
    assert look().unusable == ()
