"""The configuration: every hole through which a wrong value could slip, closed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from autotune.config import (
    Calibration,
    Caller,
    Config,
    ConfigError,
    DeviceConfig,
    Objective,
    ProfileConfig,
    Reuse,
    Strategies,
    Studies,
    Workload,
    conf_dir,
    editable,
    load_group,
    to_config,
)
from autotune.devices import open_device
from swa_alloc.errors import DeviceError, SWAAllocError

Compose = Callable[..., Config]

SCHEMAS = {"device": DeviceConfig, "workload": Workload, "calibration": Calibration}
SHIPPED = [
    (group, file.stem) for group in SCHEMAS for file in sorted((conf_dir() / group).glob("*.yaml")) if file.is_file()
]
# What the command turns into one line and exit code 2.
REFUSED = (SWAAllocError, HydraException, OmegaConfBaseException, yaml.YAMLError)


@pytest.fixture
def composed() -> Compose:
    """``composed("key=value", ..., overlay=folder)``: what the command would make of these arguments."""
    ConfigStore.instance().store(name="_base_", node=editable(Config))

    def run(*overrides: str, overlay: Path | None = None) -> Config:
        search = [f"hydra.searchpath=[file://{overlay}]"] if overlay else []
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return to_config(compose("config", [*search, *overrides]))

    return run


def words(error: pytest.ExceptionInfo[BaseException]) -> str:
    """An error and its cause, as the command would print them."""
    return f"{error.value} {error.value.__cause__}"


def overlay_file(folder: Path, group: str, text: str) -> Path:
    file = folder / group / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    return folder


# What is shipped


@pytest.mark.parametrize(("group", "name"), SHIPPED)
def test_every_shipped_file_composes_and_is_in_range(composed: Compose, group: str, name: str) -> None:
    extra = ["workload.path=clears.json"] if name == "trace" else []
    config = composed(f"{group}={name}", *extra)
    assert isinstance(getattr(config, group), SCHEMAS[group])
    if group == "workload":
        load = config.workload
        assert load.name == name
        assert load.size % load.page_size == load.size_swa % load.page_size == 0
        assert 0 < load.size_swa <= load.size
        assert load.backlog_us > 0


def test_nothing_is_shipped_that_is_not_checked() -> None:
    assert {group for group, _ in SHIPPED} == set(SCHEMAS)
    names = {name for group, name in SHIPPED if group == "workload"}
    assert {"mimo_v2_flash", "gpt_oss_120b", "gemma3_27b", "trace"} <= names
    assert {name for group, name in SHIPPED if group == "device"} >= {"auto", "cpu", "cuda", "npu"}


@pytest.mark.parametrize(("group", "name"), [pair for pair in SHIPPED if pair[1] != "trace"])
def test_a_group_loaded_without_hydra_is_what_hydra_composes(composed: Compose, group: str, name: str) -> None:
    assert load_group(SCHEMAS[group], group, name) == getattr(composed(f"{group}={name}"), group)


@pytest.mark.parametrize("name", [name for group, name in SHIPPED if group == "device"])
def test_every_shipped_device_is_one_that_can_be_asked_for(composed: Compose, name: str) -> None:
    kind = composed(f"device={name}").device.kind
    # A name that does not exist would be a ConfigError. That the machine lacks the device is another matter.
    with suppress(DeviceError):
        assert open_device(kind, 0).default_objective in ("serving", "latency")


def test_a_default_is_said_once() -> None:
    assert load_group(Calibration, "calibration", "startup") == Calibration()
    assert load_group(Workload, "workload", "default") == Workload(name="default")
    # A choice says what it changes; the first level is Hydra's and the groups'.
    assert set(yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))) == {"defaults", "hydra"}


def test_every_key_is_read_by_something() -> None:
    sources = [path for path in conf_dir().parent.glob("autotune/**/*.py") if path.name != "config.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    for schema in (Config, *SCHEMAS.values(), Strategies, ProfileConfig):
        unread = [item.name for item in fields(schema) if f".{item.name}" not in text and f'"{item.name}"' not in text]
        assert not unread, schema


def test_no_file_can_make_hydra_instantiate_anything() -> None:
    # GHSA-37p2-j732-x8pj
    for file in conf_dir().rglob("*.yaml"):
        assert "_target_" not in file.read_text(encoding="utf-8"), file


def test_the_default_is_what_the_readme_shows(composed: Compose) -> None:
    config = composed()
    assert (config.device.kind, config.workload.name) == ("auto", "mimo_v2_flash")
    # Whatever the device takes for a start.
    assert config.calibration.budget_s is None
    assert (config.objective, config.profile.reuse) == (Objective.auto, Reuse.exact)


# Overrides


def test_an_override_reaches_the_frozen_types(composed: Compose) -> None:
    config = composed(
        "workload=gpt_oss_120b",
        "workload.caller=swa_alloc",
        "workload.size=1024",
        "workload.size_swa=512",
        "calibration=thorough",
        "studies=journal",
        "objective=serving",
        "strategies.include=[index_fill,scatter]",
        "profile.dir=/somewhere",
        "device.index=1",
    )
    assert config.workload.caller is Caller.swa_alloc
    assert (config.workload.size, config.workload.size_swa) == (1024, 512)
    assert config.studies is Studies.journal
    assert config.calibration.tables == 16
    assert config.objective is Objective.serving
    assert config.strategies.include == ["index_fill", "scatter"]
    assert config.profile.dir == "/somewhere"
    assert config.device.index == 1


def test_the_result_cannot_be_changed(composed: Compose) -> None:
    config = composed()
    with pytest.raises(FrozenInstanceError):
        config.workload.size = 3  # type: ignore[misc]  # the point


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("+workload.widow=3", "workload.window"),
        ("+calibration.budget=3", "calibration.budget_s"),
        ("+strategies.pins=index_fill", "strategies.pin"),
        ("+objectives=latency", "objective"),
        ("++profile.dirs=/x", "profile.dir"),
        ("+workload.typo=3", "known here: name, path"),
    ],
)
def test_an_added_key_that_nothing_reads_is_refused_with_the_nearest_one(
    composed: Compose, override: str, named: str
) -> None:
    with pytest.raises(ConfigError, match="unknown key") as error:
        composed(override)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("workload.widow=3", "widow"),
        ("studies=sqlite", "memory, journal"),
        ("objective=fastest", "serving"),
        ("format=xml", "table, json"),
        ("task=tune", "calibrate"),
        ("workload.caller=vllm", "sglang"),
        ("workload=mimo_v3_flash", "mimo_v2_flash"),
        ("device=tpu", "cpu"),
        ("calibration=forever", "thorough"),
        ("nonsense", "nonsense"),
        ("workload.size=[1,2]", "size"),
    ],
)
def test_a_typo_in_an_override_is_refused_with_what_there_is(composed: Compose, override: str, named: str) -> None:
    with pytest.raises(REFUSED) as error:
        composed(override)
    assert named in words(error)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "-1e3"])
@pytest.mark.parametrize("key", ["workload.backlog_us", "calibration.budget_s", "calibration.switch_margin"])
def test_a_float_that_is_no_sensible_number_is_refused(composed: Compose, key: str, value: str) -> None:
    with pytest.raises(ConfigError) as error:
        composed(f"{key}={value}")
    assert key in str(error.value)
    assert "\n" not in str(error.value)


FLOATS = ("block_us", "call_limit_s", "wait_s")


@pytest.mark.parametrize("key", FLOATS)
def test_every_other_float_is_refused_when_it_is_not_a_number(composed: Compose, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        composed(f"calibration.{key}=nan")


@pytest.mark.parametrize(
    "override",
    [
        "workload.size=-64",
        "workload.size_swa=0",
        "workload.page_size=0",
        "workload.window=-128",
        "workload.running_requests=0",
        "workload.prefill_chunk=0",
        "workload.eviction_interval=0",
        "calibration.sizes=2",
        "calibration.rounds=7",
        "calibration.tables=0",
        "calibration.seed=-1",
        "calibration.budget_s=0",
        "calibration.switch_margin=1",
        "device.index=-1",
    ],
)
def test_a_number_out_of_range_is_refused_by_name(composed: Compose, override: str) -> None:
    with pytest.raises(ConfigError) as error:
        composed(override)
    key, _, value = override.partition("=")
    assert key in str(error.value)
    assert value in str(error.value)


@pytest.mark.parametrize("value", ["yes", "true", "on", "1.5", "nan", "inf", "many"])
@pytest.mark.parametrize("key", ["workload.size", "calibration.rounds", "device.index"])
def test_what_is_no_whole_number_is_refused_as_one(composed: Compose, key: str, value: str) -> None:
    with pytest.raises(REFUSED) as error:
        composed(f"{key}={value}")
    assert key.rpartition(".")[2] in words(error)


@pytest.mark.parametrize("value", ["yes", "true", "much"])
def test_what_is_no_number_is_refused_as_a_float(composed: Compose, value: str) -> None:
    with pytest.raises(REFUSED):
        composed(f"calibration.budget_s={value}")


@pytest.mark.parametrize("value", ["perhaps", "nan"])
def test_a_switch_takes_true_and_false_only(composed: Compose, value: str) -> None:
    with pytest.raises(REFUSED):
        composed(f"strategies.require_capturable={value}")


def test_pages_must_divide_both_pools(composed: Compose) -> None:
    for key in ("size", "size_swa"):
        with pytest.raises(ConfigError, match=rf"workload\.{key} must be a multiple of workload\.page_size 64"):
            composed(f"workload.{key}=100")


def test_a_workload_name_cannot_lead_out_of_the_store(composed: Compose) -> None:
    with pytest.raises(ConfigError, match=r"workload\.name"):
        composed("workload.name=../../etc/cron")


def test_a_trace_must_be_named(composed: Compose) -> None:
    with pytest.raises(ConfigError, match=r"workload\.path=FILE"):
        composed("workload=trace")


# Overlays: files of the user's own, in a folder given with --config-dir


WORKLOAD = "name: mine\nsize: 256\nsize_swa: 128\nbacklog_us: 10.5\n"


def test_an_overlay_adds_an_option(composed: Compose, tmp_path: Path) -> None:
    config = composed("workload=mine", overlay=overlay_file(tmp_path, "workload", WORKLOAD))
    assert (config.workload.name, config.workload.size, config.workload.backlog_us) == ("mine", 256, 10.5)


def test_an_overlay_may_build_on_a_shipped_file(composed: Compose, tmp_path: Path) -> None:
    text = "defaults: [gpt_oss_120b, _self_]\nname: mine\nwindow: 64\n"
    config = composed("workload=mine", overlay=overlay_file(tmp_path, "workload", text))
    assert (config.workload.window, config.workload.size) == (64, 524288)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("widow: 3", "widow"),
        ("page_size: yes", "page_size"),
        ("page_size: 3.5", "page_size"),
        ("backlog_us: .nan", "backlog_us"),
        ("backlog_us: -.inf", "backlog_us"),
        ("size: -256", "size"),
        ("caller: vllm", "sglang"),
        ("size: {a: 1}", "size"),
    ],
)
def test_a_wrong_value_in_an_overlay_is_refused(composed: Compose, tmp_path: Path, line: str, named: str) -> None:
    key = line.partition(":")[0]
    kept = [given for given in WORKLOAD.splitlines() if not given.startswith(f"{key}:")]
    folder = overlay_file(tmp_path, "workload", "\n".join([*kept, line]))
    with pytest.raises(REFUSED) as error:
        composed("workload=mine", overlay=folder)
    assert named in words(error)


def test_a_missing_value_is_named(composed: Compose, tmp_path: Path) -> None:
    folder = overlay_file(tmp_path, "workload", "size: 256\n")
    with pytest.raises(REFUSED) as error:
        composed("workload=mine", overlay=folder)
    assert "workload.name" in words(error)


def test_what_an_overlay_leaves_open_is_what_a_starting_allocator_assumes(composed: Compose, tmp_path: Path) -> None:
    config = composed("workload=mine", overlay=overlay_file(tmp_path, "workload", WORKLOAD))
    assert config.workload == Workload(name="mine", size=256, size_swa=128, backlog_us=10.5)


def test_a_syntax_error_in_an_overlay_is_refused_with_its_place(composed: Compose, tmp_path: Path) -> None:
    folder = overlay_file(tmp_path, "workload", "name: mine\n  size: [256\n")
    with pytest.raises(REFUSED) as error:
        composed("workload=mine", overlay=folder)
    assert "mine.yaml" in words(error)
    assert "line 2" in words(error)


# The way without Hydra, inside a server


def test_a_group_takes_overrides(composed: Compose) -> None:
    load: Any = load_group(Workload, "workload", "default", size=640, size_swa=320, page_size=64)
    assert (load.size, load.size_swa, load.page_size, load.name) == (640, 320, 64, "default")
    assert (
        load
        == composed("workload=default", "workload.size=640", "workload.size_swa=320", "workload.page_size=64").workload
    )


@pytest.mark.parametrize("overrides", [{"page_size": 7}, {"size": -1}])
def test_a_group_with_an_impossible_override_is_refused(overrides: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        load_group(Workload, "workload", "default", **overrides)


def test_a_group_file_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="mimo_v2_flash"):
        load_group(Workload, "workload", "mimo_v3_flash")
