"""Which strategies serve a mapping, and which layer decided it: pins, named profile, stores, calibration, default."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch

from swa_alloc.backends import backend_of
from swa_alloc.errors import CalibrationError, ProfileError, StrategyError, SWAAllocError
from swa_alloc.fingerprint import Match, fingerprint
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, Objective, OperationName, TargetName
from swa_alloc.profile import Decision, StrategyProfile
from swa_alloc.stores import PROFILE_VARIABLE, find, stores
from swa_alloc.strategies import Strategy, create, known_names, names, strategy_class

OnMissing = Literal["calibrate", "default", "error"]
PIN_VARIABLE = "SWA_ALLOC_STRATEGY"
ON_MISSING_VARIABLE = "SWA_ALLOC_ON_MISSING"
OBJECTIVE_VARIABLE = "SWA_ALLOC_OBJECTIVE"

Key = tuple[OperationName, TargetName]
Pin = str | Strategy | Sequence[Strategy]


class Overrides(NamedTuple):
    """What the caller of an allocator asked for; None leaves it to the environment, then to the stores.

    Attributes:
        profile: A profile, or the path of one.
        strategy: A pin: a name, ``"clear.token=NAME,clear.page=NAME"``, a ``Strategy`` instance, or several.
        on_missing: What to do where no profile fits.
        strict_profile: Whether trouble with a profile or a pin raises instead of falling back to the default.
        objective: What a profile is to have decided for; its own objective otherwise.
    """

    profile: StrategyProfile | str | Path | None = None
    strategy: Pin | None = None
    on_missing: OnMissing | None = None
    strict_profile: bool = False
    objective: Objective | None = None


class Choice(NamedTuple):
    """What serves one operation on one target.

    Attributes:
        operation: Name of the operation.
        target: What is indexed.
        layer: Who decided, as ``explain`` names it.
        source: The file or value that said so; empty for the default.
        decisions: For each index dtype, ascending in ``max_indices``.
        profile: The profile behind it, if any.
        instance: The strategy itself, where the caller passed one.
    """

    operation: OperationName
    target: TargetName
    layer: str
    source: str
    decisions: tuple[Decision, ...]
    profile: StrategyProfile | None = None
    instance: Strategy | None = None

    def strategy(self, decision: Decision) -> Strategy:
        """The strategy of one decision.

        Raises:
            StrategyError: it does not exist or does not take the parameters.
        """
        return self.instance or create(self.operation, decision.strategy, decision.params)


class Selection(NamedTuple):
    """The choices for every operation and target, and what was noticed on the way.

    Attributes:
        choices: By operation and target.
        remarks: Ordinary facts worth telling, such as a profile that does not fit.
        troubles: What went wrong and was fallen back from.
    """

    choices: Mapping[Key, Choice]
    remarks: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


def calls(page_size: int) -> tuple[Key, ...]:
    """Whatever is called on a mapping with pages of so many slots."""
    return tuple(
        (operation.name, target) for operation in OPERATIONS.values() for target in operation.targets(page_size)
    )


def select(
    device: torch.device, size: int, page_size: int, overrides: Overrides, wanted: Sequence[Key] | None = None
) -> Selection:
    """Decide what serves a mapping over ``size`` full slots on ``device``; the ``wanted`` calls only, if given.

    Raises:
        ProfileError, StrategyError, CalibrationError: ``strict_profile`` was asked for and something is wrong, or
            ``on_missing`` is ``"error"`` and no profile fits.
    """
    remarks: list[str] = []
    troubles: list[str] = []

    def tolerate(error: SWAAllocError) -> None:
        if overrides.strict_profile:
            raise error
        troubles.append(str(error))

    try:
        asked = overrides.objective or os.environ.get(OBJECTIVE_VARIABLE)
        objective: Objective | None = _one_of(Objective, "objective", asked) if asked else None
    except ProfileError as error:
        tolerate(error)
        objective = None
    pins: dict[Key, Choice] = {}
    wrong_pin = False
    for layer, pin in _pins(overrides):
        try:
            # The first layer that pins a target keeps it.
            pins = {**pinned(pin, layer), **pins}
        except StrategyError as error:
            wrong_pin = True
            tolerate(StrategyError(f"{layer}: {error}"))
    below: Mapping[Key, Choice] = {}
    wanted = calls(page_size) if wanted is None else wanted
    # A pin that cannot be used leaves the default, as a named profile does: anything else would hide the mistake.
    if not wrong_pin and any(key not in pins for key in wanted):
        found_profile = _find_profile(device, size, page_size, overrides, tolerate, remarks)
        below = _from_profile(found_profile, objective, tolerate) if found_profile else {}
    found = {**{key: default_choice(key, device.type) for key in wanted}, **below, **pins}
    return Selection({key: found[key] for key in wanted}, tuple(remarks), tuple(troubles))


def default_choice(key: Key, device_type: str) -> Choice:
    """The strategy that is used where nothing was measured."""
    name = OPERATIONS[key[0]].default_strategy(device_type)
    return Choice(*key, layer="default", source=f"for {device_type}", decisions=_everywhere(key, name))


def pinned(pin: Pin, layer: str) -> dict[Key, Choice]:
    """The choices that a pin makes.

    Raises:
        StrategyError: it names a strategy, an operation or a target that does not exist.
    """
    if isinstance(pin, str):
        return _pinned_by_name(pin, layer)
    instances = (pin,) if isinstance(pin, Strategy) else pin
    if not (isinstance(instances, Sequence) and all(isinstance(instance, Strategy) for instance in instances)):
        raise StrategyError(f"a pin is the name of a strategy, a Strategy instance or several of them, not {pin!r}")
    return {
        key: Choice(*key, layer, instance.name, _everywhere(key, instance.name), instance=instance)
        for instance in instances
        for key in _keys()
        if key[0] == instance.operation and key[1] in instance.targets
    }


def _pinned_by_name(pin: str, layer: str) -> dict[Key, Choice]:
    parts = [part.strip() for part in pin.split(",") if part.strip()]
    if not parts:
        raise StrategyError(f"pin {pin!r} names no strategy; write STRATEGY or TARGET=STRATEGY")
    bare = [part for part in parts if "=" not in part]
    choices: dict[Key, Choice] = {}
    said: dict[str, set[Key]] = {"": set(), "=": set()}
    # A bare name means whatever the strategy serves; a target that is spelled out means just that, and goes before.
    for part in (*bare, *(part for part in parts if "=" in part)):
        where, separator, name = part.rpartition("=")
        keys = [key for key in _keys() if ".".join(key) == where.strip()] if separator else _served(name.strip())
        if not keys:
            known = ", ".join(".".join(key) for key in _keys())
            raise StrategyError(f"pin {part!r} names no known target; write STRATEGY or TARGET=STRATEGY with {known}")
        for key in keys:
            # A typo is found here, not at the first call.
            create(key[0], name.strip())
        twice = [key for key in keys if key in said[separator]]
        if twice:
            raise StrategyError(f"pin {pin!r} says twice what serves {'.'.join(twice[0])}")
        said[separator].update(keys)
        choices |= {key: Choice(*key, layer, pin, _everywhere(key, name.strip())) for key in keys}
    return choices


def _served(name: str) -> list[Key]:
    """What a strategy of that name serves; operations may have one each.

    Raises:
        StrategyError: none does.
    """
    owners = [operation for operation in OPERATIONS if name in names(operation)]
    if not owners:
        raise StrategyError(f"unknown strategy {name!r}; known: {known_names()}")
    return [key for key in _keys() if key[0] in owners and key[1] in strategy_class(key[0], name).targets]


def _one_of(choices: Any, name: str, value: object) -> Any:
    """``value``, if it is one of a Literal's.

    Raises:
        ProfileError: it is none of them.
    """
    if value in get_args(choices):
        return value
    raise ProfileError(f"{name} is {value!r}; expected one of {', '.join(get_args(choices))}")


def _keys() -> list[Key]:
    """Whatever can be called, with any page size."""
    return [
        (operation.name, target)
        for operation in OPERATIONS.values()
        for target in dict.fromkeys((*operation.targets(1), *operation.paged_targets))
    ]


def _everywhere(key: Key, name: str) -> tuple[Decision, ...]:
    return tuple(Decision(*key, dtype, None, name, {}, 0.0, ()) for dtype in INDEX_DTYPES)


def _pins(overrides: Overrides) -> list[tuple[str, Pin]]:
    layers = (("strategy= argument", overrides.strategy), (PIN_VARIABLE, os.environ.get(PIN_VARIABLE)))
    return [(layer, pin) for layer, pin in layers if pin]


class _Found(NamedTuple):
    """A profile to choose from, and who led to it."""

    profile: StrategyProfile
    layer: str
    source: str


def _find_profile(
    device: torch.device,
    size: int,
    page_size: int,
    overrides: Overrides,
    tolerate: Callable[[SWAAllocError], None],
    remarks: list[str],
) -> _Found | None:
    try:
        here = fingerprint(device)
    except SWAAllocError:
        raise
    except Exception as error:  # noqa: BLE001 - somebody else's backend must not stop a server
        tolerate(ProfileError(f"the backend of {device.type} does not work: {type(error).__name__}: {error}"))
        return None
    named = _named(overrides)
    if named is not None:
        layer, profile = named
        # A profile that somebody named is used, or nothing is: looking elsewhere would hide the mistake.
        try:
            if not isinstance(profile, StrategyProfile | str | Path):
                raise ProfileError(f"a profile is a StrategyProfile or the path of one, not {profile!r}")  # noqa: TRY301 - handled as the other troubles of a named profile are
            loaded = profile if isinstance(profile, StrategyProfile) else StrategyProfile.load(profile)
            match = loaded.match(here, size, page_size)
            source = "the profile passed in" if loaded is profile else str(profile)
            if match.tier == "mismatch":
                reason = match.differences[0]
                raise ProfileError(f"profile {source} was made for another machine or mapping: {reason}")  # noqa: TRY301 - handled as the other troubles of a named profile are
        except ProfileError as error:
            tolerate(error)
            return None
        remarks.extend(_reservations(source, match))
        return _Found(loaded, layer, source)
    search = find(here, size, page_size)
    for unusable in search.unusable:
        tolerate(unusable)
    remarks.extend(f"ignored {line}" for line in search.ignored)
    if search.hit is not None:
        hit = search.hit
        remarks.extend(_reservations(str(hit.path), hit.match))
        return _Found(hit.profile, hit.layer, str(hit.path))
    return _when_missing(device, size, page_size, overrides, tolerate, search.ignored)


def _reservations(source: str, match: Match) -> list[str]:
    return [f"{source} is compatible, not exact: {difference}" for difference in match.differences]


def _named(overrides: Overrides) -> tuple[str, StrategyProfile | str | Path] | None:
    if overrides.profile is not None:
        return "profile= argument", overrides.profile
    path = os.environ.get(PROFILE_VARIABLE)
    return (PROFILE_VARIABLE, path) if path else None


def _when_missing(
    device: torch.device,
    size: int,
    page_size: int,
    overrides: Overrides,
    tolerate: Callable[[SWAAllocError], None],
    ignored: tuple[str, ...],
) -> _Found | None:
    # An AMD GPU is cuda to PyTorch and rocm to the command; auto finds any accelerator.
    where = "cpu" if device.type == "cpu" else "auto"
    pools = f"workload.size={size} workload.size_swa={size} workload.page_size={page_size}"
    command = f"python -m autotune device={where} workload=default {pools}"
    try:
        asked = overrides.on_missing or os.environ.get(ON_MISSING_VARIABLE) or "calibrate"
        on_missing: OnMissing = _one_of(OnMissing, "on_missing", asked)
    except ProfileError as error:
        tolerate(error)
        on_missing = "default"
    if on_missing == "default":
        return None
    if on_missing == "error":
        raise ProfileError(
            f"no profile for this {device.type} with {size} slots in pages of {page_size} (looked in "
            f"{' and '.join(str(store.directory) for store in stores())}"
            f"{'; ignored ' if ignored else ''}{'; ignored '.join(ignored)}); make one with `{command}`"
        )
    # Needed by the first start on a machine, and by no other.
    from swa_alloc.startup import calibrate_at_startup

    try:
        if backend_of(device.type).capturing():
            # To measure is to synchronize, which would end the capture with an error.
            raise CalibrationError("a graph is being captured")  # noqa: TRY301 - told as whatever else stands in the way
        profile, path = calibrate_at_startup(device, size, page_size)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in measuring, a server must start
        tolerate(CalibrationError(f"not calibrated: {error}; to measure by hand: `{command}`"))
        return None
    return _Found(profile, "calibration at start-up", str(path))


def _from_profile(
    found: _Found, objective: Objective | None, tolerate: Callable[[SWAAllocError], None]
) -> Mapping[Key, Choice]:
    profile, layer, source = found
    try:
        profile = profile.under(objective or profile.objective)
    except ProfileError as error:
        tolerate(ProfileError(f"{source}: {error}"))
        return {}
    choices = {}
    for key in _keys():
        decisions = tuple(d for dtype in INDEX_DTYPES for d in profile.decisions_for(*key, dtype))
        if decisions:
            choices[key] = Choice(*key, layer, source, _complete(decisions, key, profile), profile)
    return choices


def _complete(decisions: tuple[Decision, ...], key: Key, profile: StrategyProfile) -> tuple[Decision, ...]:
    """``decisions``, with the default for an index dtype that the profile says nothing about."""
    covered = {decision.index_dtype for decision in decisions}
    default = _everywhere(key, OPERATIONS[key[0]].default_strategy(profile.fingerprint.device_type))
    return (*decisions, *(decision for decision in default if decision.index_dtype not in covered))
