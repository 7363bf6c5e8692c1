"""Names of everything in a data directory; the one place that makes and parses them.

::

    <data directory>/
      .lock                                held by the one process that uses the directory
      checkpoint                           recovery points and log start offsets
      clean-shutdown                       present only after an orderly stop
      clock                                the time that the broker has seen last
      clock-accepted                       an operator's word that the clock is right
      <topic>-<partition>/                 the log of one partition
        partition                          its topic id, topic, partition and log id
        topic-config                       the topic's configuration as it was last applied
        flush-failed                       present after a failed flush, see flush_failure.py
        00000000000000000000.log           a segment, named by its base offset
        00000000000000000000.index         its index
        00000000000000000000.producers     its idempotent producers, as of that offset
        00000000000000000000.log.deleted   on its way out (retention, compaction)
        00000000000000000000.log.cleaned   being written by compaction, with a .index.cleaned
        <base>-<end>.swap                  compacted: takes the place of all segments in the range
        compaction                         up to where the log was compacted, and when
        purged-tombstones                  up to where tombstones may be gone, see notes.py
        lost-offsets                       ranges of offsets whose records were given up
        leader-epochs                      the leader epochs of its records, see epochs.py
        copy                               present as long as it never led, see LogDirectory
        0000000000000000.staged            record batches of one atomic write, not yet in the log
      <topic id>-<partition>.creating/     not yet a log; removed at open
      <topic id>-<partition>.deleted/      no longer a log; removed at open
      <topic id>-<partition>.stray/        set aside, never deleted by logbus
      <topic id>-<partition>.moved/        set aside when its partition had moved, deleted later
        moved                              how far the log reached

Directories that are not logs are named by topic id, not by topic: a topic name may take so
much of a file name's 255 bytes that no suffix fits after it.
"""

from __future__ import annotations

import re
from typing import Final

from spark_logbus.model import TopicPartition
from spark_logbus.record import format as fmt

LOCK: Final = ".lock"
CHECKPOINT: Final = "checkpoint"
CLEAN_SHUTDOWN: Final = "clean-shutdown"
CLOCK: Final = "clock"
CLOCK_ACCEPTED: Final = "clock-accepted"
PARTITION_METADATA: Final = "partition"
TOPIC_CONFIG: Final = "topic-config"
FLUSH_FAILED: Final = "flush-failed"
COMPACTION: Final = "compaction"
PURGED_TOMBSTONES: Final = "purged-tombstones"
LOST_OFFSETS: Final = "lost-offsets"
LEADER_EPOCHS: Final = "leader-epochs"
COPY: Final = "copy"
MOVED: Final = "moved"
_OTHER_FILES: Final = (
    PARTITION_METADATA, TOPIC_CONFIG, FLUSH_FAILED, COMPACTION, PURGED_TOMBSTONES, LOST_OFFSETS,
    LEADER_EPOCHS, COPY, MOVED,
)  # fmt: skip
TEMPORARY_SUFFIX: Final = ".tmp"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
CREATING_SUFFIX: Final = ".creating"
STRAY_SUFFIX: Final = ".stray"
MOVED_SUFFIX: Final = ".moved"

_LOG_SUFFIX: Final = ".log"
_INDEX_SUFFIX: Final = ".index"
_PRODUCERS_SUFFIX: Final = ".producers"
_OFFSET_DIGITS: Final = 20
_SWAP_SUFFIX: Final = ".swap"
_SWAP = re.compile(r"([0-9]{20})-([0-9]{20})\.(swap|index)")
_STAGED = re.compile(r"([0-9]{16})\.staged")
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_LOG_DIRECTORY = re.compile(r"([A-Za-z0-9._-]+)-(0|[1-9][0-9]*)")
_MOVED_DIRECTORY = re.compile(r"[A-Za-z0-9._-]{1,64}-(0|[1-9][0-9]*)(\.[1-9][0-9]*)?\.moved")
_REMOVABLE_DIRECTORY = re.compile(
    r"[A-Za-z0-9._-]{1,64}-(0|[1-9][0-9]*)(\.[1-9][0-9]*)?\.(creating|deleted)"
)


def log_directory(topic_partition: TopicPartition) -> str:
    return str(topic_partition)


def parse_log_directory(name: str) -> TopicPartition | None:
    """The partition whose log the directory ``name`` holds; None for all other names."""
    match = _LOG_DIRECTORY.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def creating_directory(topic_id: str, partition: int) -> str:
    return f"{topic_id}-{partition}{CREATING_SUFFIX}"


def deleted_directory(topic_id: str, partition: int, attempt: int) -> str:
    return f"{_set_aside(topic_id, partition, attempt)}{DELETED_SUFFIX}"


def stray_directory(topic_id: str, partition: int, attempt: int) -> str:
    return f"{_set_aside(topic_id, partition, attempt)}{STRAY_SUFFIX}"


def moved_directory(topic_id: str, partition: int, attempt: int) -> str:
    return f"{_set_aside(topic_id, partition, attempt)}{MOVED_SUFFIX}"


def is_moved_directory(name: str) -> bool:
    """True if a directory of that name is the log of a partition that moved away."""
    return _MOVED_DIRECTORY.fullmatch(name) is not None


def is_removable_directory(name: str) -> bool:
    """True if a directory of that name is not yet a log, or no longer one."""
    return _REMOVABLE_DIRECTORY.fullmatch(name) is not None


def _set_aside(topic_id: str, partition: int, attempt: int) -> str:
    return f"{topic_id}-{partition}" + (f".{attempt}" if attempt else "")


def segment(base_offset: int) -> str:
    return f"{base_offset:0{_OFFSET_DIGITS}d}{_LOG_SUFFIX}"


def index(base_offset: int) -> str:
    return f"{base_offset:0{_OFFSET_DIGITS}d}{_INDEX_SUFFIX}"


def producers(offset: int) -> str:
    return f"{offset:0{_OFFSET_DIGITS}d}{_PRODUCERS_SUFFIX}"


def staged(number: int) -> str:
    return f"{number:016d}.staged"


def parse_staged(name: str) -> int | None:
    """The number of the file of staged record batches ``name``; None for all other names."""
    match = _STAGED.fullmatch(name)
    return int(match[1]) if match else None


def deleted(name: str) -> str:
    return name + DELETED_SUFFIX


def cleaned(name: str) -> str:
    return name + CLEANED_SUFFIX


def swap(base_offset: int, end_offset: int) -> str:
    """A compacted segment that is to replace all segments in the range. Its index has the same
    name with the suffix of an index."""
    return f"{base_offset:0{_OFFSET_DIGITS}d}-{end_offset:0{_OFFSET_DIGITS}d}{_SWAP_SUFFIX}"


def temporary(name: str) -> str:
    return name + TEMPORARY_SUFFIX


def parse_segment(name: str) -> int | None:
    """The base offset of the segment file ``name``; None for all other names."""
    match = _SEGMENT.fullmatch(name)
    return base if match and (base := int(match[1])) <= fmt.MAX_OFFSET else None


def parse_index(name: str) -> int | None:
    """The base offset of the index file ``name``; None for all other names."""
    stem = name.removesuffix(_INDEX_SUFFIX)
    return parse_segment(stem + _LOG_SUFFIX) if stem != name else None


def parse_producers(name: str) -> int | None:
    """The offset of the snapshot of producers ``name``; None for all other names."""
    stem = name.removesuffix(_PRODUCERS_SUFFIX)
    return parse_segment(stem + _LOG_SUFFIX) if stem != name else None


def parse_swap(name: str) -> tuple[int, int] | None:
    """The offsets ``[base, end)`` that the file ``name`` replaces; None for all other names."""
    match = _SWAP.fullmatch(name)
    return (int(match[1]), int(match[2])) if match and match[3] == "swap" else None


def is_leftover(name: str) -> bool:
    """A file of a log directory that an interrupted operation left and nothing needs.

    That includes the index of a compacted segment which is in its place already.
    """
    if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX, CLEANED_SUFFIX)):
        return True
    match = _SWAP.fullmatch(name)
    return match is not None and match[3] == "index"


def is_of_a_log(name: str) -> bool:
    """True if the directory of a log may hold a file of that name."""
    for suffix in (DELETED_SUFFIX, TEMPORARY_SUFFIX, CLEANED_SUFFIX):
        name = name.removesuffix(suffix)
    return (
        name in _OTHER_FILES
        or _SWAP.fullmatch(name) is not None
        or any(
            parse(name) is not None
            for parse in (parse_segment, parse_index, parse_producers, parse_staged)
        )
    )
