"""What a calibration has found so far, on disk as it comes: whatever kills it, the next one goes on from there."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from swa_alloc import _json
from swa_alloc.evidence import Evidence, Measurement

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


class Journal:
    """A file of one measurement a line, under a first line that says of what.

    Without a path, or where the path cannot be written, nothing is kept, and what was begun is lost when it breaks off.

    Args:
        path: The file.
        subject: What must be equal for its contents to be taken up.
    """

    def __init__(self, path: Path | None, subject: dict[str, Any]) -> None:
        self._path = path
        self._subject = json.loads(json.dumps(subject))
        self._file: TextIO | None = None

    def begun(self) -> Evidence:
        """What an earlier calibration of the same subject found; a torn last line is as if it were not there."""
        measurements: dict[tuple[Any, int], Measurement] = {}
        if self._path is None:
            return Evidence()
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return Evidence()
        # The other is what a file of opening brackets raises.
        with suppress(ValueError, RecursionError):
            if not lines or json.loads(lines[0]) != self._subject:
                return Evidence()
            for line in lines[1:]:
                measurement = _json.decode(Measurement, json.loads(line))
                measurements[measurement.kind, measurement.indices] = measurement
        return Evidence(tuple(measurements.values()))

    def append(self, measurement: Measurement) -> None:
        """Keep one more."""
        if self._file is None:
            return
        try:
            self._file.write(_line(measurement))
            self._file.flush()
        except OSError as error:
            _tell(error)
            self.close()

    def start(self, known: Evidence) -> None:
        """Begin the file, with what is known already in it."""
        if self._path is None:
            return
        try:
            _json.write_atomically(self._path, "".join(map(_line, (self._subject, *known.measurements))))
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            _tell(error)

    def close(self) -> None:
        """End it; it stays for whoever goes on."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None


def _line(entry: Measurement | dict[str, Any]) -> str:
    return f"{json.dumps(_json.plain(entry))}\n"


def _tell(error: OSError) -> None:
    logger.info("what is measured is kept when all of it is: %s", error.strerror)


def discard(path: Path) -> None:
    """Remove a journal that has served: all of it is in a profile that is saved."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
