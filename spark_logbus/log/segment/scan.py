"""Reads a whole segment file, verifies every record batch, and finds what is damaged.

Valid means: whole, right checksum, and the base offset follows densely on the record batch
before. The base offset, the length and the other stamped fields stand outside the checksum, so
density is what protects them.

After damage the scan looks for where valid record batches go on: first where the damaged one's
length says, then at every 8-byte boundary (record batches are multiples of 8 bytes long). Only a
record batch with a right checksum and a greater base offset counts, and only if the one after
it does not contradict that offset, which no checksum covers. A scan only reports; ``recovery``
decides what is cut and what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.log.disk.filesystem import File
from spark_logbus.record import HEADER_SIZE, RecordBatchHeader, parse_header, verify_against
from spark_logbus.record import format as fmt

# Larger than most record batches, and little for four logs at a time.
_WINDOW_BYTES: Final = 4 << 20
_MAGIC_AT: Final = fmt.CHECKED_PREFIX.start
_MAGIC_PATTERN: Final = bytes((fmt.MAGIC_V1, 0))  # magic and the reserved byte after it


class DamagedRange(NamedTuple):
    """Offsets ``[start, end)`` that are lost, and the bytes of the file where they were."""

    start: int
    end: int
    start_position: int
    end_position: int


OnProgress = Callable[[int], None]


def ignore_progress(_bytes_read: int) -> None:
    """Does nothing: for scans that nobody watches."""


class SegmentScan:
    """One pass over a segment file: yields position and header of each valid record batch.

    The file is read up to ``limit`` bytes, as the segment that starts at ``base_offset``. Record
    batches from ``end_offset`` on, where the next segment starts, are not counted. ``on_progress``
    gets the bytes that were read since its last call. Iterating raises OSError.

    ``damaged``, ``end_offset`` and ``end_position`` follow the pass: a damaged range is there
    before the record batch after it is yielded, and at the end nothing valid lies after
    ``end_position``.
    Used once, by one thread.
    """

    def __init__(
        self,
        file: File,
        *,
        base_offset: int,
        limit: int | None = None,
        end_offset: int | None = None,
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        self.file_bytes = file.size() if limit is None else min(limit, file.size())
        self.end_offset = base_offset
        self.end_position = 0
        self.damaged: list[DamagedRange] = []
        self._file = file
        self._stop_offset = end_offset
        self._on_progress = on_progress

    def __iter__(self) -> Iterator[tuple[int, RecordBatchHeader]]:
        window = _Window(self._file, self.file_bytes, self._on_progress)
        stop = self._stop_offset
        while self.end_position < self.file_bytes and (stop is None or self.end_offset < stop):
            position = self.end_position
            header = _verified(window, position)
            if header is not None and header.base_offset == self.end_offset:
                self.end_position = position + header.size
                self.end_offset = header.next_offset
                yield position, header
                continue
            found = _resume(window, position, self.end_offset)
            if found is None or (stop is not None and found[1] >= stop):
                return
            resumed_at, resumed_from = found
            damage = DamagedRange(self.end_offset, resumed_from, position, resumed_at)
            self.damaged.append(damage)
            self.end_position, self.end_offset = resumed_at, resumed_from


class _Window:
    """The bytes of a file through a buffer that moves forward. Not thread-safe."""

    __slots__ = ("_data", "_file", "_from", "_on_progress", "size")

    def __init__(self, file: File, size: int, on_progress: OnProgress) -> None:
        self._file = file
        self._data = b""
        self._from = 0
        self._on_progress = on_progress
        self.size = size

    def at(self, position: int, length: int) -> memoryview:
        """``length`` bytes at ``position``; fewer at the end of the file."""
        length = min(length, self.size - position)
        start = position - self._from
        if start < 0 or start + length > len(self._data):
            kept = self._data[start:] if start >= 0 else b""
            wanted = min(max(length, _WINDOW_BYTES), self.size - position) - len(kept)
            more = self._file.pread(wanted, position + len(kept))
            self._data = kept + more
            self._from, start = position, 0
            self._on_progress(len(more))
        return memoryview(self._data)[start : start + length]

    def block(self, position: int) -> bytes:
        """The next window's worth of bytes, past the buffer: searches do not disturb it."""
        return self._file.pread(min(_WINDOW_BYTES, self.size - position), position)


def verified_headers(file: File, size: int) -> Iterator[tuple[int, RecordBatchHeader]]:
    """Yields position and header of the record batches at the start of a file of ``size`` bytes,
    as long as they are whole, whatever their offsets. Raises OSError."""
    window = _Window(file, size, ignore_progress)
    position = 0
    while (header := _verified(window, position)) is not None:
        yield position, header
        position += header.size


def _verified(window: _Window, position: int) -> RecordBatchHeader | None:
    """The header of the record batch at ``position`` if that is whole and unharmed."""
    try:
        header = parse_header(window.at(position, HEADER_SIZE))
        if position + header.size > window.size:
            return None
        verify_against(header, window.at(position, header.size))
        return header
    except (CorruptRecordBatchError, UnsupportedVersionError):
        return None


def _resume(window: _Window, position: int, expected: int) -> tuple[int, int] | None:
    """Position and base offset of the first valid record batch after damage, if there is one."""
    prefix = window.at(position, fmt.LENGTH_FIELD_END)
    if len(prefix) == fmt.LENGTH_FIELD_END:
        candidate = position + fmt.SIZE_PREFIX.unpack(prefix)[1] + fmt.LENGTH_FIELD_END
        if candidate < window.size and candidate % fmt.ALIGNMENT == 0:
            header = _resumes(window, candidate, expected)
            if header is not None:
                return candidate, header.base_offset
    start = position + fmt.ALIGNMENT
    while start + HEADER_SIZE <= window.size:
        block = window.block(start)
        found = _search(window, block, start, expected)
        if found is not None:
            return found
        # The last bytes may be the beginning of a header: they lead the next block.
        start += max(len(block) - HEADER_SIZE, fmt.ALIGNMENT) // fmt.ALIGNMENT * fmt.ALIGNMENT
    return None


def _resumes(window: _Window, position: int, expected: int) -> RecordBatchHeader | None:
    """The header of the record batch at ``position`` if valid record batches go on there."""
    header = _verified(window, position)
    if header is None or header.base_offset <= expected:
        return None
    end = position + header.size
    following = _verified(window, end) if end < window.size else None
    if following is not None and expected < following.base_offset < header.next_offset:
        return None
    return header


def _search(
    window: _Window, block: bytes, block_position: int, expected: int
) -> tuple[int, int] | None:
    """Look for a valid record batch that starts within ``block``, which is 8-byte aligned."""
    last = len(block) - HEADER_SIZE + _MAGIC_AT
    at = block.find(_MAGIC_PATTERN, _MAGIC_AT)
    while 0 <= at <= last:
        if at % fmt.ALIGNMENT == _MAGIC_AT % fmt.ALIGNMENT:
            start = at - _MAGIC_AT
            base_offset, length = fmt.SIZE_PREFIX.unpack_from(block, start)
            end = block_position + start + length + fmt.LENGTH_FIELD_END
            if base_offset > expected and end <= window.size:
                header = _resumes(window, block_position + start, expected)
                if header is not None:
                    return block_position + start, base_offset
        at = block.find(_MAGIC_PATTERN, at + 1)
    return None
