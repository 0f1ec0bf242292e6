"""SWATokenToKVPoolAllocator does what a model of plain lists says, in any order of calls, checked or not.

``ALLOCATOR_EXAMPLES=5000 python -m pytest tests/test_allocator_model.py`` looks longer.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from allocator_model import AllocatorMachine, StrictMachine
from builders import PROPERTY
from hypothesis import settings

from swa_alloc import SWATokenToKVPoolAllocator

EXAMPLES = int(os.environ.get("ALLOCATOR_EXAMPLES", "100"))


def _machine(
    base: type[AllocatorMachine], pages: int, *, mapped: bool = False, examples: int = EXAMPLES // 3, **keywords: Any
) -> Any:
    class Machine(base):  # type: ignore[misc, valid-type]  # one of two classes
        page_size = pages
        needs_mapped_peers = mapped

        def make(self, size: int, size_swa: int, page_size: int) -> SWATokenToKVPoolAllocator:
            return SWATokenToKVPoolAllocator(size, size_swa, page_size, torch.bfloat16, "cpu", None, **keywords)

    case = Machine.TestCase
    case.settings = settings(PROPERTY, max_examples=examples, stateful_step_count=50)
    return case


TestPage1 = _machine(AllocatorMachine, 1, examples=EXAMPLES)
TestPage4 = _machine(AllocatorMachine, 4, examples=EXAMPLES)
TestPage64 = _machine(AllocatorMachine, 64, examples=EXAMPLES)
TestPage1Sorted = _machine(AllocatorMachine, 1, need_sort=True)
TestPage4Sorted = _machine(AllocatorMachine, 4, need_sort=True)
TestPage64Sorted = _machine(AllocatorMachine, 64, need_sort=True)
TestPage1Strict = _machine(StrictMachine, 1, mapped=True, checks="strict")
TestPage4Strict = _machine(StrictMachine, 4, mapped=True, checks="strict")
TestPage64Strict = _machine(StrictMachine, 64, mapped=True, checks="strict")
TestPage1Async = _machine(AllocatorMachine, 1, mapped=True, checks="async")
TestPage4Async = _machine(AllocatorMachine, 4, mapped=True, checks="async")
TestPage64Async = _machine(AllocatorMachine, 64, mapped=True, checks="async")

# Pins that leave no operation with its default strategy.
PINS = {
    1: "clear.token=scatter,set.token=index_copy,translate.token=index_select",
    4: (
        "clear.token=masked_scatter,clear.page=index_copy,set.token=scatter,set.page=index_put,"
        "translate.token=tensor_take"
    ),
}
TestPage1Pinned = _machine(AllocatorMachine, 1, strategy=PINS[1], strict_profile=True)
TestPage4Pinned = _machine(AllocatorMachine, 4, strategy=PINS[4], strict_profile=True)


@pytest.mark.parametrize("page_size", PINS)
def test_the_pins_are_used(page_size: int) -> None:
    allocator = SWATokenToKVPoolAllocator(
        64, 64, page_size, torch.bfloat16, "cpu", None, strategy=PINS[page_size], strict_profile=True
    )
    for pin in PINS[page_size].split(","):
        assert pin.partition("=")[2] in allocator.explain()
