"""What the commands say: results that survive a closed pipe, and errors of one line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from swa_alloc.errors import OutputError

# A line of a log that people still read.
_LONGEST_LINE = 2000


def prepare() -> None:
    """Make stdout and stderr safe to write to: there, and able to spell whatever a file holds."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Closed by the shell.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for the process's life
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Around everything that is printed. A reader that has gone, as `head` does, is no error.

    Raises:
        OutputError: stdout cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Python would complain again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"the result cannot be written to stdout: {error.strerror}") from error


def complain(text: str) -> None:
    """One line on stderr; where that cannot be written, the exit code has to do."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{one_line(text)}\n")
        sys.stderr.flush()


def one_line(text: str) -> str:
    """``text`` in one line, of a length that can be read."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
