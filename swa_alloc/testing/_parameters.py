"""Which parameters of a strategy are tested: all that it suggests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from swa_alloc.strategies import Strategy, candidate_label


def candidates_of(*classes: type[Strategy]) -> dict[str, Strategy]:
    """An instance for each set of parameters that the classes suggest, and for their defaults, by its label."""
    return {candidate_label(cls.name, params): cls(**params) for cls in classes for params in ({}, *every_params(cls))}


def every_params(cls: type[Strategy]) -> Iterator[dict[str, Any]]:
    """Each set of parameters that ``cls.suggest`` can ask for; ``{}`` once where it has none."""
    choices: list[int] = []
    while True:
        trial = _GridTrial(choices)
        yield cls.suggest(trial)
        choices = [*choices, *[0] * (len(trial.widths) - len(choices))]
        # Count up, the last parameter fastest.
        while choices and choices[-1] == trial.widths[len(choices) - 1] - 1:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


class _GridTrial:
    """A trial that answers with the choices of the given numbers, in the order of the questions, and with the first."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = choices
        self.widths: list[int] = []

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        del name
        position = len(self.widths)
        self.widths.append(len(choices))
        return choices[self._choices[position] if position < len(self._choices) else 0]

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        # Too many to try each: the ends.
        del step, log
        return int(self.suggest_categorical(name, (low, high)))
