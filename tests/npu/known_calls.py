"""The ACL calls that torch_npu is known to make for each strategy, traced once from torch_npu 2.13.0."""

from __future__ import annotations

from collections.abc import Iterator

CAST = "aclnnInplaceCopy"
PUT = "aclnnIndexPutImpl"
FILL = "aclnnInplaceFillScalar"
READ = "aclnnIndexSelect"
DIVIDE = "aclnnInplaceFloorDivides"
WAIT = "aclrtSynchronizeStream"

_MASKED_FILL, _MASKED_SCATTER = "aclnnInplaceMaskedFillScalar", "aclnnInplaceMaskedScatter"

# torch_npu casts int32 indices where the strategy does not; npu_scatter_nd_update alone takes them.
CLEARS = {
    ("index_fill", "int64"): ["aclnnInplaceIndexFill"],
    ("index_fill", "int32"): [CAST, "aclnnInplaceIndexFill"],
    ("subscript_assign", "int64"): [FILL, PUT],
    ("subscript_assign", "int32"): [FILL, CAST, PUT],
    ("index_put", "int64"): [PUT],
    ("index_put", "int32"): [CAST, PUT],
    ("index_copy", "int64"): ["aclnnInplaceIndexCopy"],
    ("index_copy", "int32"): [CAST, "aclnnInplaceIndexCopy"],
    ("scatter", "int64"): ["aclnnInplaceScatterValue"],
    ("scatter", "int32"): [CAST, "aclnnInplaceScatterValue"],
    ("masked_fill", "int64"): [PUT, _MASKED_FILL, PUT],
    ("masked_fill", "int32"): [CAST, PUT, _MASKED_FILL, CAST, PUT],
    ("masked_scatter", "int64"): [PUT, _MASKED_SCATTER, PUT],
    ("masked_scatter", "int32"): [CAST, PUT, _MASKED_SCATTER, CAST, PUT],
    ("npu_scatter_nd_update", "int64"): ["aclnnScatterNdUpdate"],
    ("npu_scatter_nd_update", "int32"): ["aclnnScatterNdUpdate"],
}

SETS = {
    ("subscript_assign", "int64"): [PUT],
    ("subscript_assign", "int32"): [CAST, PUT],
    ("index_put", "int64"): [PUT],
    ("index_put", "int32"): [CAST, PUT],
    ("index_copy", "int64"): ["aclnnInplaceIndexCopy"],
    ("index_copy", "int32"): [CAST, "aclnnInplaceIndexCopy"],
    ("scatter", "int64"): ["aclnnInplaceScatter"],
    ("scatter", "int32"): [CAST, "aclnnInplaceScatter"],
    ("npu_scatter_nd_update", "int64"): ["aclnnScatterNdUpdate"],
    ("npu_scatter_nd_update", "int32"): ["aclnnScatterNdUpdate"],
}

TRANSLATES = {
    "subscript": ["aclnnIndex"],
    "index": ["aclnnIndex"],
    "index_select": ["aclnnRemainderTensorScalar", READ],
}

# The clears that scripts/calls.py has take use. Of itself it uses the device's default.
_TAKES = {
    "read_then_clear": "subscript_assign",
    "read_then_clear(clear=index_fill)": "index_fill",
    "read_then_clear(clear=subscript_assign)": "subscript_assign",
    "read_then_clear(clear=index_put)": "index_put",
    "read_then_clear(clear=index_copy)": "index_copy",
    "read_then_clear(clear=npu_scatter_nd_update)": "npu_scatter_nd_update",
}


def known_calls() -> dict[str, list[str]]:
    """What scripts/calls.py prints: ``{"clear.token index_fill int64": [calls]}``."""
    return {" ".join(key): calls for key, calls in _known()}


def _known() -> Iterator[tuple[tuple[str, str, str], list[str]]]:
    for target in ("token", "page"):
        for (name, dtype), calls in CLEARS.items():
            yield (f"clear.{target}", name, dtype), calls
        for (name, dtype), calls in SETS.items():
            yield (f"set.{target}", name, dtype), calls
    for dtype in ("int32", "int64"):
        for name, calls in TRANSLATES.items():
            yield ("translate.token", name, dtype), calls
        for label, clear in _TAKES.items():
            # Pages of one slot need no dividing.
            yield ("take.token", label, dtype), [READ, *CLEARS[clear, dtype]]
            yield ("take.page", label, dtype), [READ, *CLEARS[clear, dtype], DIVIDE]
