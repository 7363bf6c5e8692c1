"""The logs of partitions that moved to other brokers, set aside in a data directory.

The directory of such a log has another name, so nothing reads it as a log any more; it can be
dumped, and brought back by hand. A note in it says how far its records reach, for whoever decides
when it may be deleted: the broker, by what ZooKeeper knows of the partition then.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from spark_logbus.errors import LogbusError, NotLeaderError, StorageError
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file, read_checksummed_file
from spark_logbus.log.disk.filesystem import (
    FULL,
    FileSystem,
    remove_tree,
    storage_error,
    storage_errors,
    write_atomically,
)
from spark_logbus.log.log import PartitionLog
from spark_logbus.log.partition_directories import PartitionDirectories
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)

_TITLE: Final = "logbus-moved-log 1"


class Extent(NamedTuple):
    """Extent of a log: the leader epoch of its last record, -1 without any, and its end on
    disk."""

    leader_epoch: int
    end: int

    @classmethod
    def of(cls, log: PartitionLog) -> Extent:
        return cls(log.epochs.latest, log.flushed_end)


class MovedLog(NamedTuple):
    """A log that was set aside. ``extent`` is None where the directory does not tell it, and
    ``log_id`` is empty where it has none. ``is_copy`` is true if it never led."""

    topic_partition: TopicPartition
    topic_id: str
    directory: Path
    extent: Extent | None
    log_id: str
    is_copy: bool


class MovedLogs:
    """Sets logs aside, finds those that were, and deletes them.

    ``set_aside`` is called by ``LogDirectory`` under its lock, the rest by any one thread.
    """

    def __init__(self, path: Path, files: FileSystem, directories: PartitionDirectories) -> None:
        self._path = path
        self._files = files
        self._directories = directories
        self._lock = threading.Lock()
        #: Extents whose notes found no room, by directory: the disk gets room by the deletion of
        #: just these logs.
        self._not_noted: dict[Path, Extent] = {}

    def set_aside(self, log: PartitionLog) -> MovedLog:
        """Stops a log and gives its directory another name. Raises StorageError, after which it is
        stopped at most, and may be set aside by another call."""
        log.stop(_moved(log))
        extent = Extent.of(log)
        is_noted = self._note(log.directory, extent)
        with self._lock:
            directory = self._directories.move_away(log, _moved(log), names.moved_directory)
            if not is_noted:
                self._not_noted[directory] = extent
        return MovedLog(
            log.topic_partition, log.topic_id, directory, extent, log.log_id or "", log.is_copy
        )

    def _note(self, directory: Path, extent: Extent) -> bool:
        """Writes down how far a log reaches; returns False where its disk is full."""
        path = directory / names.MOVED
        try:
            write_atomically(self._files, path, checksummed_file(_TITLE, map(str, extent)))
        except OSError as error:
            if error.errno not in FULL:
                raise storage_error("write", path, error) from error
            return False
        return True

    def find(self) -> list[MovedLog]:
        """Returns the logs that are set aside, by name. Raises StorageError."""
        with self._lock:
            with storage_errors("list the data directory", self._path):
                found = sorted(filter(names.is_moved_directory, self._files.names(self._path)))
            for directory, extent in [*self._not_noted.items()]:
                with suppress(StorageError):  # noted at the next look
                    if self._note(directory, extent):
                        del self._not_noted[directory]
            logs = [self._read(self._path / name) for name in found]
        return [log for log in logs if log is not None]

    def _read(self, directory: Path) -> MovedLog | None:
        """Returns None for a directory that does not say whose log it is, and so is left alone."""
        try:
            metadata = checkpoints.read_partition_metadata(self._files, directory)
            lines = read_checksummed_file(self._files, directory / names.MOVED, _TITLE)
            is_copy = checkpoints.is_marked_copy(self._files, directory)
        except StorageError as error:
            logger.warning("%s", error)
            return None
        if metadata is None:
            return None
        extent = self._not_noted.get(directory)
        if lines is not None and len(lines) == 2:
            extent = Extent(*map(int, lines))
        return MovedLog(
            metadata.topic_partition,
            metadata.topic_id,
            directory,
            extent,
            metadata.log_id or "",
            is_copy,
        )

    def delete(self, log: MovedLog) -> None:
        """Deletes a log that is set aside. Raises StorageError; what is left goes by another call,
        or at the next start."""
        attempt, topic_id, partition = 0, log.topic_id, log.topic_partition.partition
        with storage_errors("delete", log.directory):
            while self._files.exists(
                target := self._path / names.deleted_directory(topic_id, partition, attempt)
            ):
                attempt += 1
            self._files.rename(log.directory, target)
            self._files.sync_directory(self._path)
            remove_tree(self._files, target)
        with self._lock:
            self._not_noted.pop(log.directory, None)


def _moved(log: PartitionLog) -> LogbusError:
    return NotLeaderError(
        f"{log.topic_partition} has moved to another broker; refresh the metadata and ask its "
        "leader."
    )
