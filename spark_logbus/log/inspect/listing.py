"""Looks at a data directory from outside: for tools, read-only, on a live or a dead one.

Nothing is locked, written or repaired here, and damage is told, not raised: only ``OSError`` of
the disk is left to the caller. A directory that a broker is using changes meanwhile, so a file
that was listed may be gone when it is opened, and the last segment may grow.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_logbus.errors import LogbusError
from spark_logbus.log import names
from spark_logbus.log.checksummed_file import parse_checksummed_file
from spark_logbus.log.filesystem import File, FileSystem, read_whole
from spark_logbus.log.segment.lookup import BatchPosition
from spark_logbus.log.segment.scan import DamagedRange, OnRecordBatch, ScanResult, scan
from spark_logbus.model import TopicPartition
from spark_logbus.record import HEADER_SIZE as RECORD_BATCH_HEADER_SIZE
from spark_logbus.record import RecordBatchHeader, parse_header, verify

_TEXT_LIMIT_BYTES: Final = 256 << 20
_TEXT_FILES: Final = (
    names.CHECKPOINT, names.CLEAN_SHUTDOWN, names.PARTITION_METADATA, names.COMPACTION,
    names.TOPIC_CONFIG, names.CLOCK, names.CLOCK_ACCEPTED,
)  # fmt: skip


# -- what there is --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogListing:
    """The directory of one log: base offsets of its segments, and all other names."""

    path: Path
    topic_partition: TopicPartition
    base_offsets: tuple[int, ...]
    others: tuple[str, ...]

    def segment(self, base_offset: int) -> Path:
        return self.path / names.segment(base_offset)


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """A data directory: its logs, and the names beside them."""

    path: Path
    logs: tuple[LogListing, ...]
    others: tuple[str, ...]


def list_directory(files: FileSystem, path: Path) -> DirectoryListing | None:
    """What is in the data directory ``path``, or the one log if it is the directory of a log.

    None when it looks like neither. Raises OSError.
    """
    listed = files.names(path)
    has_segment = any(names.parse_segment(name) is not None for name in listed)
    if has_segment or names.PARTITION_METADATA in listed:
        topic_partition = names.parse_log_directory(path.name)
        if topic_partition is not None:
            return DirectoryListing(path.parent, (list_log(files, path, topic_partition),), ())
    logs, others = [], []
    for name in listed:
        found = names.parse_log_directory(name)
        if found is not None and files.is_directory(path / name):
            logs.append(list_log(files, path / name, found))
        else:
            others.append(name)
    if not logs and not {names.LOCK, names.CHECKPOINT} & set(others):
        return None
    return DirectoryListing(path, tuple(logs), tuple(others))


def list_log(files: FileSystem, path: Path, topic_partition: TopicPartition) -> LogListing:
    base_offsets, others = [], []
    for name in files.names(path):
        base = names.parse_segment(name)
        if base is None:
            others.append(name)
        else:
            base_offsets.append(base)
    return LogListing(path, topic_partition, tuple(sorted(base_offsets)), tuple(others))


def in_use(data_directory: Path) -> bool:
    """Whether a process has the data directory locked.

    Where the kernel lists its locks, no lock is tried for: a broker that starts at that moment
    would find the directory taken.
    """
    path = data_directory / names.LOCK
    try:
        found = os.stat(path)
    except OSError:
        return False
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        return device in Path("/proc/locks").read_text("ascii").split()
    except OSError:
        return _is_locked(path)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True, slots=True)
class TextFile:
    """A small checked text file; ``problem`` says why it counts as missing, if it does."""

    title: str
    lines: tuple[str, ...]
    problem: str | None = None


def read_text_file(files: FileSystem, path: Path) -> TextFile:
    """Any file that ends with the checksum of its lines. Raises OSError."""
    data = read_whole(files, path, limit_bytes=_TEXT_LIMIT_BYTES)
    title = data.split(b"\n", 1)[0][:80].decode("utf-8", "replace")
    try:
        lines = parse_checksummed_file(data, title)
    except UnicodeDecodeError:
        lines = None
    if lines is None:
        return TextFile(title, (), "its checksum is wrong")
    return TextFile(title, tuple(lines))


def is_text_file(name: str) -> bool:
    """Whether a file of that name is one that ``read_text_file`` reads."""
    return name in _TEXT_FILES or names.parse_producers(name) is not None


# -- record batches -------------------------------------------------------------------------


OnHole = Callable[[DamagedRange], None]


def scan_in_order(
    file: File, *, base_offset: int, limit: int, see: OnRecordBatch, damaged: OnHole
) -> ScanResult:
    """A ``scan`` that tells holes when it comes to them. Raises OSError, and what the two raise."""
    place = BatchPosition(base_offset, 0)

    def on_record_batch(header: RecordBatchHeader, position: int) -> None:
        nonlocal place
        if position > place.position:
            damaged(DamagedRange(place.offset, header.base_offset, place.position, position))
        see(header, position)
        place = BatchPosition(header.next_offset, position + header.size)

    return scan(file, base_offset=base_offset, limit=limit, on_record_batch=on_record_batch)


def first_offset(file: File, path: Path) -> int:
    """Where the segment starts: as its first header says, else its name, else 0."""
    try:
        return parse_header(file.pread(RECORD_BATCH_HEADER_SIZE, 0)).base_offset
    except LogbusError:
        return names.parse_segment(path.name) or 0


def problem_at(file: File, position: int, *, limit: int, expected_offset: int) -> str:
    """What is wrong with the record batch that should begin there, in words. Raises OSError."""
    try:
        header = parse_header(file.pread(RECORD_BATCH_HEADER_SIZE, position))
        if position + header.size > limit:
            return f"It announces {header.size} bytes, but {limit - position} are left."
        verify(file.pread(header.size, position))
    except LogbusError as error:
        return error.message
    if header.base_offset != expected_offset:
        return (
            f"A whole record batch with base offset {header.base_offset} is there, expected "
            f"{expected_offset}."
        )
    return "It is whole now, so it was changed a moment ago."
