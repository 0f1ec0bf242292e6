"""Fingerprints: what must be equal, what may differ by a patch, and which field a miss names."""

from __future__ import annotations

import inspect
import platform
import sys
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from builders import CPU, here, make_profile, next_patch
from hypothesis import given
from hypothesis import strategies as st

from swa_alloc.backends import Backend, Facts, _cpu, backend_of, register_backend
from swa_alloc.errors import PoolError
from swa_alloc.fingerprint import Fingerprint, fingerprint

GPU = Fingerprint(
    device_type="cuda",
    device_name="NVIDIA H200",
    device_arch="sm_90",
    units=132,
    host="AMD EPYC 9554",
    driver="580.65.06",
    runtime="13.0",
    torch="2.13.0+cu130",
    backend="2.13.0",
    python="3.11",
    machine="x86_64",
    threads=0,
    settings={"CUDA_LAUNCH_BLOCKING": "0"},
    swa_alloc="0.1.0",
    emulated=False,
)

PATCH_LEVEL = {
    # What cannot be read, as in a container without /proc/driver, may be the same.
    "driver": ["580.95.05", "580.65", "580", ""],
    "runtime": ["13.0.2", "13.0.1"],
    "torch": ["2.13.1+cu130", "2.13.0", "2.13.1"],
    "backend": ["2.13.0.post1", "2.13.1"],
    "swa_alloc": ["0.1.7"],
}

DECIDING = {
    "device_type": ["npu", "cpu"],
    "device_name": ["NVIDIA H20", ""],
    "device_arch": ["sm_100"],
    "units": [66, 0],
    "host": ["AMD EPYC 9654", ""],
    "driver": ["570.65.06"],
    "runtime": ["12.8", "13.1", ""],
    "torch": ["2.12.0+cu130", "3.13.0", "2.1", "2.14.0"],
    "backend": ["2.12.0", ""],
    "python": ["3.12", "3.1"],
    "machine": ["aarch64"],
    "threads": [8],
    "settings": [{}, {"CUDA_LAUNCH_BLOCKING": "1"}],
    "swa_alloc": ["0.2.0", "1.1.0"],
    "emulated": [True],
}


def cases(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, values in table.items() for value in values]


def test_an_equal_fingerprint_matches_exactly() -> None:
    match = GPU.match(GPU._replace())
    assert (match.tier, match.differences) == ("exact", ())


@pytest.mark.parametrize(("field", "value"), cases(PATCH_LEVEL))
def test_a_patch_level_difference_is_compatible_and_named(field: str, value: str) -> None:
    other = GPU._replace(**{field: value})
    match = GPU.match(other)
    assert match.tier == "compatible"
    assert match.differences == (f"{field} is {getattr(GPU, field)!r} here and {value!r} in the profile",)
    assert other.match(GPU).tier == "compatible"


@pytest.mark.parametrize(("field", "value"), cases(DECIDING))
def test_any_other_difference_is_a_mismatch_and_named(field: str, value: Any) -> None:
    other = GPU._replace(**{field: value})
    match = GPU.match(other)
    assert match.tier == "mismatch"
    assert match.differences == (f"{field} is {getattr(GPU, field)!r} here and {value!r} in the profile",)
    assert other.match(GPU).tier == "mismatch"


def test_every_field_counts() -> None:
    assert set(DECIDING) == set(Fingerprint._fields)


def test_the_deciding_difference_is_named_before_a_patch_level_one() -> None:
    match = GPU.match(GPU._replace(driver="580.95.05", torch="2.13.1", emulated=True))
    assert match.tier == "mismatch"
    assert [difference.partition(" ")[0] for difference in match.differences] == ["emulated", "driver", "torch"]


def test_an_unreadable_driver_does_not_excuse_another_difference() -> None:
    assert GPU._replace(driver="", torch="2.12.0").match(GPU).tier == "mismatch"
    assert GPU._replace(runtime="").match(GPU).tier == "mismatch"


def test_absent_versions_on_both_sides_are_no_difference() -> None:
    bare = GPU._replace(driver="", runtime="", backend="")
    assert bare.match(bare._replace()).tier == "exact"


def test_versions_without_numbers_are_no_patches_of_each_other() -> None:
    assert GPU._replace(driver="beta").match(GPU._replace(driver="nightly")).tier == "mismatch"


@given(
    changes=st.fixed_dictionaries(
        {}, optional={field: st.sampled_from(values + PATCH_LEVEL.get(field, [])) for field, values in DECIDING.items()}
    )
)
def test_what_is_emulated_never_matches_what_is_real(changes: dict[str, Any]) -> None:
    real = GPU._replace(**{**changes, "emulated": False})
    assert GPU._replace(emulated=True).match(real).tier == "mismatch"
    assert real.match(GPU._replace(emulated=True)).tier == "mismatch"


# --- this machine's


def test_the_cpu_is_told_by_model_threads_and_software() -> None:
    found = here()
    assert found.device_type == "cpu"
    assert found.device_name
    assert found.torch == torch.__version__
    assert found.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert found.threads == torch.get_num_threads() == 1
    assert not found.emulated


def test_a_fingerprint_is_repeatable() -> None:
    assert here() == here()


def test_another_number_of_threads_is_another_machine() -> None:
    before = here()
    torch.set_num_threads(2)
    try:
        match = fingerprint(CPU).match(before)
    finally:
        torch.set_num_threads(1)
    assert match.tier == "mismatch"
    assert match.differences == ("threads is 2 here and 1 in the profile",)


def test_a_cpu_without_proc_still_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_keywords: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.open", refuse)
    # Not what was read before.
    monkeypatch.setattr(_cpu, "_first_cpu", inspect.unwrap(vars(_cpu)["_first_cpu"]))
    assert here().device_name == here().host == platform.machine()
    assert here().match(here()).tier == "exact"


def test_an_arm_core_which_has_no_name_is_told_by_its_maker_and_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cpu, "_first_cpu", lambda: {"CPU implementer": "0x48", "CPU part": "0xd01"})
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert (here().device_name, here().host) == ("aarch64 0x48-0xd01", "aarch64 0x48-0xd01")


def test_a_gpu_is_told_by_its_multiprocessors_and_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    # Partitions of a GPU share its name, and the time of a call on its host decides, too.
    properties = SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942", multi_processor_count=38)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _device: properties)
    device: Any = SimpleNamespace(type="cuda")
    found = fingerprint(device)
    assert (found.units, found.host) == (38, here().device_name)
    properties.multi_processor_count = 304
    assert fingerprint(device).match(found).differences == ("units is 304 here and 38 in the profile",)


def _facts(_backend: Backend, _device: torch.device) -> Facts:
    return Facts("A device", "sm_90", "1", "1")


@pytest.mark.parametrize(
    ("device_type", "variable", "unset", "other"),
    [
        ("cuda", "CUDA_LAUNCH_BLOCKING", "0", "1"),
        ("npu", "TASK_QUEUE_ENABLE", "1", "2"),
        ("npu", "ASCEND_LAUNCH_BLOCKING", "0", "1"),
    ],
)
def test_a_variable_that_changes_how_calls_reach_the_device_counts(
    device_type: str, variable: str, unset: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(backend_of(device_type)), "facts", _facts)
    device: Any = SimpleNamespace(type=device_type)
    monkeypatch.delenv(variable, raising=False)
    without = fingerprint(device)
    monkeypatch.setenv(variable, unset)
    # Writing down what applies anyway changes nothing.
    assert fingerprint(device) == without
    monkeypatch.setenv(variable, other)
    match = fingerprint(device).match(without)
    assert match.tier == "mismatch"
    assert match.differences[0].startswith("settings is")


def test_a_variable_of_another_device_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = here()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert here() == before
    assert here().settings == {}


@pytest.mark.parametrize(("cann", "emulated"), [("8.5.0", False), ("8.5.0-fake", True)])
def test_an_emulated_npu_says_so(cann: str, emulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 - a case
    npu = SimpleNamespace(
        utils=SimpleNamespace(get_cann_version=lambda: cann), get_device_name=lambda _device: "Ascend910B4"
    )
    module = SimpleNamespace(npu=npu, __version__="2.13.0", _C=SimpleNamespace(_npu_get_soc_version=lambda: 224))
    monkeypatch.setitem(sys.modules, "torch_npu", module)  # type: ignore[arg-type]  # a stand-in
    device: Any = SimpleNamespace(type="npu")
    found = fingerprint(device)
    assert found.emulated is emulated
    assert (found.device_name, found.device_arch, found.runtime, found.backend) == (
        "Ascend910B4",
        "224",
        cann,
        "2.13.0",
    )


# --- a profile's fit, the mapping included


@pytest.mark.parametrize(
    ("size", "tier"), [(256, "exact"), (128, "compatible"), (512, "compatible"), (124, "mismatch"), (516, "mismatch")]
)
def test_a_pool_within_a_factor_of_two_is_of_the_same_class(size: int, tier: str) -> None:
    match = make_profile(size=256, page_size=4).match(here(), size, 4)
    assert match.tier == tier
    expected = () if tier == "exact" else (f"size is {size} here and 256 in the profile",)
    assert match.differences == expected


def test_another_page_size_is_a_mismatch() -> None:
    match = make_profile(size=256, page_size=4).match(here(), 256, 8)
    assert (match.tier, match.differences) == ("mismatch", ("page_size is 8 here and 4 in the profile",))


def test_a_patch_level_difference_and_another_size_are_compatible_and_both_named() -> None:
    profile = make_profile(size=256, machine=here()._replace(torch=next_patch(here().torch)))
    match = profile.match(here(), 200, 4)
    assert match.tier == "compatible"
    assert [difference.partition(" ")[0] for difference in match.differences] == ["torch", "size"]


def test_a_mismatch_names_what_decided_it_before_a_patch_level_difference() -> None:
    # The reason that a person is shown is the first: a patch of torch would send them after the wrong thing.
    profile = make_profile(size=256, machine=here()._replace(torch=next_patch(here().torch)))
    match = profile.match(here(), 4096, 4)
    assert match.tier == "mismatch"
    assert match.differences[0] == "size is 4096 here and 256 in the profile"


# --- backends


class Blackhole(Backend):
    """A device type of somebody else's."""

    device_type = "privateuseone"
    settings = MappingProxyType({"BLACKHOLE_QUEUE": "deep"})

    def facts(self, device: torch.device) -> Facts:
        return Facts(f"Blackhole {device.index}")


def test_another_package_can_register_its_device_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swa_alloc.backends._registry._registered", {})
    assert register_backend(Blackhole) is Blackhole
    device: Any = SimpleNamespace(type="privateuseone", index=3)
    found = fingerprint(device)
    assert (found.device_name, found.settings) == ("Blackhole 3", {"BLACKHOLE_QUEUE": "deep"})
    register_backend(Blackhole)
    with pytest.raises(PoolError, match="'privateuseone' already"):
        register_backend(type("Other", (Backend,), {"device_type": "privateuseone"}))
    with pytest.raises(PoolError, match="'cuda' already"):
        register_backend(type("Mine", (Backend,), {"device_type": "cuda"}))


def test_a_device_type_that_nobody_knows_has_what_any_accelerator_has() -> None:
    unknown = backend_of("mtia")
    assert unknown.device_type == "mtia"
    assert not unknown.capturing()
    with pytest.raises(NotImplementedError, match="mtia has no graphs"):
        unknown.capture(lambda: None)


@pytest.mark.parametrize("device_type", ["cpu", "cuda", "npu", "xpu"])
def test_each_backend_is_of_its_own_type(device_type: str) -> None:
    assert backend_of(device_type).device_type == device_type
