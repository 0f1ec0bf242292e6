"""The stand-in for CANN: what the real torch_npu wheel makes of it is right, and takes as long as the script says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from npu.npu_python import SCRIPTS, NpuPython

COSTS = """
    aclnnInplaceZero fixed_ns=20000;
    aclnnInplaceFillScalar fixed_ns=1000000;
    aclnnInplaceMuls fixed_ns=80000000;
    aclnnIndexPutImpl fixed_ns=30000;
    aclnnIndexPutImpl indices>100 fixed_ns=400000 index_ns=2000;
    aclnnInplaceIndexFill fixed_ns=100000 element_ns=5;
    aclnnInplaceSubs host_ns=300000;
    aclnnInplaceAdds sync;
    aclnnSleep element_ns=1
"""

FACTS = """
import json, torch, torch_npu
from swa_alloc.fingerprint import fingerprint
print(json.dumps({
    "available": torch.npu.is_available(),
    "count": torch.npu.device_count(),
    "memory": torch.npu.mem_get_info()[1],
    **fingerprint(torch.device("npu", 0))._asdict(),
}))
"""

FIRST_USE = "import torch, torch_npu; print(torch.npu.is_available()); torch.zeros(3, device='npu').cpu()"


def results(python: NpuPython, script: str) -> dict[str, Any]:
    done = python.run(SCRIPTS / script)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_operators_compute_what_they_compute_on_a_cpu() -> None:
    done = NpuPython().run(SCRIPTS / "operators.py", timeout=120)
    assert done.returncode == 0, done.stderr
    problems: dict[str, str | None] = {}
    for line in done.stdout.splitlines():
        problems |= json.loads(line)
    assert {name: problem for name, problem in problems.items() if problem} == {}
    assert "tolist" in problems, "the last case was not reached"


@pytest.fixture(scope="module")
def costs() -> dict[str, float]:
    return results(NpuPython(COSTS), "costs.py")


def test_device_costs_are_seen_by_events(costs: dict[str, float]) -> None:
    assert costs["event 20 us"] == pytest.approx(20, rel=0.1)
    assert costs["event 1 ms"] == pytest.approx(1000, rel=0.1)
    assert costs["event 80 ms"] == pytest.approx(80_000, rel=0.1)
    # The host needs longer for a table of that size.
    assert costs["event 20 us, large table"] == pytest.approx(20, rel=0.1)


def test_device_costs_are_seen_by_the_hosts_clock(costs: dict[str, float]) -> None:
    assert costs["wall 1 ms"] == pytest.approx(1000, rel=0.1)
    assert costs["wall 80 ms"] == pytest.approx(80_000, rel=0.1)


def test_device_costs_depend_on_indices_and_elements(costs: dict[str, float]) -> None:
    assert costs["index_put of 50"] == pytest.approx(30, rel=0.1)
    assert costs["index_put of 150"] == pytest.approx(400 + 150 * 2, rel=0.1)
    assert costs["index_fill of 100000 rows"] == pytest.approx(100 + 100_000 * 0.005, rel=0.1)


def test_host_costs_are_spent_before_the_call_returns(costs: dict[str, float]) -> None:
    assert costs["host cheap"] < 200
    assert 300 <= costs["host dear"] < 600


def test_a_call_that_waits_takes_the_backlogs_time_and_another_does_not(costs: dict[str, float]) -> None:
    assert costs["stall asynchronous"] == pytest.approx(0, abs=0.1)
    assert costs["stall blocking"] == pytest.approx(1, abs=0.1)
    assert costs["stall item"] == pytest.approx(1, abs=0.1)


def test_graphs_are_captured_replayed_and_refused_to_what_waits() -> None:
    found = results(NpuPython("aclnnInplaceAdds sync"), "capture.py")
    assert found["captured"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found["replayed"] == [1, 2, 3, 0, 7, 0, 7, 8]
    assert found["replayed on other indices"] == [0, 7, 3, 4, 5, 6, 0, 7]
    invalidated = "error code is 507903"
    assert invalidated in found["item"]
    assert invalidated in found["operator that waits"]
    assert found["asynchronous"] == ""
    assert found["afterwards"] == [0, 7, 3, 4, 5, 6, 0, 7]


def test_the_script_says_what_the_device_is() -> None:
    done = NpuPython("machine soc=Ascend910_9391 devices=2 memory=1000000000").run("-c", FACTS)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["available"], facts["count"], facts["memory"]) == (True, 2, 1_000_000_000)
    assert (facts["device_name"], facts["device_arch"]) == ("Ascend910_9391", "250")
    assert (facts["runtime"], facts["emulated"]) == ("8.5.0-fake", True)


def test_a_machine_without_a_device() -> None:
    done = NpuPython("machine devices=0").run("-c", FIRST_USE)
    assert done.stdout.strip() == "False"
    assert "RuntimeError: No NPUs are available" in done.stderr


def test_a_device_that_torch_npu_does_not_know() -> None:
    done = NpuPython("machine soc=Ascend999").run("-c", FIRST_USE)
    assert "RuntimeError: Unsupported soc version: Ascend999" in done.stderr


def test_cann_of_which_a_part_is_missing() -> None:
    done = NpuPython().run("-c", FIRST_USE, ASCEND_OPP_PATH="/nonexistent")
    assert "Exception: ASCEND_OPP_PATH : /nonexistent does not exist" in done.stderr


def test_an_operator_that_the_stand_in_lacks_ends_the_process_and_names_it() -> None:
    done = NpuPython().run("-c", "import torch, torch_npu; torch.ones(3, device='npu').tan_().cpu()")
    assert done.returncode != 0
    assert "the stand-in for CANN has no aclnn operator for Tan" in done.stderr


def test_an_index_beyond_the_table_fails_the_device() -> None:
    code = "import torch, torch_npu; t = torch.zeros(3, device='npu'); t[t.new_tensor([3]).long()] = 1; t.cpu()"
    done = NpuPython().run("-c", code)
    assert "error code is 507035" in done.stderr
    assert "index 3 is out of range for 3 rows" in done.stderr


@pytest.mark.parametrize("script", ["aclnnSleep fixed=3", "machine colour=red", "aclnnSleep indices>many"])
def test_a_script_with_a_mistake_ends_the_process(script: str) -> None:
    done = NpuPython(script).run("-c", "import ctypes; ctypes.CDLL('libascendcl.so').aclrtGetSocName()")
    assert done.returncode < 0
    assert f'CANN_STAND_IN_SCRIPT: cannot read "{script}"' in done.stderr


def test_the_environment_is_the_stand_ins_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", "1")
    environment = NpuPython().environment(TASK_QUEUE_ENABLE="2")
    assert "ASCEND_LAUNCH_BLOCKING" not in environment
    assert environment["TASK_QUEUE_ENABLE"] == "2"
    assert Path(environment["ASCEND_OPP_PATH"]).is_dir()
