"""Values of topics with a schema: which records come, whatever record batches they are in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from avro_columns.confluent import with_confluent_id
from avro_columns.encode.encoder import Encoder
from avro_columns.values.rows import columns_of
from spark_logbus.client.fetch import values as values_module
from spark_logbus.client.fetch.batches import decoded, encoded_batch, received_run
from spark_logbus.client.fetch.columns import take_columns
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.producer.values import ValueWriter
from spark_logbus.client.schemas.topic import ValueSchemas, WriterSchema
from spark_logbus.errors import SchemaMismatchError, UndecodableRecordError
from spark_logbus.model import Compression, OffsetRange, OnUndecodable
from spark_logbus.record import parse_header, stamp
from spark_logbus.record.format import NO_END
from spark_logbus.record.rows.arrow import TIMESTAMP, encode
from spark_logbus.topic_schemas import Encoding
from tests.builders.arrow_batches import T0
from tests.builders.typed import typed_record_batch


def schema_of(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Row", "fields": [*fields]})


A, B = {"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "none"}
COLOUR = {"name": "colour", "type": {"type": "enum", "name": "C", "symbols": ["red", "blue"]}}
RED_ONLY = {"name": "colour", "type": {"type": "enum", "name": "C", "symbols": ["red"]}}
ONE, TWO = schema_of(A), schema_of(B, A)
WRITERS = {1: ONE, 2: TWO}
BROKEN = b"\xff"  # of a number that goes on

Row = tuple[int, Any]


def reader(
    *, fields: Sequence[str] | None = None, on: OnUndecodable = OnUndecodable.FAIL
) -> ValueReader:
    schemas = ValueSchemas("t", Encoding.AVRO, TWO, WRITERS, "s", {1: 1, 2: 2}, 2)
    return ValueReader(schemas, fields=fields, on_undecodable=on)


def datum(schema_id: int, a: int) -> bytes:
    row = {"a": a} if schema_id == 1 else {"a": a, "b": "x"}
    encoded: bytes = (
        Encoder(WRITERS[schema_id]).encode(pa.RecordBatch.from_pylist([row]))[0].as_py()
    )
    return encoded


def framed(schema_id: int, payload: bytes) -> bytes:
    return bytes([0, *schema_id.to_bytes(4, "big")]) + payload


def record_batch(datums: Sequence[bytes | None], *, schema_id: int) -> memoryview:
    columns = {
        "timestamp": pa.array([0] * len(datums), pa.int64()).cast(TIMESTAMP),
        "value": pa.array(datums, pa.binary()),
    }
    return encode(pa.RecordBatch.from_pydict(columns), schema_id=schema_id)


def partition(*record_batches: memoryview) -> memoryview:
    """The record batches one after the other, with their offsets."""
    data, offset = b"", 0
    for one in record_batches:
        made = bytearray(one)
        stamp(made, base_offset=offset, leader_epoch=0, append_time_us=0)
        data += made
        offset += parse_header(made).record_count
    return memoryview(data)


def read(
    data: memoryview,
    values: ValueReader,
    *,
    start: int = 0,
    end: int = NO_END,
    enough_rows: int = 1 << 20,
    column: str = "value",
) -> list[Row]:
    run = received_run(T0, data, position=0)
    assert run is not None
    rows: list[Row] = []
    while len(run):
        count, found = take_columns(
            T0,
            run,
            ["value"],
            start=start,
            end=end,
            enough_rows=enough_rows,
            enough_bytes=1 << 20,
            values=values,
        )
        run = run.part(count, len(run))
        if found is None:
            continue
        dense = range(found.base_offset, found.base_offset + found.rows)
        offsets = list(dense) if found.offsets is None else found.offsets.to_pylist()
        assert found.next_offset == offsets[-1] + 1
        rows += zip(offsets, found.columns[column].to_pylist(), strict=True)
    return rows


@pytest.mark.parametrize("changes_at", [1, 9, 10, 11])
@pytest.mark.parametrize("enough_rows", [1, 9, 10, 11, 1 << 20])
def test_record_batches_of_two_schemas_are_not_taken_for_alike(
    changes_at: int, enough_rows: int
) -> None:
    ids = [1] * changes_at + [2] * (20 - changes_at)
    data = partition(
        *(
            record_batch([datum(schema_id, number)], schema_id=schema_id)
            for number, schema_id in enumerate(ids)
        )
    )
    assert read(data, reader(), enough_rows=enough_rows) == [
        (number, {"b": "x" if schema_id == 2 else "none", "a": number})
        for number, schema_id in enumerate(ids)
    ]


# One record batch, or as many as are decoded together.
@pytest.mark.parametrize("count", [1, 20])
class TestUndecodableRecords:
    """Record batches of four records, of which the second is no datum."""

    def data(self, count: int) -> memoryview:
        good = datum(2, 5)
        return partition(
            *[record_batch([good, BROKEN, None, good], schema_id=2) for _ in range(count)]
        )

    def test_is_dropped(self, count: int) -> None:
        rows = read(self.data(count), reader(on=OnUndecodable.DROP))
        assert [offset for offset, _ in rows] == [
            offset for offset in range(4 * count) if offset % 4 != 1
        ]
        assert [value for _, value in rows[:3]] == [{"b": "x", "a": 5}, None, {"b": "x", "a": 5}]

    def test_is_kept_beside_the_others(self, count: int) -> None:
        values = reader(on=OnUndecodable.KEEP)
        rows = read(self.data(count), values)
        assert [offset for offset, value in rows if value is None] == [
            4 * number + row for number in range(count) for row in (1, 2)
        ]
        told = read(self.data(count), values, column="undecodable")
        assert [offset for offset, one in told if one is not None] == list(range(1, 4 * count, 4))
        assert told[1][1]["value"] == BROKEN

    def test_fails_who_reads_it(self, count: int) -> None:
        with pytest.raises(UndecodableRecordError, match=r"the first has offset 1: "):
            read(self.data(count), reader())

    def test_is_no_matter_to_who_does_not_read_it(self, count: int) -> None:
        last = 4 * count
        assert [offset for offset, _ in read(self.data(1), reader(), start=2)] == [2, 3]
        assert [offset for offset, _ in read(self.data(count), reader(), start=last - 2)] == [
            last - 2,
            last - 1,
        ]
        assert [offset for offset, _ in read(self.data(count), reader(), end=1)] == [0]

    @pytest.mark.parametrize("on", OnUndecodable)
    def test_is_a_record_like_any_where_no_value_is_read(
        self, count: int, on: OnUndecodable
    ) -> None:
        rows = read(self.data(count), reader(fields=[], on=on))
        assert [offset for offset, _ in rows] == list(range(4 * count))


def test_the_records_before_one_that_does_not_decode_come_first() -> None:
    good = record_batch([datum(2, 1)], schema_id=2)
    data = partition(*[good] * 15, record_batch([BROKEN], schema_id=2), *[good] * 15)
    run = received_run(T0, data, position=0)
    assert run is not None
    count, found = take_columns(
        T0, run, ["value"], start=0, end=NO_END, enough_rows=99, enough_bytes=1 << 20,
        values=reader(),
    )  # fmt: skip
    assert (count, found and found.rows) == (15, 15)
    with pytest.raises(UndecodableRecordError, match="the first has offset 15: "):
        read(data, reader())


def test_offsets_are_right_behind_record_batches_that_are_left_out_whole() -> None:
    good, broken = datum(2, 1), record_batch([BROKEN], schema_id=2)
    data = partition(*[record_batch([good], schema_id=2), broken, broken] * 4)
    rows = read(data, reader(on=OnUndecodable.DROP))
    assert [offset for offset, _ in rows] == [0, 3, 6, 9]


class TestConfluentsWireFormat:
    DATUMS = (
        framed(2, datum(2, 1)),
        framed(7, b"\x02"),
        framed(1, datum(1, 2)),
        b"\x00\x00",
        b"\x07" + framed(1, datum(1, 2))[1:],
        None,
        framed(2, BROKEN),
    )
    REASONS = (
        (1, "its schema id is 7, which the topic's subject 's' does not have"),
        (3, "the value has 2 bytes"),
        (4, "the first byte is 7"),
        (6, ""),
    )

    @pytest.mark.parametrize("count", [1, 20])
    def test_an_id_that_the_subject_lacks_makes_its_record_undecodable(self, count: int) -> None:
        data = partition(*[record_batch(self.DATUMS, schema_id=0)] * count)
        rows = read(data, reader(on=OnUndecodable.DROP))
        assert rows[:3] == [(0, {"b": "x", "a": 1}), (2, {"b": "none", "a": 2}), (5, None)]
        assert len(rows) == 3 * count
        told = read(data, reader(on=OnUndecodable.KEEP), column="undecodable")
        for offset, reason in self.REASONS:
            assert told[offset][1]["value"] == self.DATUMS[offset]
            assert told[offset][1]["reason"].startswith(reason)
        with pytest.raises(UndecodableRecordError, match="the first has offset 1: its schema id"):
            read(data, reader())

    def test_where_no_value_has_an_id_all_are_undecodable(self) -> None:
        data = partition(record_batch([b"", framed(9, b"")], schema_id=0))
        assert read(data, reader(on=OnUndecodable.DROP)) == []
        assert read(data, reader(on=OnUndecodable.KEEP)) == [(0, None), (1, None)]


@pytest.mark.parametrize("encoding", Encoding)
class TestSchemasThatCannotBeRead:
    """Ten record batches, of which the middle ones were written with a schema that is gone, or that
    does not resolve to the reader's; in each the second record is a tombstone."""

    OTHER = schema_of({"name": "a", "type": {"type": "map", "values": "long"}})

    def data(self, encoding: Encoding, schema_id: int) -> memoryview:
        return partition(
            *[self.record_batch(encoding, schema_id if 3 <= at < 6 else 1) for at in range(10)]
        )

    def record_batch(self, encoding: Encoding, schema_id: int) -> memoryview:
        row = {"a": {"k": 1}} if schema_id > 2 else {"a": 5}
        schema = self.OTHER if schema_id > 2 else ONE
        if encoding is Encoding.COLUMNS:
            return typed_record_batch([row, None], schema=schema, schema_id=schema_id)
        datums = Encoder(schema).encode(columns_of([row], schema))
        return record_batch([datums[0].as_py(), None], schema_id=schema_id)

    def reader(
        self, encoding: Encoding, on: OnUndecodable, *, fields: Sequence[str] | None = None
    ) -> ValueReader:
        writers = {1: ONE, 3: self.OTHER}
        schemas = ValueSchemas("t", encoding, ONE, writers, "t-value", {1: 1, 3: 2}, 1)
        return ValueReader(schemas, fields=fields, on_undecodable=on, remedy="Do so.")

    def test_an_id_that_is_gone_fails_with_its_place_and_remedy(self, encoding: Encoding) -> None:
        with pytest.raises(UndecodableRecordError) as raised:
            read(self.data(encoding, 9), self.reader(encoding, OnUndecodable.FAIL))
        said = str(raised.value)
        assert f"1 of the records {OffsetRange(T0, 6, 7)} do not decode" in said
        assert "its schema id is 9, which the topic's subject 't-value' does not have" in said
        assert "register it with that id again, in the mode IMPORT of the subject" in said
        assert said.endswith(". Do so.")

    def test_schemas_that_do_not_resolve_fail_with_both_versions(self, encoding: Encoding) -> None:
        with pytest.raises(UndecodableRecordError) as raised:
            read(self.data(encoding, 3), self.reader(encoding, OnUndecodable.FAIL))
        said = str(raised.value)
        assert str(OffsetRange(T0, 6, 7)) in said
        assert (
            "version 2 of the schema (id 3) cannot be read under version 1 of the schema (id 1): "
            "a was written as a map with text as keys, which cannot be read as long."
        ) in said
        assert said.endswith(". Do so.")

    @pytest.mark.parametrize("schema_id", [3, 9])
    def test_such_records_are_dropped_and_counted(self, encoding: Encoding, schema_id: int) -> None:
        values = self.reader(encoding, OnUndecodable.DROP)
        rows = read(self.data(encoding, schema_id), values)
        assert [offset for offset, _ in rows] == [at for at in range(20) if at not in (6, 8, 10)]
        assert [value for _, value in rows[6:9]] == [None] * 3
        assert values.dropped == 3

    @pytest.mark.parametrize("schema_id", [3, 9])
    def test_such_records_are_kept_with_a_reason(self, encoding: Encoding, schema_id: int) -> None:
        data = self.data(encoding, schema_id)
        rows = read(data, self.reader(encoding, OnUndecodable.KEEP), column="undecodable")
        told = {offset: one for offset, one in rows if one is not None}
        assert [*told] == [6, 8, 10]
        assert ("no bytes to show" in told[6]["reason"]) is (encoding is Encoding.COLUMNS)
        assert (told[6]["value"] is None) is (encoding is Encoding.COLUMNS)

    @pytest.mark.parametrize("schema_id", [3, 9])
    def test_what_stands_beside_them_is_read(self, encoding: Encoding, schema_id: int) -> None:
        reader = self.reader(encoding, OnUndecodable.FAIL, fields=[])
        assert len(read(self.data(encoding, schema_id), reader)) == 20


def test_a_recursive_version_makes_its_records_undecodable() -> None:
    tree = schema_of(A, {"name": "next", "type": ["null", "Row"], "default": None})
    schemas = ValueSchemas("t", Encoding.AVRO, ONE, {1: ONE, 2: tree}, "s", {1: 1, 2: 2}, 1)
    data = partition(
        record_batch([datum(1, 4)], schema_id=1), record_batch([b"\x02\x00"], schema_id=2)
    )
    told = read(data, ValueReader(schemas, on_undecodable=OnUndecodable.KEEP), column="undecodable")
    assert told[0] == (0, None)
    assert "version 2 of the schema (id 2) cannot be read under version 1" in told[1][1]["reason"]
    assert told[1][1]["value"] == b"\x02\x00"


class TestColumns:
    """Payload layout 1, read under a schema whose enum has fewer symbols."""

    ROWS = tuple(({"a": number, "colour": ("red", "blue")[number % 2]}) for number in range(4))

    def data(self) -> memoryview:
        written = [*self.ROWS[:3], None, self.ROWS[3]]
        return partition(*[typed_record_batch(written, schema=schema_of(A, COLOUR))] * 2)

    def reader(self, on: OnUndecodable, *, fields: Sequence[str] | None = None) -> ValueReader:
        writers = {1: schema_of(A, COLOUR)}
        schemas = ValueSchemas("t", Encoding.COLUMNS, schema_of(A, RED_ONLY), writers)
        return ValueReader(schemas, fields=fields, on_undecodable=on)

    def test_a_symbol_that_the_reader_lacks_is_dropped_or_kept(self) -> None:
        rows = read(self.data(), self.reader(OnUndecodable.DROP))
        assert [offset for offset, _ in rows] == [0, 2, 3, 5, 7, 8]
        told = read(self.data(), self.reader(OnUndecodable.KEEP), column="undecodable")
        assert [offset for offset, one in told if one is not None] == [1, 4, 6, 9]
        assert told[1][1]["value"] is None

    def test_the_error_names_the_offset_within_what_is_read(self) -> None:
        with pytest.raises(UndecodableRecordError, match="the first has offset 4: "):
            read(self.data(), self.reader(OnUndecodable.FAIL), start=2)
        assert len(read(self.data(), self.reader(OnUndecodable.FAIL), start=2, end=4)) == 2

    def test_other_fields_of_the_record_can_be_read(self) -> None:
        rows = read(self.data(), self.reader(OnUndecodable.FAIL, fields=["a"]))
        assert [value and value["a"] for _, value in rows[:5]] == [0, 1, 2, None, 3]


class TestBombs:
    """Bytes that become a thousand times as many, in the middle of honest record batches."""

    WIDE = schema_of(
        {"name": "a", "type": ["null", {"type": "fixed", "name": "F", "size": 60_000}]}
    )
    LISTS = schema_of({"name": "a", "type": {"type": "array", "items": ["null", "long"]}})

    @pytest.mark.parametrize("schema_id", [1, 0])
    def test_rows_that_would_take_too_much_go_by_the_option(
        self, schema_id: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(values_module, "MAX_DECODED_BYTES", 1_000_000)
        datums: list[bytes | None] = [b"\0" if schema_id else framed(1, b"\0")]
        data = partition(
            *[
                record_batch(datums * (100 if at == 2 else 1), schema_id=schema_id)
                for at in range(5)
            ]
        )
        schemas = ValueSchemas("t", Encoding.AVRO, self.WIDE, {1: self.WIDE})
        rows = read(data, ValueReader(schemas, on_undecodable=OnUndecodable.DROP))
        assert [offset for offset, _ in rows] == [0, 1, 102, 103]
        with pytest.raises(UndecodableRecordError, match=r"t-0\[2, 102\).*too large"):
            read(data, ValueReader(schemas))

    def test_many_schemas_share_one_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each value alone would be within it."""
        monkeypatch.setattr(values_module, "MAX_DECODED_BYTES", 1_000_000)
        bomb = b"\xa0\x8d\x06" + b"\0" * 50_000 + b"\0"  # an array of 50,000 nulls
        data = partition(record_batch([framed(one, bomb) for one in range(1, 9)], schema_id=0))
        schemas = ValueSchemas(
            "t", Encoding.AVRO, self.LISTS, dict.fromkeys(range(1, 9), self.LISTS)
        )
        told = read(
            data, ValueReader(schemas, on_undecodable=OnUndecodable.KEEP), column="undecodable"
        )
        sound = [offset for offset, one in told if one is None]
        assert 0 < len(sound) < 8

    @pytest.mark.parametrize("together", [True, False])
    def test_columns_count_with_what_they_take(
        self, together: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sizes are not those of the datums; record batches that take too much are decoded
        alone."""
        if not together:
            monkeypatch.setattr(values_module, "_MOST_TOGETHER_BYTES", 100_000)
        bomb = b"\xa0\x9c\x01" + b"\0" * 10_000 + b"\0"  # becomes 90,000 bytes
        data = partition(*[record_batch([bomb], schema_id=1) for _ in range(12)])
        schemas = ValueSchemas("t", Encoding.AVRO, self.LISTS, {1: self.LISTS})
        run = received_run(T0, data, position=0)
        assert run is not None
        counts: list[int] = []
        while sum(counts) < len(run):
            count, found = take_columns(
                T0, run.part(sum(counts), len(run)), ["value"], start=0, end=NO_END,
                enough_rows=1000, enough_bytes=200_000, values=ValueReader(schemas),
            )  # fmt: skip
            assert found is not None
            assert found.size_bytes >= found.columns["value"].nbytes
            counts.append(count)
        assert counts == ([12] if together else [3] * 4)


@pytest.mark.parametrize("encoding", Encoding)
def test_values_that_are_no_records_need_not_be_read(encoding: Encoding) -> None:
    schemas = ValueSchemas("t", encoding, '"long"', {1: '"long"'})
    values = ValueReader(schemas, fields=[], columns=[])
    if encoding is Encoding.COLUMNS:
        data = partition(typed_record_batch([1, 2, 3], schema='"long"'))
    else:
        data = partition(record_batch([b"\x02", b"\x04", b"\x06"], schema_id=1))
    assert [offset for offset, _ in read(data, values)] == [0, 1, 2]


def test_framed_datums_are_those_that_producers_make() -> None:
    made = with_confluent_id(pa.array([datum(1, 1)], pa.binary()), 1)
    assert made.to_pylist() == [framed(1, datum(1, 1))]


def test_a_schema_that_is_registered_between_two_looks_is_no_error_of_another_library() -> None:
    """Finds no schema when the columns are read, and the schema when they are resolved."""
    fields = [{"name": "a", "type": "int"}]
    older = json.dumps({"type": "record", "name": "R", "fields": fields})
    wider = [*fields, {"name": "b", "type": "int", "default": 1}]
    newer = json.dumps({"type": "record", "name": "R", "fields": wider})
    writer = ValueWriter(WriterSchema(Encoding.COLUMNS, 2, newer))
    rows = pa.RecordBatch.from_pydict(
        {"a": pa.array([1], pa.int32()), "b": pa.array([2], pa.int32())}
    )
    data = writer.encode(writer.records(rows, now_us=5), Compression.NONE)
    answers = [None, newer]
    schemas = ValueSchemas("t", Encoding.COLUMNS, older, {1: older})
    reader = ValueReader(schemas, find_writer=lambda _: answers.pop(0))
    run = received_run(T0, memoryview(bytes(data)), position=0)
    assert run is not None
    with pytest.raises(SchemaMismatchError):
        decoded(T0, encoded_batch(run, 0), start=0, end=10, values=reader)
