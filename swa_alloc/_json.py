"""Dataclasses to and from JSON: strict when reading, atomic when writing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import tempfile
import types
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def decode(cls: type[T], value: object, where: str = "") -> T:
    """``value``, as JSON gave it, as an instance of the dataclass ``cls``.

    Every field must be there with its declared type, and nothing else; floats must be finite.

    Raises:
        ValueError: what is wrong and where, in one line.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'the document'} must be an object, not {_kind(value)}")  # noqa: TRY004 - its file is at fault, not its caller
    hints = get_type_hints(cls)
    prefix = f"{where}." if where else ""
    unknown, missing = sorted(set(value) - set(hints)), sorted(set(hints) - set(value))
    if missing:
        raise ValueError(f"{prefix}{missing[0]} is missing")
    if unknown:
        raise ValueError(f"{prefix}{unknown[0]} is not a known field")
    fields = {name: _value(hint, value[name], f"{prefix}{name}") for name, hint in hints.items()}
    try:
        return cls(**fields)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from error


def encode(instance: Any) -> str:
    """A dataclass as JSON with sorted keys, so that equal contents are equal files."""
    return json.dumps(dataclasses.asdict(instance), sort_keys=True, indent=1, allow_nan=False) + "\n"


def read(path: Path) -> object:
    """The JSON in ``path``.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from error


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``; whoever reads it, and whenever this is killed, sees the old or the new, whole.

    Raises:
        OSError: the folder cannot be written, or the disk is full. ``path`` is then as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, since a rename is atomic within one file system only.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # mkstemp's 0600 would hide a system store's profile from other users
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _value(hint: Any, value: Any, where: str) -> Any:  # noqa: PLR0911 - one way out for each kind of hint
    if hint is Any:
        return value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return _value(hint, value, where)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{where} must be one of {', '.join(map(str, arguments))}, not {value!r}")
        return value
    if origin is tuple:
        _check(isinstance(value, list), where, "a list", value)
        return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        _check(isinstance(value, dict), where, "an object", value)
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return decode(hint, value, where)
    if hint is float:
        _check(isinstance(value, int | float) and not isinstance(value, bool), where, "a number", value)
        _check(math.isfinite(value), where, "a finite number", value)
        return float(value)
    # bool is an int to Python, and not to JSON.
    _check(isinstance(value, hint) and isinstance(value, bool) == (hint is bool), where, _NAMES[hint], value)
    return value


_NAMES = {int: "a whole number", str: "a string", bool: "true or false"}


def _check(holds: bool, where: str, expected: str, value: object) -> None:  # noqa: FBT001 - an assertion's condition
    if not holds:
        raise ValueError(f"{where} must be {expected}, not {_kind(value)}")


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", type(None): "null"}.get(type(value), repr(value))
