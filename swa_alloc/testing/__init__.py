"""What strategies must do, as tests that any package runs on its own.

A strategy is tested, with each set of parameters that it suggests, by a class in a test module of pytest::

    from my_package import MyFill
    from swa_alloc.testing import StrategyContract, candidates_of


    class TestMyFill(StrategyContract):
        candidates = candidates_of(MyFill)

``StrategyContract`` is for strategies of clear; ``SetContract``, ``TranslateContract`` and ``TakeContract`` are for the
other operations. Importing this package takes pytest, which nothing else here does.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError("swa_alloc.testing needs pytest; pip install pytest") from error

# Before they are imported: a failing assertion then shows what was compared, as in a test module.
pytest.register_assert_rewrite("swa_alloc.testing._contracts", "swa_alloc.testing._table")

from swa_alloc.testing._contracts import (  # noqa: E402 - see above
    SetContract,
    StrategyContract,
    TakeContract,
    TranslateContract,
)
from swa_alloc.testing._parameters import candidates_of, every_params  # noqa: E402 - see above
from swa_alloc.testing._table import LAYOUTS, Layout, Table  # noqa: E402 - see above

__all__ = [
    "LAYOUTS",
    "Layout",
    "SetContract",
    "StrategyContract",
    "Table",
    "TakeContract",
    "TranslateContract",
    "candidates_of",
    "every_params",
]
