"""The configuration: every key, its type, its default and its range, as the frozen types that the rest works with."""

from __future__ import annotations

import dataclasses
import difflib
import math
import reprlib
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf

from swa_alloc.errors import SWAAllocError


class ConfigError(SWAAllocError, ValueError):
    """The configuration asks for something that does not exist or cannot be."""


class Caller(Enum):
    """Who frees: it decides how the frees of a run are cut."""

    sglang = "sglang"  # one request at a time, as SGLang 0.5.23 does
    swa_alloc = "swa_alloc"  # all the requests of a step in one free group


class Objective(Enum):
    """What is minimized; ``auto`` leaves it to the device."""

    auto = "auto"
    serving = "serving"
    latency = "latency"


class Task(Enum):
    """What a run does."""

    calibrate = "calibrate"


class Format(Enum):
    """What stdout carries."""

    table = "table"  # for people
    json = "json"  # for machines


class Reuse(Enum):
    """Which saved profile makes measuring unnecessary."""

    exact = "exact"  # measured with as much effort, for this very request, on this very machine and software
    compatible = "compatible"  # a patch-level difference in software is no reason to measure
    never = "never"  # measure anew, whatever there is


class Studies(Enum):
    """Where the Optuna studies go."""

    memory = "memory"  # keeps none
    journal = "journal"  # study.journal in the run folder, for optuna-dashboard


_DAY_S = 86_400


@dataclass(frozen=True)
class DeviceConfig:
    """The device that is measured.

    Attributes:
        kind: A name in ``autotune.devices``; ``auto`` is an accelerator if there is one, else the CPU.
        index: Which of several devices of that kind.
    """

    kind: str = "auto"
    index: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        _at_least(0, "device", index=self.index)


@dataclass(frozen=True)
class Workload:
    """The traffic that an engine sees, and the pools that it runs on.

    The defaults are what an allocator assumes that calibrates at its start, and knows nothing but its own pools.

    Attributes:
        name: For people, and in the profile's file name.
        path: A recorded trace that is taken instead of playing the traffic.
        caller: Who frees.
        size: Slots in the full pool.
        size_swa: Slots in the SWA pool.
        page_size: Slots in a page.
        window: Tokens that a sliding-window layer looks back.
        running_requests: Requests that decode at the same time, where the pools have room.
        prompt_tokens: Mean prompt length; lengths are uniform within half of it on either side.
        output_tokens: Mean output length, spread likewise.
        prefill_chunk: Tokens that one prefill step adds to a request; 8192 is SGLang's default for 80 to 160 GB of
            memory.
        eviction_interval: Tokens by which a request outgrows its window before the slots behind it are freed; 128 is
            SGLang's SGLANG_SWA_EVICTION_INTERVAL.
        decode_steps: Steps that are played.
        backlog_us: Device work queued ahead of a call, in microseconds: one decode step.
    """

    name: str = MISSING
    path: str | None = None
    caller: Caller = Caller.sglang
    size: int = 1 << 20
    size_swa: int = 1 << 19
    page_size: int = 1
    window: int = 1024
    running_requests: int = 64
    prompt_tokens: int = 2048
    output_tokens: int = 512
    prefill_chunk: int = 8192
    eviction_interval: int = 128
    decode_steps: int = 512
    backlog_us: float = 15_000

    def __post_init__(self) -> None:
        """Check ranges, and that pages divide pools."""
        pools = ("size", "size_swa", "page_size", "window", "running_requests")
        tokens = ("prompt_tokens", "output_tokens", "prefill_chunk", "eviction_interval", "decode_steps")
        _at_least(1, "workload", **{name: getattr(self, name) for name in (*pools, *tokens)})
        _at_least(0, "workload", backlog_us=self.backlog_us)
        if self.name != MISSING and not self.name.replace("-", "_").isidentifier():
            raise ConfigError(f"workload.name must be letters, digits, - and _ (it names a file), not {self.name!r}")
        if self.path == "":
            raise ConfigError("workload=trace needs a recorded trace; add workload.path=FILE")
        for name in ("size", "size_swa"):
            if getattr(self, name) % self.page_size:
                raise ConfigError(
                    f"workload.{name} must be a multiple of workload.page_size {self.page_size}, "
                    f"not {getattr(self, name)}"
                )


@dataclass(frozen=True)
class Calibration:
    """How much is measured, and when a difference counts. The defaults are quick enough for a server that is starting.

    Attributes:
        budget_s: Most seconds spent on measuring; None for the device's own, 5 on a CPU and 15 on accelerators.
        sizes: Most numbers of indices that are timed for each kind of call, those that refine borders apart.
        tables: Most freshly allocated tables that a race is spread over; fewer where they are large.
        rounds: Most rounds of a race.
        block_us: Length of a hot sample, in microseconds; calls are repeated to fill it.
        switch_margin: Fraction by which another strategy must beat the default. Where fresh processes differ by more,
            as on a CPU beyond 128 indices, the device adds to it.
        call_limit_s: Seconds beyond which one call makes a strategy ineligible.
        wait_s: Seconds beyond the budget to wait for another process that is measuring.
        seed: Of the random orders and indices.
    """

    budget_s: float | None = None
    sizes: int = 6
    tables: int = 4
    rounds: int = 384
    block_us: float = 30.0
    switch_margin: float = 0.03
    call_limit_s: float = 0.5
    wait_s: float = 120.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        # Eight rounds are the fewest that have a 99 % interval; three sizes are the ends and one between. The upper
        # ends are where a typo begins.
        _within(0.01, _DAY_S, "calibration", budget_s=self.budget_s)
        _within(3, 64, "calibration", sizes=self.sizes)
        _within(1, 1000, "calibration", tables=self.tables)
        _within(8, 100_000, "calibration", rounds=self.rounds)
        _within(1, 1e6, "calibration", block_us=self.block_us)
        _within(0.001, _DAY_S, "calibration", call_limit_s=self.call_limit_s)
        _within(0, _DAY_S, "calibration", wait_s=self.wait_s)
        _at_least(0, "calibration", seed=self.seed)
        if not 0 <= self.switch_margin < 1:
            raise ConfigError(f"calibration.switch_margin must lie in [0, 1), not {self.switch_margin}")


@dataclass(frozen=True)
class Strategies:
    """Which strategies race, or which one is pinned.

    Attributes:
        include: Names that race; None is every one that is installed. An operation left with none keeps its default.
        exclude: Names that do not.
        pin: A choice to write a profile with, measuring nothing: ``NAME``, ``NAME(param=value)``, or
            ``clear.token=NAME,set.page=NAME``.
        require_capturable: Leave out whatever does not work in a captured graph (CUDAGraph, NPUGraph, XPUGraph).
    """

    include: list[str] | None = None
    exclude: list[str] = field(default_factory=list)
    pin: str | None = None
    require_capturable: bool = False


@dataclass(frozen=True)
class ProfileConfig:
    """Where profiles live, and when a saved one will do.

    Attributes:
        dir: Where they are saved and reused; None is SWA_ALLOC_PROFILE_DIR, else the user's cache.
        reuse: What makes measuring unnecessary.
    """

    dir: str | None = None
    reuse: Reuse = Reuse.exact


@dataclass(frozen=True)
class Config:
    """Everything that a run is told."""

    device: DeviceConfig = field(default_factory=DeviceConfig)
    workload: Workload = field(default_factory=Workload)
    calibration: Calibration = field(default_factory=Calibration)
    strategies: Strategies = field(default_factory=Strategies)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    objective: Objective = Objective.auto
    task: Task = Task.calibrate
    format: Format = Format.table
    studies: Studies = Studies.memory


def conf_dir() -> Path:
    """The folder of the shipped configuration: beside this file in a wheel, beside the package in a checkout.

    Raises:
        ConfigError: it is in neither place.
    """
    here = Path(__file__).resolve().parent
    for candidate in (here / "conf", here.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError("the shipped conf/ folder is missing; reinstall swa-alloc")


def editable(cls: type) -> DictConfig:
    """A schema node for Hydra. OmegaConf marks frozen classes read-only, and then no override would pass."""
    node: DictConfig = OmegaConf.structured(cls)
    _unlock(node)
    return node


def to_config(cfg: DictConfig) -> Config:
    """A composed configuration as the frozen types above.

    Raises:
        ConfigError: a key that the schema lacks, a missing or impossible value.
    """
    _refuse_unknown_keys(cfg, Config, "")
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError(f"not set: {', '.join(missing)}; set them, or start the file from a shipped one of its group")
    config: Config = OmegaConf.to_object(cfg)  # type: ignore[assignment]  # the node was built from Config
    return config


def unknown_key(path: str) -> str:
    """What to say of a key, with dots, that the schema lacks."""
    *parents, key = path.split(".")
    schema: Any = Config
    for parent in parents:
        schema = get_type_hints(schema).get(parent)
        if not dataclasses.is_dataclass(schema):
            return f"unknown key {path}"
    known = [item.name for item in dataclasses.fields(schema)]
    near = difflib.get_close_matches(key, known, 1)
    prefix = "".join(f"{parent}." for parent in parents)
    return f"unknown key {path}; " + (f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(known)}")


def load_group(cls: type, group: str, name: str, **overrides: Any) -> Any:
    """One choice of a group of conf/ as its frozen type, without Hydra: for calibration inside a server.

    Raises:
        ConfigError: there is no such choice, or an override is out of range.
    """
    layers = _layers(conf_dir() / group, name)
    return OmegaConf.to_object(OmegaConf.merge(editable(cls), *layers, overrides))


def _layers(folder: Path, name: str) -> list[Any]:
    """The contents of a file and of those in its defaults list, in the order in which Hydra merges them."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise ConfigError(f"there is no {folder.name} named {name!r}; known: {known}")
    own: Any = OmegaConf.load(path)
    layers: list[Any] = []
    for entry in own.pop("defaults", ["_self_"]):
        layers += [own] if entry == "_self_" else _layers(folder, entry)
    return layers


def _unlock(node: DictConfig) -> None:
    OmegaConf.set_readonly(node, None)
    for key in node:
        child = node._get_node(key)  # noqa: SLF001 - reading a missing value through the public way raises
        if isinstance(child, DictConfig):
            _unlock(child)


def _refuse_unknown_keys(node: DictConfig, schema: type, path: str) -> None:
    # Hydra's `+key=value` adds what the schema lacks, and to_object would drop it in silence.
    known = {item.name for item in dataclasses.fields(schema)}
    for key in map(str, node):
        if key not in known:
            raise ConfigError(unknown_key(f"{path}{key}"))
        child = node._get_node(key)  # noqa: SLF001 - reading a missing value through the public way raises
        if isinstance(child, DictConfig) and (child_schema := OmegaConf.get_type(child)) is not None:
            _refuse_unknown_keys(child, child_schema, f"{path}{key}.")


def _at_least(low: float, group: str, **values: Any) -> None:
    _within(low, math.inf, group, **values)


def _within(low: float, high: float, group: str, **values: Any) -> None:
    expected = f"at least {low}" if high == math.inf else f"from {low} to {high:g}"
    for name, value in values.items():
        # OmegaConf passes a missing value as "???", and reads nan and inf as numbers.
        if isinstance(value, int | float) and not (low <= value <= high and value != math.inf):
            raise ConfigError(f"{group}.{name} must be {expected}, not {reprlib.repr(value)}")
