"""``python -m swa_alloc show|validate|explain|path``: profiles from a shell, without Hydra.

Exit codes: 0 done; 2 a profile or an argument is wrong, with one line on stderr.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import torch

from swa_alloc._stdio import complain, prepare, printing
from swa_alloc.errors import PoolError, ProfileError, SWAAllocError
from swa_alloc.explain import explain_profile, explain_selection
from swa_alloc.mapping import FullToSWAMapping
from swa_alloc.profile import StrategyProfile
from swa_alloc.selection import ON_MISSING_VARIABLE, Overrides
from swa_alloc.stores import PROFILE_VARIABLE, missing_stores, stores

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    prepare()
    options = _parser().parse_args(arguments)
    code: int = 0
    try:
        with printing():
            code = options.command(options)
    except SWAAllocError as error:
        complain(f"swa_alloc: {error}")
        return 2
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """See ``ArgumentParser.error``."""
        self.exit(2, f"swa_alloc: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m swa_alloc", description="Look at strategy profiles.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    show = commands.add_parser("show", help="print what a profile decides, and on what evidence")
    show.add_argument("file")
    show.set_defaults(command=_show)

    validate = commands.add_parser("validate", help="check that files are profiles")
    validate.add_argument("files", nargs="+", metavar="file")
    validate.set_defaults(command=_validate)

    explain = commands.add_parser("explain", help="say what an allocator on this machine would use, and why")
    explain.add_argument("--device", default="cpu", help="as PyTorch spells it; default cpu")
    explain.add_argument("--size", type=int, required=True, help="slots in the full pool")
    explain.add_argument("--page-size", type=int, default=1, help="slots in a page; default 1")
    explain.set_defaults(command=_explain)

    path = commands.add_parser("path", help="print where profiles are looked for, in order")
    path.set_defaults(command=_path)
    return parser


def _show(options: argparse.Namespace) -> int:
    _print(explain_profile(StrategyProfile.load(options.file)))
    return 0


def _validate(options: argparse.Namespace) -> int:
    code = 0
    for file in options.files:
        try:
            profile = StrategyProfile.load(file)
            races = len(profile.evidence.measurements)
        except ProfileError as error:
            complain(f"swa_alloc: {error}")
            code = 2
        else:
            name, decisions = profile.fingerprint.device_name, len(profile.decisions)
            gaps = "" if profile.complete else f", incomplete: {len(profile.missing)} missing"
            _print(f"{file}: a profile for {name}, {decisions} decisions from {races} races{gaps}")
    return code


def _explain(options: argparse.Namespace) -> int:
    if options.size < 1 or options.page_size < 1 or options.size % options.page_size:
        raise PoolError(
            f"--size must be a multiple of --page-size, and both at least 1, not {options.size} and {options.page_size}"
        )
    # Looking must not start a calibration; what an allocator would do about a miss is said in words.
    overrides = Overrides(on_missing="default")
    # The explanation tells the troubles; the log would tell them again.
    logging.getLogger("swa_alloc").addHandler(logging.NullHandler())
    try:
        mapping = FullToSWAMapping.allocate(options.size, options.page_size, torch.device(options.device), overrides)
    except (PoolError, RuntimeError, AssertionError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PoolError(f"--device {options.device} cannot be used here for {options.size} slots: {reason}") from error
    selection = mapping.selection
    _print(explain_selection(selection))
    if (
        selection.profile is None
        and not selection.troubles
        and any(choice.layer == "default" for choice in selection.choices.values())
    ):
        on_missing = os.environ.get(ON_MISSING_VARIABLE) or "calibrate"
        _print(
            f"note: no profile fits; an allocator would do as {ON_MISSING_VARIABLE} or on_missing= says: {on_missing}"
        )
    return 0


def _path(_options: argparse.Namespace) -> int:
    named = os.environ.get(PROFILE_VARIABLE)
    _print(f"{PROFILE_VARIABLE}: {named or 'not set'}")
    for store in stores():
        _print(f"{store.layer}: {store.directory} (profiles: {len(store.files())})")
    for line in missing_stores():
        _print(line)
    return 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
