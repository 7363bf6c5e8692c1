"""Follows which logs' disks refuse what is appended, from the first refusal to the end.

A full disk refuses appends one by one, to who sends them. That it does is a state of the broker all
the same, which operators want to hear of once, and to see for as long as it lasts. How long that is
the appends alone do not show: producers may have given up. So the upkeep tries to write a file in
the log's directory, as large as what was refused, and of the kinds of refusal it does not matter
which it is: space, a reserve, a quota, inodes or a file system that is read-only.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import (
    FULL,
    FileSystem,
    is_for_want_of_descriptors,
    remedy_for,
    remove_if_possible,
)
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)

# On a disk that is nearly full some appends pass: it is over when none was refused for so long.
_QUIET_S: Final = 5.0
_PROBE_EVERY_S: Final = 2.0
_MAX_PROBE_BYTES: Final = 1 << 20
_PROBE: Final = names.temporary("refused-append")
_SHOWN: Final = 10


@dataclass(slots=True)
class _Refusal:
    topic_partition: TopicPartition
    reason: str
    size_bytes: int
    last_at: float  # monotonic


class RefusedWrites:
    """Logs whose disks refuse what is appended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: dict[Path, _Refusal] = {}  # by the log's directory
        self._full_at = -math.inf
        self._began = 0.0
        self._probed_at = 0.0

    def note(
        self,
        topic_partition: TopicPartition,
        directory: Path,
        error: OSError,
        *,
        size_bytes: int,
        now: float,
    ) -> None:
        """Note that a write of ``size_bytes`` was refused at the monotonic time ``now``."""
        if is_for_want_of_descriptors(error):
            return  # it is no disk's doing
        if error.errno in FULL:
            self._full_at = now
        with self._lock:
            known = self._refusals.get(directory)
            if known is not None:
                known.last_at, known.size_bytes = now, size_bytes
                return
        reason = _reason(directory, error)
        with self._lock:
            first = not self._refusals
            self._refusals[directory] = _Refusal(topic_partition, reason, size_bytes, now)
            if first:
                self._began = now
        if first:
            logger.error(
                "Appends are refused, first of %s: %s Reads go on. This is said again when appends "
                "are taken.",
                topic_partition, reason,
                extra={"topic": topic_partition.topic, "partition": topic_partition.partition},
            )  # fmt: skip

    def disk_was_full(self, *, since: float) -> bool:
        """True if a write has failed for want of room since the monotonic time."""
        return self._full_at >= since

    def reason(self, directory: Path) -> str | None:
        """The reason why what is appended to the log in ``directory`` is refused now; else None."""
        known = self._refusals.get(directory)
        return None if known is None else known.reason

    @property
    def count(self) -> int:
        return len(self._refusals)

    def described(self) -> list[str]:
        """A sentence for each reason, with the partitions that it is true of."""
        by_reason: dict[str, list[TopicPartition]] = {}
        with self._lock:
            for each in self._refusals.values():
                by_reason.setdefault(each.reason, []).append(each.topic_partition)
        return [
            f"Appends to {_named(sorted(which))} are refused: {reason}"
            for reason, which in sorted(by_reason.items())
        ]

    def probe(self, files: FileSystem, now: float) -> None:
        """Find out whether the disks take appends again. For the thread of the upkeep."""
        if not self._refusals or now - self._probed_at < _PROBE_EVERY_S:
            return
        self._probed_at = now
        with self._lock:
            due = [
                (directory, min(each.size_bytes, _MAX_PROBE_BYTES))
                for directory, each in self._refusals.items()
                if now - each.last_at >= _QUIET_S
            ]
        for directory, size_bytes in due:
            taken = _is_taken(files, directory, size_bytes)
            with self._lock:
                refusal = self._refusals.pop(directory, None)
                if not taken and refusal is not None:
                    self._refusals[directory] = refusal  # behind the others, on other disks
                over = taken and not self._refusals
            if over:
                logger.warning(
                    "Appends are taken again: the disk refused them for %d seconds.",
                    now - self._began,
                )
            if not taken:
                return


def _is_taken(files: FileSystem, directory: Path, size_bytes: int) -> bool:
    """True if the disk takes a new file in ``directory``, or that is gone, with its topic."""
    path = directory / _PROBE
    try:
        if not files.exists(directory):
            return True
        remove_if_possible(files, path)
        file = files.open(path, create=True)
        file.pwrite(bytes(max(1, size_bytes)), 0)
        del file
    except OSError:
        return False
    finally:
        remove_if_possible(files, path)
    return True


def _reason(directory: Path, error: OSError) -> str:
    text = f"{error.strerror or error}"
    if error.errno == errno.ENOSPC:
        try:
            space = os.statvfs(directory)
        except OSError:
            space = None
        if space is not None and space.f_files and not space.f_favail:
            text += ", for it has no inodes left"
        elif space is not None and not space.f_bavail and space.f_bfree:
            text += ", for what is left is the file system's reserve"
    return f"{text}, at {directory}; {remedy_for(error)}."


def _named(topic_partitions: Sequence[TopicPartition]) -> str:
    more = len(topic_partitions) - _SHOWN
    listed = ", ".join(map(str, topic_partitions[:_SHOWN]))
    return f"{listed} and {more} more partitions" if more > 0 else listed
