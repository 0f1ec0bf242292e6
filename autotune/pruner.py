"""The race as an Optuna pruner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import optuna

if TYPE_CHECKING:
    from autotune.race import Race

LABEL = "candidate"  # the trial's user attribute that names its candidate


class RacingPruner(optuna.pruners.BasePruner):
    """Prunes a trial once its candidate is surely slower than another under every objective.

    Optuna's WilcoxonPruner needs a complete trial to compare with, and interleaved trials complete together.

    Args:
        race: Where the samples are.
    """

    def __init__(self, race: Race) -> None:
        self._race = race

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """See ``BasePruner.prune``."""
        del study
        return self._race.beaten(trial.user_attrs[LABEL])
