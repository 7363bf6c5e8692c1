"""Two small files in the data directory: the time that was seen last, and an operator's word.

``clock`` is written by the broker every half minute and when it stops. ``clock-accepted`` is
written by ``logbus accept-clock``, beside a broker that runs or not; the broker takes it away.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from spark_logbus.errors import StorageError
from spark_logbus.log import names
from spark_logbus.log.checksummed_file import checksummed_file, read_checksummed_file
from spark_logbus.log.filesystem import FileSystem, storage_errors, write_atomically

logger = logging.getLogger(__name__)

_CLOCK_TITLE: Final = "logbus-clock 1"
_ACCEPTED_TITLE: Final = "logbus-clock-accepted 1"
# An operator's word is about the clock as it was then, and no older than that.
_WORD_HOLDS_US: Final = 86_400_000_000
_LATEST_US: Final = 1 << 62  # no clock shows it, and it fits where a time is stamped


def write_clock(files: FileSystem, directory: Path, seen_us: int) -> None:
    """Raises StorageError; the old file is then still there."""
    _write(files, directory / names.CLOCK, _CLOCK_TITLE, seen_us)


def read_clock(files: FileSystem, directory: Path) -> int | None:
    """The time that was seen last; None when it is not known. Raises StorageError."""
    return _read(files, directory / names.CLOCK, _CLOCK_TITLE)


def off_us(files: FileSystem, directory: Path, now_us: int) -> int:
    """How far a clock that shows ``now_us`` is ahead of what the broker went by last, half a
    minute ago at most while it runs; 0 if that is not known. Raises StorageError."""
    seen_us = read_clock(files, directory)
    return 0 if seen_us is None else now_us - seen_us


def write_accepted(files: FileSystem, directory: Path, now_us: int) -> None:
    """The clock, which shows ``now_us``, is right. Raises StorageError."""
    _write(files, directory / names.CLOCK_ACCEPTED, _ACCEPTED_TITLE, now_us)


def take_accepted(files: FileSystem, directory: Path, now_us: int) -> bool:
    """Whether an operator has said within a day that the clock, which shows ``now_us``, is right;
    the file is gone then, if the disk allows."""
    path = directory / names.CLOCK_ACCEPTED
    try:
        accepted_us = _read(files, path, _ACCEPTED_TITLE)
        if accepted_us is None:
            return False
        with storage_errors("remove", path):
            files.remove(path)
            files.sync_directory(directory)
    except StorageError as error:
        logger.warning("%s", error)
        return False
    return 0 <= now_us - accepted_us <= _WORD_HOLDS_US


def _write(files: FileSystem, path: Path, title: str, time_us: int) -> None:
    with storage_errors("write", path):
        write_atomically(files, path, checksummed_file(title, [str(time_us)]))


def _read(files: FileSystem, path: Path, title: str) -> int | None:
    lines = read_checksummed_file(files, path, title)
    try:
        time_us = int(lines[0]) if lines else None
    except ValueError:
        return None
    return time_us if time_us is not None and 0 <= time_us < _LATEST_US else None
