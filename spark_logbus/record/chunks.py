"""Payload layout 1: the values' fields as columns, each of which can be sent and verified alone.

Without Arrow: this is all that the log and the broker need of it. After the header::

    byte 80       84          88                                        body_start
         +--------+-----------+--------+--------+-----+-----------------+---------+---------+--
         | column | body_start| length | crc32c | ... | Arrow metadata  | chunk 0 | chunk 1 | ...
         | count  |           | chunk 0| chunk 0|     | of all columns  |         |         |
         | u32    | u32       | u32    | u32    |     |                 |         |         |
         +--------+-----------+--------+--------+-----+-----------------+---------+---------+--

Metadata and chunks together are one Arrow message, as they stand; a chunk is all that the message
holds of one column, a multiple of 8 bytes. The columns are those of the record (timestamp, then
key, headers, offset_delta and tombstone where the attributes say so), then the fields of the value.
The header's checksum covers everything up to ``body_start``, a chunk's its bytes: so whoever has
got the beginning and some of the chunks can verify all that it has got.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from crc32c import crc32c

from spark_logbus.record import format as fmt

Buffer = bytes | bytearray | memoryview

#: The columns of a record beside its value, in their order, and the attribute that says that one
#: is there; 0 if it always is.
RECORD_COLUMNS: Final = (
    ("timestamp", 0),
    ("key", fmt.HAS_KEY),
    ("headers", fmt.HAS_HEADERS),
    ("offset_delta", fmt.HAS_OFFSET_DELTA),
    ("tombstone", fmt.HAS_TOMBSTONES),
)
#: Those without which no record can be told from another, or from none.
_ALWAYS_CHOSEN: Final = ("offset_delta", "tombstone")


class ChunkError(ValueError):
    """The record batch has no such chunks."""


@dataclass(frozen=True, slots=True)
class Directory:
    """The chunks of a record batch of layout 1. Sound: they fill it, one after the other."""

    body_start: int
    """Where the first chunk begins, from the beginning of the record batch."""

    bounds: tuple[int, ...]
    """Where each chunk begins, from the beginning of the record batch, and where the last ends."""

    checksums: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.checksums)

    def length(self, number: int) -> int:
        """Bytes of one chunk."""
        return self.bounds[number + 1] - self.bounds[number]


def body_start_of(beginning: Buffer) -> int:
    """Position of the chunks in a record batch, as it says itself. Raises ChunkError when it is cut
    off before it says so."""
    if len(beginning) < fmt.CHUNKS_AT:
        raise ChunkError(f"it is cut off before its columns, {len(beginning)} bytes came")
    return int(fmt.DIRECTORY.unpack_from(beginning, fmt.DIRECTORY_AT)[1])


def read_directory(beginning: Buffer, size: int) -> Directory:
    """The directory of a record batch of ``size`` bytes, of which no more need be there than
    stands before the chunks. Raises ChunkError when it is not sound.
    """
    if len(beginning) < fmt.CHUNKS_AT:
        raise ChunkError(f"only {len(beginning)} bytes of it came")
    body_start = body_start_of(beginning)
    count = int(fmt.DIRECTORY.unpack_from(beginning, fmt.DIRECTORY_AT)[0])
    end = fmt.CHUNKS_AT + count * fmt.CHUNK.size
    if not 1 <= count <= fmt.MAX_CHUNKS or not end <= body_start <= min(
        size, fmt.MAX_BEGINNING_BYTES
    ):
        raise ChunkError(f"it has {count} columns from byte {body_start} on, of {size} bytes")
    if body_start > len(beginning) or body_start % fmt.ALIGNMENT:
        raise ChunkError(f"its columns begin at byte {body_start}, of which {len(beginning)} came")
    entries = memoryview(beginning)[fmt.CHUNKS_AT : end]
    lengths, checksums = zip(*fmt.CHUNK.iter_unpack(entries), strict=True)
    bounds = tuple(accumulate(lengths, initial=body_start))
    if bounds[-1] != size or any(length % fmt.ALIGNMENT for length in lengths):
        raise ChunkError(f"its columns end at byte {bounds[-1]}, of {size} bytes")
    return Directory(body_start, bounds, checksums)


def check_chunk(directory: Directory, number: int, chunk: Buffer) -> None:
    """Raises ChunkError when ``chunk`` is not what was written."""
    actual, expected = int(crc32c(chunk)), directory.checksums[number]
    if actual != expected:
        raise ChunkError(f"its column {number} has checksum {actual:#010x}, not {expected:#010x}")


def record_columns(attributes: int) -> list[str]:
    """The names of the columns beside the value's, in order."""
    return [name for name, bit in RECORD_COLUMNS if not bit or attributes & bit]


def chosen_chunks(
    attributes: int, count: int, *, columns: Collection[str], fields: Sequence[int] | None
) -> list[int]:
    """The numbers of the chunks, of ``count``, that hold those ``columns`` beside the value and
    those ``fields`` of the value, by their places, or all of them; in order.

    What a record batch needs to be understood is always among them. Columns and fields that there
    are not are left out.
    """
    own = record_columns(attributes)
    chosen = [
        number
        for number, name in enumerate(own)
        if number < count and (name in columns or name in _ALWAYS_CHOSEN)
    ]
    places = range(count - len(own)) if fields is None else fields
    return chosen + sorted({len(own) + at for at in places if 0 <= at < count - len(own)})
