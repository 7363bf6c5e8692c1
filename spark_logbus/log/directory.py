"""All logs of one broker in one data directory: opened, recovered, kept up and closed together.

Order is what makes it crash-safe. At open the clean-shutdown marker goes, on disk, before
anything else changes. At close the logs are flushed, then the checkpoint is written, then the
marker. Retention writes the new log start offsets before it deletes the first file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.errors import (
    BrokerShuttingDownError,
    DataDirectoryLockedError,
    InvalidRequestError,
    LogbusError,
    PartitionOfflineError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log import files as names
from spark_logbus.log.checkpoint import LogCheckpoint, PartitionMetadata
from spark_logbus.log.config import LogConfig
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.filesystem import (
    OS_FILES,
    File,
    FileSystem,
    make_directories,
    storage_error,
    storage_errors,
)
from spark_logbus.log.flusher import Flusher, FlushScheduler
from spark_logbus.log.home import LogHome
from spark_logbus.log.log import PartitionLog
from spark_logbus.log.producers import ProducerCount
from spark_logbus.log.recovery import RecoveryProgress
from spark_logbus.log.retention import SteadyTime
from spark_logbus.log.segment import OpenSegments
from spark_logbus.log.stats import LogStats
from spark_logbus.model import TopicPartition, check_name

logger = logging.getLogger(__name__)

# Sealed segments that keep their file and index open: well below the usual limit of 1024
# descriptors, and at most 6 MiB of index each.
_OPEN_SEALED_SEGMENTS: Final = 128
# One log's disk works while another's checksums are computed: both leave the interpreter free.
_RECOVERY_THREADS: Final = 4
_CHECKPOINT_EVERY_S: Final = 30.0
_MAX_TOPIC_ID_LENGTH: Final = 64


class LogDirectory:
    """Thread-safe after ``open``. ``maintain`` is for one timer thread."""

    def __init__(
        self,
        path: Path,
        *,
        defaults: LogConfig,
        clock: Clock | None = None,
        files: FileSystem = OS_FILES,
        flusher: FlushScheduler | None = None,
    ) -> None:
        self._path = path
        self._defaults = defaults
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._files = files
        self._flusher = flusher if flusher is not None else Flusher(self._clock)
        self.stats = LogStats()
        environment = LogEnvironment(
            files,
            self._clock,
            self._flusher,
            OpenSegments(_OPEN_SEALED_SEGMENTS),
            ProducerCount(),
            self.stats,
        )
        self._changing = threading.Lock()  # ensure, remove, close
        self._maintaining = threading.Lock()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._failed: dict[TopicPartition, StorageError] = {}
        self._checkpoints: dict[TopicPartition, LogCheckpoint] = {}
        self._lock_file: File | None = None
        self._checkpointed_at = 0.0
        self._time = SteadyTime(self._clock)
        self.recovery = RecoveryProgress(self._clock)
        self._home = LogHome(path, environment, self.recovery)

    # -- opening ------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the directory and recover every log in it.

        A log that cannot be opened is reported and left out; the others are served. Raises
        DataDirectoryLockedError, and StorageError if the directory itself cannot be used.
        """
        with storage_errors("open the data directory", self._path):
            make_directories(self._files, self._path)
        self._take_lock()
        try:
            clean = checkpoints.take_clean_marker(self._files, self._path)
            self._checkpoints = checkpoints.read_checkpoint(self._files, self._path)
            self._recover(clean=clean)
        except LogbusError:
            self._lock_file = None
            raise
        self._flusher.start()
        self._checkpoint_or_warn()

    def _take_lock(self) -> None:
        path = self._path / names.LOCK
        try:
            self._lock_file = self._files.lock(path)
        except BlockingIOError as error:
            raise DataDirectoryLockedError(
                f"The data directory {self._path} is in use by another process; stop that, or "
                "give this broker a directory of its own."
            ) from error
        except OSError as error:
            raise storage_error("lock", path, error) from error

    def _recover(self, *, clean: bool) -> None:
        partitions = self._home.find()
        self.recovery.logs_total = len(partitions)
        if partitions:
            logger.info(
                "Opening %d logs in %s after %s.",
                len(partitions),
                self._path,
                "a clean shutdown" if clean else "a crash: their ends are scanned",
            )

        def recover(topic_partition: TopicPartition) -> PartitionLog | StorageError:
            try:
                return self._home.open(
                    topic_partition,
                    self._checkpoints.get(topic_partition),
                    config=self._defaults,
                    clean=clean,
                )
            except StorageError as error:
                logger.error("%s The other partitions are not affected.", error)
                return error
            finally:
                self.recovery.log_done()

        with ThreadPoolExecutor(_RECOVERY_THREADS, "recovery") as pool:
            for topic_partition, log in zip(partitions, pool.map(recover, partitions), strict=True):
                if isinstance(log, StorageError):
                    self._failed[topic_partition] = log
                else:
                    self._logs[topic_partition] = log

    # -- the set of logs ----------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def failed(self) -> dict[TopicPartition, StorageError]:
        """The logs that could not be opened, and why."""
        return dict(self._failed)

    def ensure(
        self, topic_partition: TopicPartition, *, topic_id: str, config: Mapping[str, str]
    ) -> PartitionLog:
        """The log of the partition with the topic's configuration; created if need be.

        A log of another topic with that name (one that was deleted meanwhile) is set aside.
        Raises ConfigError, StorageError, and PartitionOfflineError for a log that is there but
        could not be opened.
        """
        check_name("topic", topic_partition.topic)
        _check_topic_id(topic_id)
        log_config = LogConfig.from_topic_config(config, self._defaults)
        with self._changing:
            self._check_open()
            log = self._logs.get(topic_partition)
            if log is not None and log.topic_id == topic_id:
                if log.config != log_config:
                    log.configure(log_config)
                return log
            if log is not None:
                stray = self._move_away(log, names.stray_directory)
                logger.warning(
                    "The log of %s belonged to a deleted topic of that name (topic id %s) and was "
                    "moved to %s; delete that directory when its records are not needed.",
                    topic_partition,
                    log.topic_id,
                    stray,
                )
            failure = self._failed.get(topic_partition)
            if failure is not None:
                raise PartitionOfflineError(
                    f"Partition {topic_partition} is offline: its log could not be opened when "
                    f"the broker started. {failure}"
                )
            log = self._home.create(PartitionMetadata(topic_partition, topic_id), log_config)
            self._logs[topic_partition] = log
            return log

    def remove(self, topic_partition: TopicPartition, *, topic_id: str) -> None:
        """Delete the log of a deleted topic; nothing if it is not there, or of another topic."""
        with self._changing:
            self._check_open()
            log = self._logs.get(topic_partition)
            if log is None or log.topic_id != topic_id:
                return
            doomed = self._move_away(log, names.deleted_directory)
        self._home.delete(doomed)

    def _check_open(self) -> None:
        if self._lock_file is None:
            raise BrokerShuttingDownError(
                f"The data directory {self._path} is not open; the broker is shutting down."
            )

    def _move_away(self, log: PartitionLog, name: Callable[[str, int, int], str]) -> Path:
        """Take the log out of the set and its directory out of the way."""
        reason = UnknownTopicError(
            f"{log.topic_partition} with topic id {log.topic_id} was deleted; refresh the metadata."
        )
        target = self._home.move_away(log, reason, name)
        del self._logs[log.topic_partition]
        return target

    # -- upkeep -------------------------------------------------------------------------

    def maintain(self) -> None:
        """One pass: flush and roll what is due, retention, checkpoint. For a timer thread.

        What fails is logged and tried again in the next pass.
        """
        with self._maintaining:
            if self._lock_file is None:
                return  # closed: the directory may be another process's by now
            now_us = self._time.now_us()
            retired = False
            for log in self.logs():
                try:
                    log.flush_and_roll_if_due()
                    retired |= log.retire(now_us)
                except LogbusError as error:
                    logger.error("%s", error)
            due = self._clock.monotonic() - self._checkpointed_at >= _CHECKPOINT_EVERY_S
            if retired or due:
                # Deletion goes on though this fails, or a full disk could never be emptied: it
                # goes oldest first, each on disk before the next, so no gap can come of it.
                self._checkpoint_or_warn()
            for log in self.logs():
                try:
                    log.delete_retired()
                except StorageError as error:
                    logger.error("%s It is tried again later.", error)

    def _checkpoint_or_warn(self) -> bool:
        """Write the checkpoint; False, and a warning, when that failed."""
        entries = [log.checkpoint() for log in self.logs()]
        # Logs that could not be opened keep what is known of them.
        entries += [self._checkpoints[tp] for tp in self._failed if tp in self._checkpoints]
        try:
            checkpoints.write_checkpoint(self._files, self._path, entries)
        except StorageError as error:
            logger.warning("%s After a crash now, recovery would take longer.", error)
            return False
        self._checkpointed_at = self._clock.monotonic()
        return True

    # -- closing ------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and stop every log, write the checkpoint and, if all went well, the marker."""
        with self._changing:
            if self._lock_file is None:
                return
            stopping = BrokerShuttingDownError("The broker is shutting down; try another time.")
            with self._maintaining:
                stopped = [log.stop(stopping) for log in self.logs()]
                self._flusher.stop()
                clean = self._checkpoint_or_warn() and all(stopped) and not self._failed
                if clean:
                    try:
                        checkpoints.write_clean_marker(self._files, self._path)
                    except StorageError as error:
                        logger.warning("%s The next start will scan the logs.", error)
                self._lock_file = None


def _check_topic_id(topic_id: str) -> None:
    """Topic ids name directories, with a suffix."""
    check_name("topic id", topic_id)
    if len(topic_id) > _MAX_TOPIC_ID_LENGTH:
        raise InvalidRequestError(
            f"A topic id has at most {_MAX_TOPIC_ID_LENGTH} characters, got {len(topic_id)}."
        )
