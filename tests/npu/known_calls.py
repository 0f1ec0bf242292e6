"""The ACL calls that torch_npu is known to make for each strategy, traced once from torch_npu 2.13.0."""

from __future__ import annotations

from collections.abc import Iterator

CAST = "aclnnInplaceCopy"
PUT = "aclnnIndexPutImpl"
FILL = "aclnnInplaceFillScalar"
READ = "aclnnIndexSelect"
DIVIDE = "aclnnInplaceFloorDivides"
WAIT = "aclrtSynchronizeStream"

# What torch_npu casts int32 indices for; the other calls take them.
_WITH_CAST = {PUT, "aclnnInplaceIndexFill", "aclnnInplaceIndexCopy", "aclnnInplaceScatter", "aclnnInplaceScatterValue"}

_ND_UPDATE = ["aclnnScatterNdUpdate"]

# What int32_view calls as well.
_CLEARING_CALLS = {
    "index_put": [PUT],
    "index_copy": ["aclnnInplaceIndexCopy"],
    "index_fill": ["aclnnInplaceIndexFill"],
    "scatter": ["aclnnInplaceScatterValue"],
    "npu_scatter_nd_update": _ND_UPDATE,
}
_SETTING_CALLS = {
    "index_put": [PUT],
    "index_copy": ["aclnnInplaceIndexCopy"],
    "scatter": ["aclnnInplaceScatter"],
    "npu_scatter_nd_update": _ND_UPDATE,
}


def _with_views(calls: dict[str, list[str]]) -> dict[str, list[str]]:
    """An int32 view makes the call that it names, and index_put where it names none."""
    views = {f"int32_view(call={name})": made for name, made in calls.items()}
    return {**calls, **views, "int32_view": calls["index_put"]}


def _with_sources(calls: dict[str, list[str]], *names: str) -> dict[str, list[str]]:
    """Where its zeros come from changes nothing in what a strategy calls."""
    return calls | {f"{name}(source={source})": calls[name] for name in names for source in ("expand", "slice")}


def _of_both_dtypes(calls: dict[str, list[str]]) -> dict[tuple[str, str], list[str]]:
    return {
        (label, dtype): [
            part for call in made for part in ([CAST] if dtype == "int32" and call in _WITH_CAST else []) + [call]
        ]
        for dtype in ("int32", "int64")
        for label, made in calls.items()
    }


# By label and index dtype.
CLEARS = _of_both_dtypes(
    _with_sources(
        {
            **_with_views(_CLEARING_CALLS),
            "subscript_assign": [FILL, PUT],
            "masked_fill": [PUT, "aclnnInplaceMaskedFillScalar", PUT],
            "masked_scatter": [PUT, "aclnnInplaceMaskedScatter", PUT],
        },
        "index_copy",
        "npu_scatter_nd_update",
    )
)
SETS = _of_both_dtypes({**_with_views(_SETTING_CALLS), "subscript_assign": [PUT]})

TRANSLATES = {
    "subscript": ["aclnnIndex"],
    "index": ["aclnnIndex"],
    "index_select": ["aclnnRemainderTensorScalar", READ],
}

READS = {"index_select": READ, "rows": READ, "subscript": "aclnnIndex"}
_TAKES_CLEAR_BY = ("index_fill", "index_put", "index_copy", "scatter", "npu_scatter_nd_update", "int32_view")


def known_calls() -> dict[str, list[str]]:
    """What scripts/calls.py prints: ``{"clear.token index_fill int64": [calls]}``."""
    return {" ".join(key): calls for key, calls in _known()}


def _known() -> Iterator[tuple[tuple[str, str, str], list[str]]]:
    for target in ("token", "page"):
        for key, calls in CLEARS.items():
            yield (f"clear.{target}", *key), calls
        for key, calls in SETS.items():
            yield (f"set.{target}", *key), calls
    for dtype in ("int32", "int64"):
        for label, calls in TRANSLATES.items():
            yield ("translate.token", label, dtype), calls
        for label, read, clear in _takes():
            calls = [read, *CLEARS[clear, dtype]]
            # Pages of one slot need no dividing.
            yield ("take.token", label, dtype), calls
            # The read of whole rows leaves them alone.
            yield ("take.page", label, dtype), [*calls, "aclnnFloorDivides" if "read=rows" in label else DIVIDE]


def _takes() -> Iterator[tuple[str, str, str]]:
    """Label, read and clear strategy. Of itself a take uses the device's default."""
    yield "read_then_clear", READ, "subscript_assign"
    for clear in _TAKES_CLEAR_BY:
        for name, read in READS.items():
            yield f"read_then_clear(clear={clear}, read={name})", read, clear
