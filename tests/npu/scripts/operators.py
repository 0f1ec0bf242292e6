"""Prints a JSON object a line, {case: what is wrong or null}: every operator on the npu against the same on the CPU."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch_npu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS = 3001  # more than the stand-in handles at a time
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda base: base[:ROWS],
    "sliced": lambda base: base[7 : 7 + ROWS],
    "strided": lambda base: base[3 : 3 + 2 * ROWS : 2],
}
INTEGERS = (torch.int64, torch.int32)
ALL = (torch.int64, torch.int32, torch.bool, torch.float32)


class Inputs:
    """The same random tensors on every device; remembers the memory behind them, to see what else was written."""

    def __init__(self, device: str, dtype: torch.dtype, layout: str) -> None:
        self.device, self.dtype, self.layout = device, dtype, layout
        self.generator = torch.Generator().manual_seed(1)
        self.bases: list[torch.Tensor] = []

    def _random(self, size: int, high: int) -> torch.Tensor:
        return torch.randint(-high, high, (size,), generator=self.generator)

    def table(self, dtype: torch.dtype | None = None, high: int = 50) -> torch.Tensor:
        """[ROWS]"""
        base = self._random(2 * ROWS + 10, high)
        base = (base % 3 == 0) if (dtype or self.dtype) is torch.bool else base.to(dtype or self.dtype)
        self.bases.append(base.to(self.device))
        return LAYOUTS[self.layout](self.bases[-1])

    def pages(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """[100, 16], with a stride of 32 where the layout is strided."""
        base = self._random(100 * 32, 50)
        base = (base % 3 == 0) if (dtype or self.dtype) is torch.bool else base.to(dtype or self.dtype)
        self.bases.append(base.to(self.device))
        whole = self.bases[-1]
        return whole.view(100, 32)[:, ::2] if self.layout == "strided" else whole[8 : 8 + 1600].view(100, 16)

    def indices(self, high: int = ROWS, *, negative: bool = False, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """[40], strided where the layout is; distinct if ``high`` allows it."""
        distinct = high >= 80
        drawn = torch.randperm(high, generator=self.generator)[:80] if distinct else self._random(80, high).abs()
        if negative:
            drawn[::3] -= high
        drawn = drawn.to(dtype).to(self.device)
        return drawn[::2] if self.layout == "strided" else drawn[:40]

    def mask(self, size: int = ROWS) -> torch.Tensor:
        return (self._random(size, 50) % 7 == 0).to(self.device)

    def values(self, *shape: int) -> torch.Tensor:
        whole = self._random(torch.Size(shape).numel(), 50)
        whole = (whole % 3 == 0) if self.dtype is torch.bool else whole.to(self.dtype)
        return whole.view(shape).to(self.device)


def assigned(table: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    table[index] = value
    return table


def nd_update(table: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    if table.device.type == "cpu":
        return assigned(table, indices, updates)
    torch_npu.npu_scatter_nd_update_(table, indices.unsqueeze(1), updates)
    return table


def through_int32(inputs: Inputs, write: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """A [100, 16] table of int64 after a write to the same memory as [100, 32] int32."""
    pages = inputs.values(100, 16)
    write(pages.view(torch.int32))
    return pages


LONGS = (torch.int64,)

CASES: dict[str, tuple[Sequence[torch.dtype], Callable[[Inputs], Any]]] = {
    "zero_": (ALL, lambda i: i.table().zero_()),
    "fill_": (ALL, lambda i: i.table().fill_(3)),
    "fill_ of a tensor": (ALL, lambda i: i.table().fill_(i.values(1)[0])),
    "zeros": (ALL, lambda i: torch.zeros(5, 7, dtype=i.dtype, device=i.device)),
    "ones": (ALL, lambda i: torch.ones(5, 7, dtype=i.dtype, device=i.device)),
    "full": (ALL, lambda i: torch.full((5,), 1, dtype=i.dtype, device=i.device)),
    "clone": (ALL, lambda i: i.table().clone()),
    "contiguous": (ALL, lambda i: i.pages().t().contiguous()),
    "copy_": (ALL, lambda i: i.table().copy_(i.table())),
    "copy_ over another dtype": (ALL, lambda i: i.table(torch.int32).copy_(i.table())),
    "copy_ broadcast": (ALL, lambda i: i.pages().copy_(i.values(16))),
    "copy_ from the host": (ALL, lambda i: i.table().copy_(torch.arange(ROWS) % 2)),
    "narrow_copy": (INTEGERS, lambda i: i.table().narrow_copy(0, 5, 20)),
    "assign to a slice": (ALL, lambda i: assigned(i.table(), slice(5, 90, 4), 1)),
    "arange": (INTEGERS, lambda i: torch.arange(3, 90, 4, dtype=i.dtype, device=i.device)),
    "arange out": (
        INTEGERS,
        # PyTorch replaces a strided result on the way.
        lambda i: torch.arange(1, ROWS + 1, out=i.values(ROWS), device=i.device),
    ),
    "cat": (ALL, lambda i: torch.cat([i.table(), i.values(0), i.table()])),
    "cat of columns": (ALL, lambda i: torch.cat([i.pages(), i.pages()], dim=1)),
    "stack": (INTEGERS, lambda i: torch.stack([i.table(), i.table()])),
    "flip": (INTEGERS, lambda i: i.table().flip(0)),
    "roll": (INTEGERS, lambda i: i.table().roll(5)),
    "roll of pages": (INTEGERS, lambda i: i.pages().roll((3, -2), (0, 1))),
    "repeat": (INTEGERS, lambda i: i.pages().repeat(2, 3, 1)),
    "index_fill_": (ALL, lambda i: i.table().index_fill_(0, i.indices(), 1)),
    "index_fill_ of pages": (ALL, lambda i: i.pages().index_fill_(0, i.indices(100), 1)),
    "index_fill_ of columns": (ALL, lambda i: i.pages().index_fill_(1, i.indices(16), 1)),
    "assign a scalar": (ALL, lambda i: assigned(i.table(), i.indices(negative=True), 0)),
    "assign a scalar, int32 indices": (ALL, lambda i: assigned(i.table(), i.indices(dtype=torch.int32), 0)),
    "assign a tensor": (ALL, lambda i: assigned(i.table(), i.indices(), i.values(40))),
    "assign nothing": (ALL, lambda i: assigned(i.table(), i.indices()[:0], 0)),
    "assign pages": (ALL, lambda i: assigned(i.pages(), i.indices(100), i.values(40, 16))),
    "assign columns": (ALL, lambda i: assigned(i.pages(), (slice(None), i.indices(16)), 0)),
    "assign through a mask": (ALL, lambda i: assigned(i.table(), i.mask(), 1)),
    "index_put_": (ALL, lambda i: i.table().index_put_((i.indices(negative=True),), i.values(1)[0])),
    "index_put_ of pages": (ALL, lambda i: i.pages().index_put_((i.indices(100),), i.values(1)[0])),
    "index_put_ of two indices": (
        ALL,
        lambda i: i.pages().index_put_((i.indices(100), i.indices(16)[:1]), i.values(1)),
    ),
    "index_copy_": (ALL, lambda i: i.table().index_copy_(0, i.indices(), i.values(40))),
    "index_copy_ expanded": (ALL, lambda i: i.table().index_copy_(0, i.indices(), i.values(1).expand(40))),
    "index_copy_ of pages": (ALL, lambda i: i.pages().index_copy_(0, i.indices(100), i.values(40, 16))),
    "scatter_ of a value": (ALL, lambda i: i.table().scatter_(0, i.indices(), 1)),
    "scatter_ of values": (ALL, lambda i: i.table().scatter_(0, i.indices(), i.values(40))),
    "scatter_ of pages": (
        ALL,
        lambda i: i.pages().scatter_(0, i.indices(100).unsqueeze(1).expand(-1, 16), 1),
    ),
    "npu_scatter_nd_update_": (
        INTEGERS,
        lambda i: nd_update(i.table(), i.indices(), i.values(1).expand(40)),
    ),
    "npu_scatter_nd_update_, int32 indices": (
        INTEGERS,
        lambda i: nd_update(i.table(), i.indices(dtype=torch.int32), i.values(40)),
    ),
    "npu_scatter_nd_update_ of pages": (
        INTEGERS,
        lambda i: nd_update(i.pages(), i.indices(100), i.values(40, 16)),
    ),
    "masked_fill_": (ALL, lambda i: i.table().masked_fill_(i.mask(), 1)),
    "masked_fill_ of pages": (ALL, lambda i: i.pages().masked_fill_(i.mask(100).view(-1, 1), 1)),
    "masked_fill_ of a tensor": (ALL, lambda i: i.table().masked_fill_(i.mask(), i.values(1)[0])),
    "masked_scatter_": (ALL, lambda i: i.table().masked_scatter_(i.mask(), i.values(ROWS))),
    "masked_scatter_ of pages": (
        ALL,
        lambda i: i.pages().masked_scatter_(i.mask(100).view(-1, 1), i.values(100, 16)),
    ),
    "masked_select": (ALL, lambda i: i.table().masked_select(i.mask())),
    "int32 view, index_put_": (
        LONGS,
        lambda i: through_int32(i, lambda t: t.index_put_((i.indices(100),), t.new_zeros(()))),
    ),
    "int32 view, index_fill_": (LONGS, lambda i: through_int32(i, lambda t: t.index_fill_(0, i.indices(100), 0))),
    "int32 view, index_copy_": (
        LONGS,
        lambda i: through_int32(i, lambda t: t.index_copy_(0, i.indices(100), i.values(40, 16).view(torch.int32))),
    ),
    "int32 view, scatter_": (
        LONGS,
        lambda i: through_int32(
            i,
            lambda t: t.scatter_(0, i.indices(100).unsqueeze(1).expand(-1, 32), i.values(40, 16).view(torch.int32)),
        ),
    ),
    "int32 view, npu_scatter_nd_update_": (
        LONGS,
        lambda i: through_int32(
            i,
            lambda t: nd_update(
                t, i.indices(100, dtype=torch.int32), i.values(40).unsqueeze(1).view(torch.int32).repeat(1, 16)
            ),
        ),
    ),
    "int32 view, read back": (
        LONGS,
        lambda i: i.values(40).unsqueeze(1).view(torch.int32).view(torch.int64),
    ),
    "index_select": (ALL, lambda i: i.table().index_select(0, i.indices())),
    "index_select of pages": (ALL, lambda i: i.pages().index_select(0, i.indices(100))),
    "gather": (ALL, lambda i: i.table().gather(0, i.indices())),
    "gather of pages": (ALL, lambda i: i.pages().gather(1, i.indices(16).view(-1, 1)[:30])),
    "read": (ALL, lambda i: i.table()[i.indices(negative=True)]),
    "read, int32 indices": (ALL, lambda i: i.table()[i.indices(negative=True, dtype=torch.int32)]),
    "read of -1": (ALL, lambda i: i.table()[torch.tensor([-1, 0], device=i.device)]),
    "read nothing": (ALL, lambda i: i.table()[i.indices()[:0]]),
    "read pages": (ALL, lambda i: i.pages()[i.indices(100)]),
    "read the first of pages": (ALL, lambda i: i.pages()[i.indices(100), 0]),
    "index_select the first of pages": (ALL, lambda i: i.pages().index_select(0, i.indices(100))[:, 0]),
    "read a column": (ALL, lambda i: i.pages()[:, 0][i.indices(100)]),
    "read columns": (ALL, lambda i: i.pages()[:, i.indices(16)]),
    "read an element": (ALL, lambda i: i.table()[5].item()),
    "read through a mask": (ALL, lambda i: i.table()[i.mask()]),
    "nonzero": (ALL, lambda i: i.pages().nonzero()),
    "//": (INTEGERS, lambda i: i.table() // 16),
    "// of tensors": (INTEGERS, lambda i: i.table() // i.table().abs().add_(1)),
    "//=": (INTEGERS, lambda i: i.table().floor_divide_(16)),
    "/": (INTEGERS, lambda i: i.table() / 16),
    "div rounded down": (INTEGERS, lambda i: i.table().div(16, rounding_mode="floor")),
    "div rounded to zero": (INTEGERS, lambda i: i.table().div(i.values(1).abs() + 1, rounding_mode="trunc")),
    "%": (INTEGERS, lambda i: i.table() % 16),
    "% of tensors": (INTEGERS, lambda i: i.table() % i.table().abs().add_(1)),
    "+": (INTEGERS, lambda i: i.table() + 2),
    "+ of tensors": (INTEGERS, lambda i: i.table() + i.table()),
    "+ of dtypes": (INTEGERS, lambda i: i.table() + i.table(torch.int32)),
    "+=": (INTEGERS, lambda i: i.table().add_(2)),
    "+= of tensors": (INTEGERS, lambda i: i.table().add_(i.table(), alpha=3)),
    "-": (INTEGERS, lambda i: i.table() - 2),
    "- of tensors": (INTEGERS, lambda i: i.table() - i.table()),
    "- from a scalar": (INTEGERS, lambda i: 2 - i.table()),
    "-=": (INTEGERS, lambda i: i.table().sub_(2)),
    "negation": (INTEGERS, lambda i: -i.table()),
    "*": (INTEGERS, lambda i: i.table() * 3),
    "* of tensors": (INTEGERS, lambda i: i.table() * i.table()),
    "*=": (INTEGERS, lambda i: i.table().mul_(3)),
    "page arithmetic": (INTEGERS, lambda i: (i.indices().unsqueeze(1) * 16 + i.values(16)).view(-1)),
    "== a scalar": (ALL, lambda i: i.table() == 1),
    "== tensors": (ALL, lambda i: i.table() == i.table()),
    "!=": (ALL, lambda i: i.table() != i.table()),
    "!= 0": (ALL, lambda i: i.table() != 0),
    ">": (INTEGERS, lambda i: i.table() > 0),
    "> of tensors": (INTEGERS, lambda i: i.table() > i.table()),
    "<": (INTEGERS, lambda i: i.table() < 0),
    "< of tensors": (INTEGERS, lambda i: i.table() < i.table()),
    ">=": (INTEGERS, lambda i: i.table() >= 0),
    "<=": (INTEGERS, lambda i: i.table() <= i.table()),
    "not": (ALL, lambda i: i.table(torch.bool).logical_not()),
    "~": (ALL, lambda i: ~i.table(torch.bool)),
    "logical and": (ALL, lambda i: i.table(torch.bool).logical_and(i.mask())),
    "&": (ALL, lambda i: i.table(torch.bool) & i.mask()),
    "|": (ALL, lambda i: i.table(torch.bool) | i.mask()),
    "sum": ((*INTEGERS, torch.bool), lambda i: i.table().sum()),
    "sum of rows": (INTEGERS, lambda i: i.pages().sum(1)),
    "any": (ALL, lambda i: i.table(torch.bool).any()),
    "all": (ALL, lambda i: i.table(torch.bool).all()),
    "any of rows": (ALL, lambda i: i.pages(torch.bool).any(1)),
    "max": (INTEGERS, lambda i: i.table().max()),
    "min": (INTEGERS, lambda i: i.table().min()),
    "max of rows": (INTEGERS, lambda i: i.pages().max(1).values),
    "argmax of rows": (INTEGERS, lambda i: i.pages().cumsum(1).mul_(100).argmax(1)),
    "argmin": (INTEGERS, lambda i: i.table().cumsum(0).argmin()),
    "amin of rows": (INTEGERS, lambda i: i.pages().amin(1)),
    "maximum": (INTEGERS, lambda i: torch.maximum(i.table(), i.table())),
    "clamp": (INTEGERS, lambda i: i.table().clamp(min=0)),
    "where": (ALL, lambda i: torch.where(i.mask(), i.table(), i.table())),
    "where of a scalar": (INTEGERS, lambda i: torch.where(i.mask(), i.table(), 0)),
    "unique": (INTEGERS, lambda i: torch.unique(i.table())),
    "unique with inverse and counts": (
        INTEGERS,
        lambda i: torch.unique(i.table(), return_inverse=True, return_counts=True),
    ),
    "unique_consecutive": (INTEGERS, lambda i: torch.unique_consecutive(i.table(high=2), return_counts=True)),
    "cumsum": (INTEGERS, lambda i: i.table().cumsum(0)),
    "cumsum of rows": (INTEGERS, lambda i: i.pages().cumsum(1)),
    "repeat_interleave": (INTEGERS, lambda i: i.table().repeat_interleave(3)),
    "repeat_interleave by a tensor": (INTEGERS, lambda i: i.values(40).repeat_interleave(i.indices(5))),
    "repeat_interleave of positions": (INTEGERS, lambda i: torch.repeat_interleave(i.indices(5))),
    "repeat_interleave of known size": (
        INTEGERS,
        lambda i: i.values(4).repeat_interleave(torch.tensor([1, 0, 2, 3], device=i.device), output_size=6),
    ),
    "to int32": (ALL, lambda i: i.table().to(torch.int32)),
    "to int64": (ALL, lambda i: i.table().to(torch.int64)),
    "to bool": (ALL, lambda i: i.table().to(torch.bool)),
    "to float32": (ALL, lambda i: i.table().to(torch.float32)),
    "to bfloat16": (ALL, lambda i: i.table().to(torch.bfloat16)),
    "sort": (INTEGERS, lambda i: i.table().sort(stable=True)),
    "sort descending": (INTEGERS, lambda i: i.pages().sort(descending=True, stable=True)),
    "argsort": (INTEGERS, lambda i: i.table().argsort(stable=True)),
    "equal": (ALL, lambda i: torch.equal(i.table(), i.table())),
    "equal to itself": (ALL, lambda i: torch.equal(table := i.table(), table.clone())),
    "empty_like": (ALL, lambda i: torch.empty_like(i.table()).shape),
    "new_zeros": (ALL, lambda i: i.table().new_zeros((3, 4))),
    "expand": (INTEGERS, lambda i: i.values(1).expand(7).contiguous()),
    "tolist": (INTEGERS, lambda i: i.table().tolist()),
}


def on_host(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.cpu()
    if isinstance(result, tuple):
        return tuple(on_host(part) for part in result)
    return result


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    return bool(left == right)


def problem(call: Callable[[Inputs], Any], dtype: torch.dtype, layout: str) -> str | None:
    expected, actual = Inputs("cpu", dtype, layout), Inputs("npu", dtype, layout)
    wanted = on_host(call(expected))
    try:
        got = on_host(call(actual))
        left = [base.cpu() for base in actual.bases]
    except Exception as error:  # noqa: BLE001 - whatever it is, the test reports it
        return f"{dtype}, {layout}: {' '.join(str(error).split())[:500]}"
    if not same(got, wanted):
        return f"{dtype}, {layout}: {got} instead of {wanted}"
    if not all(same(*pair) for pair in zip(left, expected.bases, strict=True)):
        return f"{dtype}, {layout}: it wrote where it should not"
    return None


def main() -> None:
    for name, (dtypes, call) in CASES.items():
        found = (problem(call, dtype, layout) for dtype in dtypes for layout in LAYOUTS)
        sys.stdout.write(json.dumps({name: next((one for one in found if one), None)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
