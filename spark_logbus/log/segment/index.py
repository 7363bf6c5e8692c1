"""The index of one segment: sparse entries from offset and timestamp to position.

In memory three arrays of 64-bit numbers, looked up by bisection. On disk one file, written as a
whole when its segment is sealed or the broker stops, and checked as a whole when it is loaded
(see ``docs/formats/index.md``). It is never synced: an index that a crash lost or tore fails its
checksum and is rebuilt from the segment. The active segment's index exists in memory only.

An entry belongs to one record batch. Its timestamp is the largest in the segment *before* that
record batch, so the column rises, and the first record batch with a timestamp at or after ``t``
lies after the last entry whose column is below ``t``, and before the next entry.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

MAGIC: Final = b"LBIX"
VERSION: Final = 1
NO_TIMESTAMP: Final = -(1 << 63)  # before every timestamp; only ever compared with

# magic, version, reserved, entry count, checksum of the entries, then the summary's six
# numbers; the checksum of all that follows.
_HEADER: Final = struct.Struct("<4sHHIIqqqqqq")
_HEADER_CHECKSUM: Final = struct.Struct("<II")
HEADER_SIZE: Final = _HEADER.size + _HEADER_CHECKSUM.size
ENTRY_SIZE: Final = 24

# 6 MiB in memory: one entry every 4 KiB of a 1 GiB segment. A full index rolls its segment.
MAX_ENTRIES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Summary:
    """Facts of a segment as a whole, as its index file holds them.

    ``size_bytes`` is where the last valid record batch ends; a file of another size has been
    written to since, so its index is stale.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_us: int
    first_append_us: int
    last_append_us: int

    def is_of(self, *, base_offset: int, end_offset: int, size_bytes: int) -> bool:
        """True for the summary of such a segment; the index of another one is stale."""
        there = (self.base_offset, self.end_offset, self.size_bytes)
        return there == (base_offset, end_offset, size_bytes)


class Index:
    """Entries of one segment. One thread adds, any number look up without a lock.

    ``add`` extends the offsets last and look-ups bound themselves by the offsets' length, so
    they never see a half-added entry.
    """

    __slots__ = ("_maxima", "_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._maxima = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def full(self) -> bool:
        return len(self._offsets) >= MAX_ENTRIES

    def add(self, *, offset: int, position: int, max_timestamp_before_us: int) -> None:
        self._maxima.append(max_timestamp_before_us)
        self._positions.append(position)
        self._offsets.append(offset)

    def entry(self, number: int) -> tuple[int, int]:
        """Offset and position of an entry."""
        return self._offsets[number], self._positions[number]

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """Offset, position and the largest timestamp before it, of all entries."""
        return zip(self._offsets, self._positions, self._maxima, strict=True)

    def at_offset(self, offset: int) -> tuple[int, int]:
        """The last entry at or before ``offset``; there must be one."""
        number = bisect_right(self._offsets, offset) - 1
        return self._offsets[number], self._positions[number]

    def at_position(self, position: int) -> tuple[int, int]:
        """The last entry at or before ``position``; there must be one."""
        number = bisect_right(self._positions, position, 0, len(self._offsets)) - 1
        return self._offsets[number], self._positions[number]

    def from_offset(self, offset: int) -> tuple[int, int] | None:
        """The first entry at or after ``offset``."""
        number = bisect_left(self._offsets, offset)
        return self.entry(number) if number < len(self._offsets) else None

    def from_position(self, position: int) -> tuple[int, int] | None:
        """The first entry at or after ``position``."""
        count = len(self._offsets)
        number = bisect_left(self._positions, position, 0, count)
        return self.entry(number) if number < count else None

    def at_timestamp(self, timestamp_us: int) -> tuple[int, int]:
        """The entry from which to walk to the first timestamp at or after ``timestamp_us``."""
        number = max(bisect_left(self._maxima, timestamp_us, 0, len(self._offsets)) - 1, 0)
        return self._offsets[number], self._positions[number]

    def before(self, position: int) -> tuple[Index, int]:
        """Returns the entries before ``position``, and the first, and the largest timestamp before
        the last of them."""
        count = max(bisect_left(self._positions, position, 0, len(self._offsets)), 1)
        index = Index()
        index._offsets, index._positions = self._offsets[:count], self._positions[:count]
        index._maxima = self._maxima[:count]
        return index, index._maxima[-1]

    def encode(self, summary: Summary) -> bytes:
        """The index file's content."""
        entries = array("q", bytes(ENTRY_SIZE * len(self._offsets)))
        entries[0::3] = self._offsets
        entries[1::3] = self._positions
        entries[2::3] = self._maxima
        if sys.byteorder == "big":
            entries.byteswap()
        body = entries.tobytes()
        header = _HEADER.pack(
            MAGIC, VERSION, 0, len(self._offsets), crc32c(body),
            summary.base_offset, summary.end_offset, summary.size_bytes,
            summary.max_timestamp_us, summary.first_append_us, summary.last_append_us,
        )  # fmt: skip
        return header + _HEADER_CHECKSUM.pack(crc32c(header), 0) + body

    @classmethod
    def decode(cls, data: bytes, summary: Summary) -> Index | None:
        """The index in an index file's content; None when damaged or of another state."""
        if decode_summary(data) != summary:
            return None
        fields = _HEADER.unpack_from(data)
        count, checksum = fields[3], fields[4]
        body = memoryview(data)[HEADER_SIZE:]
        if count < 1 or len(body) != count * ENTRY_SIZE or crc32c(body) != checksum:
            return None
        entries = array("q")
        entries.frombytes(body)
        if sys.byteorder == "big":
            entries.byteswap()
        index = cls()
        index._offsets, index._positions = entries[0::3], entries[1::3]
        index._maxima = entries[2::3]
        return index


def decode_summary(data: bytes) -> Summary | None:
    """The summary in the first ``HEADER_SIZE`` bytes of an index file; None when damaged."""
    if len(data) < HEADER_SIZE:
        return None
    checksum, reserved = _HEADER_CHECKSUM.unpack_from(data, _HEADER.size)
    if crc32c(memoryview(data)[: _HEADER.size]) != checksum or reserved:
        return None
    fields = _HEADER.unpack_from(data)
    if fields[0] != MAGIC or fields[1] != VERSION or fields[2]:
        return None
    return Summary(*fields[5:])
