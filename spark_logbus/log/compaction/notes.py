"""Notes of one log on what compaction did to it, for the next compaction and for other replicas.

The *clean end*: before it no key has two records. The *purged end*: tombstones before it may be
gone, with all that they deleted. It is never beyond the clean end, and on disk before the first
such tombstone goes.

Theory of operation. A follower whose log ends at F gets what the leader has from F on. It misses
the tombstones from F on that the leader has purged, and keeps for ever what they deleted, unless it
never had that. So it may go on only if the leader's purged end is not beyond F, nor beyond its own
clean end: before that, there is nothing left that a tombstone deletes. A follower that was away for
longer than tombstones are kept starts over.

An empty log takes over the clean end that its leader's log has when the copying begins, for
compaction only removes more. So what the leader purges while it is copied, which takes longer than
tombstones are kept, is no reason to start over; and the copy is compacted from there on.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final, NamedTuple

from spark_logbus.errors import StorageError
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log.checkpoint import CleanedUpTo
from spark_logbus.log.compaction.plan import record_cleaning
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file, read_checksummed_file
from spark_logbus.log.disk.filesystem import FileSystem, storage_errors, write_atomically

logger = logging.getLogger(__name__)

_TITLE: Final = "logbus-purged-tombstones 1"


class PurgedLog(NamedTuple):
    """Ends of a leader's log: the clean end from before it was read, and the purged end from after
    that."""

    clean_end: int
    purged_end: int


class CompactionNotes:
    """Clean end and purged end of one log. Thread-safe; reading takes no lock."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        history: tuple[CleanedUpTo, ...] = (),
        *,
        purged_end: int = 0,
    ) -> None:
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()
        #: The compactions that are remembered, the latest last.
        self.history = history
        self.purged_end = purged_end

    @property
    def first_dirty_offset(self) -> int:
        return self.history[-1].offset if self.history else 0

    @property
    def clean_end(self) -> int:
        """End of what is clean. A truncation takes that back before it is done."""
        return max(self.first_dirty_offset, self.purged_end)

    def cleaned(self, latest: CleanedUpTo, *, delete_retention_ms: int) -> None:
        """Note that a compaction has come to its end. Raises StorageError."""
        with self._lock:
            self._keep_history(
                record_cleaning(self.history, latest, delete_retention_ms=delete_retention_ms)
            )

    def purge(self, end: int) -> None:
        """Have on disk that tombstones before ``end`` may be gone. Raises StorageError."""
        with self._lock:
            if end > self.purged_end:
                self._keep_purged_end(end)

    def begin_copy(self, begun: CleanedUpTo, purged_end: int) -> None:
        """Take over what is known of the leader's log, for an empty one. Raises StorageError."""
        with self._lock:
            if self.first_dirty_offset == begun.offset and self.purged_end == purged_end:
                return
            self._keep_purged_end(purged_end)
            self._keep_history((begun,))

    def cut(self, end: int) -> None:
        """Note that the log is about to be cut at ``end``: nothing behind that is clean. Raises
        StorageError."""
        with self._lock:
            history = tuple(each._replace(offset=min(each.offset, end)) for each in self.history)
            if history != self.history:
                self._keep_history(history)

    def was_cut(self, end: int) -> None:
        """Note that the log was cut at ``end``: what comes behind that has all its tombstones. If
        the disk refuses, the next start does it."""
        with self._lock:
            if end < self.purged_end:
                try:
                    self._keep_purged_end(end)
                except StorageError as error:
                    logger.warning("%s It is tried again at the next start.", error.message)
                    self.purged_end = end

    def _keep_history(self, history: tuple[CleanedUpTo, ...]) -> None:
        checkpoints.write_cleanings(self._files, self._directory, history)
        self.history = history

    def _keep_purged_end(self, end: int) -> None:
        path = self._directory / names.PURGED_TOMBSTONES
        with storage_errors("write", path):
            write_atomically(self._files, path, checksummed_file(_TITLE, [str(end)]))
        self.purged_end = end


def recover_notes(files: FileSystem, directory: Path, *, end: int) -> CompactionNotes:
    """Returns the notes of a log that ends at ``end``. Raises StorageError."""
    history = checkpoints.read_cleanings(files, directory)
    purged_end = _read_purged_end(files, directory)
    if purged_end is None and history:  # it is of a release without that note, perhaps
        purged_end = history[0].offset
    # What lay behind the end, or is still to be copied, has its tombstones.
    return CompactionNotes(files, directory, history, purged_end=min(purged_end or 0, end))


def _read_purged_end(files: FileSystem, directory: Path) -> int | None:
    path = directory / names.PURGED_TOMBSTONES
    lines = read_checksummed_file(files, path, _TITLE)
    if lines is None:
        return None
    if len(lines) == 1 and lines[0].isdecimal():
        return int(lines[0])
    logger.warning("%s is not as logbus writes it and is ignored.", path)
    return None
