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

from autotune.bench.sandbox import Sandbox
from autotune.calibrate import make_request, measure, pin
from autotune.command.report import print_report, write_report
from autotune.config import Config, ConfigError, Objective, Reuse, Studies
from autotune.contest.candidates import chosen_names
from autotune.devices import open_device
from autotune.once import Answer, Interrupted, Outcome, calibrate_once, measure_into
from swa_alloc.dispatch import bind_choice
from swa_alloc.errors import ProfileError, StrategyUnavailable
from swa_alloc.profile import FILE_SUFFIX, StrategyProfile
from swa_alloc.selection import calls, pinned
from swa_alloc.stores import user_directory

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from autotune.calibrate import Keep
    from autotune.contest import search
    from autotune.request import Request
    from swa_alloc.evidence import Evidence
    from swa_alloc.selection import Choice, Key

logger = logging.getLogger(__name__)


def calibrate_run(config: Config, overrides: tuple[str, ...], run_folder: Path) -> None:
    """Calibrate as configured; the result goes to the store, the run folder and stdout.

    Raises:
        ConfigError, StrategyError, TraceError: the request is wrong.
        CalibrationError: the device or the measurement failed.
        Interrupted: Ctrl-C or its like, with a line that says what is left.
    """
    strategies = chosen_names(config.strategies)
    choices = pinned(config.strategies.pin, "strategies.pin") if config.strategies.pin else {}
    directory = _store(config)
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
    reuse = Reuse.never if choices else config.profile.reuse

    def saved() -> Answer | None:
        return None if directory is None else request.answer(directory, reuse)

    def make(writable: Path | None) -> StrategyProfile:
        return _pin(request, choices) if choices else _measure(request, config, run_folder, writable)

    outcome = calibrate_once(
        directory,
        device.torch_device,
        request.budget_s + config.calibration.wait_s,
        saved=saved,
        # What another process has measured serves here if it answers the request, and not otherwise.
        serving=saved,
        make=make,
    )
    try:
        _tell(outcome, config, run_folder)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; the profile is {_whereabouts(outcome)}") from error


def _tell(outcome: Outcome, config: Config, run_folder: Path) -> None:
    """Leave the result in the run folder, and print it, whether it could be written or not."""
    if outcome.path is not None and outcome.reused:
        _keep_objective(outcome.profile, outcome.path)
    copy = run_folder / f"run{FILE_SUFFIX}"
    trouble = None
    try:
        outcome.profile.save(copy)
        write_report(outcome, run_folder / "report.txt")
    except (ProfileError, OSError) as error:
        trouble = f"the run folder has no copy of it: {error}"
    if outcome.path is None:
        logger.warning("the profile is not saved: %s; %s", outcome.unsaved, trouble or f"it is kept in {copy}")
    elif trouble:
        logger.warning("the profile is %s; %s", _whereabouts(outcome), trouble)
    else:
        logger.info("the profile is %s", _whereabouts(outcome))
    print_report(outcome, config.format)


def _whereabouts(outcome: Outcome) -> str:
    if outcome.path is None:
        return "not saved"
    replaced = f", in place of one {outcome.replaced}" if outcome.replaced else ""
    return f"{'reused from' if outcome.reused else 'saved in'} {outcome.path}{replaced}"


def _keep_objective(profile: StrategyProfile, path: Path) -> None:
    """Decide a saved profile for the objective that was asked for last, where it can be written.

    From what was measured then; whoever finds it shall find that.
    """
    try:
        if StrategyProfile.load(path).objective != profile.objective:
            profile.save(path)
    except ProfileError as error:
        logger.warning("the saved profile keeps its objective: %s", error)


def _store(config: Config) -> Path | None:
    """Where profiles are saved and reused; None where there is no place for them."""
    if config.profile.dir:
        return Path(os.path.expanduser(config.profile.dir))  # noqa: PTH111 - unlike Path.expanduser it never raises
    try:
        return user_directory()
    except ProfileError as error:
        logger.warning("no profile is reused or saved: %s", error)
        return None


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
    sandbox = Sandbox(trace.size, trace.page_size, request.device)
    with request.device.selected():
        for choice in called:
            # What cannot be bound here is refused here, not by the server that reads the profile.
            bind_choice(choice, sandbox.mapping, trace.page_size)
    return pin(request, [decision for choice in called for decision in choice.decisions])


def _measure(request: Request, config: Config, run_folder: Path, directory: Path | None) -> StrategyProfile:
    logger.info("measuring on %s for at most %g s", request.device.torch_device, request.budget_s)
    studies = _STUDIES[config.studies](run_folder)

    def go_on(known: Evidence, keep: Keep) -> StrategyProfile:
        if known.measurements:
            logger.info("going on from %d races that an earlier run has left", len(known.measurements))
        with _progress() as progress:
            return measure(request, progress=progress, studies=studies, known=known, keep=keep)

    return measure_into(directory, request, go_on, from_start=config.profile.reuse is Reuse.never)


def _new_journal(run_folder: Path) -> BaseStorage:
    path = run_folder / "study.journal"
    # One of an earlier run in the same folder holds studies of the same names.
    path.unlink(missing_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


_STUDIES: Mapping[Studies, Callable[[Path], BaseStorage | None]] = {
    Studies.memory: lambda _run_folder: None,
    Studies.journal: _new_journal,
}


@contextmanager
def _progress() -> Iterator[search.Progress]:
    """A bar on stderr, where that is a terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}% of the budget"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=1.0)
        yield lambda used: bar.update(task, completed=used)
