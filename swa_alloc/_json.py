"""Records to and from JSON: strict when reading, atomic when writing.

A record is a ``NamedTuple`` whose fields are scalars, lists, objects and further records; one with a ``check`` method
has it called when it is read. They are no dataclasses because defining a frozen one takes a millisecond of every start.
``_schema`` makes a JSON Schema of the same classes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import reprlib
import stat
import tempfile
import types
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

# Some hundred times the largest profile.
_LARGEST_FILE = 1 << 26
# Of a field, quoted in an error.
_LONGEST_NAME = 80

Record = TypeVar("Record")


class AtLeast(NamedTuple):
    """Of a number in a record, ``Annotated[int, AtLeast(1)]``: the smallest that there can be."""

    bound: int


def decode(cls: type[Record], value: object, where: str = "") -> Record:
    """``value``, as JSON gave it, as a record of class ``cls``.

    Every field must be there with its declared type, and nothing else; floats must be finite.

    Raises:
        ValueError: what is wrong and where, in one line.
    """
    return cast("Record", _decoder(cast("Any", cls))(value, where))


def part(cls: type[Record], document: Mapping[str, Any], name: str) -> Record:
    """One field of a document as a record of class ``cls``, the rest unread.

    Raises:
        ValueError: it is missing, or what ``decode`` says.
    """
    if name not in document:
        raise ValueError(f"{name} is missing")
    return decode(cls, document[name], name)


def of_schema(schema: str, document: object) -> Mapping[str, Any]:
    """``document``, unless it says that it is something else: one clear reason before many puzzling ones.

    Raises:
        ValueError: it does.
    """
    if isinstance(document, dict) and document.get("schema") == schema:
        return document
    found = document.get("schema") if isinstance(document, dict) else None
    raise ValueError(f"its schema is {reprlib.repr(found)} and this version reads {schema!r}")


def plain(value: Any) -> Any:
    """A record as JSON types."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is None:
            return [plain(item) for item in value]
        return {name: plain(item) for name, item in zip(fields, value, strict=True)}
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def encode(document: Any) -> str:
    """JSON with sorted keys, so that equal contents are equal files."""
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"


def read(path: Path) -> object:
    """The JSON in ``path``.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a file of JSON.
    """
    return _parsed(_text(path))


def read_from(path: Path, field: str) -> object:
    """The document in ``path`` without the fields before ``field``, in the order in which ``encode`` writes them.

    They are not even parsed, which may be most of the work. A file that was laid out otherwise is read as a whole.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a file of JSON.
    """
    text = _text(path)
    # Strings hold no line breaks, so that this is no part of one; and what lies deeper is indented further.
    start = text.find(f'\n "{field}": ')
    return _parsed(text if start < 0 else f"{{{text[start:]}")


def _text(path: Path) -> str:
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ValueError("it is no regular file")  # reading a FIFO would never end
    if status.st_size > _LARGEST_FILE:
        raise ValueError(f"it is larger than {_LARGEST_FILE} bytes")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from error


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
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


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it is not JSON ({name} is no JSON number)")


_Decoder = Callable[[Any, str], Any]  # decoder(value, where) -> the decoded value


@cache
def _decoder(hint: Any) -> _Decoder:  # noqa: PLR0911 - one way out for each kind of hint
    """How values of a type are checked and converted; worked out once a type, since a profile has thousands."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, _where: value
    if origin in (Union, types.UnionType):
        (inner,) = (_decoder(argument) for argument in arguments if argument is not type(None))
        return lambda value, where: None if value is None else inner(value, where)
    if origin is Annotated:
        return _at_least(arguments[1].bound, _decoder(arguments[0]))
    if origin is Literal:
        return _literal(arguments)
    if origin is tuple:
        return _list(_decoder(arguments[0]))
    if origin is dict:
        return _dict(_decoder(arguments[0]), _decoder(arguments[1]))
    if hint is float:
        return _float
    return _record(hint) if hasattr(hint, "_fields") else _scalar(hint)


def _record(cls: Any) -> _Decoder:
    check = getattr(cls, "check", None)
    decoders = {name: _decoder(hint) for name, hint in get_type_hints(cls, include_extras=True).items()}

    def decode_record(value: Any, where: str) -> Any:
        prefix = f"{where}." if where else ""
        if not isinstance(value, dict):
            raise ValueError(f"{where or 'the document'} must be an object, not {_kind(value)}")  # noqa: TRY004 - its file is at fault, not its caller
        if value.keys() != decoders.keys():
            missing, unknown = sorted(decoders.keys() - value.keys()), sorted(value.keys() - decoders.keys())
            fault = f"{missing[0]} is missing" if missing else f"{_legible(unknown[0])} is not a known field"
            raise ValueError(f"{prefix}{fault}")
        fields = {name: decoder(value[name], prefix + name) for name, decoder in decoders.items()}
        record = cls(**fields)
        if check is not None:
            try:
                check(record)
            except ValueError as error:
                raise ValueError(f"{prefix}{error}") from error
        return record

    return decode_record


def _list(inner: _Decoder) -> _Decoder:
    def decode_list(value: Any, where: str) -> Any:
        _check(isinstance(value, list), where, "a list", value)
        return tuple(inner(item, f"{where}[{i}]") for i, item in enumerate(value))

    return decode_list


def _dict(name: _Decoder, inner: _Decoder) -> _Decoder:
    def decode_dict(value: Any, where: str) -> Any:
        _check(isinstance(value, dict), where, "an object", value)
        return {name(key, f"a name in {where}"): inner(item, f"{where}.{_legible(key)}") for key, item in value.items()}

    return decode_dict


def _at_least(bound: int, inner: _Decoder) -> _Decoder:
    def decode_number(value: Any, where: str) -> Any:
        number = inner(value, where)
        _check(number >= bound, where, f"at least {bound}", value)
        return number

    return decode_number


def _literal(choices: tuple[Any, ...]) -> _Decoder:
    def decode_literal(value: Any, where: str) -> Any:
        _check(isinstance(value, str) and value in choices, where, f"one of {', '.join(choices)}", value)
        return value

    return decode_literal


def _float(value: Any, where: str) -> float:
    _check(type(value) in (int, float), where, "a number", value)
    try:
        number = float(value)
    except OverflowError:  # a whole number of more digits than a float has room for
        number = math.inf
    _check(math.isfinite(number), where, "a finite number", value)
    return number


def _scalar(kind: type) -> _Decoder:
    name = {int: "a whole number", str: "a string", bool: "true or false"}[kind]

    def decode_scalar(value: Any, where: str) -> Any:
        # To JSON, 2.0 is a whole number; and true is none, though Python counts it among its ints.
        if kind is int and type(value) is float and value.is_integer():
            return int(value)
        _check(type(value) is kind, where, name, value)
        return value

    return decode_scalar


def _check(holds: bool, where: str, expected: str, value: object) -> None:  # noqa: FBT001 - an assertion's condition
    if not holds:
        raise ValueError(f"{where} must be {expected}, not {_kind(value)}")


def _legible(name: str) -> str:
    """A name from a file, fit for one line of a log."""
    return name if name.isprintable() and len(name) < _LONGEST_NAME else reprlib.repr(name)


def _kind(value: object) -> str:
    named = {dict: "an object", list: "a list", type(None): "null"}.get(type(value))
    return named or reprlib.repr(value)
