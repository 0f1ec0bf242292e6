"""Which strategies exist: the built-in ones, those registered at run time, and those of installed packages."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from swa_alloc.errors import StrategyError
from swa_alloc.operations import OPERATIONS
from swa_alloc.strategies._base import Strategy

logger = logging.getLogger("swa_alloc")

ENTRY_POINT_GROUP = "swa_alloc.strategies"

# In order of preference where several tie. Imported on first use: a cached start needs one of them, not all. The module
# of index_fill is _index_fill, and its class IndexFill.
_BUILTIN: dict[str, tuple[str, ...]] = {
    "clear": (
        "index_fill",
        "subscript_assign",
        "index_put",
        "index_copy",
        "scatter",
        "masked_fill",
        "masked_scatter",
        "npu_scatter_nd_update",
        "int32_view",
        "triton_fill",
    ),
    "set": ("subscript_assign", "index_put", "index_copy", "scatter", "npu_scatter_nd_update", "int32_view"),
    "translate": ("subscript", "index", "tensor_take", "index_select"),
    "take": ("read_then_clear", "triton_take"),
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
    return _BUILTIN[operation]


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
    if name in _BUILTIN[operation]:
        home = importlib.import_module(f"swa_alloc.strategies.{operation}._{name}")
        found: type[Strategy] = getattr(home, name.title().replace("_", ""))
        return found
    if name not in _registered[operation]:
        _load_entry_points()
    if name not in _registered[operation]:
        raise StrategyError(f"unknown {operation} strategy {name!r}; known: {', '.join(names(operation))}")
    return _registered[operation][name]


def create(operation: str, name: str, params: Mapping[str, Any] = MappingProxyType({})) -> Strategy:
    """An instance of a strategy with its parameters.

    Raises:
        StrategyError: the name is unknown, or the parameters are not the strategy's.
    """
    cls = strategy_class(operation, name)
    try:
        return cls(**params)
    except (TypeError, ValueError) as error:
        takes = ", ".join(inspect.signature(cls).parameters) or "none"
        raise StrategyError(
            f"{operation} strategy {name!r} does not take the parameters {dict(params)}: {error} (it has {takes})"
        ) from error


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
