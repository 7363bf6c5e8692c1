"""The small text files of a data directory and of the logs in it.

Each ends with a CRC-32C of its lines and is replaced as a whole, so a reader sees an old, a new
or no file, and takes a damaged one for none. None of them is needed to read the data: without
a checkpoint every segment is scanned, without the marker those behind the recovery point, and
without its history a log is compacted from its start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from spark_logbus.log import files as names
from spark_logbus.log.compaction_plan import Cleaning
from spark_logbus.log.filesystem import FileSystem, read_whole, storage_errors, write_atomically
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)

_CHECKPOINT_TITLE: Final = "logbus-checkpoint 1"
_CLEAN_TITLE: Final = "logbus-clean-shutdown 1"
_PARTITION_TITLE: Final = "logbus-partition 1"
_COMPACTION_TITLE: Final = "logbus-compaction 1"
_LIMIT_BYTES: Final = 256 << 20


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
    _write(files, directory / names.CHECKPOINT, [_CHECKPOINT_TITLE, *sorted(lines)])


def read_checkpoint(files: FileSystem, directory: Path) -> dict[TopicPartition, LogCheckpoint]:
    """What the checkpoint says; empty when there is none or it is damaged."""
    lines = _read(files, directory / names.CHECKPOINT, _CHECKPOINT_TITLE)
    entries = {}
    for line in lines or ():
        name, topic_id, log_start_offset, recovery_point = line.split(" ")
        topic_partition = names.parse_log_directory(name)
        if topic_partition is not None:
            entries[topic_partition] = LogCheckpoint(
                topic_partition, topic_id, int(log_start_offset), int(recovery_point)
            )
    return entries


def write_clean_marker(files: FileSystem, directory: Path) -> None:
    _write(files, directory / names.CLEAN_SHUTDOWN, [_CLEAN_TITLE])


def take_clean_marker(files: FileSystem, directory: Path) -> bool:
    """Whether the last stop was orderly; the marker is gone, on disk too, when this returns."""
    path = directory / names.CLEAN_SHUTDOWN
    with storage_errors("remove", path):
        if not files.exists(path):
            return False
        clean = _read(files, path, _CLEAN_TITLE) is not None
        files.remove(path)
        files.sync_directory(directory)
    return clean


def write_partition_metadata(
    files: FileSystem, directory: Path, metadata: PartitionMetadata
) -> None:
    lines = [
        _PARTITION_TITLE,
        metadata.topic_partition.topic,
        str(metadata.topic_partition.partition),
        metadata.topic_id,
    ]
    _write(files, directory / names.PARTITION_METADATA, lines)


def read_partition_metadata(files: FileSystem, directory: Path) -> PartitionMetadata | None:
    lines = _read(files, directory / names.PARTITION_METADATA, _PARTITION_TITLE)
    if lines is None:
        return None
    topic, partition, topic_id = lines
    return PartitionMetadata(TopicPartition(topic, int(partition)), topic_id)


def write_cleanings(files: FileSystem, directory: Path, history: Iterable[Cleaning]) -> None:
    lines = [f"{cleaning.offset} {cleaning.cleaned_at_us}" for cleaning in history]
    _write(files, directory / names.COMPACTION, [_COMPACTION_TITLE, *lines])


def read_cleanings(files: FileSystem, directory: Path) -> tuple[Cleaning, ...]:
    """The log's history of compactions; empty when the file is missing or damaged."""
    lines = _read(files, directory / names.COMPACTION, _COMPACTION_TITLE)
    return tuple(Cleaning(*map(int, line.split(" "))) for line in lines or ())


def _write(files: FileSystem, path: Path, lines: list[str]) -> None:
    body = "".join(f"{line}\n" for line in lines).encode()
    with storage_errors("write", path):
        write_atomically(files, path, body + f"crc32c {crc32c(body):08x}\n".encode())


def _read(files: FileSystem, path: Path, title: str) -> list[str] | None:
    """The lines behind the title; None when the file is missing, damaged or of another kind."""
    with storage_errors("read", path):
        if not files.exists(path):
            return None
        data = read_whole(files, path, limit_bytes=_LIMIT_BYTES)
    body_end = data[:-1].rfind(b"\n") + 1
    body, last = data[:body_end], data[body_end:]
    if last != f"crc32c {crc32c(body):08x}\n".encode() or not body.startswith(
        f"{title}\n".encode()
    ):
        logger.warning("%s is damaged and is ignored; it will be written anew.", path)
        return None
    return body.decode().splitlines()[1:]
