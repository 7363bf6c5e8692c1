"""Walks over record batches: those in a buffer, and the headers of those in a file.

Whatever goes through a file header by header pages with ``header_places``. Three walks stay by
themselves: a look-up in a segment reads a third of each header, in a third of the time
(``log.segment.lookup``); a scan goes on after damage (``log.segment.scan``); an append is refused
by its size before it is checksummed (``log.validate``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.record import format as fmt
from spark_logbus.record.header import (
    Buffer,
    RecordBatchHeader,
    parse_header,
    peek_size,
    verify_against,
)

# One page: reading it costs the same as reading the one header at its start.
PAGE_BYTES: Final = 4096


def split(data: Buffer, *, allow_tail: bool) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    """Walk a run of record batches, each with a view of its bytes.

    With ``allow_tail`` a record batch that is cut off at the end is left out silently (a fetch
    ends where its byte limit falls); otherwise it raises CorruptRecordBatchError. Raises
    CorruptRecordBatchError and UnsupportedVersionError at the first one that is damaged.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        size = peek_size(view, position)
        if size is None or position + size > len(view):
            if allow_tail:
                return
            raise CorruptRecordBatchError(
                f"The last record batch is cut off: {len(view) - position} bytes at "
                f"position {position}, expected {size if size is not None else 'a header'}."
            )
        header = parse_header(view, position)
        record_batch = view[position : position + size]
        verify_against(header, record_batch)
        yield header, record_batch
        position += size


def batch_bounds(data: memoryview) -> list[int]:
    """Positions in ``data`` where whole record batches begin, going by their lengths, and where the
    last one ends."""
    unpack = fmt.LENGTH.unpack_from
    position, last = 0, len(data) - fmt.HEADER_SIZE
    bounds = [0]
    while position <= last:
        size = unpack(data, position + fmt.LENGTH_AT)[0] + fmt.LENGTH_FIELD_END
        position += size
        if size < fmt.HEADER_SIZE or size % fmt.ALIGNMENT or position > len(data):
            break
        bounds.append(position)
    return bounds


def header_places(
    pread: Callable[[int, int], bytes],
    position: int,
    limit: int,
    *,
    least_bytes: int = fmt.HEADER_SIZE,
) -> Iterator[tuple[bytes, int, int]]:
    """Yields a page of a file, the place in it where a header is, and the header's position, from
    ``position`` to ``limit``.

    Each length says where the next header is, so the caller checks it before it goes on.
    ``pread(length, position)`` reads the file. With ``least_bytes``, so much from the header on is
    in the page, if that lies before ``limit``. Ends where less than a header is left.
    """
    unpack = fmt.LENGTH.unpack_from
    page, page_at = b"", position
    while position < limit:
        at = position - page_at
        if at + least_bytes > len(page):
            page, page_at, at = pread(min(PAGE_BYTES, limit - position), position), position, 0
            if len(page) < fmt.HEADER_SIZE:
                return
        yield page, at, position
        position += unpack(page, at + fmt.LENGTH_AT)[0] + fmt.LENGTH_FIELD_END


def read_headers(
    pread: Callable[[int, int], bytes], limit: int
) -> Iterator[tuple[int, RecordBatchHeader]]:
    """Yields position and header of record batch after record batch of a file, up to ``limit``
    bytes.

    Payloads are not read and checksums not verified. Ends where no header is, where offsets do not
    continue, or where a record batch is cut off: compare the last one's end with the size of the
    file.
    """
    expected = None
    for page, at, begin in header_places(pread, 0, limit):
        try:
            header = parse_header(page, at)
        except (CorruptRecordBatchError, UnsupportedVersionError):
            return
        if begin + header.size > limit or expected not in (None, header.base_offset):
            return
        yield begin, header
        expected = header.next_offset
