"""From a command line to a run: Hydra's entry point, error lines and exit codes.

Exit codes: 0 done; 2 the request is wrong; 3 the device or the measurement failed; 1 a bug, with its traceback.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from autotune.config import (
    Calibration,
    Config,
    DeviceConfig,
    Task,
    Workload,
    conf_dir,
    editable,
    to_config,
    unknown_key,
)
from autotune.run import calibrate_run
from swa_alloc._stdio import complain
from swa_alloc.errors import CalibrationError, SWAAllocError

_TASKS = {Task.calibrate: calibrate_run}
# Hydra 1.4 dropped the parameter; before it, leaving it out warns.
_VERSION_BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__ < "1.4" else {}
_FULL_ERROR = "HYDRA_FULL_ERROR"


def run() -> None:
    """Run the command line in ``sys.argv``; every failure that is no bug has one line and its exit code."""
    for group, schema in (("device", DeviceConfig), ("workload", Workload), ("calibration", Calibration)):
        ConfigStore.instance().store(group=group, name="_base_", node=editable(schema))
    ConfigStore.instance().store(name="_base_", node=editable(Config))
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
        hydra.main(config_path=str(conf_dir()), config_name="config", **_VERSION_BASE)(job)()
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
        text = f"cannot write {where}: {error.strerror}; AUTOTUNE_OUTPUT_DIR=FOLDER puts the run folder elsewhere"
    elif isinstance(error, SWAAllocError) or error.__cause__ is None:
        text = str(error)
    else:
        text = f"{error}\n{error.__cause__}"
        key = re.search(r"Key '[^']*' not in '\w+'\s+full_key: (\S+)", text)
        # Hydra proposes `+key=value`, which is refused in turn.
        text = unknown_key(key[1]) if key else text
    # OmegaConf appends where in its own tree it was.
    return re.sub(r"\s*(object_type=|reference_type=|full_key: )\S*", "", text)
