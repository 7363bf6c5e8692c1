"""Inspects one segment: its record batches, and whether its index agrees with them. Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_logbus.errors import LogbusError
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import File, FileSystem
from spark_logbus.log.segment.index import Index, Summary
from spark_logbus.log.segment.index_file import IndexFile, index_path, read_index
from spark_logbus.log.segment.metadata import SegmentMetadata
from spark_logbus.log.segment.scan import DamagedRange, OnProgress, SegmentScan, ignore_progress
from spark_logbus.record import HEADER_SIZE, RecordBatchHeader, parse_header, read_headers, verify

_NO_ENTRIES: Final = 1 << 62  # an index interval that no segment reaches

PositionedHeader = tuple[int, RecordBatchHeader]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are no record batch of it, and the reason.

    Offsets ``[start, end)`` are lost. At the end of a segment their number is not known:
    ``end`` is ``start`` there.
    """

    start: int
    end: int
    position: int
    size_bytes: int
    reason: str

    @property
    def at_end(self) -> bool:
        return self.start == self.end


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """Findings about a segment. ``size_bytes`` is the file's size.

    ``damage`` lies before record batches that can be read, ``tail`` after the last of them.
    ``index_unusable`` is why the broker will rebuild the index, ``index_wrong`` what an index that
    the broker trusts says wrongly. ``index_outdated``: it is of when the segment was smaller.
    """

    base_offset: int
    end_offset: int
    record_batches: int
    records: int
    size_bytes: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    damage: tuple[Damage, ...]
    tail: Damage | None
    has_index: bool
    index_outdated: bool
    index_unusable: str | None
    index_wrong: str | None

    def index_state(self, *, active: bool) -> str:
        """Says in a few words how the index is; a broker keeps that of its active segment in
        memory, and what is on disk is of its last orderly stop."""
        if active and (not self.has_index or self.index_outdated):
            return "in memory"
        if self.tail is not None:
            return "not compared"
        return self.index_unusable or self.index_wrong or "ok"


@dataclass(frozen=True, slots=True)
class IndexReport:
    """An index file as far as it can be read, and why it cannot be trusted, if so. ``outdated``:
    its segment is the last of its log, and has grown since; the broker has the newer one."""

    summary: Summary | None
    index: Index | None
    problem: str | None
    outdated: bool = False


def inspect_segment(
    files: FileSystem,
    path: Path,
    *,
    base_offset: int,
    checksums: bool,
    on_progress: OnProgress = ignore_progress,
) -> SegmentReport:
    """Read a segment that begins at ``base_offset``. Raises OSError.

    Without ``checksums`` headers alone are read, and the first damage counts as the tail.
    ``on_progress`` gets the bytes of each record batch that can be read.
    """
    file = files.open_read_only(path)
    limit = file.size()
    index_file = read_index(files, index_path(path))
    comparison = _IndexComparison(index_file, base_offset)
    read = _scanned if checksums else _headers_only
    damage: list[Damage] = []
    record_batches = records = 0
    oldest: int | None = None
    for found in read(file, base_offset=base_offset, limit=limit):
        if isinstance(found, Damage):
            damage.append(found)
            continue
        position, header = found
        comparison.see(header, position)
        record_batches += 1
        records += header.record_count
        first = header.base_timestamp_us
        oldest = first if oldest is None else min(oldest, first)
        on_progress(header.size)
    metadata = comparison.metadata
    tail = damage.pop() if damage and damage[-1].at_end else None
    return SegmentReport(
        base_offset=base_offset,
        end_offset=metadata.end_offset,
        record_batches=record_batches,
        records=records,
        size_bytes=limit,
        min_timestamp_us=oldest,
        max_timestamp_us=metadata.max_timestamp_us if record_batches else None,
        damage=tuple(damage),
        tail=tail,
        has_index=index_file is not None,
        index_outdated=comparison.outdated(size_bytes=limit),
        index_unusable=comparison.unusable(size_bytes=limit),
        index_wrong=comparison.wrong(),
    )


def read_segment(file: File) -> Iterator[PositionedHeader | Damage]:
    """Position and header of each valid record batch, and the damage between, in order.

    Offsets begin where the first header says, else the file's name. What is appended meanwhile is
    not read. Raises OSError.
    """
    try:
        first = parse_header(file.pread(HEADER_SIZE, 0)).base_offset
    except LogbusError:
        first = names.parse_segment(file.path.name) or 0
    return _scanned(file, base_offset=first, limit=file.size())


def inspect_index(files: FileSystem, path: Path) -> IndexReport | None:
    """Read an index file and compare it with the headers of its segment.

    None when there is no such file. Raises OSError.
    """
    found = read_index(files, path)
    if found is None:
        return None
    segment = path.with_suffix(".log")
    base_offset = names.parse_segment(segment.name)
    if base_offset is None:
        unnamed = f"it is named {segment.stem}, which is no base offset"
        return IndexReport(found.summary, found.index, unnamed)
    outdated, problem = _compared(files, segment, base_offset, found)
    bases = (names.parse_segment(name) for name in files.names(segment.parent))
    if outdated and max(base for base in bases if base is not None) == base_offset:
        return IndexReport(found.summary, found.index, None, outdated=True)
    return IndexReport(found.summary, found.index, found.problem or problem)


def _compared(
    files: FileSystem, segment: Path, base_offset: int, index_file: IndexFile
) -> tuple[bool, str | None]:
    """Tells whether the index is of an earlier state of its segment, and what is wrong with it."""
    file = files.open_read_only(segment)
    size = file.size()
    comparison = _IndexComparison(index_file, base_offset)
    for position, header in read_headers(file.pread, size):
        comparison.see(header, position)
    problem = comparison.unusable(size_bytes=size) or comparison.wrong()
    return comparison.outdated(size_bytes=size), problem


def _headers_only(
    file: File, *, base_offset: int, limit: int
) -> Iterator[PositionedHeader | Damage]:
    end_offset, end_position = base_offset, 0
    for position, header in read_headers(file.pread, limit):
        if header.base_offset != end_offset:
            break
        end_offset, end_position = header.next_offset, position + header.size
        yield position, header
    if end_position < limit:
        yield _damage(file, DamagedRange(end_offset, end_offset, end_position, limit), limit)


def _scanned(file: File, *, base_offset: int, limit: int) -> Iterator[PositionedHeader | Damage]:
    scan = SegmentScan(file, base_offset=base_offset, limit=limit)
    reported = 0
    for position, header in scan:
        for damage in scan.damaged[reported:]:
            yield _damage(file, damage, limit)
        reported = len(scan.damaged)
        yield position, header
    end_offset, end_position = scan.end_offset, scan.end_position
    if end_position < limit:
        yield _damage(file, DamagedRange(end_offset, end_offset, end_position, limit), limit)


def _damage(file: File, lost: DamagedRange, limit: int) -> Damage:
    size_bytes = lost.end_position - lost.start_position
    reason = _problem_at(file, lost.start_position, limit=limit, expected_offset=lost.start)
    return Damage(lost.start, lost.end, lost.start_position, size_bytes, reason)


def _problem_at(file: File, position: int, *, limit: int, expected_offset: int) -> str:
    """The reason why no record batch begins there."""
    try:
        header = parse_header(file.pread(HEADER_SIZE, position))
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


class _IndexComparison:
    """Compares an index with the record batches of its segment as they go by. For one thread."""

    def __init__(self, index_file: IndexFile | None, base_offset: int) -> None:
        self._file = index_file
        self.metadata = SegmentMetadata(base_offset=base_offset, index_interval_bytes=_NO_ENTRIES)
        index = index_file.index if index_file is not None else None
        self._entries = index.entries() if index is not None else iter(())
        self._next = next(self._entries, None)
        self._problem: str | None = None

    def see(self, header: RecordBatchHeader, position: int) -> None:
        while self._next is not None and self._next[1] <= position:
            self._compare(self._next, header, position)
            self._next = next(self._entries, None)
        self.metadata.note(
            header,
            offset=header.base_offset,
            position=position,
            append_time_us=header.append_time_us,
        )

    def _compare(
        self, entry: tuple[int, int, int], header: RecordBatchHeader, position: int
    ) -> None:
        there = (header.base_offset, position, self.metadata.max_timestamp_us)
        if entry != there and self._problem is None:
            self._problem = (
                f"its entry for offset {entry[0]} at position {entry[1]} is wrong: offset "
                f"{header.base_offset} is at position {position}"
            )

    def unusable(self, *, size_bytes: int) -> str | None:
        if self._file is None:
            return "it is missing"
        summary = self._file.summary
        if self._file.problem is not None or summary is None:
            return self._file.problem
        if summary.size_bytes != size_bytes:
            return f"it is stale: of a segment of {summary.size_bytes} bytes, not {size_bytes}"
        return None

    def outdated(self, *, size_bytes: int) -> bool:
        """True if the index was right when the segment was smaller; to be asked once all record
        batches went by."""
        summary = None if self._file is None or self._file.problem else self._file.summary
        return (
            summary is not None
            and self._problem is None
            and summary.base_offset == self.metadata.base_offset
            and summary.size_bytes < size_bytes
            and summary.end_offset <= self.metadata.end_offset
        )

    def wrong(self) -> str | None:
        """Says what an index that the broker trusts has wrong; to be asked once all record batches
        went by."""
        if self._file is None or self._file.summary is None or self._problem is not None:
            return self._problem
        if self._next is not None and self._next[1]:
            return f"its entry for position {self._next[1]} lies behind the last record batch"
        if self._file.summary != self.metadata.summary():
            return "its summary disagrees with the record batches of the segment"
        return None
