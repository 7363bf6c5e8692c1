"""The directories of single logs: found, opened, created, set aside, deleted.

A log's directory is whole or not there: it is prepared under another name, and moved to yet
another before it is deleted. What a crash leaves under such names is removed at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from spark_logbus.errors import LogbusError, StorageError
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log import files as names
from spark_logbus.log.checkpoint import LogCheckpoint, PartitionMetadata
from spark_logbus.log.config import LogConfig
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.filesystem import remove_tree, storage_error, storage_errors
from spark_logbus.log.log import PartitionLog
from spark_logbus.log.producers import ProducerStates
from spark_logbus.log.recovery import LogRecovery, RecoveryProgress
from spark_logbus.log.snapshots import recover_producers
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)


class LogHome:
    """Where the logs' directories are. Not thread-safe: ``LogDirectory`` locks."""

    def __init__(self, path: Path, environment: LogEnvironment, progress: RecoveryProgress) -> None:
        self._path = path
        self._environment = environment
        self._files = environment.files
        self._progress = progress

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
                try:
                    remove_tree(self._files, self._path / name)
                except OSError as error:
                    logger.warning("%s", storage_error("remove", self._path / name, error))
        return [tp for name in found if (tp := names.parse_log_directory(name)) is not None]

    def open(
        self,
        topic_partition: TopicPartition,
        known: LogCheckpoint | None,
        *,
        config: LogConfig,
        clean: bool,
    ) -> PartitionLog:
        """Recover a log that is here; ``known`` is what the checkpoint says of it."""
        directory = self._path / names.log_directory(topic_partition)
        metadata = checkpoints.read_partition_metadata(self._files, directory)
        if metadata is None and known is not None:
            metadata = PartitionMetadata(topic_partition, known.topic_id)
            checkpoints.write_partition_metadata(self._files, directory, metadata)
        if metadata is None:
            raise StorageError(
                f"The file {directory / names.PARTITION_METADATA} is missing or damaged, so it is "
                "not known to which topic the records belong; restore the file from a copy, or "
                "move the directory away."
            )
        if known is not None and known.topic_id != metadata.topic_id:
            known = None
        return self._recover(directory, metadata, known, config=config, clean=clean)

    def create(self, metadata: PartitionMetadata, config: LogConfig) -> PartitionLog:
        topic_partition = metadata.topic_partition
        directory = self._path / names.log_directory(topic_partition)
        preparing = self._path / names.creating_directory(
            metadata.topic_id, topic_partition.partition
        )
        with storage_errors("create", directory):
            if self._files.exists(preparing):
                remove_tree(self._files, preparing)
            self._files.make_directory(preparing)
            checkpoints.write_partition_metadata(self._files, preparing, metadata)
            self._files.rename(preparing, directory)
            self._files.sync_directory(self._path)
        return self._recover(directory, metadata, None, config=config, clean=False)

    def move_away(
        self, log: PartitionLog, reason: LogbusError, name: Callable[[str, int, int], str]
    ) -> Path:
        """Stop the log and rename its directory to the first free ``name``."""
        log.stop(reason)
        attempt = 0
        partition = log.topic_partition.partition
        with storage_errors("move away", log.directory):
            while self._files.exists(target := self._path / name(log.topic_id, partition, attempt)):
                attempt += 1
            self._files.rename(log.directory, target)
            self._files.sync_directory(self._path)
        return target

    def delete(self, moved_away: Path) -> None:
        with storage_errors("delete", moved_away):
            remove_tree(self._files, moved_away)
            self._files.sync_directory(self._path)

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
            view = recovery.run()
            producers = ProducerStates(metadata.topic_partition, self._environment.producers)
            recover_producers(self._files, directory, producers, view)
        return PartitionLog(
            metadata.topic_partition,
            metadata.topic_id,
            directory=directory,
            view=view,
            producers=producers,
            config=config,
            environment=self._environment,
        )
