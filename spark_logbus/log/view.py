"""The segments and ends of a log at one moment, and look-ups in them for readers.

A ``LogView`` never changes; the log swaps in a new one. All look-ups stay below its high
watermark, which may lie in any of its segments: sealed ones are flushed as a whole, and may still
have to reach other replicas.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.log.disk.filesystem import File
from spark_logbus.log.segment.lookup import BatchPosition, DamageFoundError
from spark_logbus.log.segment.scan import DamagedRange
from spark_logbus.log.segment.segment import ActiveSegment, SealedSegment, Segment
from spark_logbus.model import LostOffsets
from spark_logbus.record import HEADER_SIZE, parse_header


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Whole record batches of one segment file.

    It pins the file: the bytes stay readable though retention deletes the segment meanwhile.
    """

    file: File
    position: int
    length: int
    bytes_after: int = 0  # of the same segment, that a larger read would have got too

    def read(self) -> bytes:
        """All of the slice, for those who cannot ``sendfile``. Raises OSError."""
        return self.file.pread(self.length, self.position)


class LogView(NamedTuple):
    sealed: tuple[SealedSegment, ...]
    active: ActiveSegment
    base_offsets: tuple[int, ...]  # base offsets of the sealed segments and the active one
    max_timestamps_us: tuple[int, ...]  # the largest timestamp up to and with each sealed segment
    sealed_bytes: int
    log_start_offset: int
    flushed_end: int  # all before it is on disk
    high_watermark: int
    visible_position: int  # of the high watermark in its segment, unless that begins with it
    lost: tuple[LostOffsets, ...] = ()  # given up; each lies between two segments

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (*self.sealed, self.active)

    def segment_of(self, offset: int) -> VisibleSegment:
        return self.visible_segment(bisect_right(self.base_offsets, offset) - 1)

    def visible_segment(self, number: int) -> VisibleSegment:
        """For a segment that begins before the high watermark."""
        if number == len(self.sealed):
            return VisibleSegment(self.active, self.high_watermark, self.visible_position)
        segment, end = self.sealed[number], self.base_offsets[number + 1]
        if end > self.high_watermark:
            return VisibleSegment(segment, self.high_watermark, self.visible_position)
        return VisibleSegment(segment, end, segment.summary.size_bytes)

    @property
    def sealed_ends(self) -> tuple[int, ...]:
        """End of each sealed segment that is whole: the start of the next one, or where what was
        lost between them begins."""
        lost = {each.end: each.start for each in self.lost}
        return tuple(lost.get(base, base) for base in self.base_offsets[1:])

    def lost_at(self, offset: int) -> LostOffsets | None:
        """The range of lost offsets that holds ``offset``."""
        return next((each for each in self.lost if each.start <= offset < each.end), None)

    @property
    def visible_sealed(self) -> tuple[SealedSegment, ...]:
        """The sealed segments that lie before the high watermark as a whole."""
        return self.sealed[: bisect_right(self.base_offsets, self.high_watermark) - 1]


class VisibleSegment(NamedTuple):
    """The visible part of one segment: up to offset ``end``, which begins at ``limit``."""

    segment: Segment
    end: int
    limit: int


class DamagedError(Exception):
    """A walk met damage that is not known yet. Never leaves this package."""

    def __init__(self, visible: VisibleSegment) -> None:
        super().__init__(visible)
        self.visible = visible


class InHoleError(Exception):
    """The offset lies in a damaged range that is known. Never leaves this package."""

    def __init__(self, hole: DamagedRange, path: Path) -> None:
        super().__init__(hole, path)
        self.hole = hole
        self.path = path


def make_view(
    sealed: tuple[SealedSegment, ...],
    active: ActiveSegment,
    *,
    log_start_offset: int,
    flushed_end: int,
    high_watermark: int,
    visible_position: int,
    lost: tuple[LostOffsets, ...] = (),
) -> LogView:
    max_timestamps_us: list[int] = []
    for segment in sealed:
        newest = segment.summary.max_timestamp_us
        max_timestamps_us.append(
            max(newest, max_timestamps_us[-1]) if max_timestamps_us else newest
        )
    base_offsets = (*(segment.base_offset for segment in sealed), active.base_offset)
    sealed_bytes = sum(segment.summary.size_bytes for segment in sealed)
    return LogView(
        sealed, active, base_offsets, tuple(max_timestamps_us), sealed_bytes,
        log_start_offset, flushed_end, high_watermark, visible_position,
        tuple(each for each in lost if each.end > log_start_offset),
    )  # fmt: skip


def boundary_at(view: LogView, offset: int, limit: int) -> BatchPosition:
    """The start of the record batch that holds ``offset``.

    All of the active segment before position ``limit`` is written. Raises DamageFoundError,
    OSError.
    """
    number = bisect_right(view.base_offsets, offset) - 1
    sealed = number < len(view.sealed)
    lookup = view.segments[number].lookup()
    return lookup.locate(offset, view.sealed[number].summary.size_bytes if sealed else limit)


def last_epoch(view: LogView) -> int:
    """Leader epoch of the last record batch; -1 for an empty log, or one damaged there.

    For the writer, between two appends. Raises OSError.
    """
    segment: Segment = view.active
    if view.sealed and not view.active.contents.size_bytes:
        segment = view.sealed[-1]
    lookup, summary = segment.lookup(), segment.summary
    last_offset = summary.end_offset - 1
    if last_offset < summary.base_offset or lookup.hole_at(last_offset) is not None:
        return -1
    try:
        position = lookup.locate(last_offset, summary.size_bytes).position
        return parse_header(lookup.file.pread(HEADER_SIZE, position)).leader_epoch
    except (DamageFoundError, CorruptRecordBatchError, UnsupportedVersionError):
        return -1


def read(visible: VisibleSegment, offset: int, max_bytes: int, end: int | None) -> LogSlice:
    """The slice from the record batch that holds ``offset`` on.

    Raises InHoleError, DamagedError, OSError.
    """
    lookup = visible.segment.lookup()
    limit = visible.limit
    if lookup.holes and (hole := lookup.hole_at(offset)) is not None:
        raise InHoleError(hole, visible.segment.path)
    try:
        start = lookup.locate(offset, limit)
        if lookup.holes:
            limit = lookup.limit_before_hole(start.position, limit)
        if end is not None and end < visible.end and lookup.hole_at(end) is None:
            limit = min(limit, lookup.position_from(end, visible.limit))
        stop = lookup.slice_end(start, limit=limit, max_bytes=max_bytes)
    except DamageFoundError:
        raise DamagedError(visible) from None
    return LogSlice(lookup.file, start.position, stop - start.position, bytes_after=limit - stop)


def offset_at(view: LogView, timestamp_us: int) -> int | None:
    """Base offset of the first visible record batch with a record at or after the timestamp.

    Raises DamagedError, OSError.
    """
    number = bisect_left(view.max_timestamps_us, timestamp_us)
    if view.base_offsets[number] >= view.high_watermark:
        return None
    if number == len(view.sealed) and view.active.contents.max_timestamp_us < timestamp_us:
        return None
    visible = view.visible_segment(number)
    try:
        return visible.segment.lookup().at_timestamp(timestamp_us, visible.limit)
    except DamageFoundError:
        raise DamagedError(visible) from None


def split(view: LogView, start: int, end: int, target_bytes: int) -> tuple[list[int], int]:
    """Offsets that cut ``[start, end)`` about every ``target_bytes``, and its size in bytes.

    Both are as exact as the index: to one entry. Raises OSError.
    """
    start = max(start, view.log_start_offset)
    end = min(end, view.high_watermark)
    if start >= end:
        return [], 0
    cuts: list[int] = []
    total = since_cut = 0
    first = bisect_right(view.base_offsets, start) - 1
    for number in range(first, bisect_left(view.base_offsets, end)):
        visible = view.visible_segment(number)
        index = visible.segment.lookup().index
        begin = index.at_offset(start)[1] if number == first else 0
        after = index.from_offset(end)
        stop = min(visible.limit, after[1]) if after else visible.limit
        if since_cut >= target_bytes:
            cuts.append(visible.segment.base_offset)
            since_cut = 0
        last_cut = begin - since_cut  # as if the segments were one file
        while (entry := index.from_position(last_cut + target_bytes)) and entry[1] < stop:
            cuts.append(entry[0])
            last_cut = entry[1]
        since_cut = stop - last_cut
        total += stop - begin
    return cuts, total
