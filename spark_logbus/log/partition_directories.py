"""The directories of single logs: found, opened, created, set aside, deleted.

A log's directory is whole or not there: it is prepared under another name, and moved to yet
another before it is deleted. Leftovers of a crash under such names are removed at the next start.

An empty log in the place of one that is missing would give its offsets to other records, and no
reader could notice. So a log that is known to have been there is never made anew by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from spark_logbus.errors import (
    ConfigError,
    LogbusError,
    LogMissingError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log.checkpoint import LogCheckpoint, PartitionMetadata
from spark_logbus.log.compaction.notes import CompactionNotes, recover_notes
from spark_logbus.log.config import FlushPolicy, LogConfig
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import (
    is_for_want_of_descriptors,
    remove_tree,
    storage_error,
    storage_errors,
)
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.epochs import LeaderEpochs, recover_epochs
from spark_logbus.log.log import PartitionLog
from spark_logbus.log.ownership import is_made_by_us
from spark_logbus.log.producers.snapshots import recover_producers
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.log.recovery import EndsTooEarlyError, LogRecovery, RecoveryProgress
from spark_logbus.log.segment.metadata import SegmentMetadata
from spark_logbus.log.segment.segment import ActiveSegment, create_segment
from spark_logbus.log.staging.staging import recover_staged
from spark_logbus.log.view import LogView
from spark_logbus.log.wanted import LogSpec
from spark_logbus.log_ids import new_log_id, renewed_log_id
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)


# One log's disk works while another's checksums are computed: both leave the interpreter free.
_RECOVERY_THREADS: Final = 4
# Enough for a disk to sync them together, few enough for the interpreter.
_PREPARING_THREADS: Final = 16


class PartitionDirectories:
    """The logs' directories in one data directory. Not thread-safe: ``LogDirectory`` locks."""

    def __init__(self, path: Path, environment: LogEnvironment, progress: RecoveryProgress) -> None:
        self._path = path
        self._environment = environment
        self._files = environment.files
        self._progress = progress
        #: Where logs end that could not be opened because they reached further once.
        self.short_ends: dict[TopicPartition, int] = {}
        #: Of those that ``open_all`` could not open, the ones for want of descriptors.
        self.to_open_again: set[TopicPartition] = set()

    def find(self) -> list[TopicPartition]:
        """The partitions that have a log here; leftovers of others are removed."""
        with storage_errors("list the data directory", self._path):
            found = [
                name
                for name in self._files.names(self._path)
                if self._files.is_directory(self._path / name)
            ]
        for name in found:
            if name.endswith((names.CREATING_SUFFIX, names.DELETED_SUFFIX)):
                self._remove_leftover(self._path / name)
        return [
            topic_partition
            for name in found
            if (topic_partition := names.parse_log_directory(name)) is not None
        ]

    def _remove_leftover(self, directory: Path) -> None:
        try:
            if is_made_by_us(self._files, directory):
                remove_tree(self._files, directory)
            else:
                logger.warning(
                    "The directory %s was not made by logbus, as far as can be seen, and is left "
                    "alone; move it away.", directory,
                )  # fmt: skip
        except OSError as error:
            logger.warning("%s", storage_error("remove", directory, error))
        except StorageError as error:
            logger.warning("%s", error.message)

    def open_all(
        self,
        partitions: Sequence[TopicPartition],
        known: Mapping[TopicPartition, LogCheckpoint],
        *,
        config: LogConfig,
        clean: bool,
    ) -> Iterator[tuple[TopicPartition, PartitionLog | StorageError]]:
        """Recover logs that are here, several at a time: each as ``open`` does, or why it is not
        open."""
        self._progress.logs_total = len(partitions)
        if partitions:
            logger.info(
                "Opening %d logs in %s after %s.",
                len(partitions),
                self._path,
                "a clean shutdown" if clean else "a crash: their ends are scanned",
            )

        def recover(where: TopicPartition) -> PartitionLog | StorageError:
            try:
                return self.open(where, known.get(where), config=config, clean=clean)
            except StorageError as error:
                logger.error("%s The other partitions are not affected.", error.message)
                if is_for_want_of_descriptors(error):
                    self.to_open_again.add(where)
                return error.again()
            finally:
                self._progress.log_done()

        with ThreadPoolExecutor(_RECOVERY_THREADS, "recovery") as pool:
            yield from zip(partitions, pool.map(recover, partitions), strict=True)

    def open(
        self,
        topic_partition: TopicPartition,
        known: LogCheckpoint | None,
        *,
        config: LogConfig,
        clean: bool,
    ) -> PartitionLog:
        """Recover a log that is here; ``known`` is what the checkpoint says of it.

        ``config`` is overridden by the topic's configuration as it was last applied.
        """
        directory = self.directory(topic_partition)
        metadata = checkpoints.read_partition_metadata(self._files, directory)
        if metadata is None and known is not None:
            metadata = PartitionMetadata(topic_partition, known.topic_id)
        if metadata is None:
            raise StorageError(
                f"The file {directory / names.PARTITION_METADATA} is missing or damaged, so it is "
                "not known to which topic the records belong; restore the file from a copy, or "
                "move the directory away."
            )
        if known is not None and known.topic_id != metadata.topic_id:
            known = None
        kept, config = self._last_config(directory, config)
        unflushed = config.flush_policy is FlushPolicy.OS and not (clean and known is not None)
        log = self._recover(directory, metadata, known, config=config, clean=clean)
        log.kept_config = kept
        if metadata.log_id is None or unflushed or log.damaged:
            # In the other cases it may have lost records that others were told it has.
            self._renew_log_id_or_warn(log)
        return log

    def _renew_log_id_or_warn(self, log: PartitionLog) -> None:
        try:
            self.renew_log_id(log)
        except StorageError as error:  # of a full disk, say: it is served all the same
            logger.warning("%s It is tried again later.", error.message)

    def renew_log_id(self, log: PartitionLog) -> None:
        """Give the log an id that it never had, on disk on return. Raises StorageError; it has none
        then."""
        log.log_id = None
        before = checkpoints.read_partition_metadata(self._files, log.directory)
        is_first = before is not None and before.log_id is None  # it is of a release without ids
        log_id = new_log_id() if is_first else renewed_log_id(before.log_id if before else None)
        metadata = PartitionMetadata(log.topic_partition, log.topic_id, log_id)
        checkpoints.write_partition_metadata(self._files, log.directory, metadata)
        log.log_id = metadata.log_id

    def directory(self, topic_partition: TopicPartition) -> Path:
        return self._path / names.log_directory(topic_partition)

    def is_there(self, topic_partition: TopicPartition) -> bool:
        directory = self.directory(topic_partition)
        with storage_errors("look for", directory):
            return self._files.exists(directory)

    def create(self, wanted: LogSpec) -> PartitionLog:
        """Creates a log. After a failure, a StorageError, it is there as a whole, to be opened, or
        not at all."""
        (log,) = self.create_all([wanted])
        if isinstance(log, StorageError):
            raise log.again() from log.__cause__
        return log

    def create_all(self, wanted: Sequence[LogSpec]) -> list[PartitionLog | StorageError]:
        """Creates each of them as ``create`` does; returns the log, or why there is none.

        Most of the time is the disk's, which makes many syncs at a time last about as soon as one.
        So they are prepared side by side, and their names are synced together.
        """
        wanted = [
            replace(spec, metadata=replace(spec.metadata, log_id=new_log_id())) for spec in wanted
        ]
        if len(wanted) == 1:
            failures = [self._prepare(wanted[0])]
        else:
            with ThreadPoolExecutor(_PREPARING_THREADS, "create-logs") as pool:
                failures = list(pool.map(self._prepare, wanted))
        failures = [
            failure or self._put_in_place(spec)
            for spec, failure in zip(wanted, failures, strict=True)
        ]
        unsynced: StorageError | None = None
        try:
            with storage_errors("create logs in", self._path):
                self._files.sync_directory(self._path)
        except StorageError as error:
            unsynced = error
        return [
            failure or unsynced or self._open_new(spec)
            for spec, failure in zip(wanted, failures, strict=True)
        ]

    def _prepare(self, spec: LogSpec) -> StorageError | None:
        """Make the log under another name, on disk. Touches nothing else: for any thread."""
        preparing = self._preparing(spec)
        try:
            with storage_errors("create", self.directory(spec.topic_partition)):
                if self._files.exists(preparing):
                    remove_tree(self._files, preparing)
                self._files.make_directory(preparing)
                create_segment(
                    self._files,
                    preparing,
                    base_offset=spec.base_offset,
                    index_interval_bytes=spec.config.index_interval_bytes,
                )
                # It syncs the directory, and so the name of the segment.
                checkpoints.write_first_files(
                    self._files,
                    preparing,
                    spec.metadata,
                    spec.topic_config,
                    is_copy=spec.follows,
                )
        except StorageError as error:
            if isinstance(error.__cause__, OSError):
                self._environment.stats.refused.note(
                    spec.topic_partition,
                    self._path,
                    error.__cause__,
                    size_bytes=1,
                    now=self._environment.clock.monotonic(),
                )
            return error
        return None

    def _put_in_place(self, spec: LogSpec) -> StorageError | None:
        directory = self.directory(spec.topic_partition)
        try:
            with storage_errors("create", directory):
                self._files.rename(self._preparing(spec), directory)
        except StorageError as error:
            return error
        return None

    def _open_new(self, spec: LogSpec) -> PartitionLog | StorageError:
        """Opens a log whose directory was made just now, in which nothing is to be recovered."""
        directory = self.directory(spec.topic_partition)
        path, base_offset = directory / names.segment(spec.base_offset), spec.base_offset
        metadata = SegmentMetadata(
            base_offset=base_offset, index_interval_bytes=spec.config.index_interval_bytes
        )
        try:
            with storage_errors("open the log in", directory):
                active = ActiveSegment(path, self._files.open(path), metadata)
        except StorageError as error:
            return error
        topic_partition = spec.topic_partition
        log = PartitionLog(
            topic_partition,
            spec.metadata.topic_id,
            directory=directory,
            view=LogView.flushed((), active, log_start_offset=base_offset),
            producers=ProducerStateManager(topic_partition, self._environment.producers),
            epochs=LeaderEpochs(self._files, directory),
            compaction_notes=CompactionNotes(self._files, directory),
            log_id=spec.metadata.log_id,
            is_copy=spec.follows,
            config=spec.config,
            environment=self._environment,
        )
        log.kept_config = dict(spec.topic_config)
        return log

    def _preparing(self, spec: LogSpec) -> Path:
        metadata = spec.metadata
        return self._path / names.creating_directory(
            metadata.topic_id, metadata.topic_partition.partition
        )

    def complete(self, topic_partition: TopicPartition, config: LogConfig) -> PartitionLog:
        """Open the log that an earlier ``create`` made before it failed."""
        directory = self.directory(topic_partition)
        with storage_errors("create", directory):
            self._files.sync_directory(self._path)  # it may be this that failed
        return self.open(topic_partition, None, config=config, clean=False)

    def apply(self, log: PartitionLog, spec: LogSpec) -> None:
        """Have the log kept up as its topic wants it, also after the next start. From here on
        things may be deleted from it. Raises StorageError if it is to lead and is still marked as
        a copy: then it must not."""
        if log.is_copy and not spec.follows:
            checkpoints.remove_copy_mark(self._files, log.directory)
            log.is_copy = False
        log.set_follows(spec.follows)
        if log.config != spec.config:
            left_to_the_os = log.config.flush_policy is FlushPolicy.OS
            log.configure(self._safe_config(log, spec))
            if left_to_the_os:
                log.flush()  # before it is kept that it flushes, and so loses nothing by a crash
        log.resume_deletion()
        self._keep_config(log, spec.topic_config)
        if log.log_id is None:
            self._renew_log_id_or_warn(log)

    def _safe_config(self, log: PartitionLog, spec: LogSpec) -> LogConfig:
        """Returns the configuration to use. Flushing is left to the operating system only once that
        is kept: a log that is known to flush keeps its id in a crash, and so must lose nothing."""
        config, flush_policy = spec.config, log.config.flush_policy
        if config.flush_policy is FlushPolicy.OS and flush_policy is not FlushPolicy.OS:
            self._keep_config(log, spec.topic_config)
            if log.kept_config != spec.topic_config:
                return replace(config, flush_policy=flush_policy)
        return config

    def _keep_config(self, log: PartitionLog, config: Mapping[str, str]) -> None:
        """Keep the topic's configuration beside the log, for the next start.

        That it cannot be kept is no reason not to serve the log: ZooKeeper has it too.
        """
        if log.kept_config == config or log.offline is not None:
            return
        try:
            checkpoints.write_topic_config(self._files, log.directory, config)
        except StorageError as error:
            logger.warning(
                "%s The configuration of %s counts all the same; the next start goes by the one "
                "before it until ZooKeeper has told, and deletes nothing till then.",
                error, log.topic_partition,
            )  # fmt: skip
        else:
            log.kept_config = dict(config)

    def _last_config(
        self, directory: Path, defaults: LogConfig
    ) -> tuple[Mapping[str, str], LogConfig]:
        """The topic's own keys as they are kept beside its log, and what they make of the
        ``defaults``; nothing that is wrong with them keeps the log from being opened."""
        try:
            kept = checkpoints.read_topic_config(self._files, directory)
            return kept, LogConfig.from_topic_config(kept, defaults)
        except (StorageError, ConfigError) as error:
            logger.warning(
                "%s The log in %s is kept up by the broker's own settings until ZooKeeper has told "
                "those of its topic.", error, directory,
            )  # fmt: skip
            return {}, defaults

    def move_away(
        self, log: PartitionLog, reason: LogbusError, name: Callable[[str, int, int], str]
    ) -> Path:
        """Stop the log and rename its directory to the first free ``name``, without a sync."""
        log.stop(reason)
        target = self.set_aside(log.topic_partition, log.topic_id, name)
        log.close_files()
        return target

    def set_aside(
        self,
        topic_partition: TopicPartition,
        topic_id: str,
        name: Callable[[str, int, int], str] = names.stray_directory,
    ) -> Path:
        """Rename the directory of a log that is not open to the first free ``name``, without a
        sync."""
        attempt = 0
        directory, partition = self.directory(topic_partition), topic_partition.partition
        with storage_errors("move away", directory):
            while self._files.exists(target := self._path / name(topic_id, partition, attempt)):
                attempt += 1
            self._files.rename(directory, target)
        return target

    def sync(self) -> None:
        """Keep on disk what was renamed; a failure is logged."""
        try:
            self._files.sync_directory(self._path)
        except OSError as error:
            logger.warning(
                "%s A crash now could bring back directories that were moved away.",
                storage_error("sync", self._path, error),
            )

    def topic_id_of(
        self, topic_partition: TopicPartition, known: LogCheckpoint | None
    ) -> str | None:
        """The id of the topic that owns the directory; None where nothing readable says so."""
        try:
            metadata = checkpoints.read_partition_metadata(
                self._files, self.directory(topic_partition)
            )
        except StorageError:
            metadata = None
        if metadata is not None:
            return metadata.topic_id
        return None if known is None else known.topic_id

    def delete(self, moved_away: Path) -> None:
        """Deletes a directory without a sync: what a crash brings back, the next start removes (see
        ``find``)."""
        with storage_errors("delete", moved_away):
            remove_tree(self._files, moved_away)

    def _recover(
        self,
        directory: Path,
        metadata: PartitionMetadata,
        known: LogCheckpoint | None,
        *,
        config: LogConfig,
        clean: bool,
    ) -> PartitionLog:
        recovery = LogRecovery(
            files=self._files,
            directory=directory,
            pool=self._environment.pool,
            index_interval_bytes=config.index_interval_bytes,
            log_start_offset=known.log_start_offset if known else 0,
            recovery_point=known.recovery_point if known else 0,
            clean=clean and known is not None,
            progress=self._progress,
        )
        with storage_errors("open the log in", directory):
            try:
                view = recovery.run()
            except EndsTooEarlyError as early:
                if early.end > recovery.log_start_offset:
                    self.short_ends[metadata.topic_partition] = early.end
                raise too_short_log(
                    metadata.topic_partition, directory, end=early.end, known_end=early.known_end
                ) from None
            producers = ProducerStateManager(metadata.topic_partition, self._environment.producers)
            try:
                recover_producers(self._files, directory, producers, view)
                epochs = recover_epochs(
                    self._files, directory, view, expected=metadata.log_id is not None
                )
                notes = recover_notes(self._files, directory, end=view.active.metadata.end_offset)
                staged = recover_staged(metadata.topic_partition, directory, self._environment)
                is_copy = checkpoints.is_marked_copy(self._files, directory)
            except (OSError, StorageError):
                for segment in view.segments:
                    segment.retire()
                raise
        return PartitionLog(
            metadata.topic_partition,
            metadata.topic_id,
            directory=directory,
            view=view,
            producers=producers,
            epochs=epochs,
            compaction_notes=notes,
            log_id=metadata.log_id,
            is_copy=is_copy,
            config=config,
            environment=self._environment,
            staged=staged,
        )


def deleted_log(log: PartitionLog) -> UnknownTopicError:
    """Error for those who have an open log whose topic is deleted."""
    return UnknownTopicError(
        f"{log.topic_partition} with topic id {log.topic_id} was deleted; refresh the metadata."
    )


def missing_log(
    topic_partition: TopicPartition, directory: Path, *, known_end: int
) -> LogMissingError:
    """``directory`` is not there; ``known_end`` is 0 when only that there was a log is known."""
    reached = f" and reached offset {known_end} at least" if known_end else ""
    return LogMissingError(
        f"Partition {topic_partition} is not served: its log was in {directory}{reached}, and is "
        f"not there. {_remedies(topic_partition)}"
    )


def too_short_log(
    topic_partition: TopicPartition, directory: Path, *, end: int, known_end: int
) -> LogMissingError:
    """The log in ``directory`` ends at ``end``, and ``known_end`` was on disk once."""
    return LogMissingError(
        f"Partition {topic_partition} is not served: its log in {directory} ends at offset {end}, "
        f"and reached {known_end} at least. Is it an older copy? {_remedies(topic_partition)}"
    )


def other_log(topic_partition: TopicPartition, log: PartitionLog, *, known: str) -> LogMissingError:
    """The log that is there is not the one with the id ``known``, which led the partition."""
    return LogMissingError(
        f"Partition {topic_partition} is not served: the log in {log.directory} has the id "
        f"{log.log_id}, and never was the log with the id {known}, which led the partition last. "
        "Was the directory copied from elsewhere, or the disk emptied? "
        f"{_remedies(topic_partition)}"
    )


def _remedies(topic_partition: TopicPartition) -> str:
    return (
        "Mount its disk, or put the directory back, and restart the broker; or, if what is missing "
        f"is lost, give that up: logbus topics give-up {topic_partition.topic} --partition "
        f"{topic_partition.partition}."
    )
