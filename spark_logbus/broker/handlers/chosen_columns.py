"""Record batches without the columns that a fetch does not want: as slices of the segment.

Only what stands before the columns is read, to know where each one lies; nothing is decoded. A
record batch that is small, of another layout or schema, or not sound goes out whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Final

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.log import LogSlice
from spark_logbus.protocol import ColumnChoice
from spark_logbus.record import RecordBatchHeader, parse_header
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import (
    ChunkError,
    Directory,
    body_start_of,
    chosen_chunks,
    read_directory,
)
from spark_logbus.record.walk import header_places

# Of the log, for each byte that a fetch may bring. Ever fewer columns of ever wider records come to
# ever smaller responses, which cost what they bring no more.
READ_AHEAD: Final = 16
_MOST_SLICES: Final = 512
# To find out where each one ends takes about 10 µs: so a fetch of small ones takes some 20 ms.
_MOST_RECORD_BATCHES: Final = 2_000


def chosen_slices(whole: LogSlice, choice: ColumnChoice, *, max_bytes: int) -> list[LogSlice]:
    """Cuts out what a fetch gets of ``whole``, from its beginning on: at most ``max_bytes``, or
    what is chosen of the first record batch if that is more. Raises OSError."""
    slices: list[LogSlice] = []
    length = 0
    for pieces in islice(_pieces(whole, choice), _MOST_RECORD_BATCHES):
        size = sum(stop - start for start, stop in pieces)
        if slices and (length + size > max_bytes or len(slices) >= _MOST_SLICES):
            break
        length += size
        for start, stop in pieces:
            if slices and slices[-1].position + slices[-1].length == start:
                start = slices.pop().position
            slices.append(LogSlice(whole.file, start, stop - start))
    return slices


def _pieces(whole: LogSlice, choice: ColumnChoice) -> Iterator[list[tuple[int, int]]]:
    """The places in the file of what is chosen of each record batch."""
    chunks_of = _Chunks(choice)
    stop, end = whole.position, whole.position + whole.length
    places = header_places(whole.file.pread, stop, end, least_bytes=fmt.CHUNKS_AT)
    for page, at, position in places:
        try:
            header = parse_header(page, at)
        except (CorruptRecordBatchError, UnsupportedVersionError):
            break  # the reader finds out what is wrong with it
        if position + header.size > end:
            break  # its length is damaged: the log has whole ones
        stop = position + header.size
        if _is_chosen(header, choice):
            yield _chosen(whole, header, position, page[at:], chunks_of)
        else:
            yield [(position, stop)]
    if stop < end:
        yield [(stop, end)]


def _is_chosen(header: RecordBatchHeader, choice: ColumnChoice) -> bool:
    return (
        header.layout == fmt.LAYOUT_COLUMNS
        and header.schema_id in choice.fields
        and header.size >= choice.min_bytes
    )


class _Chunks:
    """The chunks that one fetch chooses of record batches, found once for those that are alike: a
    client may name as many fields as a request has room for."""

    def __init__(self, choice: ColumnChoice) -> None:
        self._choice = choice
        self._found: dict[tuple[int, int, int], list[int]] = {}

    def of(self, header: RecordBatchHeader, count: int) -> list[int]:
        alike = (header.schema_id, header.attributes, count)
        if alike not in self._found:
            self._found[alike] = chosen_chunks(
                header.attributes,
                count,
                columns=self._choice.columns,
                fields=self._choice.fields[header.schema_id],
            )
        return self._found[alike]


def _chosen(
    whole: LogSlice,
    header: RecordBatchHeader,
    position: int,
    beginning: bytes,
    chunks_of: _Chunks,
) -> list[tuple[int, int]]:
    try:
        directory = _directory(whole, header, position, beginning)
    except ChunkError:
        return [(position, position + header.size)]
    bounds = list(pairwise(directory.bounds))
    places = [(0, directory.body_start)]
    places += [bounds[number] for number in chunks_of.of(header, len(directory))]
    return [(position + start, position + stop) for start, stop in places if start < stop]


def _directory(
    whole: LogSlice, header: RecordBatchHeader, position: int, beginning: bytes
) -> Directory:
    body_start = body_start_of(beginning)
    if body_start > len(beginning):
        size = min(body_start, header.size, fmt.MAX_BEGINNING_BYTES)
        beginning = whole.file.pread(size, position)
    return read_directory(beginning, header.size)
