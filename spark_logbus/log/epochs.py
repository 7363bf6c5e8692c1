"""The leader epochs in which the records of one log were appended, each with its first offset.

Two logs of a partition agree up to where the last epoch that both have ends in the one in which it
ends first. So a follower that comes back tells the epoch of its last record, and the leader answers
where that epoch ends with it (``LeaderEpochs.end_of``).

Theory of operation. The file ``leader-epochs`` is replaced, on disk, before the first record batch
of an epoch is written, and after the log was cut. So it has an entry for each epoch in the log, and
may have one for records that a crash took or that were never written; opening the log cuts those,
which begin at its end or later. The file is what counts: compaction may remove all record batches
of an epoch.

Headers are read where there is no file, or one that lacks the log's last epoch: the log is of a
release without it, or the file was lost. As a log's epochs only rise, and compaction stamps what it
writes with the highest epoch of what it stands for, no epoch so found begins later than it did: a
follower may be cut back further than it has to be, never less.
"""

from __future__ import annotations

import itertools
import logging
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from spark_logbus.errors import StorageError
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file, read_checksummed_file
from spark_logbus.log.disk.filesystem import FileSystem, storage_errors, write_atomically
from spark_logbus.log.segment.lookup import BatchPosition, DamageFoundError, Lookup
from spark_logbus.log.view import LogView
from spark_logbus.record import format as fmt

logger = logging.getLogger(__name__)

_TITLE: Final = "logbus-leader-epochs 1"

NO_EPOCH: Final = -1


class EpochEntry(NamedTuple):
    """A leader epoch, and the offset of the first record that was appended in it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset at which its records end."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """The epochs of one log. Thread-safe; reading takes no lock.

    ``entries`` rise, by epoch and by offset. ``kept`` are those that are on disk, None where that
    is not known.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        entries: tuple[EpochEntry, ...] = (),
        *,
        kept: tuple[EpochEntry, ...] | None = (),
    ) -> None:
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()
        self.entries = entries
        self._kept = entries if kept == entries else None

    @property
    def latest(self) -> int:
        """The epoch of the last record; ``NO_EPOCH`` for a log that never had one."""
        entries = self.entries
        return entries[-1].epoch if entries else NO_EPOCH

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Find where ``epoch`` ends in the log, which itself ends at ``log_end``.

        Answers with the largest epoch of the log that is not above it, and where that ends. One
        before all that the log knows ends where they begin.
        """
        entries = self.entries
        after = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        end = entries[after].start_offset if after < len(entries) else log_end
        return EpochEnd(entries[after - 1].epoch if after else epoch, end)

    def begin(self, begun: Iterable[EpochEntry]) -> None:
        """Have epochs on disk that begin with what is about to be appended; those that are not
        above the latest are known. Raises StorageError: then nothing is to be appended."""
        entries = self.entries
        for entry in begun:
            if not entries or entry.epoch > entries[-1].epoch:
                entries = (*_before(entries, entry.start_offset), entry)
        if entries is self.entries is self._kept:
            return
        with self._lock:
            self._keep(entries)
            self.entries = entries

    def cut(self, end: int) -> None:
        """Forget the epochs that begin at ``end`` or later, for the log was cut back to there.

        Comes after the cut is on disk. If the disk refuses, the next append tries again first.
        """
        with self._lock:
            if len(left := _before(self.entries, end)) < len(self.entries):
                self.entries = left
            self._keep_or_warn()

    def drop_before(self, log_start: int) -> None:
        """Forget the epochs that ended at ``log_start``, where the log begins, or earlier."""
        with self._lock:
            covering = bisect_right(self.entries, log_start, key=lambda each: each.start_offset) - 1
            if covering > 0:
                self.entries = self.entries[covering:]
            self._keep_or_warn()

    def _keep_or_warn(self) -> None:
        try:
            self._keep(self.entries)
        except StorageError as error:
            logger.warning("%s It is tried again before the next append.", error.message)

    def _keep(self, entries: tuple[EpochEntry, ...]) -> None:
        if entries is self._kept:
            return
        self._kept = None  # a write that fails may have reached the disk
        path = self._directory / names.LEADER_EPOCHS
        lines = [f"{entry.epoch} {entry.start_offset}" for entry in entries]
        with storage_errors("write", path):
            write_atomically(self._files, path, checksummed_file(_TITLE, lines))
        self._kept = entries


def _before(entries: tuple[EpochEntry, ...], end: int) -> tuple[EpochEntry, ...]:
    return tuple(entry for entry in entries if entry.start_offset < end)


def recover_epochs(
    files: FileSystem, directory: Path, view: LogView, *, expected: bool
) -> LeaderEpochs:
    """The epochs of a log whose recovery found ``view``.

    They come from the file; from the headers where that lacks some. ``expected`` says that the log
    was made by a release that keeps the file. Raises OSError, StorageError.
    """
    kept = _read(files, directory)
    last = view.last_epoch()
    entries = kept or ()
    if not entries or entries[-1].epoch < last:
        known = entries[-1].epoch if entries else NO_EPOCH
        found = tuple(entry for entry in _epochs_in(view) if entry.epoch > known)
        if found:
            entries += found
            logger.log(
                logging.WARNING if expected or known > NO_EPOCH else logging.INFO,
                "The file %s %s: %d leader epochs were read from the headers of the log.",
                directory / names.LEADER_EPOCHS,
                "is not there" if kept is None else "lacks the newest",
                len(found),
            )
    epochs = LeaderEpochs(files, directory, entries, kept=kept or ())
    epochs.cut(view.active.metadata.end_offset)
    return epochs


def _read(files: FileSystem, directory: Path) -> tuple[EpochEntry, ...] | None:
    """The entries of the file; None when it is not there, or not as it was written."""
    path = directory / names.LEADER_EPOCHS
    lines = read_checksummed_file(files, path, _TITLE)
    if lines is None:
        return None
    try:
        return parse_epochs(lines)
    except ValueError as error:
        logger.warning("%s is not as logbus writes it and is ignored: %s.", path, error)
        return None


def parse_epochs(lines: Iterable[str]) -> tuple[EpochEntry, ...]:
    """Read the entries of the lines after the title. Raises ValueError."""
    entries = tuple(map(_parse_entry, lines))
    for before, after in itertools.pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            raise ValueError(f"{after.epoch} {after.start_offset} comes after {before}")
    return entries


def _parse_entry(line: str) -> EpochEntry:
    epoch, start_offset = map(int, line.split(" "))
    return EpochEntry(epoch, start_offset)


# -- from headers -----------------------------------------------------------------------


def _epochs_in(view: LogView) -> Iterator[EpochEntry]:
    """The epochs that the headers of the log name, where each is the highest so far.

    A segment that begins and ends in the epoch before it is not walked through. Raises OSError.
    """
    latest = NO_EPOCH
    for segment in view.segments:
        summary, lookup = segment.summary, segment.lookup()
        if not summary.size_bytes:
            continue
        if not lookup.damaged and latest == _epoch_at(lookup, 0):
            last = summary.end_offset - 1
            try:
                place = lookup.locate(last, summary.size_bytes)
            except DamageFoundError:
                pass
            else:
                if latest == _epoch_at(lookup, place.position):
                    continue
        for entry in _epochs_of(lookup, summary.size_bytes, segment.path):
            if entry.epoch > latest:
                latest = entry.epoch
                yield entry


def _epochs_of(lookup: Lookup, limit: int, path: Path) -> Iterator[EpochEntry]:
    start = BatchPosition(*lookup.index.entry(0))
    latest = NO_EPOCH
    try:
        for step in lookup.walk(start, limit):
            epoch = _epoch_at(lookup, step.position)
            if epoch > latest:
                latest = epoch
                yield EpochEntry(epoch, step.base_offset)
    except DamageFoundError:
        logger.warning("The rest of %s is damaged: its leader epochs are not known.", path)


def _epoch_at(lookup: Lookup, position: int) -> int:
    header = lookup.file.pread(fmt.STAMPED_EPOCH_TIME.size, position + fmt.STAMPED_EPOCH_TIME_AT)
    epoch: int = fmt.STAMPED_EPOCH_TIME.unpack(header)[0]
    return epoch
