"""Prints, as one JSON object, the ACL calls of every strategy that runs on an npu, and of some other ways to clear."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import torch
import torch_npu  # noqa: F401 - registers the device
from acl_calls import acl_calls

from swa_alloc.dispatch import bind
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, Target, empty_mapping
from swa_alloc.strategies import builtin_names, candidate_label, create

if TYPE_CHECKING:
    from collections.abc import Iterator

    from swa_alloc.strategies import Strategy

# With pages of several slots, and with pages of one, which alone are taken by token.
MAPPINGS = {page_size: empty_mapping(4096, page_size, torch.device("npu")) for page_size in (64, 1)}
mapping = MAPPINGS[64]
# Parameters that change the calls, besides the defaults.
CLEARS = ("index_fill", "subscript_assign", "index_put", "index_copy", "npu_scatter_nd_update")
PARAMS = {"read_then_clear": tuple({"clear": name} for name in CLEARS)}
on_host = torch.tensor([7, 3, 40])
mask = (torch.arange(mapping.numel()) % 5 == 0).npu()


def assign(index: object, value: object = 0) -> None:
    mapping[index] = value


def targets() -> Iterator[Target]:
    for page_size, table in MAPPINGS.items():
        for operation in OPERATIONS.values():
            for name in operation.targets(page_size):
                for dtype in INDEX_DTYPES.values():
                    yield Target(operation.name, name, dtype, table, page_size)


def strategies(target: Target) -> Iterator[tuple[str, Strategy]]:
    for name in builtin_names(target.operation):
        for params in ({}, *PARAMS.get(name, ())):
            strategy = create(target.operation, name, params)
            if target.name in strategy.targets and strategy.unavailable(target) is None:
                yield candidate_label(name, params), strategy


def of_strategies() -> Iterator[tuple[str, list[str]]]:
    for target in targets():
        indices = on_host.to(target.index_dtype).npu()
        arguments = OPERATIONS[target.operation].arguments(target.table, indices)
        for label, strategy in strategies(target):
            call = bind(strategy, target)
            # The first call may set something up.
            call(*arguments)
            made = acl_calls(lambda c=call, a=arguments: c(*a))
            yield f"{target.operation}.{target.name} {label} {str(target.index_dtype).removeprefix('torch.')}", made


def main() -> None:
    calls: dict[str, list[str]] = {}
    for name, made in of_strategies():
        # The token target comes with either page size.
        if calls.setdefault(name, made) != made:
            raise SystemExit(f"{name}: {calls[name]} and {made}")
    calls["assign at a list"] = acl_calls(lambda: assign([7, 3]))
    calls["assign at host indices"] = acl_calls(lambda: assign(on_host))
    calls["assign through a mask"] = acl_calls(lambda: assign(mask))
    calls["zero a slice"] = acl_calls(mapping[10:20].zero_)
    calls["item"] = acl_calls(mapping[0].item)
    sys.stdout.write(json.dumps(calls))


if __name__ == "__main__":
    main()
