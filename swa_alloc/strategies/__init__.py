"""Strategies: the possible implementations of an operation, one a file, and the registry that knows them."""

from swa_alloc.strategies._base import Bound, Strategy, Trial
from swa_alloc.strategies._label import candidate_label, parse_label, split_labels
from swa_alloc.strategies._registry import (
    builtin_names,
    create,
    known_names,
    names,
    register_strategy,
    strategy_class,
)

__all__ = [
    "Bound",
    "Strategy",
    "Trial",
    "builtin_names",
    "candidate_label",
    "create",
    "known_names",
    "names",
    "parse_label",
    "register_strategy",
    "split_labels",
    "strategy_class",
]
