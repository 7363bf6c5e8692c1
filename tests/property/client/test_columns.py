"""Record batches decoded together are what they are one by one, damage included."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from spark_logbus.client.fetch.batches import EncodedBatch, decoded, received_run
from spark_logbus.client.fetch.columns import take_batch, take_columns
from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.model import Compression, TimestampType, TopicPartition
from spark_logbus.record import RecordBatchHeader, parse_header, peek_size, split, stamp
from spark_logbus.record.rows.arrow import MIN_RECORDS_TO_COMPRESS, encode, payload_schema
from tests.builders.forged import reseal
from tests.property.examples import examples
from tests.property.record.strategies import build, record_lists

DEFAULT = settings(max_examples=examples(150))
TP = TopicPartition("t", 3)
FIRST_OFFSET = 1_000
COLUMNS = ("timestamp", "key", "value", "headers")


class Row(NamedTuple):
    offset: int
    timestamp_type: TimestampType
    timestamp: Any
    key: bytes | None
    value: bytes | None
    headers: Any


class Answer(NamedTuple):
    rows: list[Row]
    damage: str | None


@st.composite
def record_batch(draw: st.DrawFn, base_offset: int) -> tuple[bytes, int]:
    """Draws a record batch as a leader stored it, and the offset after it."""
    arrow_batch = build(draw(record_lists(max_size=3)))
    if draw(st.booleans()):  # shorter ones are not compressed
        copies = -(-MIN_RECORDS_TO_COMPRESS // arrow_batch.num_rows)
        arrow_batch = arrow_batch.take(pa.array([*range(arrow_batch.num_rows)] * copies))
    count = arrow_batch.num_rows
    last_delta = None
    if draw(st.integers(0, 3)) == 0:  # as compaction leaves it
        steps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
        deltas = pa.array([sum(steps[: number + 1]) - 1 for number in range(count)], pa.int32())
        names = [*arrow_batch.schema.names, "offset_delta"]
        schema = payload_schema(
            has_key="key" in names, has_headers="headers" in names, has_offset_delta=True
        )
        arrow_batch = pa.RecordBatch.from_arrays([*arrow_batch.columns, deltas], schema=schema)
        last_delta = deltas[-1].as_py() + draw(st.integers(0, 3))
    encoded = encode(
        arrow_batch,
        compression=draw(st.sampled_from([Compression.NONE, *Compression])),
        timestamp_type=draw(st.sampled_from([TimestampType.CREATE_TIME, *TimestampType])),
        last_offset_delta=last_delta,
        control=draw(st.integers(0, 15)) == 0,
    )
    stamp(encoded, base_offset=base_offset, leader_epoch=1, append_time_us=7)
    return bytes(encoded), base_offset + (count if last_delta is None else last_delta + 1)


@st.composite
def stored(draw: st.DrawFn) -> tuple[bytes, int]:
    """Record batches that follow each other, of which some are alike, and the offset after them."""
    data, offset = b"", FIRST_OFFSET
    for _ in range(draw(st.integers(1, 4))):
        one, after = draw(record_batch(offset))
        for _ in range(draw(st.sampled_from([1, 2, 12, 20]))):
            copy = bytearray(one)
            stamp(copy, base_offset=offset, leader_epoch=1, append_time_us=7)
            data += copy
            offset += after - int.from_bytes(one[:8], "little")
    return data, offset


def rows_of(columns: dict[str, pa.Array], offsets: list[int], kind: TimestampType) -> list[Row]:
    count = len(offsets)
    for column in columns.values():
        column.validate(full=True)
        assert len(column) == count
    # As numbers: some times are beyond what Python's dates can say.
    found = {
        name: (column.view(pa.int64()) if name == "timestamp" else column).to_pylist()
        for name, column in columns.items()
    }
    lists = [found.get(name, [None] * count) for name in COLUMNS]
    return [Row(offset, kind, *values) for offset, *values in zip(offsets, *lists, strict=True)]


def unverified(data: bytes) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    """Yields header and bytes of each whole record batch; raises for a header that is damaged."""
    position = 0
    while (size := peek_size(data, position)) is not None and position + size <= len(data):
        yield parse_header(data, position), memoryview(data)[position : position + size]
        position += size


def one_by_one(data: bytes, *, start: int, end: int) -> Answer:
    """The model: ``decoded`` of each, up to a header that is damaged or does not follow."""
    rows: list[Row] = []
    found = unverified(data)
    expected = None
    while True:
        try:
            header, record_batch = next(found)
        except (StopIteration, CorruptRecordBatchError, UnsupportedVersionError):
            return Answer(rows, None)
        follows = (
            header.base_offset == expected
            if expected
            else (header.base_offset <= FIRST_OFFSET < header.next_offset)
        )
        if not follows:
            return Answer(rows, None)
        expected = header.next_offset
        try:
            fetched = decoded(TP, EncodedBatch(header, record_batch), start=start, end=end)
        except CorruptRecordBatchError as error:
            return Answer(rows, str(error))
        if fetched is not None:
            arrow_batch = fetched.arrow_batch
            names = set(COLUMNS).intersection(arrow_batch.schema.names)
            columns = {name: arrow_batch[name] for name in names}
            rows += rows_of(columns, fetched.offsets().to_pylist(), header.timestamp_type)


def together(
    data: memoryview,
    *,
    start: int,
    end: int,
    wanted: Collection[str] = COLUMNS,
    enough_rows: int = 10_000,
    enough_bytes: int = 1 << 20,
) -> Answer:
    rows: list[Row] = []
    run = received_run(TP, data, position=FIRST_OFFSET)
    while run is not None:
        try:
            count, found = take_columns(
                TP,
                run,
                wanted,
                start=start,
                end=end,
                enough_rows=enough_rows,
                enough_bytes=enough_bytes,
            )
        except CorruptRecordBatchError as error:
            return Answer(rows, str(error))
        run = run.part(count, len(run)) if count < len(run) else None
        if found is None:
            continue
        dense = range(found.base_offset, found.base_offset + found.rows)
        offsets = list(dense) if found.offsets is None else found.offsets.to_pylist()
        assert (offsets[0], offsets[-1] + 1) == (found.base_offset, found.next_offset)
        event(f"record batches taken at once: {'several' if count > 1 else 'one'}")
        rows += rows_of(dict(found.columns), offsets, found.timestamp_type)
    return Answer(rows, None)


def in_batches(data: memoryview, *, start: int, end: int) -> Answer:
    """Returns the rows as a consumer takes them."""
    rows: list[Row] = []
    run = received_run(TP, data, position=FIRST_OFFSET)
    while run is not None:
        try:
            count, found = take_batch(TP, run, start=start, end=end)
        except CorruptRecordBatchError as error:
            return Answer(rows, str(error))
        run = run.part(count, len(run)) if count < len(run) else None
        if found is None:
            continue
        event(f"record batches handed out at once: {'several' if count > 1 else 'one'}")
        offsets = found.offsets().to_pylist()
        assert (offsets[0], offsets[-1] + 1) == (found.base_offset, found.next_offset)
        names = set(COLUMNS).intersection(found.arrow_batch.schema.names)
        columns = {name: found.arrow_batch[name] for name in names}
        rows += rows_of(columns, offsets, found.header.timestamp_type)
    return Answer(rows, None)


@DEFAULT
@given(stored(), st.data())
def test_records_are_those_of_record_batches_one_by_one(
    stored: tuple[bytes, int], data: st.DataObject
) -> None:
    record_batches, after = stored
    start = data.draw(st.integers(FIRST_OFFSET, after))
    end = data.draw(st.integers(start, after + 5))
    cut = data.draw(st.sampled_from([len(record_batches), len(record_batches) - 5]))
    around = data.draw(st.integers(0, 16))  # memory need not be aligned
    view = memoryview(bytes(around) + record_batches[:cut])[around:]
    expected = one_by_one(record_batches[:cut], start=start, end=end)
    assert expected.damage is None
    enough = data.draw(st.sampled_from([1, 10, 10_000]))
    assert together(view, start=start, end=end, enough_rows=enough) == expected
    assert in_batches(view, start=start, end=end) == expected


@DEFAULT
@given(stored(), st.sets(st.sampled_from(COLUMNS)))
def test_only_the_wanted_columns_are_there(stored: tuple[bytes, int], wanted: set[str]) -> None:
    record_batches, after = stored
    expected = one_by_one(record_batches, start=FIRST_OFFSET, end=after)
    blank: dict[str, Any] = dict.fromkeys(set(COLUMNS) - wanted)
    found = together(memoryview(record_batches), start=FIRST_OFFSET, end=after, wanted=wanted)
    assert found.rows == [row._replace(**blank) for row in expected.rows]


@DEFAULT
@given(stored(), st.data())
def test_damage_is_the_same_error_after_the_same_records(
    stored: tuple[bytes, int], data: st.DataObject
) -> None:
    record_batches, after = bytearray(stored[0]), stored[1]
    starts = [*accumulate((header.size for header, _ in split(stored[0], allow_tail=False)))]
    number = data.draw(st.integers(0, len(starts) - 1))
    begin, stop = [0, *starts][number], starts[number]
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.one_of(st.integers(begin, begin + 400), st.integers(begin, stop - 1)))
        record_batches[min(at, stop - 1)] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()):  # by the writer: with the right checksum
        record_batches[begin:stop] = reseal(record_batches[begin:stop])
    expected = one_by_one(bytes(record_batches), start=FIRST_OFFSET, end=after)
    event(f"damage: {expected.damage is not None}, rows before: {bool(expected.rows)}")
    try:
        found = together(memoryview(record_batches), start=FIRST_OFFSET, end=after)
    except (CorruptRecordBatchError, UnsupportedVersionError):
        assert number == 0  # in the first header, with which no fetch gets anywhere
        assert expected == Answer([], None)
        return
    assert found == expected
    assert in_batches(memoryview(record_batches), start=FIRST_OFFSET, end=after) == expected
