"""All logs of one broker in one data directory: opened, recovered, kept up and closed together.

Order is what makes it crash-safe. At open the clean-shutdown marker goes, on disk, before
anything else changes. At close the logs are flushed, then the checkpoint is written, then the
marker. Retention writes the new log start offsets before it deletes the first file.

Deletion from a log that was found at open is paused: until ``ensure_all`` has brought its topic's
configuration, it is not known what is to be kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.errors import (
    BrokerShuttingDownError,
    ConfigError,
    LogbusError,
    LogMissingError,
    PartitionOfflineError,
    StorageError,
)
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log import ownership
from spark_logbus.log.checkpoint import LogCheckpoint
from spark_logbus.log.clock_file import ClockKeeper
from spark_logbus.log.closed_writes import ClosedWrites
from spark_logbus.log.config import LogConfig
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import (
    OS_FILES,
    File,
    FileSystem,
    is_for_want_of_descriptors,
    make_directories,
    storage_errors,
)
from spark_logbus.log.disk.flusher import Flusher, FlushScheduler
from spark_logbus.log.disk.stats import LogStats
from spark_logbus.log.environment import HighWatermarkRule, LogEnvironment
from spark_logbus.log.log import PartitionLog
from spark_logbus.log.moved_logs import MovedLog, MovedLogs
from spark_logbus.log.partition_directories import (
    PartitionDirectories,
    deleted_log,
    missing_log,
    other_log,
    too_short_log,
)
from spark_logbus.log.producers.states import ProducerCount
from spark_logbus.log.recovery import RecoveryProgress
from spark_logbus.log.reopening import Reopening
from spark_logbus.log.segment.segment import OpenSegments
from spark_logbus.log.upkeep import Upkeep
from spark_logbus.log.wanted import LogSpec, WantedLog
from spark_logbus.log.writer_runs import WriterRuns
from spark_logbus.log_ids import may_be_same_log
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)

# Sealed segments that keep their file and index open: well below the usual limit of 1024
# descriptors, and at most 6 MiB of index each.
_OPEN_SEALED_SEGMENTS: Final = 128
_CHECKPOINT_EVERY_S: Final = 30.0


class LogDirectory:
    """Logs of one data directory. Thread-safe after ``open``; ``maintain`` is for one thread."""

    def __init__(
        self,
        path: Path,
        *,
        defaults: LogConfig,
        clock: Clock | None = None,
        files: FileSystem = OS_FILES,
        flusher: FlushScheduler | None = None,
        known_files: Collection[str] = (),
        watermark: HighWatermarkRule,
    ) -> None:
        """``known_files`` are names that the directory's user keeps beside the logs; ``watermark``
        decides how far consumers see."""
        self._path = path
        self._known_files = known_files
        self._defaults = defaults
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._files = files
        self._flusher = flusher if flusher is not None else Flusher(self._clock)
        self.stats = LogStats()
        #: What their late attempts would stage is refused in all logs.
        self.closed_writes = ClosedWrites()
        self.clock = ClockKeeper(files, path, self._clock)
        environment = LogEnvironment(
            files,
            self._clock,
            self.clock.time,
            self._flusher,
            OpenSegments(_OPEN_SEALED_SEGMENTS),
            ProducerCount(),
            self.stats,
            self.closed_writes,
            WriterRuns(),
            watermark,
            self._write_checkpoint,
        )
        self._changing = threading.Lock()  # ensure, remove, close
        self._maintaining = threading.Lock()
        self._checkpointing = threading.Lock()  # what is written last was read last
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._failed: dict[TopicPartition, StorageError] = {}
        self._checkpoints: dict[TopicPartition, LogCheckpoint] = {}
        # Of logs that the checkpoint knows, and whose directories are not there.
        self._missing: dict[TopicPartition, LogCheckpoint] = {}
        self._lock_file: File | None = None
        self._checkpointed_at = 0.0
        self.recovery = RecoveryProgress(self._clock)
        self._directories = PartitionDirectories(path, environment, self.recovery)
        self._reopening = Reopening(self._directories, self._clock)
        self._upkeep = Upkeep()
        #: Logs of partitions that moved to other brokers.
        self.moved = MovedLogs(path, files, self._directories)

    # -- opening ------------------------------------------------------------------------

    def open(self, claim: Callable[[], None] = lambda: None) -> None:
        """Lock the directory, ``claim`` it, and recover every log in it.

        A log that cannot be opened is reported and left out; the others are served. Raises
        ConfigError for a directory that holds somebody else's files, DataDirectoryLockedError,
        StorageError if the directory itself cannot be used, and what ``claim`` raises: then
        nothing in it was changed.
        """
        ownership.check_is_ours_or_empty(self._files, self._path, known_files=self._known_files)
        with storage_errors("open the data directory", self._path):
            make_directories(self._files, self._path)
        self._lock_file = ownership.lock(self._files, self._path)
        try:
            claim()
            clean = checkpoints.take_clean_marker(self._files, self._path)
            self._checkpoints = checkpoints.read_checkpoint(self._files, self._path)
            self.clock.resume()
            self._recover(clean=clean)
        except LogbusError:
            self._lock_file = None
            raise
        self._flusher.start()
        self._checkpoint_or_warn()
        self.clock.keep()

    def _recover(self, *, clean: bool) -> None:
        partitions = self._directories.find()
        self._missing = {
            topic_partition: at
            for topic_partition, at in self._checkpoints.items()
            if topic_partition not in partitions
        }
        opened = self._directories.open_all(
            partitions, self._checkpoints, config=self._defaults, clean=clean
        )
        for topic_partition, log in opened:
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

    def ensure_all(
        self, wanted: Sequence[WantedLog]
    ) -> dict[TopicPartition, PartitionLog | LogbusError]:
        """The logs of partitions with their topics' configurations; created, all together, where
        need be. An error costs its own partition only, unless the directory is closed:
        BrokerShuttingDownError.

        From here on retention and compaction may delete from them. A configuration that cannot be
        used takes that back: then it is not known what is to be kept.

        A log of another topic with that name (one that was deleted meanwhile) is set aside. One
        that is offline is opened anew where that is wanted; StorageError while it cannot be. The
        errors are ConfigError, StorageError, PartitionOfflineError for a log that is there but
        could not be opened, and LogMissingError for one that is known, by its ``known_end`` or the
        checkpoint, and is not there, ends earlier, or is another log by its ``known_id``.

        A log that is made to follow is marked as a copy on disk, until it is wanted to lead: from
        then on it may have what no other log of the partition has.
        """
        found: dict[TopicPartition, PartitionLog | LogbusError] = {}
        to_create: list[LogSpec] = []
        with self._changing:
            self._check_open()
            for each in wanted:
                try:
                    spec = self._spec_of(each)
                    log = self._log_that_is_there(spec, each.known_end, each.known_id)
                except LogbusError as error:
                    found[each.topic_partition] = error
                    continue
                if log is None:
                    to_create.append(spec)
                else:
                    found[each.topic_partition] = self._taken_or_error(log, spec)
            created = self._directories.create_all(to_create) if to_create else []
            for spec, made in zip(to_create, created, strict=True):
                found[spec.topic_partition] = (
                    self._taken_or_error(made, spec) if isinstance(made, PartitionLog) else made
                )
        return found

    def _spec_of(self, wanted: WantedLog) -> LogSpec:
        try:
            return LogSpec.of(wanted, self._defaults)
        except ConfigError:
            self.pause_deletion(wanted.topic_partition, topic_id=wanted.topic_id)
            raise

    def _taken_or_error(self, log: PartitionLog, spec: LogSpec) -> PartitionLog | StorageError:
        try:
            return self._take(log, spec)
        except StorageError as error:
            return error

    def _log_that_is_there(
        self, spec: LogSpec, known_end: int | None, known_id: str
    ) -> PartitionLog | None:
        """Returns the log, opened if need be; None where it is to be created."""
        topic_partition, topic_id = spec.topic_partition, spec.metadata.topic_id
        self._set_aside_other(topic_partition, topic_id)
        self._open_again(topic_partition, spec.config)
        log = self._logs.get(topic_partition)
        if log is not None and spec.reopens and isinstance(log.offline, StorageError):
            self._write_checkpoint()  # before anything is deleted that lies before a log's start
            log = self._reopening.open_again(log, spec.config)
            self._add(log)
        if log is None:
            self._refuse_missing(topic_partition, topic_id, known_end)
            if not self._directories.is_there(topic_partition):
                return None
            return self._directories.complete(topic_partition, spec.config)
        if known_end is not None and log.flushed_end < known_end:
            raise too_short_log(
                topic_partition, log.directory, end=log.flushed_end, known_end=known_end
            )
        # A log without an id has lost it for now, on a disk that is full.
        if known_id and log.log_id is not None and not may_be_same_log(log.log_id, known_id):
            raise other_log(topic_partition, log, known=known_id)
        return log

    def _take(self, log: PartitionLog, spec: LogSpec) -> PartitionLog:
        """Serve the log, in which things may be deleted from here on."""
        self._add(log)
        self._directories.apply(log, spec)
        return log

    def go_on(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: str,
        config: Mapping[str, str],
        base_offset: int,
        keep: bool,
    ) -> PartitionLog:
        """Have a log that ``ensure_all`` refuses go on at ``base_offset``, under a new log id.

        With ``keep``, one that is only too short goes on with what it has. Else it starts over,
        empty, and the files of the old one are set aside. Raises ConfigError, StorageError.
        """
        wanted = WantedLog(topic_partition, topic_id, config, base_offset=base_offset)
        spec = LogSpec.of(wanted, self._defaults)
        with self._changing:
            self._check_open()
            if keep and self.kept_end(topic_partition, topic_id=topic_id) is not None:
                log = self._go_on(spec)
            else:
                log = self._start_over(spec)
            return self._take(log, spec)

    def _go_on(self, spec: LogSpec) -> PartitionLog:
        topic_partition = spec.topic_partition
        log = self._logs.get(topic_partition) or self._open_short(topic_partition, spec.config)
        self._directories.renew_log_id(log)
        start = log.go_on_at(spec.base_offset)
        logger.warning(
            "The end of the log of %s was given up. What it has is kept; the offsets %d up to "
            "%d are lost, and it goes on at %d.",
            topic_partition, start, spec.base_offset, spec.base_offset,
        )  # fmt: skip
        return log

    def renew_log_id(self, log: PartitionLog) -> None:
        """Have the log taken for another from now on, as it loses what others were told it has: on
        disk on return. Raises StorageError; it has no id then."""
        with self._changing:
            self._check_open()
            self._directories.renew_log_id(log)

    def _open_short(self, topic_partition: TopicPartition, config: LogConfig) -> PartitionLog:
        """Open a log that ends before its checkpoint says."""
        known = self._checkpoints.get(topic_partition)
        if known is not None:
            known = replace(known, recovery_point=known.log_start_offset)
        log = self._directories.open(topic_partition, known, config=config, clean=False)
        self._add(log)
        return log

    def kept_end(self, topic_partition: TopicPartition, *, topic_id: str) -> int | None:
        """Returns the end of a log that ``ensure_all`` refuses only because it is too short, so
        that what it has can be kept; None where nothing can."""
        log = self._logs.get(topic_partition)
        if log is None:
            end = self._directories.short_ends.get(topic_partition)
            known = self._checkpoints.get(topic_partition)
            return end if known is not None and known.topic_id == topic_id else None
        ends = log.ends()
        start = ends.log_start_offset
        return log.flushed_end if log.topic_id == topic_id and log.flushed_end > start else None

    def _start_over(self, spec: LogSpec) -> PartitionLog:
        stray = self._set_aside(spec.topic_partition, spec.metadata.topic_id)
        left = f"; what there is of the old log was moved to {stray}" if stray else ""
        logger.warning(
            "The log of %s was given up. Its offsets go on at %d%s.",
            spec.topic_partition, spec.base_offset, left,
        )  # fmt: skip
        return self._directories.create(spec)

    def start_over(self, wanted: WantedLog, *, keep_files: bool) -> PartitionLog:
        """Make a follower's log anew, empty, at ``base_offset``: its leader has nothing of what
        comes behind the one that is there, or that one is refused.

        What there is of the old one is set aside with ``keep_files``, else deleted. Raises
        ConfigError, StorageError; the partition may be without a log then, to be made by another
        call.
        """
        spec = self._spec_of(wanted)
        with self._changing:
            self._check_open()
            topic_partition = wanted.topic_partition
            name = names.stray_directory if keep_files else names.deleted_directory
            self._set_aside_other(topic_partition, wanted.topic_id)
            moved = self._set_aside(topic_partition, wanted.topic_id, name)
            for known in (self._failed, self._missing, self._checkpoints):
                known.pop(topic_partition, None)
            self._write_checkpoint()  # or the next start would take the new one for an older copy
            log = self._take(self._directories.create(spec), spec)
        self._checkpoint_or_warn()
        left = f"; the old one was moved to {moved}" if moved and keep_files else ""
        logger.info(
            "The log of %s starts over at offset %d, to follow its leader's%s.",
            topic_partition, spec.base_offset, left,
        )  # fmt: skip
        if moved is not None and not keep_files:
            try:
                self._directories.delete(moved)
            except StorageError as error:
                logger.warning("%s The next start removes it.", error.message)
        return log

    def _set_aside(
        self,
        topic_partition: TopicPartition,
        topic_id: str,
        name: Callable[[str, int, int], str] = names.stray_directory,
    ) -> Path | None:
        """Moves what is there of a log, opened or not, out of the way; None if nothing is."""
        log = self._logs.get(topic_partition)
        if log is not None:
            stray = self._move_away(log, name)
        elif self._directories.is_there(topic_partition):
            stray = self._directories.set_aside(topic_partition, topic_id, name)
        else:
            return None
        self._directories.sync()
        return stray

    def _add(self, log: PartitionLog) -> None:
        self._logs[log.topic_partition] = log
        self._failed.pop(log.topic_partition, None)
        self._missing.pop(log.topic_partition, None)
        self._directories.short_ends.pop(log.topic_partition, None)

    def _set_aside_other(self, topic_partition: TopicPartition, topic_id: str) -> None:
        """Move what is there of another topic of that name, opened or not, out of the way."""
        log = self._logs.get(topic_partition)
        if log is not None:
            other: str | None = log.topic_id
        else:
            known = self._checkpoints.get(topic_partition)
            other = self._directories.topic_id_of(topic_partition, known)
        if other is None or other == topic_id:
            return
        stray = self._set_aside(topic_partition, other)
        if stray is None:
            return
        self._failed.pop(topic_partition, None)
        logger.warning(
            "The log of %s belonged to a deleted topic of that name (topic id %s) and was "
            "moved to %s; delete that directory when its records are not needed.",
            topic_partition, other, stray,
        )  # fmt: skip

    def _open_again(self, topic_partition: TopicPartition, config: LogConfig) -> None:
        """Open a log that could not be opened for want of descriptors; any other stays refused."""
        if topic_partition in self._failed and topic_partition in self._directories.to_open_again:
            known = self._checkpoints.get(topic_partition)
            try:
                log = self._directories.open(topic_partition, known, config=config, clean=False)
            except StorageError as error:
                if not is_for_want_of_descriptors(error):
                    self._directories.to_open_again.remove(topic_partition)
                self._failed[topic_partition] = error.again()
            else:
                self._add(log)
        failure = self._failed.get(topic_partition)
        if isinstance(failure, LogMissingError):
            raise failure.again()
        if failure is not None:
            raise PartitionOfflineError(
                f"Partition {topic_partition} is offline: its log could not be opened when "
                f"the broker started. {failure}"
            )

    def _refuse_missing(
        self, topic_partition: TopicPartition, topic_id: str, known_end: int | None
    ) -> None:
        """Raise LogMissingError for a log that is known and not there.

        A directory that is there by now was put back meanwhile, or is being copied: whether it is
        whole shows at the next start only.
        """
        entry = self._missing.get(topic_partition)
        if entry is not None and entry.topic_id != topic_id:
            entry = None
        if entry is not None or known_end is not None:
            recovery_point = entry.recovery_point if entry is not None else 0
            raise missing_log(
                topic_partition,
                self._directories.directory(topic_partition),
                known_end=max(known_end or 0, recovery_point),
            )

    def known_end(self, topic_partition: TopicPartition, *, topic_id: str) -> int:
        """Returns the end that the checkpoint knew of a log; 0 where it knew none of that topic."""
        entry = self._missing.get(topic_partition) or self._checkpoints.get(topic_partition)
        return entry.recovery_point if entry is not None and entry.topic_id == topic_id else 0

    def pause_deletion(self, topic_partition: TopicPartition, *, topic_id: str) -> None:
        """Delete nothing more from the log until ``ensure_all``, for ZooKeeper does not know its
        topic any more; nothing if the log is not there, or of another topic."""
        log = self._logs.get(topic_partition)
        if log is not None and log.topic_id == topic_id:
            log.pause_deletion()

    def remove(self, topic_ids: Mapping[TopicPartition, str]) -> dict[TopicPartition, LogbusError]:
        """Delete the logs of deleted topics, each unless it is not there, or of another topic.

        Together, as a sync is most of what one costs. Answers why some could not be deleted yet.
        """
        errors: dict[TopicPartition, LogbusError] = {}
        moved: dict[TopicPartition, Path] = {}
        with self._changing:
            self._check_open()
            for topic_partition, topic_id in topic_ids.items():
                try:
                    target = self._move_deleted_away(topic_partition, topic_id)
                except LogbusError as error:
                    errors[topic_partition] = error
                else:
                    if target is not None:
                        moved[topic_partition] = target
            if moved:
                self._directories.sync()
        for topic_partition, target in moved.items():
            try:
                self._directories.delete(target)
            except LogbusError as error:
                errors[topic_partition] = error
        return errors

    def remove_copy(self, topic_partition: TopicPartition, *, topic_id: str) -> None:
        """Delete the log of a partition that is copied here no more. Raises what ``remove`` has."""
        for error in self.remove({topic_partition: topic_id}).values():
            raise error
        self._checkpoint_or_warn()  # or one made anew would be taken for an older copy of it

    def set_aside_moved(self, topic_partition: TopicPartition, *, topic_id: str) -> MovedLog | None:
        """Stop the log of a partition that moved to another broker and set it aside, see ``moved``;
        None if it is not open, or of another topic. Raises StorageError."""
        with self._changing:
            self._check_open()
            log = self._logs.get(topic_partition)
            if log is None or log.topic_id != topic_id:
                return None
            moved = self.moved.set_aside(log)
            del self._logs[topic_partition]
            self._directories.sync()
        self._checkpoint_or_warn()
        return moved

    def _move_deleted_away(self, topic_partition: TopicPartition, topic_id: str) -> Path | None:
        """Returns where the log is now; None if there is nothing of that topic."""
        entry = self._missing.get(topic_partition)
        if entry is not None and entry.topic_id == topic_id:
            del self._missing[topic_partition]
        log = self._logs.get(topic_partition)
        if log is None:
            return self._move_failed_away(topic_partition, topic_id)
        if log.topic_id != topic_id:
            return None
        log.abandon(deleted_log(log))
        return self._move_away(log, names.deleted_directory)

    def _check_open(self) -> None:
        if self._lock_file is None:
            raise BrokerShuttingDownError(
                f"The data directory {self._path} is not open; the broker is shutting down."
            )

    def _move_away(self, log: PartitionLog, name: Callable[[str, int, int], str]) -> Path:
        """Take the log out of the set and its directory out of the way; a sync comes after."""
        target = self._directories.move_away(log, deleted_log(log), name)
        del self._logs[log.topic_partition]
        self._reopening.forget(log.topic_partition)
        return target

    def _move_failed_away(self, topic_partition: TopicPartition, topic_id: str) -> Path | None:
        """Returns where a log of that topic is now that could not be opened; None without one."""
        known = self._checkpoints.get(topic_partition)
        if (
            topic_partition not in self._failed
            or not self._directories.is_there(topic_partition)
            or self._directories.topic_id_of(topic_partition, known) != topic_id
        ):
            return None
        target = self._directories.set_aside(topic_partition, topic_id, names.deleted_directory)
        del self._failed[topic_partition]
        return target

    # -- upkeep -------------------------------------------------------------------------

    def maintain(self) -> None:
        """One pass: flush and roll what is due, retention, checkpoint. For a timer thread.

        A failure is logged, and the next pass tries again.
        """
        with self._maintaining:
            if self._lock_file is None:
                return  # closed: the directory may be another process's by now
            now_us = self.clock.watch()
            self.stats.refused.probe(self._files, self._clock.monotonic())
            expired = self._upkeep.look_after(
                self.logs(),
                now_us=now_us,
                now_s=self._clock.monotonic(),
                failed=lambda error: logger.error("%s", error),
            )
            self.clock.keep_if_due()
            passed_s = self._clock.monotonic() - self._checkpointed_at
            if expired or passed_s >= _CHECKPOINT_EVERY_S:
                # Deletion goes on though this fails, or a full disk could never be emptied: it
                # goes oldest first, each on disk before the next, so no gap can come of it.
                self._checkpoint_or_warn()
            for log in self.logs():
                try:
                    log.delete_expired()
                except StorageError as error:
                    logger.error("%s It is tried again later.", error)

    def _checkpoint_or_warn(self) -> bool:
        """Write the checkpoint; False, and a warning, when that failed."""
        # A disk that refuses is not asked more often.
        self._checkpointed_at = self._clock.monotonic()
        try:
            self._write_checkpoint()
        except StorageError as error:
            logger.warning("%s After a crash now, recovery would take longer.", error)
            return False
        return True

    def _write_checkpoint(self) -> None:
        with self._checkpointing:
            entries = [log.checkpoint() for log in self.logs()]
            # Logs that are missing or could not be opened keep what is known of them.
            entries += [
                self._checkpoints[topic_partition]
                for topic_partition in self.failed()
                if topic_partition in self._checkpoints
            ]
            entries += list(self._missing.values())
            checkpoints.write_checkpoint(self._files, self._path, entries)

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
                self.clock.time.now_us()
                self.clock.keep()
                clean = self._checkpoint_or_warn() and all(stopped) and not self._failed
                if clean:
                    try:
                        checkpoints.write_clean_marker(self._files, self._path)
                    except StorageError as error:
                        logger.warning("%s The next start will scan the logs.", error)
                self._lock_file = None
