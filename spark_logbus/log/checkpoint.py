"""The small text files of a data directory: checkpoint, clean-shutdown marker, partition.

Each is replaced as a whole, so a reader sees an old, a new or no file, and takes a damaged one
for none (see ``checked_text``). None of them is needed to read the data: without
a checkpoint every segment is scanned, and without the marker those behind the recovery point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_logbus.log import files as names
from spark_logbus.log.checked_text import checked_text, read_checked_text
from spark_logbus.log.filesystem import FileSystem, storage_errors, write_atomically
from spark_logbus.model import TopicPartition

CHECKPOINT_TITLE: Final = "logbus-checkpoint 1"
_CLEAN_TITLE: Final = "logbus-clean-shutdown 1"
_PARTITION_TITLE: Final = "logbus-partition 1"


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """Where one log starts, and up to where it is known to be flushed."""

    topic_partition: TopicPartition
    topic_id: str
    log_start_offset: int
    recovery_point: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    topic_partition: TopicPartition
    topic_id: str


def write_checkpoint(files: FileSystem, directory: Path, logs: Iterable[LogCheckpoint]) -> None:
    """Raises StorageError; the old checkpoint is then still there."""
    lines = [
        f"{log.topic_partition} {log.topic_id} {log.log_start_offset} {log.recovery_point}"
        for log in logs
    ]
    _write(files, directory / names.CHECKPOINT, CHECKPOINT_TITLE, sorted(lines))


def read_checkpoint(files: FileSystem, directory: Path) -> dict[TopicPartition, LogCheckpoint]:
    """What the checkpoint says; empty when there is none or it is damaged."""
    lines = read_checked_text(files, directory / names.CHECKPOINT, CHECKPOINT_TITLE)
    return parse_checkpoint(lines or ())


def parse_checkpoint(lines: Iterable[str]) -> dict[TopicPartition, LogCheckpoint]:
    """What the lines behind the title say."""
    entries = {}
    for line in lines:
        name, topic_id, log_start_offset, recovery_point = line.split(" ")
        topic_partition = names.parse_log_directory(name)
        if topic_partition is not None:
            entries[topic_partition] = LogCheckpoint(
                topic_partition, topic_id, int(log_start_offset), int(recovery_point)
            )
    return entries


def write_clean_marker(files: FileSystem, directory: Path) -> None:
    _write(files, directory / names.CLEAN_SHUTDOWN, _CLEAN_TITLE, ())


def take_clean_marker(files: FileSystem, directory: Path) -> bool:
    """Whether the last stop was orderly; the marker is gone, on disk too, when this returns."""
    path = directory / names.CLEAN_SHUTDOWN
    with storage_errors("remove", path):
        if not files.exists(path):
            return False
        clean = read_checked_text(files, path, _CLEAN_TITLE) is not None
        files.remove(path)
        files.sync_directory(directory)
    return clean


def write_partition_metadata(
    files: FileSystem, directory: Path, metadata: PartitionMetadata
) -> None:
    lines = [
        metadata.topic_partition.topic,
        str(metadata.topic_partition.partition),
        metadata.topic_id,
    ]
    _write(files, directory / names.PARTITION_METADATA, _PARTITION_TITLE, lines)


def read_partition_metadata(files: FileSystem, directory: Path) -> PartitionMetadata | None:
    lines = read_checked_text(files, directory / names.PARTITION_METADATA, _PARTITION_TITLE)
    if lines is None:
        return None
    topic, partition, topic_id = lines
    return PartitionMetadata(TopicPartition(topic, int(partition)), topic_id)


def _write(files: FileSystem, path: Path, title: str, lines: Iterable[str]) -> None:
    with storage_errors("write", path):
        write_atomically(files, path, checked_text(title, lines))
