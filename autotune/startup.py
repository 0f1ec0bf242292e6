"""Calibration inside a starting server: built-in strategies only, a modest workload, and once a machine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from autotune.calibrate import make_request, measure
from autotune.config import Calibration, Reuse, Workload, load_group
from autotune.devices import open_torch_device
from autotune.once import calibrate_once, measure_into
from swa_alloc.errors import ProfileError
from swa_alloc.operations import OPERATIONS
from swa_alloc.stores import find, user_directory
from swa_alloc.strategies import builtin_names

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from autotune.calibrate import Keep
    from swa_alloc.evidence import Evidence
    from swa_alloc.profile import StrategyProfile


logger = logging.getLogger("swa_alloc")


def calibrate_for_mapping(device: torch.device, size: int, page_size: int) -> tuple[StrategyProfile, Path | None]:
    """A profile for a mapping over ``size`` full slots on ``device``, and where it is saved, if it is.

    Raises:
        CalibrationError: measuring is not possible, with the reason.
    """
    opened = open_torch_device(device)
    settings: Calibration = load_group(Calibration, "calibration", "startup")
    workload: Workload = load_group(Workload, "workload", "default", size=size, size_swa=size, page_size=page_size)
    strategies = {operation: builtin_names(operation) for operation in OPERATIONS}
    request = make_request(opened, workload, settings, strategies)
    try:
        store = user_directory()
    except ProfileError:
        store = None

    def saved() -> tuple[StrategyProfile, Path] | None:
        return None if store is None else request.answer(store, Reuse.exact)

    def serving() -> tuple[StrategyProfile, Path] | None:
        hit = find(request.fingerprint, size, page_size).hit
        return None if hit is None else (hit.profile, hit.path)

    def make(directory: Path | None) -> StrategyProfile:
        def go_on(known: Evidence, keep: Keep) -> StrategyProfile:
            return measure(request, known=known, keep=keep)

        return measure_into(directory, request, go_on)

    outcome = calibrate_once(store, opened.torch_device, request.budget_s + settings.wait_s, saved, serving, make)
    if outcome.unsaved:
        logger.warning(
            "what was measured serves this process only, and the next start measures again: %s", outcome.unsaved
        )
    return outcome.profile, outcome.path
