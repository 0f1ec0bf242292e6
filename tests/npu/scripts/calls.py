"""Prints, as one JSON object, the ACL calls of every strategy that runs on an npu, and of some other ways to clear.

Ends with an error where a strategy does something else than its operation's reference.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import torch
import torch_npu  # noqa: F401 - registers the device
from acl_calls import acl_calls

from swa_alloc.dispatch import bind
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, Target, empty_mapping
from swa_alloc.strategies import builtin_names, strategy_class
from swa_alloc.testing import candidates_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from swa_alloc.strategies import Bound, Strategy

# With pages of several slots, and with pages of one, which alone are taken by token.
MAPPINGS = {page_size: empty_mapping(4096, page_size, torch.device("npu")) for page_size in (64, 1)}
mapping = MAPPINGS[64]
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
    classes = (strategy_class(target.operation, name) for name in builtin_names(target.operation))
    for label, strategy in candidates_of(*classes).items():
        if target.name in strategy.targets and strategy.unavailable(target) is None:
            yield label, strategy


def of_strategies() -> Iterator[tuple[str, list[str]]]:
    for target in targets():
        indices = on_host.to(target.index_dtype).npu()
        arguments = OPERATIONS[target.operation].arguments(target.table, indices)
        for label, strategy in strategies(target):
            call = bind(strategy, target)
            name = f"{target.operation}.{target.name} {label} {str(target.index_dtype).removeprefix('torch.')}"
            # The first call may set something up.
            if not is_right(call, target, arguments):
                raise SystemExit(f"{name} does not do what its operation's reference does")
            made = acl_calls(lambda c=call, a=arguments: c(*a))
            yield name, made


def is_right(call: Bound, target: Target, arguments: tuple[torch.Tensor, ...]) -> bool:
    target.mapping.copy_(torch.arange(64, 64 + target.mapping.numel()))
    on_cpu = target._replace(mapping=target.mapping.cpu())
    wanted = OPERATIONS[target.operation].reference(on_cpu.table, *(argument.cpu() for argument in arguments))
    result = call(*arguments)
    return torch.equal(target.mapping.cpu(), on_cpu.mapping) and (wanted is None or torch.equal(result.cpu(), wanted))


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
