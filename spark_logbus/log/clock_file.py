"""The time that deleting goes by, kept over restarts, and an operator's say in it.

Two small files of the data directory: ``clock``, the time that was seen last, is written by the
broker every half minute and when it stops. ``clock-accepted`` is written by ``logbus
accept-clock``, beside a broker that runs or not; the broker takes it away.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.errors import StorageError
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file, read_checksummed_file
from spark_logbus.log.disk.filesystem import FileSystem, storage_errors, write_atomically
from spark_logbus.log.guarded_clock import JumpGuardedClock
from spark_logbus.times import US_PER_S, show_moment

logger = logging.getLogger(__name__)

_CLOCK_TITLE: Final = "logbus-clock 1"
_ACCEPTED_TITLE: Final = "logbus-clock-accepted 1"
# An operator's word is about the clock as it was then, and no older than that.
_WORD_HOLDS_US: Final = 86_400_000_000
_LATEST_US: Final = 1 << 62  # no clock shows it, and it fits where a time is stamped
_KEEP_EVERY_S: Final = 30.0


class ClockKeeper:
    """Keeps the guarded clock of one data directory over restarts. For one thread at a time;
    ``problem`` is for any."""

    def __init__(self, files: FileSystem, directory: Path, clock: Clock) -> None:
        self._files = files
        self._directory = directory
        self._clock = clock
        #: The time by which records are deleted, by whoever deletes them.
        self.time = JumpGuardedClock(clock)
        self._kept_at = 0.0
        self._reported = False

    def resume(self) -> None:
        """Go on from the time that the last run kept; before anything is deleted."""
        try:
            last_seen_us = read_clock(self._files, self._directory)
        except StorageError as error:
            logger.warning("%s The clock is taken at its word.", error)
            return
        if last_seen_us is not None:
            self.time.resume(last_seen_us)
        self.watch()

    def watch(self) -> int:
        """The time by which ages count now; takes what an operator says of the clock."""
        now_us = self.time.now_us()
        if self.time.jump is None:
            if self._reported:
                logger.info("The clock shows what is expected again: ages count by it.")
            self._reported = False
            return now_us
        if take_accepted(self._files, self._directory, self._clock.now_us()):
            self.time.accept()
            self.keep()
            self._reported = False
            logger.info("The clock was accepted by an operator: ages count by it from now on.")
            return self.time.now_us()
        if not self._reported:
            logger.warning("%s", self.problem())
        self._reported = True
        return now_us

    def problem(self) -> str | None:
        """The fault of the machine's clock, and what to do; None while it is believed."""
        jump = self.time.jump
        if jump is None:
            return None
        shown, expected = (show_moment(us // US_PER_S * US_PER_S) for us in jump)
        return (
            f"The machine's clock shows {shown}, and by the time that was seen last it is about "
            f"{expected}. A clock that is more than a day off is not believed: until it comes "
            "back, records are deleted by age late rather than early. If it is right, because "
            "the broker was stopped for so long, say, tell the broker: "
            f"logbus accept-clock {self._directory} --execute"
        )

    def keep_if_due(self) -> None:
        if self._clock.monotonic() - self._kept_at >= _KEEP_EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write the time down for the next start; a disk that refuses is not asked more often."""
        self._kept_at = self._clock.monotonic()
        try:
            write_clock(self._files, self._directory, self.time.trusted_us)
        except StorageError as error:
            logger.warning("%s The next start goes by an earlier time.", error)


def write_clock(files: FileSystem, directory: Path, seen_us: int) -> None:
    """Raises StorageError; the old file is then still there."""
    _write(files, directory / names.CLOCK, _CLOCK_TITLE, seen_us)


def read_clock(files: FileSystem, directory: Path) -> int | None:
    """The time that was seen last; None when it is not known. Raises StorageError."""
    return _read(files, directory / names.CLOCK, _CLOCK_TITLE)


def off_us(files: FileSystem, directory: Path, now_us: int) -> int:
    """The lead of a clock that shows ``now_us`` over what the broker went by last, half a minute
    ago at most while it runs; 0 if that is not known. Raises StorageError."""
    seen_us = read_clock(files, directory)
    return 0 if seen_us is None else now_us - seen_us


def write_accepted(files: FileSystem, directory: Path, now_us: int) -> None:
    """Note that the clock, which shows ``now_us``, is right. Raises StorageError."""
    _write(files, directory / names.CLOCK_ACCEPTED, _ACCEPTED_TITLE, now_us)


def take_accepted(files: FileSystem, directory: Path, now_us: int) -> bool:
    """True if an operator has said within a day that the clock, which shows ``now_us``, is right;
    removes the file, if the disk allows."""
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
