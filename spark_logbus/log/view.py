"""The segments and ends of a log at one moment, and look-ups in them for readers.

A ``LogView`` never changes; the log swaps in a new one. All look-ups stay below its high
watermark, which may lie in any of its segments: sealed ones are flushed as a whole, and may still
have to reach other replicas.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
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

    Pins the file: the bytes stay readable though retention deletes the segment meanwhile.
    """

    file: File
    position: int
    length: int
    bytes_after: int = 0  # of the same segment, that a larger read would have got too

    def read(self) -> bytes:
        """Reads all of the slice, where ``sendfile`` cannot be used. Raises OSError."""
        return self.file.pread(self.length, self.position)


class LogView(NamedTuple):
    """Segments and ends of a log at one moment. Immutable."""

    sealed: tuple[SealedSegment, ...]
    active: ActiveSegment
    base_offsets: tuple[int, ...]  # base offsets of the sealed segments and the active one
    max_timestamps_us: tuple[int, ...]  # the largest timestamp up to and with each sealed segment
    sealed_bytes: int
    log_start_offset: int
    high_watermark: int
    visible_position: int  # of the high watermark in its segment, unless that begins with it
    lost: tuple[LostOffsets, ...] = ()  # given up; each lies between two segments

    @classmethod
    def flushed(
        cls,
        sealed: tuple[SealedSegment, ...],
        active: ActiveSegment,
        *,
        log_start_offset: int,
        lost: tuple[LostOffsets, ...] = (),
    ) -> LogView:
        """View of a log that is on disk and visible up to the end of ``active``."""
        maxima = accumulate((segment.summary.max_timestamp_us for segment in sealed), max)
        end = active.metadata.end_offset
        return cls(
            sealed,
            active,
            base_offsets=(*(segment.base_offset for segment in sealed), active.base_offset),
            max_timestamps_us=tuple(maxima),
            sealed_bytes=sum(segment.summary.size_bytes for segment in sealed),
            log_start_offset=log_start_offset,
            high_watermark=end,
            visible_position=active.metadata.size_bytes,
            lost=tuple(each for each in lost if each.end > log_start_offset),
        )

    def with_segments(
        self, sealed: tuple[SealedSegment, ...], active: ActiveSegment, *, log_start_offset: int = 0
    ) -> LogView:
        """Returns this view with other segments, and with no earlier start; its ends stay."""
        start = max(self.log_start_offset, log_start_offset)
        view = LogView.flushed(sealed, active, log_start_offset=start, lost=self.lost)
        return view._replace(
            high_watermark=self.high_watermark,
            visible_position=self.visible_position,
        )

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (*self.sealed, self.active)

    def segment_of(self, offset: int) -> VisibleSegment:
        return self.visible_segment(bisect_right(self.base_offsets, offset) - 1)

    def visible_segment(self, number: int) -> VisibleSegment:
        """Returns the visible part of a segment that begins before the high watermark."""
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
        """Returns the range of lost offsets that holds ``offset``."""
        return next((each for each in self.lost if each.start <= offset < each.end), None)

    @property
    def visible_sealed(self) -> tuple[SealedSegment, ...]:
        """Sealed segments that lie before the high watermark as a whole."""
        return self.sealed[: bisect_right(self.base_offsets, self.high_watermark) - 1]

    def boundary_at(self, offset: int, limit: int) -> BatchPosition:
        """Start of the record batch that holds ``offset``.

        All of the active segment before position ``limit`` is written. Raises DamageFoundError,
        OSError.
        """
        number = bisect_right(self.base_offsets, offset) - 1
        if number < len(self.sealed):
            limit = self.sealed[number].summary.size_bytes
        return self.segments[number].lookup().locate(offset, limit)

    def last_epoch(self) -> int:
        """Leader epoch of the last record batch; -1 for an empty log, or one damaged there.

        Called by the writer, between two appends. Raises OSError.
        """
        segment: Segment = self.active
        if self.sealed and not self.active.metadata.size_bytes:
            segment = self.sealed[-1]
        lookup, summary = segment.lookup(), segment.summary
        last_offset = summary.end_offset - 1
        if last_offset < summary.base_offset or lookup.damage_at(last_offset) is not None:
            return -1
        try:
            position = lookup.locate(last_offset, summary.size_bytes).position
            return parse_header(lookup.file.pread(HEADER_SIZE, position)).leader_epoch
        except (DamageFoundError, CorruptRecordBatchError, UnsupportedVersionError):
            return -1

    def offset_at(self, timestamp_us: int) -> int | None:
        """Base offset of the first visible record batch with a record at or after the timestamp.

        Raises NewDamageError, OSError.
        """
        number = bisect_left(self.max_timestamps_us, timestamp_us)
        if self.base_offsets[number] >= self.high_watermark:
            return None
        if number == len(self.sealed) and self.active.metadata.max_timestamp_us < timestamp_us:
            return None
        visible = self.visible_segment(number)
        try:
            return visible.segment.lookup().at_timestamp(timestamp_us, visible.limit)
        except DamageFoundError:
            raise NewDamageError(visible) from None

    def split(self, start: int, end: int, target_bytes: int) -> tuple[list[int], int]:
        """Offsets that cut ``[start, end)`` about every ``target_bytes``, and its size in bytes.

        Both are as exact as the index: to one entry. Raises OSError.
        """
        start = max(start, self.log_start_offset)
        end = min(end, self.high_watermark)
        if start >= end:
            return [], 0
        cuts: list[int] = []
        total = since_cut = 0
        first = bisect_right(self.base_offsets, start) - 1
        for number in range(first, bisect_left(self.base_offsets, end)):
            visible = self.visible_segment(number)
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


class VisibleSegment(NamedTuple):
    """Visible part of one segment: up to offset ``end``, which begins at ``limit``."""

    segment: Segment
    end: int
    limit: int

    def read(self, offset: int, max_bytes: int, end: int | None) -> LogSlice:
        """Slice from the record batch that holds ``offset`` on.

        Raises KnownDamageError, NewDamageError, OSError.
        """
        lookup = self.segment.lookup()
        limit = self.limit
        if lookup.damaged and (damage := lookup.damage_at(offset)) is not None:
            raise KnownDamageError(damage, self.segment.path)
        try:
            start = lookup.locate(offset, limit)
            if lookup.damaged:
                limit = lookup.limit_before_damage(start.position, limit)
            if end is not None and end < self.end and lookup.damage_at(end) is None:
                limit = min(limit, lookup.position_from(end, self.limit))
            stop = lookup.slice_end(start, limit=limit, max_bytes=max_bytes)
        except DamageFoundError:
            raise NewDamageError(self) from None
        return LogSlice(lookup.file, start.position, stop - start.position, limit - stop)


class NewDamageError(Exception):
    """A walk met damage that is not known yet. Never leaves this package."""

    def __init__(self, visible: VisibleSegment) -> None:
        super().__init__(visible)
        self.visible = visible


class KnownDamageError(Exception):
    """The offset lies in a damaged range that is known. Never leaves this package."""

    def __init__(self, damage: DamagedRange, path: Path) -> None:
        super().__init__(damage, path)
        self.damage = damage
        self.path = path
