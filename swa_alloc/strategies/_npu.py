"""What must be there before an Ascend operator can run on a mapping."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swa_alloc.operations import Target


def without_torch_npu(target: Target) -> str | None:
    """Why an Ascend operator cannot run on ``target``, or None where it can."""
    if target.mapping.device.type != "npu":
        return f"it is an Ascend operator, and the mapping is on {target.mapping.device.type}"
    # An npu tensor without the package comes from another backend of that name.
    return None if "torch_npu" in sys.modules else "torch_npu is not imported"
