"""Which strategies exist: the built-in ones, those registered at run time, and those of installed packages."""

from __future__ import annotations

import importlib
import logging
from typing import Any, TypeVar

from swa_alloc.errors import StrategyError
from swa_alloc.operations import OPERATIONS
from swa_alloc.strategies._base import Strategy

logger = logging.getLogger("swa_alloc")

ENTRY_POINT_GROUP = "swa_alloc.strategies"

# In order of preference where several tie. Imported on first use: a cached start needs one of them, not all.
_BUILTIN: dict[str, dict[str, tuple[str, str]]] = {
    "clear": {
        "index_fill": ("_index_fill", "IndexFill"),
        "subscript_assign": ("_subscript_assign", "SubscriptAssign"),
        "index_put": ("_index_put", "IndexPut"),
        "index_copy": ("_index_copy", "IndexCopy"),
        "scatter": ("_scatter", "Scatter"),
        "masked_fill": ("_masked_fill", "MaskedFill"),
        "masked_scatter": ("_masked_scatter", "MaskedScatter"),
        "npu_scatter_nd_update": ("_npu_scatter_nd_update", "NpuScatterNdUpdate"),
        "triton_fill": ("_triton_fill", "TritonFill"),
    },
    "set": {
        "subscript_assign": ("_subscript_assign", "SubscriptAssign"),
        "index_put": ("_index_put", "IndexPut"),
        "index_copy": ("_index_copy", "IndexCopy"),
        "scatter": ("_scatter", "Scatter"),
        "npu_scatter_nd_update": ("_npu_scatter_nd_update", "NpuScatterNdUpdate"),
    },
    "translate": {
        "subscript": ("_subscript", "Subscript"),
        "index": ("_index", "Index"),
        "tensor_take": ("_tensor_take", "TensorTake"),
        "index_select": ("_index_select", "IndexSelect"),
    },
    "take": {
        "read_then_clear": ("_read_then_clear", "ReadThenClear"),
        "triton_take": ("_triton_take", "TritonTake"),
    },
}
_registered: dict[str, dict[str, type[Strategy]]] = {operation: {} for operation in OPERATIONS}
_entry_points_loaded = False

AnyStrategy = TypeVar("AnyStrategy", bound=type[Strategy])


def register_strategy(cls: AnyStrategy) -> AnyStrategy:
    """Add a ``Strategy`` subclass to the registry; usable as a class decorator.

    Raises:
        StrategyError: its name is taken or malformed, or its operation does not exist.
    """
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise StrategyError(f"{cls!r} is no subclass of swa_alloc.Strategy")
    name, operation = getattr(cls, "name", None), cls.operation
    if not isinstance(name, str) or not name.isidentifier():
        raise StrategyError(f"{cls.__qualname__}.name is {name!r}; it must be an identifier such as 'my_fill'")
    if operation not in OPERATIONS:
        raise StrategyError(f"{cls.__qualname__}.operation is {operation!r}; operations are {', '.join(OPERATIONS)}")
    if name in _BUILTIN[operation] or _registered[operation].get(name, cls) is not cls:
        raise StrategyError(f"a {operation} strategy named {name!r} exists already; choose another name")
    _registered[operation][name] = cls
    return cls


def builtin_names(operation: str) -> tuple[str, ...]:
    """Names of the strategies that ship with this package, in order of preference."""
    return tuple(_BUILTIN[operation])


def names(operation: str) -> tuple[str, ...]:
    """Names of every strategy of ``operation``, in order of preference: built-in, then third-party ones."""
    _load_entry_points()
    return (*_BUILTIN[operation], *sorted(_registered[operation]))


def known_names() -> str:
    """Every strategy's name, in words."""
    return "; ".join(f"for {operation} {', '.join(names(operation))}" for operation in OPERATIONS)


def strategy_class(operation: str, name: str) -> type[Strategy]:
    """The class behind a name.

    Raises:
        StrategyError: there is none; the message lists those that exist.
    """
    builtin = _BUILTIN[operation].get(name)
    if builtin is not None:
        module, attribute = builtin
        home = importlib.import_module(f"swa_alloc.strategies.{operation}.{module}")
        found: type[Strategy] = getattr(home, attribute)
        return found
    if name not in _registered[operation]:
        _load_entry_points()
    if name not in _registered[operation]:
        raise StrategyError(f"unknown {operation} strategy {name!r}; known: {', '.join(names(operation))}")
    return _registered[operation][name]


def create(operation: str, name: str, params: dict[str, Any] | None = None) -> Strategy:
    """An instance of a strategy with its parameters.

    Raises:
        StrategyError: the name is unknown, or the parameters are not the strategy's.
    """
    cls = strategy_class(operation, name)
    try:
        return cls(**(params or {}))
    except (TypeError, ValueError) as error:
        raise StrategyError(f"{operation} strategy {name!r} does not take the parameters {params}: {error}") from error


def candidate_label(name: str, params: dict[str, Any]) -> str:
    """``name`` or ``name(param=value, ...)``: how a strategy with its parameters is written for people."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in sorted(params.items()))})" if params else name


def _load_entry_points() -> None:
    global _entry_points_loaded  # noqa: PLW0603 - once a process, at the first name that is not built in
    if _entry_points_loaded:
        return
    _entry_points_loaded = True
    # 10 ms that a start with a built-in strategy never pays.
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            register_strategy(entry_point.load())
        except Exception as error:  # noqa: BLE001 - somebody else's package must not stop a server
            logger.warning("strategy %r of entry point %r is left out: %s", entry_point.name, entry_point.value, error)
