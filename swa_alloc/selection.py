"""Which strategies serve a mapping, and which layer decided it: pins, named profile, stores, calibration, default."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import torch

from swa_alloc.backends import backend_of
from swa_alloc.errors import CalibrationError, ProfileError, StrategyError, SWAAllocError
from swa_alloc.fingerprint import Match, fingerprint
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, CallKind, Objective, OperationName, TargetName
from swa_alloc.profile import SAME_CLASS_FACTOR, Decision, StrategyProfile
from swa_alloc.stores import PROFILE_VARIABLE, Miss, find, stores
from swa_alloc.strategies import Strategy, create, known_names, names, parse_label, split_labels

OnMissing = Literal["calibrate", "default", "error"]
PIN_VARIABLE = "SWA_ALLOC_STRATEGY"
ON_MISSING_VARIABLE = "SWA_ALLOC_ON_MISSING"
OBJECTIVE_VARIABLE = "SWA_ALLOC_OBJECTIVE"

# Of the things that an incomplete profile lacks, named in one line.
_FEW = 3

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
        remarks: Ordinary facts worth telling, such as a profile that is compatible and not exact.
        troubles: What went wrong and was fallen back from.
        miss: Why the defaults serve although there are profiles for this device type; empty where that is not so.
        profile: What was found to serve what is not pinned, if anything was; it may decide for less than there is.
    """

    choices: Mapping[Key, Choice]
    remarks: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    miss: str = ""
    profile: StrategyProfile | None = None


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
    notes = _Notes(strict=overrides.strict_profile)
    try:
        asked = overrides.objective or os.environ.get(OBJECTIVE_VARIABLE)
        objective: Objective | None = _one_of(Objective, "objective", asked) if asked else None
    except ProfileError as error:
        notes.tolerate(error)
        objective = None
    pins: dict[Key, Choice] = {}
    wrong_pin = False
    for layer, pin in _pins(overrides):
        try:
            # The first layer that pins a target keeps it.
            pins = {**pinned(pin, layer), **pins}
        except StrategyError as error:
            wrong_pin = True
            notes.tolerate(StrategyError(f"{layer}: {error}"))
    below: Mapping[Key, Choice] = {}
    led: _Found | None = None
    wanted = calls(page_size) if wanted is None else wanted
    # A pin that cannot be used leaves the default, as a named profile does: anything else would hide the mistake.
    if not wrong_pin and any(key not in pins for key in wanted):
        led = _find_profile(device, size, page_size, overrides, notes)
        below = _from_profile(led, objective, notes) if led else {}
    found = {**{key: default_choice(key, device.type) for key in wanted}, **below, **pins}
    return Selection(
        {key: found[key] for key in wanted},
        tuple(notes.remarks),
        tuple(notes.troubles),
        notes.miss,
        led.profile if led else None,
    )


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
    parts = [_target_and_label(part) for part in split_labels(pin)]
    if not parts:
        raise StrategyError(f"pin {pin!r} names no strategy; write STRATEGY or TARGET=STRATEGY")
    choices: dict[Key, Choice] = {}
    said: dict[bool, set[Key]] = {False: set(), True: set()}
    # A bare label means whatever the strategy serves; a target that is spelled out means just that, and goes before.
    for where, label in sorted(parts, key=lambda part: part[0] is not None):
        name, params = parse_label(label)
        keys = _served(name, params) if where is None else [key for key in _keys() if ".".join(key) == where]
        if not keys:
            known = ", ".join(".".join(key) for key in _keys())
            wrong = f"{where}={label}"
            raise StrategyError(f"pin {wrong!r} names no known target; write STRATEGY or TARGET=STRATEGY with {known}")
        for key in keys:
            # A typo is found here, not at the first call.
            create(key[0], name, params)
        spelled_out = where is not None
        twice = [key for key in keys if key in said[spelled_out]]
        if twice:
            raise StrategyError(f"pin {pin!r} says twice what serves {'.'.join(twice[0])}")
        said[spelled_out].update(keys)
        choices |= {key: Choice(*key, layer, pin, _everywhere(key, name, params)) for key in keys}
    return choices


def _target_and_label(part: str) -> tuple[str | None, str]:
    """The two sides of ``TARGET=LABEL``; None and the label where there is no target."""
    name, opened, params = part.partition("(")
    target, separator, name = name.rpartition("=")
    return target.strip() if separator else None, f"{name.strip()}{opened}{params}"


def _served(name: str, params: Mapping[str, Any]) -> list[Key]:
    """What a strategy of that name serves; operations may have one each, and not all need take the parameters.

    Raises:
        StrategyError: none does.
    """
    owners = [operation for operation in OPERATIONS if name in names(operation)]
    if not owners:
        raise StrategyError(f"unknown strategy {name!r}; known: {known_names()}")
    served, refusals = [], []
    for operation in owners:
        try:
            targets = create(operation, name, params).targets
        except StrategyError as error:
            refusals.append(error)
        else:
            served += [key for key in _keys() if key[0] == operation and key[1] in targets]
    if not served:
        raise refusals[0]
    return served


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


def _everywhere(key: Key, name: str, params: Mapping[str, Any] = MappingProxyType({})) -> tuple[Decision, ...]:
    return tuple(Decision(CallKind(*key, dtype), None, name, dict(params), 0.0, ()) for dtype in INDEX_DTYPES)


def _pins(overrides: Overrides) -> list[tuple[str, Pin]]:
    layers = (("strategy= argument", overrides.strategy), (PIN_VARIABLE, os.environ.get(PIN_VARIABLE)))
    return [(layer, pin) for layer, pin in layers if pin]


class _Notes:
    """What is noticed on the way to a selection; its fields are those of ``Selection``."""

    def __init__(self, *, strict: bool) -> None:
        self.remarks: list[str] = []
        self.troubles: list[str] = []
        self.miss = ""
        self._strict = strict

    def tolerate(self, error: SWAAllocError) -> None:
        """Note a trouble; raise it where the caller wants to hear of them so."""
        if self._strict:
            raise error
        self.troubles.append(str(error))


class _Found(NamedTuple):
    """A profile to choose from, and who led to it."""

    profile: StrategyProfile
    layer: str
    source: str


def _find_profile(
    device: torch.device, size: int, page_size: int, overrides: Overrides, notes: _Notes
) -> _Found | None:
    try:
        here = fingerprint(device)
    except SWAAllocError:
        raise
    except Exception as error:  # noqa: BLE001 - somebody else's backend must not stop a server
        notes.tolerate(ProfileError(f"the backend of {device.type} does not work: {type(error).__name__}: {error}"))
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
                reasons = "; ".join(match.differences)
                raise ProfileError(f"profile {source} was made for another machine or mapping: {reasons}")  # noqa: TRY301 - handled as the other troubles of a named profile are
        except ProfileError as error:
            notes.tolerate(error)
            return None
        notes.remarks.extend(_reservations(source, loaded, match))
        return _Found(loaded, layer, source)
    search = find(here, size, page_size)
    notes.remarks.extend(search.remarks)
    for unusable in search.unusable:
        notes.tolerate(unusable)
    hit = search.hit
    if hit is None:
        return _when_missing(device, size, page_size, overrides, notes, search.misses)
    if hit.profile.unfinished and (completed := _complete(device, size, page_size, overrides, notes)):
        return completed
    notes.remarks.extend(_reservations(str(hit.path), hit.profile, hit.match))
    return _Found(hit.profile, hit.layer, str(hit.path))


def _reservations(source: str, profile: StrategyProfile, match: Match) -> list[str]:
    lines = [f"{source} is compatible, not exact: {difference}" for difference in match.differences]
    return [*lines, *_gaps(source, profile)]


def _gaps(source: str, profile: StrategyProfile) -> list[str]:
    """One line for a profile that is incomplete."""
    if profile.complete:
        return []
    named = ", ".join(profile.missing[:_FEW]) + (", ..." if len(profile.missing) > _FEW else "")
    return [f"{source} is incomplete: {len(profile.missing)} missing ({named}); calibrating again completes it"]


def _named(overrides: Overrides) -> tuple[str, StrategyProfile | str | Path] | None:
    if overrides.profile is not None:
        return "profile= argument", overrides.profile
    path = os.environ.get(PROFILE_VARIABLE)
    return (PROFILE_VARIABLE, path) if path else None


def _when_missing(
    device: torch.device, size: int, page_size: int, overrides: Overrides, notes: _Notes, misses: tuple[Miss, ...]
) -> _Found | None:
    # An AMD GPU is cuda to PyTorch and rocm to the command; auto finds any accelerator.
    where = "cpu" if device.type == "cpu" else "auto"
    pools = f"workload.size={size} workload.size_swa={size} workload.page_size={page_size}"
    command = f"`python -m autotune device={where} workload=default {pools}`"
    nearest = _nearest(misses)
    on_missing = _on_missing(overrides, notes)
    if on_missing == "calibrate":
        try:
            return _calibrated(device, size, page_size, notes)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in measuring, a server must start
            notes.tolerate(CalibrationError(f"not calibrated: {error}{nearest}; to measure by hand: {command}"))
            return None
    missing = f"no profile for this {device.type} with {size} slots in pages of {page_size}"
    if on_missing == "error":
        looked = " and ".join(str(store.directory) for store in stores())
        raise ProfileError(f"{missing} (looked in {looked}{nearest}); make one with {command}")
    if misses:
        notes.miss = f"{missing}, the defaults serve{nearest}; make one with {command}"
    return None


def _nearest(misses: tuple[Miss, ...]) -> str:
    """Where the nearest of some profiles differs, as the end of a sentence; nothing where there are none."""
    if not misses:
        return ""
    path, _, differences = misses[0]
    rule = f"a profile serves pools of 1/{SAME_CLASS_FACTOR} to {SAME_CLASS_FACTOR} times its own size"
    return f"; the nearest of {len(misses)}, {path}, differs: {'; '.join(differences)} ({rule})"


def _on_missing(overrides: Overrides, notes: _Notes) -> OnMissing:
    asked = overrides.on_missing or os.environ.get(ON_MISSING_VARIABLE) or "calibrate"
    try:
        chosen: OnMissing = _one_of(OnMissing, "on_missing", asked)
    except ProfileError as error:
        notes.tolerate(error)
        return "default"
    return chosen


def _complete(device: torch.device, size: int, page_size: int, overrides: Overrides, notes: _Notes) -> _Found | None:
    """What measuring makes of an unfinished profile, where that is wanted and works."""
    if _on_missing(overrides, notes) != "calibrate":
        return None
    try:
        return _calibrated(device, size, page_size, notes)
    except Exception as error:  # noqa: BLE001 - what there is serves
        notes.remarks.append(f"not calibrated: {error}")
        return None


def _calibrated(device: torch.device, size: int, page_size: int, notes: _Notes) -> _Found:
    # Needed by the first start on a machine, and by no other.
    from swa_alloc.startup import calibrate_at_startup

    if backend_of(device.type).capturing():
        # To measure is to synchronize, which would end the capture with an error.
        raise CalibrationError("a graph is being captured")
    profile, path = calibrate_at_startup(device, size, page_size)
    notes.remarks.extend(_gaps(str(path or "what was measured"), profile))
    return _Found(profile, "calibration at start-up", str(path or "not saved"))


def _from_profile(found: _Found, objective: Objective | None, notes: _Notes) -> Mapping[Key, Choice]:
    profile, layer, source = found
    try:
        profile = profile.under(objective or profile.objective)
    except ProfileError as error:
        notes.tolerate(ProfileError(f"{source}: {error}"))
        return {}
    of_key: dict[Key, list[Decision]] = {}
    for decision in profile.decisions:
        of_key.setdefault(decision.kind[:2], []).append(decision)
    return {
        key: Choice(*key, layer, source, _for_any_dtype(decisions, key, profile), profile)
        for key, decisions in of_key.items()
    }


def _for_any_dtype(decisions: Sequence[Decision], key: Key, profile: StrategyProfile) -> tuple[Decision, ...]:
    """``decisions``, with the default for an index dtype that the profile says nothing about."""
    covered = {decision.kind.index_dtype for decision in decisions}
    default = _everywhere(key, OPERATIONS[key[0]].default_strategy(profile.fingerprint.device_type))
    return (*decisions, *(decision for decision in default if decision.kind.index_dtype not in covered))
