"""Calibration inside a starting server: the one place where swa_alloc imports autotune."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from swa_alloc.errors import CalibrationError
from swa_alloc.profile import StrategyProfile

logger = logging.getLogger("swa_alloc")


def calibrate_at_startup(device: torch.device, size: int, page_size: int) -> tuple[StrategyProfile, Path | None]:
    """Measure on ``device`` for a mapping over ``size`` full slots: the profile, and where it was saved, if it was.

    Of several processes that start together one measures, the others wait for its profile.

    Raises:
        CalibrationError: measuring is not possible, with the reason.
    """
    try:
        # autotune imports hydra's and optuna's worlds: only a start that has to measure pays for them.
        from autotune.startup import calibrate_for_mapping
    except ModuleNotFoundError as error:
        raise CalibrationError(
            f"measuring needs the autotune extra ({error.name} is missing); pip install 'swa-alloc[autotune]'"
        ) from error
    logger.info(
        "no complete profile for %d slots in pages of %d on %s: measuring, some seconds", size, page_size, device
    )
    return calibrate_for_mapping(device, size, page_size)
