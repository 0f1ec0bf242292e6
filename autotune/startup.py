"""Calibration inside a starting server: built-in strategies only, a modest workload, and once a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.calibrate import make_request, measure
from autotune.config import Calibration, Workload, load_group
from autotune.devices import open_torch_device
from autotune.once import calibrate_once
from swa_alloc.fingerprint import fingerprint
from swa_alloc.operations import OPERATIONS
from swa_alloc.stores import find, user_directory
from swa_alloc.strategies import builtin_names

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from swa_alloc.profile import StrategyProfile


def calibrate_for_mapping(device: torch.device, size: int, page_size: int) -> tuple[StrategyProfile, Path]:
    """A profile for a mapping over ``size`` full slots on ``device``, and where it lies.

    Raises:
        CalibrationError: measuring is not possible, with the reason.
        ProfileError: the result cannot be saved.
    """
    opened = open_torch_device(device)
    settings: Calibration = load_group(Calibration, "calibration", "startup")
    here = fingerprint(device)

    def saved() -> tuple[StrategyProfile, Path] | None:
        hit = find(here, size, page_size).hit
        return None if hit is None else (hit.profile, hit.path)

    def make() -> tuple[str, StrategyProfile]:
        workload: Workload = load_group(Workload, "workload", "default", size=size, size_swa=size, page_size=page_size)
        strategies = {operation: builtin_names(operation) for operation in OPERATIONS}
        request = make_request(opened, workload, settings, strategies)
        return request.key, measure(request)

    outcome = calibrate_once(user_directory(), device.type, settings.budget_s + settings.wait_s, saved, make)
    return outcome.profile, outcome.path
