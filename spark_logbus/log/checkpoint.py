"""The small text files of a data directory and of the logs in it.

Each is replaced as a whole, so a reader sees an old, a new or no file, and takes a damaged one
for none (see ``checksummed_file``). None of them is needed to read the data: without a checkpoint
every segment is scanned, without the marker those after the recovery point, without its
history a log is compacted from its start, without its topic's configuration it is kept up by
the broker's until ZooKeeper has said, and without the ranges that were given up those count as
damaged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file, read_checksummed_file
from spark_logbus.log.disk.filesystem import (
    FileSystem,
    read_whole,
    storage_errors,
    write_atomically,
)
from spark_logbus.model import LostOffsets, TopicPartition
from spark_logbus.record import format as fmt

logger = logging.getLogger(__name__)

CHECKPOINT_TITLE: Final = "logbus-checkpoint 1"
_CLEAN_TITLE: Final = "logbus-clean-shutdown 1"
_PARTITION_TITLE: Final = "logbus-partition 1"
_COMPACTION_TITLE: Final = "logbus-compaction 1"
_TOPIC_CONFIG_TITLE: Final = "logbus-topic-config 1"
_LOST_OFFSETS_TITLE: Final = "logbus-lost-offsets 1"
_COPY_TITLE: Final = "logbus-copy 1"


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """The start of one log, and the end that it is known to be flushed to."""

    topic_partition: TopicPartition
    topic_id: str
    log_start_offset: int
    recovery_point: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Names of a log. ``log_id`` tells it from every other log of the partition, also from what it
    was before it may have lost records; None in directories of releases that made none."""

    topic_partition: TopicPartition
    topic_id: str
    log_id: str | None = None


class CleanedUpTo(NamedTuple):
    """Note that at ``cleaned_at_us`` all of a log before ``offset`` was clean."""

    offset: int
    cleaned_at_us: int


def write_checkpoint(files: FileSystem, directory: Path, logs: Iterable[LogCheckpoint]) -> None:
    """Replaces the checkpoint. Raises StorageError; the old one is then still there."""
    lines = [
        f"{log.topic_partition} {log.topic_id} {log.log_start_offset} {log.recovery_point}"
        for log in logs
    ]
    _write(files, directory / names.CHECKPOINT, CHECKPOINT_TITLE, sorted(lines))


def read_checkpoint(files: FileSystem, directory: Path) -> dict[TopicPartition, LogCheckpoint]:
    """Entries of the checkpoint; empty when there is none or it is damaged."""
    lines = read_checksummed_file(files, directory / names.CHECKPOINT, CHECKPOINT_TITLE)
    return parse_checkpoint(lines or ())


def is_checkpoint(files: FileSystem, path: Path) -> bool:
    """True if the file is one of logbus's, damaged or not. Raises OSError."""
    title = f"{CHECKPOINT_TITLE}\n".encode()
    return read_whole(files, path, limit_bytes=len(title)) == title


def parse_checkpoint(lines: Iterable[str]) -> dict[TopicPartition, LogCheckpoint]:
    """Entries of the lines after the title."""
    entries = {}
    for line in lines:
        entry = _parse_entry(line)
        if entry is None:
            logger.warning(
                "The checkpoint has the line %r, which says nothing; the log that it was for is "
                "scanned as a whole.", line,
            )  # fmt: skip
        else:
            entries[entry.topic_partition] = entry
    return entries


def _parse_entry(line: str) -> LogCheckpoint | None:
    words = line.split(" ")
    topic_partition = names.parse_log_directory(words[0])
    if topic_partition is None or len(words) != 4:
        return None
    try:
        log_start_offset, recovery_point = int(words[2]), int(words[3])
    except ValueError:
        return None
    if not 0 <= log_start_offset <= recovery_point <= fmt.MAX_OFFSET:
        return None
    return LogCheckpoint(topic_partition, words[1], log_start_offset, recovery_point)


def write_clean_marker(files: FileSystem, directory: Path) -> None:
    _write(files, directory / names.CLEAN_SHUTDOWN, _CLEAN_TITLE, ())


def take_clean_marker(files: FileSystem, directory: Path) -> bool:
    """True if the last stop was orderly; removes the marker, on disk too."""
    path = directory / names.CLEAN_SHUTDOWN
    with storage_errors("remove", path):
        if not files.exists(path):
            return False
        clean = read_checksummed_file(files, path, _CLEAN_TITLE) is not None
        files.remove(path)
        files.sync_directory(directory)
    return clean


def write_partition_metadata(
    files: FileSystem, directory: Path, metadata: PartitionMetadata
) -> None:
    _write(files, directory / names.PARTITION_METADATA, _PARTITION_TITLE, _metadata_lines(metadata))


def write_first_files(
    files: FileSystem,
    directory: Path,
    metadata: PartitionMetadata,
    config: Mapping[str, str],
    *,
    is_copy: bool,
) -> None:
    """Writes the files of a log whose directory is not in its place yet, and so need not be
    replaced as a whole. Raises OSError; returns once they, and all names in the directory, are on
    disk."""
    texts = {
        names.PARTITION_METADATA: checksummed_file(_PARTITION_TITLE, _metadata_lines(metadata))
    }
    if config:
        texts[names.TOPIC_CONFIG] = checksummed_file(_TOPIC_CONFIG_TITLE, _config_lines(config))
    if is_copy:
        texts[names.COPY] = checksummed_file(_COPY_TITLE, ())
    for name, text in texts.items():
        file = files.open(directory / name, create=True)
        file.pwrite(text, 0)
        file.sync()
    files.sync_directory(directory)


def is_marked_copy(files: FileSystem, directory: Path) -> bool:
    """True if the log in the directory is marked as a copy. Raises StorageError."""
    with storage_errors("look for", directory / names.COPY):
        return files.exists(directory / names.COPY)


def remove_copy_mark(files: FileSystem, directory: Path) -> None:
    """Has the log in the directory no more marked as a copy, on disk on return. Raises
    StorageError."""
    path = directory / names.COPY
    with storage_errors("remove", path):
        if files.exists(path):
            files.remove(path)
        files.sync_directory(directory)


def _metadata_lines(metadata: PartitionMetadata) -> list[str]:
    topic_partition = metadata.topic_partition
    lines = [topic_partition.topic, str(topic_partition.partition), metadata.topic_id]
    return lines if metadata.log_id is None else [*lines, metadata.log_id]


def read_partition_metadata(files: FileSystem, directory: Path) -> PartitionMetadata | None:
    lines = read_checksummed_file(files, directory / names.PARTITION_METADATA, _PARTITION_TITLE)
    if lines is None or len(lines) not in (3, 4) or not lines[1].isdecimal():
        return None
    topic, partition, topic_id, *log_id = lines
    return PartitionMetadata(
        TopicPartition(topic, int(partition)), topic_id, log_id[0] if log_id else None
    )


def write_topic_config(files: FileSystem, directory: Path, config: Mapping[str, str]) -> None:
    """Raises StorageError; the old file is then still there, if there was one."""
    _write(files, directory / names.TOPIC_CONFIG, _TOPIC_CONFIG_TITLE, _config_lines(config))


def _config_lines(config: Mapping[str, str]) -> list[str]:
    return [f"{key} {json.dumps(value)}" for key, value in sorted(config.items())]


def read_topic_config(files: FileSystem, directory: Path) -> dict[str, str]:
    """Reads the topic's own keys as they were last applied.

    Empty when the file is missing or damaged. Raises StorageError.
    """
    path = directory / names.TOPIC_CONFIG
    lines = read_checksummed_file(files, path, _TOPIC_CONFIG_TITLE)
    pairs = (line.partition(" ") for line in lines or ())
    try:
        return {key: str(json.loads(text)) for key, _, text in pairs}
    except ValueError as error:
        logger.warning("%s is not as logbus writes it and is ignored: %s.", path, error)
        return {}


def write_cleanings(files: FileSystem, directory: Path, history: Iterable[CleanedUpTo]) -> None:
    lines = [f"{cleaning.offset} {cleaning.cleaned_at_us}" for cleaning in history]
    _write(files, directory / names.COMPACTION, _COMPACTION_TITLE, lines)


def read_cleanings(files: FileSystem, directory: Path) -> tuple[CleanedUpTo, ...]:
    """Reads the log's history of compactions; empty when the file is missing or damaged."""
    path = directory / names.COMPACTION
    lines = read_checksummed_file(files, path, _COMPACTION_TITLE)
    try:
        return tuple(CleanedUpTo(*map(int, line.split(" "))) for line in lines or ())
    except (TypeError, ValueError) as error:
        logger.warning("%s is not as logbus writes it and is ignored: %s.", path, error)
        return ()


def write_lost_offsets(files: FileSystem, directory: Path, lost: Iterable[LostOffsets]) -> None:
    """Raises StorageError; the old file is then still there, if there was one."""
    lines = [f"{each.start} {each.end}" for each in lost]
    _write(files, directory / names.LOST_OFFSETS, _LOST_OFFSETS_TITLE, lines)


def read_lost_offsets(files: FileSystem, directory: Path) -> tuple[LostOffsets, ...]:
    """Reads the ranges that were given up, in rising order.

    Empty when the file is missing or damaged. Raises StorageError.
    """
    path = directory / names.LOST_OFFSETS
    return parse_lost_offsets(read_checksummed_file(files, path, _LOST_OFFSETS_TITLE) or ())


def parse_lost_offsets(lines: Iterable[str]) -> tuple[LostOffsets, ...]:
    """Reads the ranges of the lines after the title; a line that says nothing is left out, and what
    it was about counts as damaged."""
    found = []
    for line in lines:
        words = line.split(" ")
        if len(words) == 2 and all(word.isdecimal() for word in words):
            found.append(LostOffsets(int(words[0]), int(words[1])))
    return tuple(sorted(each for each in found if each.start < each.end))


def _write(files: FileSystem, path: Path, title: str, lines: Iterable[str]) -> None:
    with storage_errors("write", path):
        write_atomically(files, path, checksummed_file(title, lines))
