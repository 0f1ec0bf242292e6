"""The JSON Schema of a record's file, from the classes that read it and their docstrings.

``python -m swa_alloc._schema > swa_alloc/profile.schema.json`` brings the file up to date that ships with the package,
for those who check profiles without it.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from swa_alloc._json import encode
from swa_alloc.evidence import EvidenceDocument
from swa_alloc.profile import ProfileDocument

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def profile_schema() -> dict[str, Any]:
    """What a file of a store may hold: a profile, or the evidence beside one."""
    return schema("Profiles and their evidence", ProfileDocument, EvidenceDocument)


def schema(title: str, *documents: type) -> dict[str, Any]:
    """The schema of files that hold one of several documents each, a definition for every record in them."""
    definitions: dict[str, Any] = {}
    kinds = [_value(document, definitions) for document in documents]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "oneOf": kinds,
        "$defs": definitions,
    }


def _value(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - as in _json, a way out each
    """The schema of one type; the records in it are added to ``definitions``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return {"anyOf": [_value(inner, definitions), {"type": "null"}]}
    if origin is Annotated:
        return {**_value(arguments[0], definitions), "minimum": arguments[1].bound}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _value(arguments[0], definitions)}
    if origin is dict:
        names, values = (_value(argument, definitions) for argument in arguments)
        return {"type": "object", "propertyNames": names, "additionalProperties": values}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = _record(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _record(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    summary, _, attributes = (inspect.getdoc(cls) or "").partition("\n\nAttributes:\n")
    # Google's style: a name and a colon, and what goes on below is indented further.
    described = dict(re.findall(r"^    (\w+): (.*(?:\n      +.*)*)", attributes, re.MULTILINE))
    fields = {
        name: {**_value(hint, definitions), "description": _prose(described[name])}
        for name, hint in get_type_hints(cls, include_extras=True).items()
    }
    return {
        "type": "object",
        "description": _prose(summary),
        "additionalProperties": False,
        "required": list(fields),
        "properties": fields,
    }


def _prose(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.replace("``", "").split()))


if __name__ == "__main__":
    sys.stdout.write(encode(profile_schema()))
