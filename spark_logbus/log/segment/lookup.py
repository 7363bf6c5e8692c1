"""Finds record batches in one segment: by index to the neighbourhood, then header by header.

A walk trusts a header only if its base offset continues densely and its length stays within
bounds; anything else is damage (``DamageFoundError``), and the caller has the segment inspected.
Payloads are not read here: their checksum is the reader's to verify.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from spark_logbus.log.disk.filesystem import File
from spark_logbus.log.segment.index import Index
from spark_logbus.log.segment.scan import DamagedRange
from spark_logbus.record import format as fmt
from spark_logbus.record.walk import PAGE_BYTES


class DamageFoundError(Exception):
    """A walk met bytes that are not the expected record batch. Never leaves this package."""


class BatchPosition(NamedTuple):
    """The beginning of a record batch."""

    offset: int
    position: int


class BatchInfo(NamedTuple):
    """One record batch of a walk."""

    base_offset: int
    next_offset: int
    position: int
    next_position: int
    max_timestamp_us: int
    append_time_us: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def walk(file: File, start: BatchPosition, limit: int) -> Iterator[BatchInfo]:
    """Yields the record batches from ``start`` to the boundary ``limit``.

    Pages through the file as ``header_places`` does, but here: a fetch waits for these steps, and
    one generator in another would take an eighth more.
    """
    expected, position = start
    page, page_at = b"", position
    while position < limit:
        at = position - page_at
        if at + fmt.HEADER_SIZE > len(page):
            page, page_at, at = file.pread(min(PAGE_BYTES, limit - position), position), position, 0
            if len(page) < fmt.HEADER_SIZE:
                raise DamageFoundError
        fields = fmt.HEADER.unpack_from(page, at)
        size = fields[1] + fmt.LENGTH_FIELD_END
        if (
            fields[0] != expected
            or fields[4] != fmt.MAGIC_V1
            or size < fmt.HEADER_SIZE
            or size % fmt.ALIGNMENT
            or position + size > limit
            # Believed, it would pass for a record batch with the offsets of those after it.
            or (fields[9] != fields[8] - 1 and not fields[6] & fmt.HAS_OFFSET_DELTA)
        ):
            raise DamageFoundError
        next_offset = expected + fields[9] + 1
        yield BatchInfo(
            expected, next_offset, position, position + size, fields[11], fields[3], *fields[12:15]
        )
        expected, position = next_offset, position + size


@dataclass(frozen=True, slots=True)
class Lookup:
    """File, index and damaged ranges of a segment. Thread-safe.

    ``limit`` is always a record batch boundary that the caller knows to be written; bytes
    after it may still change.
    """

    file: File
    index: Index
    damaged: tuple[DamagedRange, ...] = ()

    def locate(self, offset: int, limit: int) -> BatchPosition:
        """Find the record batch that holds ``offset``, which must not be in a damaged range."""
        start = self._nearest(offset)
        if start.offset == offset:
            return start
        for step in walk(self.file, start, limit):
            if offset < step.next_offset:
                return BatchPosition(step.base_offset, step.position)
        raise DamageFoundError

    def position_from(self, offset: int, limit: int) -> int:
        """Position of the first record batch that begins at or after ``offset``, or ``limit``."""
        start = self._nearest(offset)
        if start.offset == offset:
            return start.position
        for step in walk(self.file, start, limit):
            if step.next_offset >= offset:
                return step.next_position
        return limit

    def slice_end(self, start: BatchPosition, *, limit: int, max_bytes: int) -> int:
        """Return the end of a slice from ``start``: the last boundary within ``max_bytes``.

        The slice holds one record batch at least, however large. ``limit`` must not lie after
        a damaged range (see ``limit_before_damage``).
        """
        target = start.position + max_bytes
        if limit <= target:
            return limit
        near = BatchPosition(*self.index.at_position(target))
        if near.position <= start.position:
            near = start
        end = near.position
        for step in walk(self.file, near, limit):
            if step.next_position > target and end > start.position:
                break
            end = step.next_position
            if end >= target:
                break
        return end

    def at_timestamp(self, timestamp_us: int, limit: int) -> int | None:
        """Base offset of the first record batch below ``limit`` that reaches the timestamp."""
        start = BatchPosition(*self.index.at_timestamp(timestamp_us))
        for damage in self.damaged:
            if start.position < damage.start_position:
                break
            if start.position < damage.end_position:
                start = BatchPosition(damage.end, damage.end_position)
        # The wanted record batch lies before the next index entry. A damaged range in between has
        # no entry in it, and the next entry is the record batch after it.
        for step in self.walk(start, limit):
            if step.max_timestamp_us >= timestamp_us:
                return step.base_offset
        return None

    def walk(self, start: BatchPosition, limit: int) -> Iterator[BatchInfo]:
        """Yields the record batches from ``start`` to the boundary ``limit``, and passes over
        damaged ranges."""
        while start.position < limit:
            stop = self.limit_before_damage(start.position, limit)
            yield from walk(self.file, start, stop)
            passed = next((each for each in self.damaged if each.start_position == stop), None)
            if passed is None:
                return
            start = BatchPosition(passed.end, passed.end_position)

    def damage_at(self, offset: int) -> DamagedRange | None:
        for damage in self.damaged:
            if damage.start <= offset < damage.end:
                return damage
        return None

    def limit_before_damage(self, position: int, limit: int) -> int:
        """``limit``, or the beginning of the first damaged range after ``position``."""
        for damage in self.damaged:
            if damage.start_position >= position:
                return min(limit, damage.start_position)
        return limit

    def _nearest(self, offset: int) -> BatchPosition:
        """Closest known record batch at or before ``offset``, with no damage in between."""
        start = BatchPosition(*self.index.at_offset(offset))
        for damage in self.damaged:
            if start.offset < damage.end <= offset:
                start = BatchPosition(damage.end, damage.end_position)
        return start
