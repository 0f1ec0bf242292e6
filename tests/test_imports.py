"""The drawing of imports inside autotune/: who may know of whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "autotune"

Drawing = Mapping[str, set[str]]  # from a module to those that it imports


def modules() -> dict[str, Path]:
    """Every module of the package by its name; a folder's is its ``__init__``."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / PACKAGE).rglob("*.py"))
    }


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Those that are carried out, at once or later; not those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for otherwise in node.orelse:
                yield from imports(otherwise)
        else:
            yield from imports(node)


def imported(node: ast.Import | ast.ImportFrom, known: Mapping[str, Path]) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & set(known)
    assert node.level == 0, "imports name the package"
    # A name may be a module of the folder, or something inside its __init__.
    named = {f"{node.module}.{alias.name}" for alias in node.names}
    inside = named & set(known)
    return inside | ({node.module} & set(known) if named - inside and node.module else set())


def drawing() -> Drawing:
    known = modules()
    return {
        name: {
            other
            for node in imports(ast.parse(path.read_text(encoding="utf-8")))
            for other in imported(node, known)
            if other != name
        }
        for name, path in known.items()
    }


def rooms(drawn: Drawing) -> Drawing:
    """The same between folders; a module beside them is a room of its own."""

    def room(name: str) -> str:
        return ".".join(name.split(".")[:2])

    found: dict[str, set[str]] = {}
    for name, others in drawn.items():
        found.setdefault(room(name), set()).update(room(other) for other in others if room(other) != room(name))
    return found


def circle(drawn: Drawing) -> list[str]:
    """The modules of one, the first named twice; empty where there is none."""
    try:
        TopologicalSorter(drawn).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_drawing_shows_what_modules_import() -> None:
    drawn = drawing()
    assert "autotune.devices" in drawn["autotune.calibrate"]
    assert "autotune.devices._base" in drawn["autotune.devices"]
    assert "autotune.contest.intervals" in drawn["autotune.contest.race"]
    # For a type checker alone.
    assert "autotune.contest.candidates" not in drawn["autotune.bench.bench"]


def test_no_module_imports_itself_by_a_way_round() -> None:
    assert circle(drawing()) == []


def test_no_room_imports_itself_by_a_way_round() -> None:
    assert circle(rooms(drawing())) == []


@pytest.mark.parametrize(
    ("room", "unknown"),
    [
        ("traffic", {"bench", "contest", "command", "devices"}),
        ("devices", {"bench", "contest", "command", "traffic"}),
        ("bench", {"contest", "command", "traffic"}),
        ("contest", {"command"}),
    ],
)
def test_a_room_knows_those_below_it_only(room: str, unknown: set[str]) -> None:
    assert not rooms(drawing())[f"{PACKAGE}.{room}"] & {f"{PACKAGE}.{other}" for other in unknown}


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})[0] in {"a", "b", "c"}
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
