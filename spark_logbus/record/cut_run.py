"""Runs of record batches some of whose columns were left out on the way.

The lengths in their headers are those of the whole record batches; what came of one is found out
from its directory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.record import format as fmt
from spark_logbus.record.column_decoder import selected_size
from spark_logbus.record.column_layout import Selection
from spark_logbus.record.header import RecordBatchHeader, parse_header
from spark_logbus.record.run import HEADER_FIELDS, RecordBatchRun


def find_cut_run(
    data: memoryview, selection_of: Callable[[RecordBatchHeader], Selection | None]
) -> RecordBatchRun | None:
    """As ``run.find_run``, of data where each record batch that ``selection_of`` gives a selection
    for came with those columns only."""
    bounds, cut = [0], []
    headers: list[memoryview] = []
    position, expected = 0, None
    while position + fmt.HEADER_SIZE <= len(data):
        try:
            header = parse_header(data, position)
            if expected not in (None, header.base_offset):
                break
            size, is_cut = _size(header, data[position:], selection_of(header))
        except (CorruptRecordBatchError, UnsupportedVersionError):
            if not headers:
                raise
            break
        if position + size > len(data):
            break
        headers.append(data[position : position + fmt.HEADER_SIZE])
        cut.append(is_cut)
        position, expected = position + size, header.next_offset
        bounds.append(position)
    if not headers:
        return None
    fields = np.frombuffer(b"".join(headers), HEADER_FIELDS)
    return RecordBatchRun(data, np.array(bounds, np.int64), fields, np.array(cut))


def _size(
    header: RecordBatchHeader, data: memoryview, selection: Selection | None
) -> tuple[int, bool]:
    if selection is None:
        return header.size, False
    try:
        return selected_size(header, data, selection), True
    except CorruptRecordBatchError:
        return header.size, False  # so brokers have it
