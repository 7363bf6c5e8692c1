"""Record batches taken together, of which one lies under a right checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pyarrow as pa
import pytest

from spark_logbus.client.fetch.batches import decoded, received_run, walk
from spark_logbus.client.fetch.columns import FetchedColumns, take_columns
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import HEADER_SIZE, parse_header, stamp
from spark_logbus.record.format import NO_END
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP, encode
from tests.builders.arrow_batches import T0
from tests.builders.forged import body_start, reseal

COLUMNS = ("timestamp", "key", "value", "headers")
NAMES = [{"key": "name", "value": b"x"}]
BATCH = pa.record_batch(
    {
        "timestamp": pa.array([1, 2, 3], pa.int64()).cast(TIMESTAMP),
        "key": pa.array([b"k", None, b""], pa.binary()),
        "value": pa.array([b"one", b"two", None], pa.binary()),
        "headers": pa.array([NAMES, None, NAMES * 2], HEADERS),
    }
)
COUNTS, LIAR = (12, 20), 7  # pieces of so few are copied one by one, and of so many gathered
LONG = BATCH.take(pa.array([0, 1, 2] * 20))  # shorter ones are not compressed
NUMBERS = (0, 1, 7, 64, (1 << 31) - 1, -1, -(1 << 31))


def stored(liar: bytes, honest: bytes, count: int) -> memoryview:
    data = b""
    for number in range(count):
        one = bytearray(liar if number == LIAR else honest)
        base_offset = number * parse_header(one).record_count
        stamp(one, base_offset=base_offset, leader_epoch=0, append_time_us=0)
        data += one
    return memoryview(data)


def rows_of(arrow_batch: pa.RecordBatch) -> list[object]:
    """Returns rows with times as numbers: some are beyond what Python's dates can say."""
    columns = [
        column.view(pa.int64()) if column.type == TIMESTAMP else column
        for column in arrow_batch.columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def one_by_one(data: memoryview) -> tuple[list[object], str]:
    rows: list[object] = []
    for raw in walk(T0, data, position=0):
        try:
            found = decoded(T0, raw, start=0, end=NO_END)
        except CorruptRecordBatchError as error:
            return rows, str(error)
        assert found is not None
        rows += rows_of(found.arrow_batch)
    return rows, ""


def together(data: memoryview) -> tuple[list[object], str]:
    rows: list[object] = []
    run = received_run(T0, data, position=0)
    while run is not None:
        try:
            count, found = take_columns(
                T0, run, COLUMNS, start=0, end=NO_END, enough_rows=10_000, enough_bytes=1 << 20
            )
        except CorruptRecordBatchError as error:
            return rows, str(error)
        assert isinstance(found, FetchedColumns)
        rows += rows_of(pa.record_batch(dict(found.columns)))
        run = run.part(count, len(run)) if count < len(run) else None
    return rows, ""


@pytest.mark.parametrize("width", ["<i", "<q"])
def test_every_number_of_one_replaced(width: str) -> None:
    require_the_same_whatever_one_says(bytes(encode(BATCH)), width, NUMBERS)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_every_number_of_a_compressed_one_replaced(compression: Compression) -> None:
    """Lengths of buffers as they were, and what stands in their frames, too."""
    honest = bytes(encode(LONG, compression=compression))
    require_the_same_whatever_one_says(honest, "<q", (61, 1 << 40, -1))


def require_the_same_whatever_one_says(honest: bytes, width: str, numbers: Iterable[int]) -> None:
    """Requires what one by one makes of it, or its error: no crash, and no bytes but its own."""
    end = body_start(honest) + 160
    lies = 0
    for at in range(HEADER_SIZE, min(end, len(honest) - 8), struct.calcsize(width)):
        for number in numbers:
            liar = bytearray(honest)
            struct.pack_into(width, liar, at, number)
            for count in COUNTS:
                data = stored(bytes(reseal(liar)), honest, count)
                expected = one_by_one(data)
                assert together(data) == expected, (at, number, count)
                lies += bool(expected[1])
    assert lies > 50
