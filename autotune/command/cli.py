"""From a command line to a run: Hydra's entry point, error lines and exit codes.

Exit codes: 0 done; 2 the request is wrong; 3 the device or the measurement failed; 1 a bug, with its traceback.
"""

from __future__ import annotations

import inspect
import io
import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from autotune.command.run import calibrate_run
from autotune.config import Config, ConfigError, Task, conf_dir, editable, to_config, unknown_key
from autotune.devices import known_devices
from swa_alloc._stdio import complain, printing
from swa_alloc.errors import CalibrationError, SWAAllocError

_TASKS = {Task.calibrate: calibrate_run}
# A later Hydra has no such parameter; where there is one, leaving it out warns.
_VERSION_BASE: dict[str, Any] = (
    {"version_base": "1.3"} if "version_base" in inspect.signature(hydra.main).parameters else {}
)
_FULL_ERROR = "HYDRA_FULL_ERROR"
_OUTPUT_DIR = "AUTOTUNE_OUTPUT_DIR"


def run() -> None:
    """Run the command line in ``sys.argv``; every failure that is no bug has one line and its exit code."""
    wants_traceback = os.environ.get(_FULL_ERROR, "0") not in ("", "0")
    # Hydra would print and exit 1 whatever happened; this makes it raise.
    os.environ[_FULL_ERROR] = "1"
    sys.argv[0] = "autotune"
    # With a full disk, logging would print a traceback for each line that it cannot write to the run folder.
    logging.raiseExceptions = False
    failures: list[Exception] = []

    composed = False

    def job(cfg: DictConfig) -> None:
        nonlocal composed
        composed = True
        try:
            _run(cfg)
        except _EXPECTED as error:
            # Through Hydra it would get a second line.
            failures.append(error)

    try:
        _store_schema()
        _hydra(job)
    except Exception as error:
        # Hydra raises whatever it likes at a configuration that it cannot compose.
        if composed and not isinstance(error, _EXPECTED):
            raise
        failures.append(error)
    if failures and wants_traceback:
        raise failures[0]
    for failure in failures:
        complain(f"autotune: {_one_line(failure)}")
    if failures:
        raise SystemExit(3 if any(isinstance(failure, CalibrationError) for failure in failures) else 2)


def _hydra(job: Callable[[DictConfig], None]) -> None:
    """Compose the configuration and call ``job`` with it, or print what was asked for instead, such as help."""
    folder = _output_dir()
    OmegaConf.register_new_resolver("output_dir", lambda: folder, replace=True)
    ours, hydras = sys.stdout, io.StringIO()

    def job_on_stdout(cfg: DictConfig) -> None:
        with redirect_stdout(ours):
            job(cfg)

    try:
        with redirect_stdout(hydras):
            hydra.main(config_path=str(conf_dir()), config_name="config", **_VERSION_BASE)(job_on_stdout)()
    finally:
        # Hydra itself would take a reader that has gone for an error.
        with printing():
            sys.stdout.write(hydras.getvalue())


def _output_dir() -> str:
    """Where run folders are made: what the variable says, ``~`` included, else ``outputs``.

    Raises:
        ConfigError: it names a home folder that does not exist.
    """
    folder = os.environ.get(_OUTPUT_DIR) or "outputs"
    expanded = os.path.expanduser(folder)  # noqa: PTH111 - unlike Path.expanduser it never raises
    if expanded.startswith("~"):
        home = folder.partition("/")[0]
        raise ConfigError(f"{_OUTPUT_DIR} is {folder}, and there is no home folder {home}; name another folder")
    return expanded


def _store_schema() -> None:
    """Give Hydra the schema of ``conf/``, and the devices that have no file there: those of other packages."""
    store = ConfigStore.instance().store
    store(name="_base_", node=editable(Config))
    files = conf_dir() / "device"
    for kind in known_devices():
        if not (files / f"{kind}.yaml").is_file():
            store(group="device", name=kind, node={"kind": kind})


# What a wrong request or a failing device raises. HydraException comes in OSErrors, too.
_EXPECTED = (SWAAllocError, HydraException, OmegaConfBaseException, yaml.YAMLError, OSError)


def _run(cfg: DictConfig) -> None:
    config = to_config(cfg)
    job = HydraConfig.get()
    _TASKS[config.task](config, tuple(job.overrides.task), Path(job.runtime.output_dir))


def _one_line(error: BaseException) -> str:
    """The error and what caused it, in one line."""
    if isinstance(error, OverrideParseException):
        text = f"{str(error).splitlines()[0]} in {error.override}; quote what Hydra reads as its own: 'key=\"value\"'"
    elif isinstance(error, OSError) and not isinstance(error, HydraException):
        where = error.filename or "the run folder"
        text = f"cannot write {where}: {error.strerror}; {_OUTPUT_DIR}=FOLDER puts the run folder elsewhere"
    elif isinstance(error, SWAAllocError) or error.__cause__ is None:
        text = str(error)
    else:
        text = f"{error}\n{error.__cause__}"
        key = re.search(r"Key '[^']*' not in '\w+'\s+full_key: (\S+)", text)
        # Hydra proposes `+key=value`, which is refused in turn.
        text = unknown_key(key[1]) if key else text
    # Where OmegaConf was in its own tree, and where Hydra looked, help nobody.
    return re.sub(
        r"\s*(object_type=|reference_type=|full_key: )\S*|\s*Config search path:.*", "", text, flags=re.DOTALL
    )
