"""What must be there before a strategy that is for Ascend can run on a mapping."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swa_alloc.operations import Target


def torch_npu_is_imported() -> bool:
    """Whether this process drives Ascend's NPUs."""
    return "torch_npu" in sys.modules


def without_torch_npu(target: Target, what: str) -> str | None:
    """Why a strategy that is ``what`` cannot run on ``target``, or None where it can."""
    if target.mapping.device.type != "npu":
        return f"it is {what}, and the mapping is on {target.mapping.device.type}"
    # An npu tensor without the package comes from another backend of that name.
    return None if torch_npu_is_imported() else "torch_npu is not imported"
