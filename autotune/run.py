"""``task=calibrate``: from a configuration to a saved profile, a run folder and a report."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from autotune.calibrate import make_request, measure, pin
from autotune.config import Config, ConfigError, Objective, Reuse, Storage
from autotune.devices import open_device
from autotune.once import calibrate_once
from autotune.report import print_report, write_report
from autotune.sandbox import Sandbox
from autotune.space import chosen_names
from swa_alloc.dispatch import bind_choice
from swa_alloc.errors import ProfileError, StrategyUnavailable
from swa_alloc.profile import StrategyProfile
from swa_alloc.selection import calls, pinned
from swa_alloc.stores import user_directory

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from autotune import search
    from autotune.request import Request
    from swa_alloc.selection import Choice, Key

logger = logging.getLogger(__name__)


def calibrate_run(config: Config, overrides: tuple[str, ...], run_folder: Path) -> None:
    """Calibrate as configured; the result goes to the store, the run folder and stdout.

    Raises:
        ConfigError, StrategyError, TraceError, ProfileError: the request is wrong.
        CalibrationError: the device or the measurement failed.
    """
    strategies = chosen_names(config.strategies)
    choices = pinned(config.strategies.pin, "strategies.pin") if config.strategies.pin else {}
    directory = _expanded(config.profile.dir) if config.profile.dir else user_directory()
    device = open_device(config.device.kind, config.device.index)
    request = make_request(device, config.workload, config.calibration, strategies)
    resolved: Any = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    request = replace(
        request,
        objective=device.default_objective if config.objective is Objective.auto else config.objective.value,
        config=resolved,
        overrides=overrides,
        require_capturable=config.strategies.require_capturable,
    )
    _check_included(config.strategies.include or [], request)
    reuse = Reuse.never if config.calibration.force or choices else config.profile.reuse
    outcome = calibrate_once(
        directory,
        device.torch_device.type,
        config.calibration.budget_s + config.calibration.wait_s,
        saved=lambda: request.answer(directory, reuse),
        make=lambda: (request.key, _pin(request, choices) if choices else _measure(request, config, run_folder)),
    )
    if outcome.reused and StrategyProfile.load(outcome.path).objective != outcome.profile.objective:
        # Decided anew, from what was measured then; whoever finds it shall find that, where it can be written.
        try:
            outcome.profile.save(outcome.path)
        except ProfileError as error:
            logger.warning("the profile keeps its objective: %s", error)
    logger.info("%s %s", "reused" if outcome.reused else "saved", outcome.path)
    outcome.profile.save(run_folder / "profile.json")
    write_report(outcome, run_folder / "report.txt")
    print_report(outcome, config.format)


def _expanded(folder: str) -> Path:
    return Path(os.path.expanduser(folder))  # noqa: PTH111 - unlike Path.expanduser it never raises


def _check_included(included: Sequence[str], request: Request) -> None:
    """Refuse a strategy that was asked for by name and cannot run here: the race would go on without it.

    Raises:
        StrategyUnavailable: there is one, in whatever operations have one of that name.
    """
    for name in included:
        served = [operation for operation, who in request.strategies.items() if name in who]
        reasons = [request.unavailable.get((operation, name)) for operation in served]
        if reasons and all(reasons):
            raise StrategyUnavailable(f"strategies.include names {name}, which is unavailable here: {reasons[0]}")


def _pin(request: Request, choices: Mapping[Key, Choice]) -> StrategyProfile:
    trace = request.trace
    called = [choice for key, choice in choices.items() if key in calls(trace.page_size)]
    if not called:
        pages = f"pages of {trace.page_size}"
        raise ConfigError(f"strategies.pin names {', '.join(map('.'.join, choices))}, which nothing calls with {pages}")
    sandbox = Sandbox(trace.size, trace.page_size, request.device, request.settings.seed)
    with request.device.selected():
        for choice in called:
            # What cannot be bound here is refused here, not by the server that reads the profile.
            bind_choice(choice, sandbox.mapping, trace.page_size)
    return pin(request, [decision for choice in called for decision in choice.decisions])


def _measure(request: Request, config: Config, run_folder: Path) -> StrategyProfile:
    logger.info("measuring on %s for at most %g s", request.device.torch_device, request.settings.budget_s)
    with _progress() as progress:
        return measure(request, progress, _STUDIES[config.calibration.storage](run_folder))


def _new_journal(run_folder: Path) -> BaseStorage:
    path = run_folder / "study.journal"
    # One of an earlier run in the same folder holds studies of the same names.
    path.unlink(missing_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


_STUDIES: Mapping[Storage, Callable[[Path], BaseStorage | None]] = {
    Storage.memory: lambda _run_folder: None,
    Storage.journal: _new_journal,
}


@contextmanager
def _progress() -> Iterator[search.Progress]:
    """A bar on stderr, where that is a terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}% of the budget"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=1.0)
        yield lambda used: bar.update(task, completed=used)
