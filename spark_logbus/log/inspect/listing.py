"""Lists the logs and files of a data directory, and reads the small text files among them."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_logbus.log.checkpoint import parse_lost_offsets
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import parse_checksummed_file
from spark_logbus.log.disk.filesystem import FileSystem, read_whole
from spark_logbus.model import LostOffsets, TopicPartition

_TEXT_LIMIT_BYTES: Final = 256 << 20
_TEXT_FILES: Final = (
    names.CHECKPOINT, names.CLEAN_SHUTDOWN, names.PARTITION_METADATA, names.COMPACTION,
    names.TOPIC_CONFIG, names.CLOCK, names.CLOCK_ACCEPTED, names.LOST_OFFSETS,
    names.LEADER_EPOCHS, names.PURGED_TOMBSTONES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogListing:
    """The directory of one log: base offsets of its segments, all other names, and what was given
    up between its segments."""

    path: Path
    topic_partition: TopicPartition
    base_offsets: tuple[int, ...]
    others: tuple[str, ...]
    lost: tuple[LostOffsets, ...] = ()

    def end_before(self, following: int) -> int:
        """Returns the end of the segment before the one at ``following`` if it is whole."""
        return next((each.start for each in self.lost if each.end == following), following)

    def segment(self, base_offset: int) -> Path:
        return self.path / names.segment(base_offset)


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """A data directory: its logs, and the names beside them."""

    path: Path
    logs: tuple[LogListing, ...]
    others: tuple[str, ...]


def list_directory(files: FileSystem, path: Path) -> DirectoryListing | None:
    """List the data directory ``path``, or the one log if it is the directory of a log.

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
    # `broker-1`, where `logbus up` keeps a broker, has the name of a log as well.
    has_log = any(log.base_offsets or names.PARTITION_METADATA in log.others for log in logs)
    if not has_log and not {names.LOCK, names.CHECKPOINT} & set(others):
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
    lost: tuple[LostOffsets, ...] = ()
    if names.LOST_OFFSETS in others:
        with suppress(OSError):  # it is told of by who looks at the file
            lost = parse_lost_offsets(read_text_file(files, path / names.LOST_OFFSETS).lines)
    return LogListing(path, topic_partition, tuple(sorted(base_offsets)), tuple(others), lost)


def in_use(data_directory: Path) -> bool:
    """True while a process has the data directory locked.

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
    """A small text file with a checksum; ``problem`` says why it counts as missing, if it does."""

    title: str
    lines: tuple[str, ...]
    problem: str | None = None


def read_text_file(files: FileSystem, path: Path) -> TextFile:
    """Read any file that ends with the checksum of its lines. Raises OSError."""
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
    """True for the files that ``read_text_file`` reads."""
    return name in _TEXT_FILES or names.parse_producers(name) is not None
