"""The record of the calls that a run made: of which operation, how many indices, in which layout, how often."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch

from swa_alloc import _json
from swa_alloc.errors import TraceError
from swa_alloc.operations import (
    OPERATIONS,
    PAGE,
    TOKEN,
    CallKind,
    IndexDtype,
    Operation,
    OperationName,
    Target,
    TargetName,
)
from swa_alloc.profile import digest
from swa_alloc.strategies import Bound, Strategy, create

SCHEMA: Final = "swa_alloc.trace/1"

Layout = Literal["run", "pages", "scattered"]


class TraceEntry(NamedTuple):
    """Calls that were alike.

    Attributes:
        operation: Name of the operation.
        target: What was indexed.
        index_dtype: The indices' dtype.
        count: Indices in a call.
        layout: ``run`` (consecutive), ``pages`` (whole pages, scattered) or ``scattered``.
        weight: How many such calls there were, or any number in proportion to that.
    """

    operation: OperationName
    target: TargetName
    index_dtype: IndexDtype
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    layout: Layout
    weight: float

    @property
    def kind(self) -> CallKind:
        """What was called."""
        return CallKind(self.operation, self.target, self.index_dtype)

    def check(self) -> None:
        """Raise ValueError for impossible numbers."""
        if self.count < 1 or self.weight < 0:
            raise ValueError(f"count must be at least 1 and weight at least 0, not {self.count} and {self.weight}")


class Trace(NamedTuple):
    """The calls of a run, and the mapping that they were made on.

    Attributes:
        schema: Version of this format.
        size: Slots in the full pool.
        page_size: Slots in a page.
        entries: One for each kind of call.
    """

    schema: Literal["swa_alloc.trace/1"]
    size: int
    page_size: int
    entries: tuple[TraceEntry, ...]

    def check(self) -> None:
        """Raise ValueError for a trace that nothing could be planned from."""
        if self.page_size < 1 or self.size < self.page_size or self.size % self.page_size:
            raise ValueError(f"size must be a multiple of page_size, not {self.size} with {self.page_size}")
        if not self.entries or not any(entry.weight for entry in self.entries):
            raise ValueError("entries must hold at least one call with a weight above 0")
        for i, entry in enumerate(self.entries):
            if entry.target == PAGE and self.page_size == 1:
                raise ValueError(f"entries[{i}].target is page, and with page_size 1 that is token")
            rows = self.size if entry.target == TOKEN else self.size // self.page_size
            if entry.count > rows:
                raise ValueError(f"entries[{i}].count is {entry.count} and its target has only {rows} rows")

    @property
    def digest(self) -> str:
        """12 hexadecimal digits that stand for the contents."""
        return digest(_json.plain(self))

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """The trace in a JSON file.

        Raises:
            TraceError: it cannot be read, is not JSON, or is not a trace of this version.
        """
        try:
            return _json.decode(cls, _json.read(Path(path)))
        except OSError as error:
            raise TraceError(f"trace {path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise TraceError(f"trace {path} is not usable: {error}; expected a file of schema {SCHEMA!r}") from error

    def save(self, path: str | Path) -> Path:
        """Write to ``path``, all or nothing.

        Raises:
            TraceError: the path cannot be written.
        """
        path = Path(path)
        try:
            _json.write_atomically(path, _json.encode(_json.plain(self)))
        except OSError as error:
            raise TraceError(f"trace {path} cannot be written: {error.strerror or error}") from error
        return path


class TraceRecorder:
    """Takes down each call that an allocator makes on its mapping.

    It does so through strategies, which do their work as well: given to an allocator as its
    ``strategy=recorder.strategies``, they record the run. They read the indices, so they synchronize: for playing
    workloads, not for serving.

    A call on pages is entered for the page target and, expanded to slots, for the token target, where its operation has
    one: one caller passes pages, another their slots. A take is entered as a clear as well: whoever takes in two steps
    makes that clear.

    Attributes:
        strategies: One for each operation.
    """

    def __init__(self) -> None:
        self._calls: Counter[_Call] = Counter()
        self.strategies: tuple[Strategy, ...] = tuple(
            _recording(operation, self._calls) for operation in OPERATIONS.values()
        )

    def trace(self, size: int, page_size: int) -> Trace:
        """What was recorded, on a mapping over ``size`` full slots.

        Raises:
            TraceError: nothing was.
        """
        entries = tuple(TraceEntry(*call, weight=float(weight)) for call, weight in sorted(self._calls.items()))
        trace = Trace(SCHEMA, size, page_size, entries)
        try:
            trace.check()
        except ValueError as error:
            raise TraceError(f"the run made no usable trace: {error}") from error
        return trace


_Call = tuple[OperationName, TargetName, IndexDtype, int, Layout]


def _recording(recorded: Operation, calls: Counter[_Call]) -> Strategy:
    """The plainest strategy of an operation, which enters each of its calls in ``calls``."""
    plain = create(recorded.name, recorded.fallback)
    entered = (recorded, OPERATIONS["clear"]) if recorded.name == "take" else (recorded,)

    class Recording(Strategy):
        name = "trace_recorder"
        operation = recorded.name
        targets = plain.targets

        def bind(self, target: Target) -> Bound:
            carry_out, page_size = plain.bind(target), target.page_size
            dtype: IndexDtype = "int32" if target.index_dtype is torch.int32 else "int64"

            def call(indices: torch.Tensor, *values: torch.Tensor) -> Any:
                # Duplicates can make a call longer than the table, and no race could draw as many rows.
                count = min(indices.numel(), (target.mapping.numel() - 1 - page_size) // target.row_slots)
                if count:
                    layout = layout_of(indices, page_size if target.name == TOKEN else 1)
                    for operation in entered:
                        calls[operation.name, target.name, dtype, count, layout] += 1
                        if target.name == PAGE and TOKEN in operation.targets(page_size):
                            in_slots: Layout = "run" if layout == "run" else "pages"
                            calls[operation.name, TOKEN, dtype, count * page_size, in_slots] += 1
                return carry_out(indices, *values)

            return call

    return Recording()


def layout_of(indices: torch.Tensor, page_size: int) -> Layout:
    """How ``[k]`` indices lie in the table: in one run, in whole pages, or scattered."""
    steps = indices.diff()
    if bool((steps == 1).all()):
        return "run"
    if page_size > 1 and indices.numel() % page_size == 0:
        pages = indices.reshape(-1, page_size)
        if bool((pages[:, 0] % page_size == 0).all()) and bool((pages.diff(dim=1) == 1).all()):
            return "pages"
    return "scattered"
