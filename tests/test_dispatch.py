"""Dispatch: the right callable for every number and dtype of indices, resolved once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from builders import CPU, PROPERTY, decide
from hypothesis import given
from hypothesis import strategies as st

from swa_alloc.dispatch import bind, bind_choice, by_size
from swa_alloc.errors import PoolError, StrategyUnavailable
from swa_alloc.operations import Target, empty_mapping
from swa_alloc.selection import Choice
from swa_alloc.strategies import Bound, Strategy, register_strategy


class Ledger:
    """Callables that write down who was called, and with how many indices."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, int]] = []

    def entry(self, label: Any) -> Bound:
        def call(indices: torch.Tensor) -> None:
            self.calls.append((label, indices.numel()))

        return call


# What is counted are indices: neither a stride nor an expanded tensor's small storage may change the choice.
FORMS: dict[str, Callable[[int, torch.dtype], torch.Tensor]] = {
    "contiguous": lambda count, dtype: torch.zeros(count, dtype=dtype),
    "strided": lambda count, dtype: torch.zeros(count, 3, dtype=dtype)[:, 1],
    "expanded": lambda count, dtype: torch.zeros(1, dtype=dtype).expand(count),
}


def indices(count: int, dtype: torch.dtype = torch.int64, form: str = "contiguous") -> torch.Tensor:
    return FORMS[form](count, dtype)


@PROPERTY
@given(
    bounds=st.lists(st.integers(1, 300), max_size=8, unique=True).map(sorted),
    counts=st.lists(st.integers(0, 400), max_size=20),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    form=st.sampled_from(sorted(FORMS)),
)
def test_every_number_of_indices_reaches_the_first_choice_whose_bound_it_does_not_exceed(
    bounds: list[int], counts: list[int], dtype: torch.dtype, form: str
) -> None:
    ledger = Ledger()
    sizes = [(bound, ledger.entry(bound)) for bound in bounds] + [(None, ledger.entry(None))]
    dispatch = by_size(dtype, sizes, ledger.entry("another dtype"))
    # On each bound, just beside it, and anywhere.
    asked = [*counts, *(bound + step for bound in bounds for step in (-1, 0, 1))]
    for count in asked:
        dispatch(indices(count, dtype, form))
    assert ledger.calls == [(next((bound for bound in bounds if count <= bound), None), count) for count in asked]


@pytest.mark.parametrize("bounds", [[], [4]])
@pytest.mark.parametrize("served", [torch.int32, torch.int64])
def test_another_dtype_goes_elsewhere_whatever_its_number(bounds: list[int], served: torch.dtype) -> None:
    ledger = Ledger()
    other = torch.int32 if served is torch.int64 else torch.int64
    sizes = [(bound, ledger.entry(bound)) for bound in bounds] + [(None, ledger.entry(None))]
    dispatch = by_size(served, sizes, ledger.entry("elsewhere"))
    for count in (0, 4, 5):
        dispatch(indices(count, other))
    assert ledger.calls == [("elsewhere", 0), ("elsewhere", 4), ("elsewhere", 5)]


class _Recording(Strategy):
    """Notes what it is bound to and called with."""

    name = "recording"
    bound: list[tuple[str, str, torch.dtype]]
    calls: list[tuple[str, str, int]]

    def __init__(self, label: str = "") -> None:
        self._label = label

    def bind(self, target: Target) -> Bound:
        self.bound.append((self._label, target.name, target.index_dtype))
        dtype = str(target.index_dtype).removeprefix("torch.")

        def clear(indices: torch.Tensor) -> None:
            self.calls.append((self._label, dtype, indices.numel()))

        return clear


@pytest.fixture
def recording(empty_registry: None, monkeypatch: pytest.MonkeyPatch) -> type[_Recording]:
    del empty_registry
    monkeypatch.setattr(_Recording, "bound", [], raising=False)
    monkeypatch.setattr(_Recording, "calls", [], raising=False)
    return register_strategy(_Recording)


def _choice(*decisions: Any, target: str = "token", instance: Strategy | None = None) -> Choice:
    return Choice("clear", target, "a test", "", decisions, instance=instance)  # type: ignore[arg-type]  # a plain str where the field is a Literal


def test_a_choice_sends_each_dtype_and_size_where_its_decisions_say(recording: type[_Recording]) -> None:
    def to(label: str, dtype: str, max_indices: int | None) -> Any:
        return decide("recording", index_dtype=dtype, max_indices=max_indices, params={"label": label})

    choice = _choice(
        to("a", "int64", 8),
        to("b", "int64", None),
        to("c", "int32", 4),
        to("d", "int32", 16),
        to("e", "int32", None),
    )
    clear = bind_choice(choice, empty_mapping(64, 4, CPU), 4)
    for dtype in (torch.int32, torch.int64):
        for count in (1, 4, 5, 8, 9, 16, 17):
            clear(indices(count, dtype))
    in_order = [(label, count) for label, _, count in recording.calls]
    assert in_order == [
        *[("c", 1), ("c", 4), ("d", 5), ("d", 8), ("d", 9), ("d", 16), ("e", 17)],
        *[("a", 1), ("a", 4), ("a", 5), ("a", 8), ("b", 9), ("b", 16), ("b", 17)],
    ]
    assert [dtype for _, dtype, _ in recording.calls] == ["int32"] * 7 + ["int64"] * 7


def test_a_strategy_that_serves_several_sizes_is_bound_once_a_dtype(recording: type[_Recording]) -> None:
    choice = _choice(
        decide("recording", max_indices=4),
        decide("recording", max_indices=16, params={"label": "other"}),
        decide("recording"),
        decide("recording", index_dtype="int32"),
    )
    bind_choice(choice, empty_mapping(64, 4, CPU), 4)
    # One workspace each, however many ranges.
    assert sorted(recording.bound, key=str) == sorted(
        [("", "token", torch.int32), ("", "token", torch.int64), ("other", "token", torch.int64)], key=str
    )


def test_nothing_is_bound_when_it_is_called(recording: type[_Recording]) -> None:
    clear = bind_choice(
        _choice(decide("recording"), decide("recording", index_dtype="int32")), empty_mapping(8, 1, CPU), 1
    )
    before = len(recording.bound)
    for count in (1, 2, 3):
        clear(indices(count))
        clear(indices(count, torch.int32))
    assert len(recording.bound) == before


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8, torch.bool, torch.float16, torch.float64])
@pytest.mark.parametrize("bounded", [False, True])
def test_any_other_index_dtype_is_refused_with_its_name_and_the_mending(
    dtype: torch.dtype,
    bounded: bool,  # noqa: FBT001 - a case
    recording: type[_Recording],
) -> None:
    sizes = (4, None) if bounded else (None,)
    choice = _choice(
        *(decide("recording", index_dtype=name, max_indices=size) for name in ("int32", "int64") for size in sizes)
    )
    clear = bind_choice(choice, empty_mapping(8, 1, CPU), 1)
    for count in (0, 2, 8):
        with pytest.raises(PoolError, match=rf"int32 or int64, not {dtype}; cast them"):
            clear(indices(count, dtype))
    assert recording.calls == []


class _Returning(Strategy):
    """Returns its label and whatever it is called with."""

    name = "returning"
    operation = "set"

    def __init__(self, label: str = "") -> None:
        self._label = label

    def bind(self, target: Target) -> Bound:
        return lambda *arguments: (self._label, target.index_dtype, *arguments)


@pytest.mark.usefixtures("empty_registry")
def test_values_and_results_pass_through_and_the_indices_decide() -> None:
    register_strategy(_Returning)

    def to(label: str, dtype: str, max_indices: int | None) -> Any:
        params = {"label": label}
        return decide("returning", operation="set", index_dtype=dtype, max_indices=max_indices, params=params)

    decisions = (to("a", "int64", 8), to("b", "int64", None), to("c", "int32", None))
    call = bind_choice(Choice("set", "token", "a test", "", decisions), empty_mapping(64, 4, CPU), 4)
    for count, dtype, label in ((8, torch.int64, "a"), (9, torch.int64, "b"), (8, torch.int32, "c")):
        given, values = indices(count, dtype), torch.zeros(count, dtype=torch.int64)
        told, bound_to, passed, passed_values = call(given, values)
        assert (told, bound_to) == (label, dtype)
        assert passed is given
        assert passed_values is values
    with pytest.raises(PoolError, match="int32 or int64"):
        call(indices(4, torch.int16), indices(4))


class _TokensOnly(Strategy):
    name = "tokens_only"
    targets = frozenset({"token"})

    def bind(self, target: Target) -> Bound:
        raise AssertionError(target)


class _NotHere(Strategy):
    name = "not_here"

    def unavailable(self, target: Target) -> str:
        return f"no {target.index_dtype} on Tuesdays"

    def bind(self, target: Target) -> Bound:
        raise AssertionError(target)


def test_a_strategy_is_not_bound_to_a_target_that_it_does_not_serve() -> None:
    target = Target("clear", "page", torch.int64, empty_mapping(8, 4, CPU), 4)
    with pytest.raises(StrategyUnavailable, match="tokens_only does not serve the page target"):
        bind(_TokensOnly(), target)


def test_an_unavailable_strategy_is_not_bound_and_its_reason_is_passed_on() -> None:
    target = Target("clear", "page", torch.int64, empty_mapping(8, 4, CPU), 4)
    with pytest.raises(StrategyUnavailable, match=r"not_here is unavailable: no torch\.int64 on Tuesdays"):
        bind(_NotHere(), target)
