"""Runs of record batches some of whose columns were left out on the way.

The lengths in their headers are those of the whole record batches; what came of one is found out
from its directory.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.record import format as fmt
from spark_logbus.record.columns.decoder import selected_size
from spark_logbus.record.columns.layout import ColumnSelection
from spark_logbus.record.header import RecordBatchHeader, parse_header
from spark_logbus.record.run import RecordBatchRun, sound_run


def find_cut_run(
    data: memoryview,
    selection_of: Callable[[RecordBatchHeader], ColumnSelection | None],
    *,
    least_bytes: int,
) -> RecordBatchRun | None:
    """Does what ``run.find_run`` does, where some record batches came with some columns only.

    They are those for which ``selection_of`` gives a selection; none is below ``least_bytes``.
    """
    unpack = fmt.LENGTH.unpack_from
    position, last = 0, len(data) - fmt.HEADER_SIZE
    bounds, cut = [0], []
    while position <= last:
        size = unpack(data, position + fmt.LENGTH_AT)[0] + fmt.LENGTH_FIELD_END
        if size < fmt.HEADER_SIZE or size % fmt.ALIGNMENT:
            break
        is_cut = False
        if size >= least_bytes:
            try:
                header = parse_header(data, position)
            except (CorruptRecordBatchError, UnsupportedVersionError):
                break
            size, is_cut = _size(header, data[position:], selection_of(header))
        position += size
        if position > len(data):
            break
        bounds.append(position)
        cut.append(is_cut)
    if cut:
        return sound_run(data, bounds, cut)
    if len(data) >= fmt.HEADER_SIZE:
        parse_header(data)  # raises if it is damaged
    return None


def _size(
    header: RecordBatchHeader, data: memoryview, selection: ColumnSelection | None
) -> tuple[int, bool]:
    if selection is None:
        return header.size, False
    try:
        return selected_size(header, data, selection), True
    except CorruptRecordBatchError:
        return header.size, False  # so brokers have it
