"""The two kinds of segments: the active one, which is written, and sealed ones.

The active segment holds its file and its index open. A sealed segment opens both at the first
read and may have to let go of them again (``OpenSegments``), so that a broker with thousands
of segments needs neither thousands of descriptors nor gigabytes of indexes.

A deleted file takes up its space for as long as any thread has it open. So a segment that is
deleted or replaced lets go for good (``retire``): from then on only readers under way hold it.
"""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path

from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import File, FileSystem
from spark_logbus.log.segment.index import Index, Summary
from spark_logbus.log.segment.index_file import index_path, read_index, save_index
from spark_logbus.log.segment.lookup import Lookup
from spark_logbus.log.segment.metadata import SegmentMetadata, scan_metadata
from spark_logbus.log.segment.scan import DamagedRange, SegmentScan

logger = logging.getLogger(__name__)


def damage_to_end(result: SegmentScan, *, end: int, end_position: int) -> tuple[DamagedRange, ...]:
    """Damaged ranges of a scan, and one at its end if ``end`` should have been reached."""
    if result.end_offset >= end:
        return tuple(result.damaged)
    last = DamagedRange(result.end_offset, end, result.end_position, end_position)
    return (*result.damaged, last)


def log_damage(path: Path, damaged: tuple[DamagedRange, ...]) -> None:
    for damage in damaged:
        logger.error(
            "Segment %s is damaged: offsets %d up to %d (bytes %d to %d) cannot be read. All "
            "other records stay readable; to mend it, restore the file from a copy.",
            path, damage.start, damage.end, damage.start_position, damage.end_position,
        )  # fmt: skip


class ActiveSegment:
    """The last segment of a log. Written by one thread; ``lookup`` is for any.

    Readers bound look-ups by a position below which all is written and flushed.
    """

    def __init__(
        self,
        path: Path,
        file: File,
        metadata: SegmentMetadata,
        damaged: tuple[DamagedRange, ...] = (),
    ) -> None:
        self.path = path
        self.base_offset = metadata.base_offset
        self.metadata = metadata
        self.damaged = damaged
        self._changing = threading.Lock()
        self._lookup: Lookup | None = Lookup(file, metadata.index, damaged)

    @property
    def summary(self) -> Summary:
        return self.metadata.summary()

    @property
    def file(self) -> File:
        """Raises FileNotFoundError once the segment is retired."""
        return self.lookup().file

    def lookup(self) -> Lookup:
        """Raises FileNotFoundError once the segment is retired."""
        lookup = self._lookup
        if lookup is None:
            raise _gone(self.path)
        return lookup

    def retire(self) -> None:
        """Let go of the file for good; it is deleted, or belongs to another segment now."""
        with self._changing:
            self._lookup = None

    def inspect(self, limit: int, end: int) -> None:
        """Scan up to ``limit``, where offset ``end`` begins, for damage. Raises OSError."""
        file = self.file
        _, result = scan_metadata(
            file, base_offset=self.base_offset, index_interval_bytes=1 << 20, limit=limit
        )
        damaged = damage_to_end(result, end=end, end_position=limit)
        with self._changing:
            if self._lookup is None:
                raise _gone(self.path)
            self._lookup = Lookup(file, self.metadata.index, damaged)
            self.damaged = damaged
        log_damage(self.path, damaged)


class SealedSegment:
    """A segment that is never written again. Thread-safe."""

    def __init__(
        self,
        path: Path,
        summary: Summary,
        *,
        files: FileSystem,
        pool: OpenSegments,
        index_interval_bytes: int,
        lookup: Lookup | None = None,
    ) -> None:
        self.path = path
        self.base_offset = summary.base_offset
        self.summary = summary
        self._files = files
        self._pool = pool
        self._index_interval_bytes = index_interval_bytes
        self._loading = threading.Lock()
        self._lookup = lookup
        self._retired = False
        self._damaged = lookup.damaged if lookup else ()
        if lookup is not None:
            pool.admit(self)

    @property
    def damaged(self) -> tuple[DamagedRange, ...]:
        return self._damaged

    def lookup(self) -> Lookup:
        """Opens the segment if need be. Raises OSError."""
        lookup = self._lookup
        if lookup is None:
            with self._loading:
                lookup = self._lookup or self._load()
                self._lookup = lookup
                self._pool.admit(self)
            self._let_go_if_retired()
        return lookup

    def release(self) -> None:
        """Let go of file and index. Whoever reads from the file keeps it open."""
        self._lookup = None

    def retire(self) -> None:
        """Let go of the file for good, for it is deleted, and never open its path again.

        A look-up through an old view raises FileNotFoundError.
        """
        self._retired = True
        self._pool.forget(self)

    def replace(self) -> None:
        """Retire; on return nobody is opening the path, which another segment takes over."""
        self.retire()
        with self._loading:
            pass

    def _let_go_if_retired(self) -> None:
        """Call it after each opening: a segment may be retired in the middle of it."""
        if self._retired:
            self._pool.forget(self)

    def move_to(self, path: Path) -> None:
        """Rename the segment and its index. Raises OSError."""
        with self._loading:
            if self._files.exists(index_path(self.path)):
                self._files.rename(index_path(self.path), index_path(path))
            self._files.rename(self.path, path)
            self.path = path

    def inspect(self, _limit: int, _end: int) -> None:
        """Scan the segment for damage and remember it. Raises OSError."""
        with self._loading:
            self._lookup = self._scanned(self._open())
        self._let_go_if_retired()

    def _open(self) -> File:
        if self._retired:
            raise _gone(self.path)
        return self._files.open_read_only(self.path)

    def _load(self) -> Lookup:
        file = self._open()
        index = None if self._damaged else self._load_index()
        return Lookup(file, index) if index is not None else self._scanned(file)

    def _load_index(self) -> Index | None:
        path = index_path(self.path)
        found = read_index(self._files, path)
        if found is None or found.index is None or found.summary != self.summary:
            logger.warning("The index %s is missing or damaged and is rebuilt.", path)
            return None
        return found.index

    def _scanned(self, file: File) -> Lookup:
        summary = self.summary
        metadata, result = scan_metadata(
            file,
            base_offset=self.base_offset,
            index_interval_bytes=self._index_interval_bytes,
            limit=summary.size_bytes,
        )
        damaged = damage_to_end(result, end=summary.end_offset, end_position=summary.size_bytes)
        damaged += tuple(damage for damage in self._damaged if damage.start >= summary.end_offset)
        if damaged != self._damaged:
            log_damage(self.path, damaged)
            self._damaged = damaged
        if not self._retired:
            save_index(self._files, self.path, metadata, damaged)
        return Lookup(file, metadata.index, damaged)


def _gone(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "Deleted or replaced", str(path))


class OpenSegments:
    """Bounds how many sealed segments are open, over all logs. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[SealedSegment, None] = {}  # in the order of opening

    def admit(self, segment: SealedSegment) -> None:
        with self._lock:
            self._open[segment] = None
            if len(self._open) <= self._limit:
                return
            evicted = next(iter(self._open))
            del self._open[evicted]
        evicted.release()

    def forget(self, segment: SealedSegment) -> None:
        with self._lock:
            self._open.pop(segment, None)
        segment.release()


Segment = ActiveSegment | SealedSegment


def create_segment(
    files: FileSystem, directory: Path, *, base_offset: int, index_interval_bytes: int
) -> ActiveSegment:
    """A new, empty segment; its directory entry is not synced yet. Raises OSError."""
    path = directory / names.segment(base_offset)
    metadata = SegmentMetadata(base_offset=base_offset, index_interval_bytes=index_interval_bytes)
    return ActiveSegment(path, files.open(path, create=True), metadata)


def delete_segment(files: FileSystem, segment_path: Path) -> None:
    """Rename, then remove, a segment's files; again after a failure or not. Raises OSError."""
    for path in (segment_path, index_path(segment_path)):
        doomed = path.with_name(names.deleted(path.name))
        if files.exists(path):
            files.rename(path, doomed)
        if files.exists(doomed):
            files.remove(doomed)
