"""Walks over record batches: those in a buffer, and the headers of those in a file.

Three walks stay by themselves: a look-up in a segment reads a third of each header, in a third of
the time (``log.segment.lookup``); a scan goes on after damage (``log.segment.scan``); an append is
refused by its size before it is checksummed (``log.validate``).
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
_PAGE_BYTES: Final = 4096


def split(
    data: Buffer, *, allow_tail: bool, verified: bool = True
) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    """Walk a run of record batches, each with a view of its bytes.

    With ``allow_tail`` a record batch that is cut off at the end is left out silently (a fetch
    ends where its byte limit falls); otherwise it raises CorruptRecordBatchError. Without
    ``verified`` padding and checksum are left for the caller to verify (``verify_against``).
    Raises CorruptRecordBatchError and UnsupportedVersionError at the first one that is damaged.
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
        if verified:
            verify_against(header, record_batch)
        yield header, record_batch
        position += size


def read_headers(
    pread: Callable[[int, int], bytes], limit: int
) -> Iterator[tuple[int, RecordBatchHeader]]:
    """Position and header of record batch after record batch of a file, up to ``limit`` bytes.

    ``pread(length, position)`` reads the file. Payloads are not read and checksums not verified.
    Ends where no header is, where offsets do not continue, or where a record batch is cut off:
    compare the last one's end with the size of the file.
    """
    position, expected = 0, None
    page, page_at = b"", 0
    while position + fmt.HEADER_SIZE <= limit:
        at = position - page_at
        if at + fmt.HEADER_SIZE > len(page):
            page, page_at, at = pread(_PAGE_BYTES, position), position, 0
        try:
            header = parse_header(page, at)
        except (CorruptRecordBatchError, UnsupportedVersionError):
            return
        if position + header.size > limit or expected not in (None, header.base_offset):
            return
        yield position, header
        position, expected = position + header.size, header.next_offset
