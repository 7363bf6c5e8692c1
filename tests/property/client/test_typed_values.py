"""Values of a schema, from producers through record batches to consumers: what is read is what
fastavro reads, and what was read can be written again and stays the same."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from avro_columns.confluent import with_confluent_id
from avro_columns.encode.encoder import Encoder
from avro_columns.values.json_values import json_of_value, value_of_json
from avro_columns.values.resolved_tree import parse
from avro_columns.values.rows import rows_of
from spark_logbus.client.fetch.batches import EncodedBatch, FetchedBatch, decoded, received_run
from spark_logbus.client.fetch.columns import take_batch, take_columns
from spark_logbus.client.fetch.records import records_of
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.producer.values import ValueWriter, spread
from spark_logbus.client.schemas.topic import ValueSchemas, WriterSchema
from spark_logbus.errors import SchemaResolutionError
from spark_logbus.model import Compression, OnUndecodable, TopicPartition
from spark_logbus.record import parse_header, stamp
from spark_logbus.record.columns.layout import ColumnSelection
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP, canonical, encode
from spark_logbus.topic_schemas import Encoding
from tests.builders.avro import without_logical
from tests.builders.typed import T0, cut
from tests.property.avro_columns.columns.evolved import evolved_record, read, reads_as_fastavro
from tests.property.avro_columns.columns.strategies import DATA, TEXT, Case, cases, roots
from tests.property.examples import examples

DEFAULT = settings(max_examples=examples(150))
TP = TopicPartition("t", 3)
FIRST_OFFSET = 1_000
SCHEMA_ID = 7
RECORD_COLUMNS = ("timestamp", "key", "headers")
COMPRESSIONS = st.sampled_from(Compression)
RECORDS = cases(max_rows=5).filter(lambda case: len(case.datums) > 0)
FILLED = cases(max_rows=5, of=roots()).filter(lambda case: len(case.datums) > 0)


@dataclass(frozen=True)
class Records:
    """Records that a producer sends: the row of the case for each value, with what is beside it."""

    case: Case
    there: list[bool]
    """False: a tombstone."""
    beside: dict[str, pa.Array]

    @property
    def values(self) -> pa.Array:
        flags = np.array(self.there)
        return spread(self.case.expected.filter(pa.array(flags)), flags)

    def with_values(self, values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": values, **self.beside})


@st.composite
def sent(draw: st.DrawFn, of: st.SearchStrategy[Case] = FILLED) -> Records:
    case = draw(of)
    count = len(case.datums)

    def of_each(strategy: st.SearchStrategy[Any]) -> list[Any]:
        some = draw(st.lists(strategy, min_size=1, max_size=4))
        return list(itertools.islice(itertools.cycle(some), count))

    beside = {"timestamp": pa.array([T0 + row for row in range(count)], TIMESTAMP)}
    if draw(st.booleans()):
        beside["key"] = pa.array(of_each(st.none() | DATA), pa.binary())
    if draw(st.booleans()):
        pairs = st.lists(st.fixed_dictionaries({"key": TEXT, "value": DATA}), max_size=2)
        beside["headers"] = pa.array(of_each(st.none() | pairs), HEADERS)
    there = of_each(draw(st.sampled_from([st.just(True), st.booleans()])))
    return Records(case, there, beside)


def writer_of(schema: Any, encoding: Encoding) -> ValueWriter:
    return ValueWriter(WriterSchema(encoding, SCHEMA_ID, json.dumps(schema)))


def reader_of(case: Case, reader: Any, encoding: Encoding, **more: Any) -> ValueReader:
    texts = {SCHEMA_ID: json.dumps(case.schema)}
    return ValueReader(ValueSchemas("t", encoding, json.dumps(reader), texts), **more)


def stored(encoded: memoryview, copies: int = 1) -> bytes:
    """Record batches as a leader has them, one behind the other."""
    data, offset = b"", FIRST_OFFSET
    for _ in range(copies):
        one = bytearray(encoded)
        stamp(one, base_offset=offset, leader_epoch=1, append_time_us=7)
        data += one
        offset += parse_header(one).record_count
    return data


def in_batches(data: bytes, values: ValueReader) -> list[FetchedBatch]:
    """Returns the record batches as a consumer takes them."""
    found = []
    run = received_run(TP, memoryview(data), position=FIRST_OFFSET)
    while run is not None:
        count, fetched = take_batch(TP, run, start=0, end=1 << 40, values=values)
        found += [] if fetched is None else [fetched]
        run = run.part(count, len(run)) if count < len(run) else None
    return found


def in_columns(data: bytes, values: ValueReader) -> list[dict[str, pa.Array]]:
    """Returns the columns as Spark takes them."""
    found = []
    run = received_run(TP, memoryview(data), position=FIRST_OFFSET)
    while run is not None:
        count, taken = take_columns(
            TP, run, ("value", *RECORD_COLUMNS), start=0, end=1 << 40, enough_rows=10_000,
            enough_bytes=1 << 20, values=values,
        )  # fmt: skip
        found += [] if taken is None else [dict(taken.columns)]
        run = run.part(count, len(run)) if count < len(run) else None
    return found


def as_cut(data: bytes, values: ValueReader) -> FetchedBatch | None:
    """Decodes what a broker sends of one record batch of columns for ``choice``."""
    header = parse_header(data)
    choice = values.choice
    if choice is None:
        return None
    selection = ColumnSelection(frozenset(choice.columns), _places(choice.fields[SCHEMA_ID]))
    raw = EncodedBatch(header, memoryview(cut(data, selection)), is_cut=True)
    return decoded(TP, raw, start=0, end=1 << 40, values=values)


def _places(fields: Any) -> tuple[int, ...] | None:
    return None if fields is None else tuple(fields)


def columns(batches: list[Any], name: str, count: int) -> pa.Array:
    """The column of all rows; null where it is not there."""
    tables = [one.arrow_batch if isinstance(one, FetchedBatch) else one for one in batches]
    found = [
        one[name] for one in tables if name in (one if isinstance(one, dict) else one.schema.names)
    ]
    return pa.concat_arrays(found) if found else pa.nulls(count)


# -- what fastavro reads ------------------------------------------------------------------


@DEFAULT
@given(sent(RECORDS), st.data())
def test_values_are_read_as_fastavro_resolves_them(records: Records, data: st.DataObject) -> None:
    case = records.case
    reader = data.draw(evolved_record(case.schema, itertools.count()))
    names = [one["name"] for one in reader["fields"]]
    assume(reads_as_fastavro(case.schema, reader))
    fields = data.draw(st.none() | st.lists(st.sampled_from(names), min_size=1)) if names else None
    form = data.draw(st.sampled_from(["columns", "avro", "framed"]))
    encoding = Encoding.COLUMNS if form == "columns" else Encoding.AVRO
    values = reader_of(case, reader, encoding, fields=fields, on_undecodable=OnUndecodable.KEEP)
    record_batches = stored(
        encoded_as(form, records, data.draw(COMPRESSIONS)),
        copies := data.draw(st.sampled_from([1, 1, 12])),
    )
    try:
        batches = in_batches(record_batches, values)
    except SchemaResolutionError:
        event("does not resolve")
        return  # which fastavro tells when it meets such a value
    if fields is not None:
        reader = {**reader, "fields": [one for one in reader["fields"] if one["name"] in fields]}
    rows = len(case.datums) * copies
    event(f"{form}, batches of {'one' if len(batches) == copies else 'several'}")
    found = columns(batches, "value", rows)
    found.validate(full=True)
    told = columns(batches, "undecodable", rows)
    plain = fastavro.parse_schema(without_logical(reader))
    resolved = [read(one, case.plain, plain) for one in case.datums.to_pylist()] * copies
    there = records.there * copies
    expected = [one if is_there else None for one, is_there in zip(resolved, there, strict=True)]
    assert found.is_valid().to_pylist() == [one is not None for one in expected]
    assert told.is_valid().to_pylist() == [
        one is None and is_there for one, is_there in zip(resolved, there, strict=True)
    ]
    again = Encoder(reader).encode(found.drop_null()).to_pylist()
    assert [read(one, plain, None) for one in again] == [one for one in expected if one is not None]
    check_beside(records, batches, copies)
    taken = in_columns(record_batches, values)
    for name in ("value", *RECORD_COLUMNS):
        assert str(columns(taken, name, rows)) == str(columns(batches, name, rows))
    if form == "columns" and copies == 1 and (own := as_cut(record_batches, values)) is not None:
        assert own.arrow_batch["value"].equals(found)


def encoded_as(form: str, records: Records, compression: Compression) -> memoryview:
    if form == "framed":
        flags = np.array(records.there)
        datums = with_confluent_id(records.case.datums.filter(pa.array(flags)), SCHEMA_ID)
        framed = canonical(records.with_values(spread(datums, flags)), now_us=0)
        return encode(framed, compression=compression)
    writer = writer_of(records.case.schema, Encoding(form))
    return writer.encode(writer.records(records.with_values(records.values), now_us=0), compression)


def check_beside(records: Records, batches: list[FetchedBatch], copies: int) -> None:
    rows = len(records.there) * copies
    for name in RECORD_COLUMNS:
        given = records.beside.get(name)
        expected = [None] * rows if given is None else given.to_pylist() * copies
        found = columns(batches, name, rows).to_pylist()
        assert [one or None for one in found] == [one or None for one in expected]
    offsets = [offset for one in batches for offset in one.offsets().to_pylist()]
    assert offsets == list(range(FIRST_OFFSET, FIRST_OFFSET + rows))


# -- what is written again ----------------------------------------------------------------


@DEFAULT
@given(sent(), st.sampled_from(Encoding), st.sampled_from(Encoding), COMPRESSIONS)
def test_columns_that_were_read_are_the_same_when_written_again(
    records: Records, source: Encoding, target: Encoding, compression: Compression
) -> None:
    schema, data = records.case.schema, records.with_values(records.values)
    for encoding in (source, target):
        writer = writer_of(schema, encoding)
        encoded = writer.encode(writer.records(data, now_us=0), compression)
        [fetched] = in_batches(stored(encoded), reader_of(records.case, schema, encoding))
        data = fetched.arrow_batch
        assert data["value"].equals(records.values)
        check_beside(records, [fetched], 1)


@DEFAULT
@given(sent(), st.sampled_from(Encoding), COMPRESSIONS)
def test_records_that_were_read_are_the_same_when_sent_again(
    records: Records, encoding: Encoding, compression: Compression
) -> None:
    schema = records.case.schema
    writer, reader = writer_of(schema, encoding), reader_of(records.case, schema, encoding)
    rows = rows_of(records.values, schema)
    one_by_one, at_once = writer.new_builder(), writer.rows(rows)
    for number, row in enumerate(rows):
        one_by_one.append(None if row is None else writer.take(row), None, T0 + number, None)
    together = writer.records(records.with_values(at_once), now_us=0)
    for encoded in (one_by_one.encoded(compression), writer.encode(together, compression)):
        [fetched] = in_batches(stored(encoded), reader)
        # Not by ==, which takes 1 for 1.0.
        assert repr([record.value for record in records_of(fetched)]) == repr(rows)


@DEFAULT
@given(FILLED)
def test_values_stay_the_same_as_json(case: Case) -> None:
    node = parse(case.schema)
    writer = writer_of(case.schema, Encoding.COLUMNS)
    rows = rows_of(case.expected, node)
    printed = [json.dumps(json_of_value(node, row)) for row in rows]
    taken = [writer.take(value_of_json(node, json.loads(line))) for line in printed]
    assert repr(rows_of(writer.values(taken), node)) == repr(rows)


@DEFAULT
@given(FILLED, st.sampled_from(Encoding))
def test_members_that_are_named_are_those_that_are_written(case: Case, encoding: Encoding) -> None:
    writer = writer_of(case.schema, encoding)
    for column in (
        writer.values([writer.take(row) for row in case.named]),
        writer.records(pa.RecordBatch.from_pydict({"value": writer.rows(case.named)}), now_us=0)[
            "value"
        ],
    ):
        if encoding is Encoding.COLUMNS:
            assert column.equals(case.expected)
        else:
            assert column.equals(case.datums)
