"""A chip in pure Python: what the calibrator decides is compared with a table of what each call costs.

The table names the calls that torch_npu makes (``tests/npu/README.md``) and says what each costs the host and the
device. Strategies bound on the chip compute the operation's reference on real tensors, so that the contract stays real,
and cost what the table says for the calls that they are known to make. The chip has a host's clock, on which nothing
passes unless the chip says so, and one stream. Everything that a calibration does is charged to them: samples, stalls
and captures, the bench's and the contract's own tensors, and the calibrator's own Python.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import torch
from npu.known_calls import CAST, DIVIDE, FILL, READ, known_calls
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.contest import candidates
from autotune.devices import Arguments, Call, Device, Sample
from swa_alloc.operations import INDEX_DTYPES, OPERATIONS, PAGE, TOKEN, CallKind, Target
from swa_alloc.strategies import Bound, Strategy, Trial, _registry, candidate_label, names
from swa_alloc.strategies._label import parse_label

# Whose defaults the chip has.
DEVICE_TYPE = "npu"

# Microseconds of host and device that a call without any entry takes.
_UNWRITTEN_US = 5.0
# A strategy's own Python keeps the host at least this long, whatever the table says of its calls.
_LEAST_HOST_US = 0.5
# The table's host time is that of a call behind a model's step. In a loop, which finds its own code and data in the
# caches, a call takes this part of it.
_HOT = 0.5
# The stand-in for a model's step, on the host.
_STEP_US = 150.0
# What the calibrator's own Python takes around each sample (AMD EPYC, Python 3.11).
_PYTHON_US = 35.0
_SYNCHRONIZE_US, _EVENT_US, _CAPTURE_US = 5.0, 2.0, 1000.0
# The shortest of the long kernels, and how many make a backlog. Longer ones are twice, four times as long, and so on.
_KERNEL_US, _KERNELS, _MOST_KERNELS = 128.0, 4, 8
# What any other operator on tensors costs: plain memory is as fast as an NPU's, about 1 TB/s.
_OPERATOR_HOST_US, _OPERATOR_DEVICE_US, _BYTES_PER_US = 10.0, 3.0, 1e6
# A copy to the host, besides the wait.
_COPY_US, _COPIED_BYTES_PER_US = 15.0, 1e4
# Operators whose result the host waits for.
_WAITED_FOR = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::_unique2"})
_HICCUP_US = 1000.0
# Seconds in which the chip's speed goes through one swing.
_DRIFT_PERIOD_S = 3.0
_FREE_BYTES = 64 << 30

# Calls that do not address a table by indices; what they write is as long as the indices, or one element.
_ELEMENTWISE = frozenset({CAST, DIVIDE, FILL, "aclnnFloorDivides", "aclnnRemainderTensorScalar"})


class TableError(ValueError):
    """A table of costs that cannot be used."""


@dataclass(frozen=True)
class CallCost:
    """What a call costs where the entry holds.

    Attributes:
        call: Its name, or ``*`` for every call.
        min_indices: The entry holds from so many indices on; calls that take none have 0.
        min_elements: And from so many elements of the table that is written, else of the result.
        fixed_us: Microseconds on the device.
        element_ns: Nanoseconds on the device for each element.
        index_ns: Nanoseconds on the device for each index.
        host_us: Microseconds for which the call keeps the host.
        sync: Whether it waits for all that was queued before it, or the share of calls that do.
    """

    call: str
    min_indices: int = 0
    min_elements: int = 0
    fixed_us: float = 0.0
    element_ns: float = 0.0
    index_ns: float = 0.0
    host_us: float = 0.0
    sync: float = 0.0

    def holds(self, name: str, indices: int, elements: int) -> bool:
        return self.call in ("*", name) and indices >= self.min_indices and elements >= self.min_elements

    def device_us(self, indices: int, elements: int) -> float:
        return self.fixed_us + (self.element_ns * elements + self.index_ns * indices) / 1e3


_UNWRITTEN = CallCost("*", fixed_us=_UNWRITTEN_US, host_us=_UNWRITTEN_US)


class Launch(NamedTuple):
    """One call, priced: microseconds of the host and of the device, and how probably it waits for the stream."""

    host_us: float
    device_us: float
    waits: float


@dataclass(frozen=True)
class Table:
    """What the calls of a chip cost, and what it serves.

    Attributes:
        name: For people.
        slots: In the full pool.
        page_size: Slots in a page.
        workload: A name in ``conf/workload``.
        calls: Of the entries that hold for a call the last counts.
        noise: Standard deviation of the logarithm of each sample.
        hiccups: Share of samples in which the host is preempted for about a millisecond.
        drift: By how much speeds swing.
    """

    name: str
    slots: int
    page_size: int
    workload: str
    calls: tuple[CallCost, ...]
    noise: float = 0.0
    hiccups: float = 0.0
    drift: float = 0.0
    _launches: dict[tuple[CallKind, str, int], tuple[Launch, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, document: object) -> Table:
        """A table as JSON has it.

        Raises:
            TableError: a key is missing or unknown, or a value impossible.
        """
        known = {item.name for item in fields(cls)} - {"_launches"}
        values = _keys(document, "a table", known, required=known - {"noise", "hiccups", "drift"})
        where = f"table {values['name']!r}"
        if not isinstance(values["calls"], list):
            raise TableError(f"{where}: calls must be a list of entries")
        prices = {item.name for item in fields(CallCost)}
        entries = [_keys(entry, f"{where}: an entry of calls", prices, {"call"}) for entry in values["calls"]]
        for entry in ({**values, "calls": 0, "slots": 0, "page_size": 0}, *entries):
            _check_numbers(where, entry)
        slots, page_size = values["slots"], values["page_size"]
        if not all(isinstance(n, int) and n > 0 for n in (slots, page_size)) or slots % page_size:
            raise TableError(f"{where}: slots must be a multiple of page_size, not {slots!r} with {page_size!r}")
        calls = tuple(CallCost(**entry) for entry in entries)
        return cls(**{**values, "calls": calls})

    def launches(self, kind: CallKind, label: str, indices: int) -> tuple[Launch, ...]:
        """The calls that a candidate makes for so many indices."""
        key = kind, label, indices
        if key not in self._launches:
            calls = calls_of(kind, label)
            assert calls is not None
            self._launches[key] = tuple(self._price(name, kind, label, indices) for name in calls)
        return self._launches[key]

    def cost_us(self, kind: CallKind, label: str, indices: int, backlog_us: float) -> float:
        """What a call costs a server: the truth, from the table alone."""
        launches = self.launches(kind, label, indices)
        host_us = max(_LEAST_HOST_US, sum(launch.host_us for launch in launches))
        device_us = sum(launch.device_us for launch in launches)
        waits = 1.0 - math.prod(1.0 - launch.waits for launch in launches)
        return max(host_us, device_us) + backlog_us * waits

    def _price(self, name: str, kind: CallKind, label: str, count: int) -> Launch:
        indices = 0 if name in _ELEMENTWISE else count
        elements = self._elements(name, kind, label, count)
        holding = [entry for entry in self.calls if entry.holds(name, indices, elements)]
        entry = holding[-1] if holding else _UNWRITTEN
        return Launch(entry.host_us, entry.device_us(indices, elements), float(entry.sync))

    def _elements(self, name: str, kind: CallKind, label: str, count: int) -> int:
        if name in _ELEMENTWISE:
            return 1 if name == FILL else count
        if not name.startswith(("aclnnInplace", "aclnnIndexPut", "aclnnScatter")):
            whole_rows = "read=rows" in label and name == READ and kind.target == PAGE
            return count * (self.page_size if whole_rows else 1)
        whole = self.slots + self.page_size + (1 if kind.target == TOKEN else 0)
        if label.startswith("masked") and "Mask" not in name:
            return whole if kind.target == TOKEN else whole // self.page_size  # it writes the mask, of rows
        return whole * (2 if "int32" in label else 1)


def _keys(document: object, what: str, known: set[str], required: set[str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise TableError(f"{what} must be an object with {', '.join(sorted(required))}, not {document!r}")
    if missing := sorted(required - document.keys()):
        raise TableError(f"{what} lacks {', '.join(missing)}")
    if unknown := sorted(document.keys() - known):
        raise TableError(f"{what} has {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return document


def _check_numbers(where: str, entry: Mapping[str, Any]) -> None:
    for key, value in entry.items():
        if key not in ("name", "call", "workload") and not (isinstance(value, int | float) and value >= 0):
            raise TableError(f"{where}: {key} must be a number of at least 0, not {value!r}")
    for key in ("sync", "hiccups"):
        if entry.get(key, 0) > 1:
            raise TableError(f"{where}: {key} is a share, from 0 to 1, not {entry[key]!r}")


# Which candidates there are, and which calls they make


def calls_of(kind: CallKind, label: str) -> tuple[str, ...] | None:
    """The calls that a candidate is known to make; None for one of which nothing is known."""
    return _known(kind).get(label)


def default_of(operation: str) -> str:
    """The label of the strategy that serves where nothing was measured."""
    return OPERATIONS[operation].default_strategy(DEVICE_TYPE)


def strategies_of(operation: str) -> tuple[str, ...]:
    """Names of the strategies whose calls are known, in the registry's order."""
    known = {parse_label(label)[0] for kind in _kinds(operation) for label in _known(kind)}
    return tuple(name for name in names(operation) if name in known)


@cache
def candidates_of(kind: CallKind) -> tuple[str, ...]:
    """Labels of the candidates that can run, the default first."""
    # A strategy that has parameters races with them; the default without them, too.
    racing = [label for label in _known(kind) if parse_label(label)[1] or not _choices(kind, label)]
    return tuple(dict.fromkeys((default_of(kind.operation), *racing)))


@cache
def _known(kind: CallKind) -> Mapping[str, tuple[str, ...]]:
    """The calls of every candidate of a kind, by label."""
    found: dict[str, tuple[str, ...]] = {}
    for key, calls in known_calls().items():
        target, *label, dtype = key.split(" ")
        if f"{target}.{dtype}" == str(kind):
            found[" ".join(label)] = tuple(calls)
    return found


def _kinds(operation: str) -> Iterator[CallKind]:
    called = OPERATIONS[operation]
    return (CallKind(called.name, target, dtype) for target in (TOKEN, PAGE) for dtype in INDEX_DTYPES)


def _choices(kind: CallKind, name: str) -> Mapping[str, tuple[Any, ...]]:
    """The values of each parameter of a strategy with which its calls are known."""
    found: dict[str, dict[Any, None]] = {}
    for label in _known(kind):
        other, params = parse_label(label)
        for key, value in params.items() if other == name else ():
            found.setdefault(key, {})[value] = None
    return {key: tuple(values) for key, values in found.items()}


# The device


class VirtualChip(Device):
    """The device that a table describes; an accelerator with graphs, whose tensors lie on the CPU.

    Args:
        table: What calls cost.
        seed: Of noise, hiccups and waits.
    """

    torch_device = torch.device("cpu")
    budget_s = 15.0

    def __init__(self, table: Table, seed: int = 0) -> None:
        self.table = table
        self._random = random.Random(seed)  # noqa: S311 - noise
        self._host_us = 0.0
        self._device_us = 0.0  # when the stream will be idle
        self._factors = (1.0, 1.0)
        self._held_up_us = 0.0
        self._hot = 1.0
        self._timing = False
        self._computing = False
        self._capturing = False
        self._lengths: set[float] = set()

    def clock(self) -> float:
        """Seconds that have passed on the host."""
        return self._host_us / 1e6

    def synchronize(self) -> None:
        self._host_us = max(self._host_us, self._device_us) + _SYNCHRONIZE_US

    def time(self, call: Call, block: Sequence[Arguments]) -> Sample:
        """As an accelerator does it: a call ahead, a block between two events, and one more call for the wall time."""
        with self._sample(_HOT):
            call(*block[-1])
            self._host_us += _EVENT_US
            self._risk_a_hiccup()
            start_us, begin_us = self._host_us, max(self._host_us, self._device_us)
            for arguments in block:
                call(*arguments)
            host_us = (self._host_us - start_us) / len(block)
            device_us = (max(self._host_us, self._device_us) - begin_us) / len(block)
            self.synchronize()
        with self._sample(_HOT):
            self._risk_a_hiccup()
            start_us = self._host_us
            call(*block[0])
            self.synchronize()
        return Sample(host_us, device_us, self._host_us - start_us)

    def single(self, call: Call, arguments: Arguments) -> Sample:
        with self._sample():
            self._risk_a_hiccup()
            start_us = self._host_us
            call(*arguments)
            host_us = self._host_us - start_us
            self.synchronize()
        wall_us = self._host_us - start_us
        return Sample(host_us, wall_us, wall_us)

    def cold_us(self, call: Call, arguments: Arguments) -> float:
        self._host_us += _STEP_US
        with self._sample():
            self._risk_a_hiccup()
            start_us = self._host_us
            call(*arguments)
            return self._host_us - start_us

    @property
    def kernel_us(self) -> float:
        return _KERNEL_US

    def return_us(self, call: Call, block: Sequence[Arguments], backlog_us: float) -> tuple[float, float] | None:
        kernel_us = self._long_kernel_us(backlog_us / _KERNELS)
        kernels = min(max(1, round(backlog_us / kernel_us)), _MOST_KERNELS)
        with self._sample(_HOT):
            for _ in range(kernels):
                self._launch(Launch(_OPERATOR_HOST_US, kernel_us, 0.0), 1.0, 1.0)
            self._risk_a_hiccup()
            start_us = self._host_us
            for arguments in block:
                call(*arguments)
            returned_us = self._host_us - start_us
        self.synchronize()
        return returned_us, kernels * kernel_us

    def capture(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        self._host_us += _CAPTURE_US
        self._capturing = True
        try:
            call()
        finally:
            self._capturing = False
        return call

    def free_bytes(self) -> int | None:
        return _FREE_BYTES

    def run(self, launches: Iterable[Launch], compute: Callable[[], Any]) -> Any:
        """Make a strategy's calls. Samples compute nothing: what a call writes is the contract's affair."""
        if not self._timing:
            self._draw()
        host, device = self._factors
        start_us = self._host_us
        for launch in launches:
            self._launch(launch, host * self._hot, device)
        self._host_us = max(self._host_us, start_us + _LEAST_HOST_US * self._hot) + self._held_up_us
        self._held_up_us = 0.0
        if self._timing:
            return None
        self._computing = True
        try:
            return compute()
        finally:
            self._computing = False

    def operate(self, operator: str, moved_bytes: int, *, view: bool) -> None:
        """Charge an operator that is no strategy's."""
        if self._computing:
            return
        device_us = 0.0 if view else _OPERATOR_DEVICE_US + moved_bytes / _BYTES_PER_US
        self._launch(Launch(_OPERATOR_HOST_US, device_us, 0.0), 1.0, 1.0)
        if operator in _WAITED_FOR:
            self.synchronize()

    def copy_to_host(self, copied_bytes: int) -> None:
        """Charge a copy, which PyTorch leaves out where tensors lie on the CPU already."""
        self.synchronize()
        self._host_us += _COPY_US + copied_bytes / _COPIED_BYTES_PER_US

    def _launch(self, launch: Launch, host: float, device: float) -> None:
        if launch.waits and self._random.random() < launch.waits:
            if self._capturing:
                raise RuntimeError("operation not permitted when stream is capturing")
            self._host_us = max(self._host_us, self._device_us)
        self._host_us += launch.host_us * host
        self._device_us = max(self._device_us, self._host_us) + launch.device_us * device

    @contextmanager
    def _sample(self, hot: float = 1.0) -> Iterator[None]:
        """On an idle stream, and with noise of its own."""
        self._host_us += _PYTHON_US
        self.synchronize()
        self._draw()
        self._timing, self._hot = True, hot
        try:
            yield
        finally:
            self._timing, self._hot = False, 1.0

    def _risk_a_hiccup(self) -> None:
        """The host may be preempted in the next call."""
        if self._random.random() < self.table.hiccups:
            self._held_up_us = _HICCUP_US * self._random.uniform(0.5, 1.5)

    def _draw(self) -> None:
        noise = self.table.noise
        speed = self.table.drift * math.sin(2 * math.pi * self.clock() / _DRIFT_PERIOD_S)
        host, device = (math.exp(speed + self._random.gauss(0.0, noise)) for _ in range(2))
        self._factors = host, device

    def _long_kernel_us(self, wanted_us: float) -> float:
        length_us = _KERNEL_US * math.exp2(max(0, math.ceil(math.log2(wanted_us / _KERNEL_US))))
        if length_us not in self._lengths:
            # Tried out once: a first time, and three more between events.
            self._lengths.add(length_us)
            self._host_us += 4 * (length_us + _SYNCHRONIZE_US + 2 * _EVENT_US)
        return length_us


class _Bound:
    """A candidate on a chip."""

    def __init__(self, chip: VirtualChip, label: str, target: Target) -> None:
        self._chip = chip
        self._label = label
        self._kind = kind_of(target)
        self._table = target.table
        self._reference = OPERATIONS[target.operation].reference

    def __call__(self, *arguments: torch.Tensor) -> Any:
        launches = self._chip.table.launches(self._kind, self._label, arguments[0].numel())
        return self._chip.run(launches, lambda: self._reference(self._table, *arguments))


def kind_of(target: Target) -> CallKind:
    """The kind of the calls that a target gets."""
    return CallKind(target.operation, target.name, "int32" if target.index_dtype is torch.int32 else "int64")


@contextmanager
def strategies_on(chip: VirtualChip) -> Iterator[None]:
    """Have the registry's strategies run on the chip, and everything else that is computed cost it time."""
    real, real_cpu = _registry.strategy_class, torch.Tensor.cpu

    @cache
    def on_chip(operation: str, name: str) -> type[Strategy]:
        return _on_chip(real(operation, name), chip)

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        chip.copy_to_host(tensor.nbytes)
        return real_cpu(tensor)

    with ExitStack() as stack:
        for home in (_registry, candidates):
            stack.enter_context(mock.patch.object(home, "strategy_class", on_chip))
        stack.enter_context(mock.patch.object(torch.Tensor, "cpu", cpu))
        stack.enter_context(_Charged(chip))
        yield


def _on_chip(real: type[Strategy], chip: VirtualChip) -> type[Strategy]:
    """A strategy of the same name, parameters and workspace, on the chip."""

    class OnChip(Strategy):
        name, operation, targets, whole_table = real.name, real.operation, real.targets, real.whole_table

        def __init__(self, **params: Any) -> None:
            self._real = real(**params)
            self._label = candidate_label(real.name, params)

        @classmethod
        def suggest(cls, trial: Trial) -> dict[str, Any]:
            choices = _choices(next(_kinds(real.operation)), real.name)
            return {key: trial.suggest_categorical(key, values) for key, values in choices.items()}

        def unavailable(self, target: Target) -> str | None:
            return None if calls_of(kind_of(target), self._label) else "which calls it makes is not known"

        def workspace_bytes(self, target: Target) -> int:
            return self._real.workspace_bytes(target)

        def bind(self, target: Target) -> Bound:
            chip.operate("workspace", self.workspace_bytes(target), view=False)
            return _Bound(chip, self._label, target)

    return OnChip


class _Charged(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's
    """Charges every operator on tensors to a chip."""

    def __init__(self, chip: VirtualChip) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's
        self._chip = chip

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [value for value in (*args, result) if isinstance(value, torch.Tensor)]
        name = func._schema.name  # noqa: SLF001 - there is no other way to it
        self._chip.operate(name, sum(tensor.nbytes for tensor in tensors), view=func.is_view)
        return result


__all__ = ["CallCost", "Launch", "Table", "TableError", "VirtualChip", "strategies_on"]
