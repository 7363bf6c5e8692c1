"""Record batches of columns taken together: the same rows and errors as one by one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial

import pytest

from spark_logbus.client.fetch.batches import decoded, received_run, walk
from spark_logbus.client.fetch.columns import take_batch, take_columns
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import HEADER_SIZE
from spark_logbus.record.chunks import body_start_of
from spark_logbus.record.format import NO_END
from spark_logbus.topic_schemas import Encoding
from tests.builders.arrow_batches import T0
from tests.builders.typed import (
    FLIGHT,
    flights,
    reseal_columns,
    rows_of,
    run_of,
    typed_record_batch,
)

COUNT, LIAR, ROWS = 12, 7, 4
NUMBERS = (0, 1, 7, 64, (1 << 31) - 1, -1, -(1 << 31))

Found = tuple[list[object], str]


def reader(fields: Sequence[str] | None) -> ValueReader:
    return ValueReader(ValueSchemas("t", Encoding.COLUMNS, FLIGHT, {1: FLIGHT}), fields=fields)


def stored(*record_batches: bytes | bytearray | memoryview) -> memoryview:
    return run_of(list(map(bytes, record_batches))).data


def one_by_one(
    data: memoryview, values: ValueReader, *, start: int = 0, end: int = NO_END
) -> Found:
    rows: list[object] = []
    for raw in walk(T0, data, position=0):
        try:
            found = decoded(T0, raw, start=start, end=end, values=values)
        except CorruptRecordBatchError as error:
            return rows, str(error)
        rows += rows_of(found.arrow_batch["value"]) if found is not None else []
    return rows, ""


def together(data: memoryview, values: ValueReader, *, start: int = 0, end: int = NO_END) -> Found:
    rows: list[object] = []
    run = received_run(T0, data, position=0)
    while run is not None:
        try:
            count, found = take_columns(
                T0,
                run,
                ("value",),
                start=start,
                end=end,
                enough_rows=1_000,
                enough_bytes=1 << 20,
                values=values,
            )
        except CorruptRecordBatchError as error:
            return rows, str(error)
        rows += rows_of(found.columns["value"]) if found is not None else []
        run = run.part(count, len(run)) if count < len(run) else None
    return rows, ""


def as_batches(
    data: memoryview, values: ValueReader, *, start: int = 0, end: int = NO_END
) -> Found:
    rows: list[object] = []
    run = received_run(T0, data, position=0)
    while run is not None:
        try:
            count, found = take_batch(T0, run, start=start, end=end, values=values)
        except CorruptRecordBatchError as error:
            return rows, str(error)
        rows += rows_of(found.arrow_batch["value"]) if found is not None else []
        run = run.part(count, len(run)) if count < len(run) else None
    return rows, ""


def test_every_number_of_one_replaced() -> None:
    """The answer is what one by one makes of it, or its error: no crash, and no rows but its
    own."""
    honest = bytes(typed_record_batch([*flights(0, ROWS - 1), None], keys=[b"key"] * ROWS))
    values = reader(None)
    lies = 0
    for at in range(HEADER_SIZE, body_start_of(honest), 8):
        for number in NUMBERS:
            liar = bytearray(honest)
            struct.pack_into("<q", liar, at, number)
            parts = [reseal_columns(liar) if n == LIAR else honest for n in range(COUNT)]
            expected = one_by_one(stored(*parts), values)
            assert together(stored(*parts), values) == expected, (at, number)
            lies += bool(expected[1])
    assert lies > 50


@pytest.mark.parametrize("fields", [None, ("tail", "carrier"), ()], ids=str)
@pytest.mark.parametrize(("start", "end"), [(0, NO_END), (3, 21), (9, 10), (60, NO_END)])
@pytest.mark.parametrize("compression", list(Compression))
def test_a_range_of_many_small_record_batches(
    fields: tuple[str, ...] | None, start: int, end: int, compression: Compression
) -> None:
    encode = partial(typed_record_batch, compression=compression)
    parts = [encode([*flights(7 * number, 4 + number), None]) for number in range(COUNT)]
    parts += [encode(flights(0, 60)) for _ in range(COUNT)]
    data, values = stored(*parts), reader(fields)
    expected = one_by_one(data, values, start=start, end=end)
    assert expected[0]
    assert together(data, values, start=start, end=end) == expected
    assert as_batches(data, values, start=start, end=end) == expected


def test_damage_of_one_leaves_those_before_it() -> None:
    parts = [bytearray(typed_record_batch(flights(number, 5))) for number in range(COUNT)]
    parts[LIAR][-1] ^= 1
    rows, error = together(stored(*parts), reader(None))
    assert len(rows) == 5 * LIAR
    assert "[35, 40) are damaged" in error
