"""The calls that torch_npu makes of CANN during a piece of Python, for processes that have CANN_STAND_IN_LOG set."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# Memory comes from torch_npu's cache, so that whether a call asks for it depends on what ran before.
_MEMORY = ("aclrtMalloc", "aclrtFree")


def mark(line: str) -> None:
    """Write a line of one's own into the log."""
    ctypes.CDLL("libascendcl.so").cann_stand_in_mark(line.encode())


def acl_calls(call: Callable[[], object]) -> list[str]:
    """Names of the calls made until everything that ``call`` submits is done."""
    torch.npu.synchronize()
    mark("-- begin")
    call()
    # torch_npu launches from a thread of its own. Synchronizing sees the rest through, and is the last call.
    torch.npu.synchronize()
    mark("-- end")
    lines = Path(os.environ["CANN_STAND_IN_LOG"]).read_text(encoding="utf-8").splitlines()
    begin = len(lines) - 1 - lines[::-1].index("-- begin")
    made = lines[begin + 1 : lines.index("-- end", begin)]
    return [name for name in made[:-1] if name not in _MEMORY]
