"""The command: ``python -m autotune`` and ``autotune``."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# With torch_npu installed and CANN missing, PyTorch's own loading of backends makes `import torch` fail, and swa_alloc
# imports torch. The device that is asked for loads its backend itself, where a failure has a name.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

# What the extra installs; without it the command can do nothing but say so.
_EXTRA = ("hydra", "omegaconf", "optuna", "filelock", "rich")
_STOPS = (signal.SIGINT, signal.SIGTERM)
_NOTHING_DONE = "interrupted before anything was measured; nothing has changed"
# Shells report the end by a signal as this and the signal's number.
_BY_SIGNAL = 128


def main() -> None:
    """Run the command."""
    _on_stop(_leave)
    stopped_by = signal.SIGINT

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        nonlocal stopped_by
        stopped_by = signal.Signals(number)
        # What is kept now takes a moment; whoever insists need not wait.
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    try:
        # Imported late, so that an interruption in those seconds has one line, too.
        from swa_alloc._stdio import complain, prepare

        prepare()
        try:
            from autotune.command.cli import run

            _on_stop(stop)
            run()
        except ImportError as error:
            if error.name is None or error.name.split(".")[0] not in _EXTRA:
                raise
            complain(f"autotune: {error.name} is not installed; pip install 'swa-alloc[autotune]'")
            raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        complain(f"autotune: {str(error) or _NOTHING_DONE}")
        raise SystemExit(_BY_SIGNAL + stopped_by) from None


def _on_stop(handler: Callable[[int, FrameType | None], NoReturn]) -> None:
    for number in _STOPS:
        # A shell's background job does not hear Ctrl-C.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """End the process: while modules are being imported an exception may come out as any other, or not at all."""
    os.write(2, f"autotune: {_NOTHING_DONE}\n".encode())
    os._exit(_BY_SIGNAL + number)


if __name__ == "__main__":
    main()
