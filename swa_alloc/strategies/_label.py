"""How a strategy with its parameters is written, and how it is read again: ``name(param=value, ...)``."""

from __future__ import annotations

import ast
import re
from typing import Any

from swa_alloc.errors import StrategyError

# Written without quotes: a word, or a label in a label.
_WORD = re.compile(r"[^\W\d]\w*(\(.*\))?", re.DOTALL)
_CONSTANTS = {str(constant): constant for constant in (True, False, None)}

# A quoted string is one piece; of anything else, each character.
_PIECE = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|.""", re.DOTALL)
_DEPTH = {**dict.fromkeys("([{", 1), **dict.fromkeys(")]}", -1)}


def candidate_label(name: str, params: dict[str, Any]) -> str:
    """``name`` or ``name(param=value, ...)``: what ``parse_label`` reads, and people."""
    return (
        f"{name}({', '.join(f'{key}={_written(value)}' for key, value in sorted(params.items()))})" if params else name
    )


def parse_label(label: str) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of a label. Words are strings, as in ``read_then_clear(clear=index_put)``.

    Raises:
        StrategyError: it is not written like that.
    """
    name, opened, rest = label.strip().partition("(")
    params: dict[str, Any] = {}
    if opened:
        if not rest.endswith(")"):
            raise _unreadable(label, f"what begins with {name}( must end with )")
        for part in split_labels(rest[:-1]):
            key, is_set, value = part.partition("=")
            if not is_set or not key.strip().isidentifier():
                raise _unreadable(label, f"{part!r} gives no parameter a value")
            if key.strip() in params:
                raise _unreadable(label, f"{key.strip()} is given twice")
            params[key.strip()] = _read(label, value.strip())
    return name.strip(), params


def split_labels(text: str) -> list[str]:
    """What stands between commas, those inside of parentheses and quotes left alone; without what is empty.

    Raises:
        StrategyError: a parenthesis is without its other half.
    """
    parts, depth = [""], 0
    for piece in _PIECE.findall(text):
        depth += _DEPTH.get(piece, 0)
        if depth < 0:
            break
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    if depth:
        raise _unreadable(text, "a parenthesis is without its other half")
    return [part.strip() for part in parts if part.strip()]


def _written(value: Any) -> str:
    return value if isinstance(value, str) and _is_word(value) else repr(value)


def _is_word(value: str) -> bool:
    if value in _CONSTANTS or not _WORD.fullmatch(value):
        return False
    try:
        return split_labels(value) == [value]
    except StrategyError:
        return False


def _read(label: str, value: str) -> Any:
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    if _WORD.fullmatch(value):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError) as error:
        raise _unreadable(label, f"{value!r} is neither a word nor a Python literal") from error


def _unreadable(label: str, reason: str) -> StrategyError:
    return StrategyError(f"{label!r} cannot be read: {reason}; write NAME or NAME(PARAMETER=VALUE, ...)")
