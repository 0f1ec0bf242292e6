"""Strategies on the npu: each makes exactly the calls of CANN that it is known to make, and none that waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from npu.known_calls import FILL, PUT, WAIT, known_calls
from npu.npu_python import SCRIPTS, NpuPython


def made(python: NpuPython) -> dict[str, list[str]]:
    done = python.run(SCRIPTS / "calls.py")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return made(NpuPython(log=tmp_path_factory.mktemp("calls") / "log"))


def test_every_strategy_is_right_and_makes_the_calls_that_it_is_known_to_make(calls: dict[str, list[str]]) -> None:
    assert {name: calls[name] for name in calls if "." in name} == known_calls()


def test_no_strategy_waits_or_copies_from_or_to_the_host(calls: dict[str, list[str]]) -> None:
    # What runs on the device is all called aclnn; a wait and a copy are called aclrt.
    other = {name: [c for c in made if not c.startswith("aclnn")] for name, made in calls.items() if "." in name}
    assert {name: left for name, left in other.items() if left} == {}


def test_other_ways_to_clear_wait_for_the_stream(calls: dict[str, list[str]]) -> None:
    assert {name: calls[name] for name in calls if "." not in name} == {
        "assign at a list": [FILL, WAIT, "aclrtMemcpy H2D", PUT],
        "assign at host indices": [FILL, WAIT, "aclrtMemcpy H2D", PUT],
        "assign through a mask": [FILL, WAIT, "aclrtMemcpy D2H", "aclnnInplaceMaskedFillScalar"],
        "zero a slice": ["aclnnInplaceZero"],
        "item": [WAIT, "aclrtMemcpy D2H"],
    }


def test_without_its_operator_index_fill_reads_every_index_on_the_host(tmp_path: Path) -> None:
    calls = made(NpuPython(old=True, log=tmp_path / "log"))
    assert calls["clear.token index_fill int64"] == [*[WAIT, "aclrtMemcpy D2H"] * 3, "aclnnInplaceIndexFillTensor"]
    unchanged = [name for name in known_calls() if "index_fill" not in name]
    assert {name: calls[name] for name in unchanged} == {name: known_calls()[name] for name in unchanged}
