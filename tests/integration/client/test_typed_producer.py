"""Producers of typed values, against a real broker and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from avro_columns.confluent import with_confluent_id
from avro_columns.encode.encoder import Encoder
from avro_columns.values.rows import columns_of
from spark_logbus.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Cluster,
    Consumer,
    Producer,
    ProducerConfig,
    ProducerInterceptor,
    RangeReader,
)
from spark_logbus.client.consumer.value_readers import look_up_reader
from spark_logbus.errors import (
    InvalidRequestError,
    RecordBatchTooLargeError,
    SchemaMismatchError,
)
from spark_logbus.model import Acks, OffsetRange, TopicPartition
from tests.builders.typed import FLIGHT, UNIONS, flight, flights, union_rows

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "lines", "type": {"type": "array", "items": {
                "type": "record", "name": "Line", "fields": [
                    {"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}}},
            {"name": "labels", "type": {"type": "map", "values": "string"}, "default": {}},
        ],
    }
)  # fmt: skip
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
LINGERING = ProducerConfig(linger_ms=60_000)


@dataclass
class Line:
    sku: str
    count: int


@dataclass
class Order:
    id: int
    price: Decimal
    at: datetime
    lines: list[Line]
    note: str | None = None


def order(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "note": None,
        "price": Decimal("9.90"),
        "at": AT,
        "lines": [{"sku": "a", "count": number}],
        "labels": {"via": "web"},
        **more,
    }


@pytest.fixture(params=["columns", "avro"])
def encoding(request: pytest.FixtureRequest) -> str:
    encoding: str = request.param
    return encoding


def created(
    cluster: Cluster, encoding: str, *, schema: str = ORDER, config: dict[str, int] | None = None
) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(
        name, partitions=1, value_schema=schema, value_encoding=encoding, config=config or {}
    )
    return name


@pytest.fixture
def topic(cluster: Cluster, encoding: str) -> str:
    return created(cluster, encoding)


def values(cluster: Cluster, topic: str, count: int) -> list[Any]:
    found: list[Any] = []
    with Consumer(cluster) as consumer:
        consumer.assign_topics(topic)
        while len(found) < count:
            found += [record.value for record in consumer.poll(60)]
    return found


def record_counts(cluster: Cluster, topic: str, end: int) -> list[int]:
    config = Admin(cluster).describe([topic], ends=False)[topic].config
    values = look_up_reader(cluster, topic, config)
    wanted = OffsetRange(TopicPartition(topic, 0), 0, end)
    with RangeReader(cluster, wanted, values=values) as reader:
        return [batch.header.record_count for batch in reader]


def test_mappings_and_dataclasses_become_records(cluster: Cluster, topic: str) -> None:
    with Producer(cluster, LINGERING) as producer:
        producer.send(topic, order(0), key=b"k", headers=[("h", b"1")], timestamp_us=7)
        producer.send(topic, Order(1, Decimal("9.9"), AT, [Line("b", 2)]))
        producer.send(topic, None, key=b"k")
        row = order(2)
        producer.send(topic, row)
        row["id"], row["lines"][0]["count"] = 9, 9
        without = order(3)
        del without["note"], without["labels"]
        producer.send(topic, without)
    with Consumer(cluster) as consumer:
        consumer.assign_topics(topic)
        found = [next(consumer) for _ in range(5)]
    assert (found[0].key, found[0].headers, found[0].timestamp_us) == (b"k", (("h", b"1"),), 7)
    assert [record.value for record in found] == [
        order(0),
        order(1, lines=[{"sku": "b", "count": 2}], labels={}),
        None,
        order(2),
        order(3, labels={}),
    ]
    assert record_counts(cluster, topic, 5) == [5]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"id": "1"}, r"^id is '1' \(str\), expected long"),
        ({"id": 1 << 63}, "^id is 9223372036854775808"),
        ({"id": None}, "^id is None"),
        ({"price": Decimal("1.234")}, "^price is Decimal"),
        ({"note": "\ud800"}, "^note is "),
        ({"lines": [{"sku": "a"}]}, r"^lines\[\]\.count is left out"),
        ({"lines": [{"sku": "a", "count": 1.5}]}, r"^lines\[\]\.count is 1.5"),
        ({"labels": {"a": 1}}, r"^labels\{\} is 1"),
        ({"color": "red"}, "has 'color', which the schema has not"),
    ],
)
def test_what_does_not_fit_is_refused_alone(
    cluster: Cluster, topic: str, changed: dict[str, Any], told: str
) -> None:
    with Producer(cluster, LINGERING) as producer:
        first = producer.send(topic, order(0))
        with pytest.raises(SchemaMismatchError, match=told):
            producer.send(topic, order(1, **changed))
        with pytest.raises(SchemaMismatchError, match="Row 1: .*" + told.removeprefix("^")):
            producer.send_many(topic, [order(1), order(1, **changed)])
        second = producer.send(topic, order(2))
    assert [first.result(60).offset, second.result(60).offset] == [0, 1]
    assert [value["id"] for value in values(cluster, topic, 2)] == [0, 2]


def test_many_rows_at_once(cluster: Cluster, topic: str) -> None:
    with Producer(cluster) as producer:
        [future] = producer.send_many(
            topic, [order(0), None, Order(2, Decimal(1), AT, [])], keys=[b"a", b"b", b"c"]
        )
        assert future.result(60).record_count == 3
    found = values(cluster, topic, 3)
    assert found[:2] == [order(0), None]
    assert found[2]["id"] == 2


def framed(cluster: Cluster, topic: str, rows: list[Any]) -> list[bytes]:
    schema_id = Admin(cluster).describe_schemas([topic])[topic][0].schema_id
    assert schema_id is not None
    datums = Encoder(FLIGHT).encode(columns_of(rows, FLIGHT))
    found: list[bytes] = with_confluent_id(datums, schema_id).to_pylist()
    return found


def test_rows_and_wire_format_do_not_meet_in_a_record_batch(cluster: Cluster) -> None:
    topic = created(cluster, "avro", schema=FLIGHT)
    wire = framed(cluster, topic, flights(0, 12))
    with Producer(cluster, LINGERING) as producer:
        for number in (0, 1):
            producer.send(topic, flight(number))
        for number in (2, 3):
            producer.send(topic, wire[number])
        producer.send(topic, flight(4))
        producer.send_many(topic, [wire[5], None, wire[7]])
        producer.send_arrow(topic, pa.table({"value": wire[8:10]}))
        producer.send_many(topic, flights(10, 2))
        with pytest.raises(InvalidRequestError):
            producer.send_many(topic, [wire[0], flight(1)])
    found = values(cluster, topic, 12)
    assert found[6] is None
    assert [row for row in found if row] == [flight(n) for n in range(12) if n != 6]
    assert record_counts(cluster, topic, 12) == [2, 2, 1, 3, 2, 2]


def test_bytes_are_no_columns(cluster: Cluster) -> None:
    topic = created(cluster, "columns")
    with Producer(cluster) as producer:
        with pytest.raises(SchemaMismatchError, match="holds its columns"):
            producer.send(topic, b"bytes")
        with pytest.raises(SchemaMismatchError, match="holds its columns"):
            producer.send_many(topic, [b"bytes"])


BYTES = {
    "bytes": "bytes",
    "fixed": {"type": "fixed", "name": "Four", "size": 4},
    "or null": ["null", "bytes"],
    "or text": ["string", "bytes"],
    "or fixed": ["null", {"type": "fixed", "name": "Four", "size": 4}, "long"],
}


@pytest.mark.parametrize("schema", BYTES.values(), ids=BYTES)
def test_bytes_are_the_value_where_the_schema_takes_them(
    cluster: Cluster, encoding: str, schema: Any
) -> None:
    topic = created(cluster, encoding, schema=json.dumps(schema))
    like_a_frame = b"\0\0\0\0"
    with Producer(cluster, LINGERING) as producer:
        producer.send(topic, b"0000")
        producer.send(topic, bytearray(like_a_frame), key=b"k")
        producer.send(topic, None)
        producer.send_many(topic, [b"2222", None, like_a_frame])
        producer.send_many(topic, pa.array([b"3333"]))
        producer.send_arrow(topic, pa.table({"value": [b"4444", like_a_frame]}))
        if "Four" in json.dumps(schema):
            with pytest.raises(SchemaMismatchError, match="4 bytes"):
                producer.send(topic, b"\0\0\0\0\1datum")
    expected = [b"0000", like_a_frame, None, b"2222", None, like_a_frame]
    assert values(cluster, topic, 9) == [*expected, b"3333", b"4444", like_a_frame]


@pytest.mark.parametrize("schema", [FLIGHT, '"string"'], ids=["record", "string"])
@pytest.mark.parametrize("wrong", [b"hello", b"", b"\0\0\0", b"\1\0\0\0\1x"], ids=repr)
def test_bytes_that_nobody_could_read_are_refused(
    cluster: Cluster, schema: str, wrong: bytes
) -> None:
    topic = created(cluster, "avro", schema=schema)
    fine = b"\0\0\0\0\1\2a"
    sends: list[Callable[[Producer], object]] = [
        lambda producer: producer.send(topic, wrong),
        lambda producer: producer.send(topic, memoryview(wrong)),
        lambda producer: producer.send_many(topic, [fine, None, wrong]),
        lambda producer: producer.send_many(topic, pa.array([fine, wrong])),
        lambda producer: producer.send_arrow(topic, pa.table({"value": [fine, wrong]})),
        lambda producer: producer.send_arrow(
            topic, pa.table({"value": pa.chunked_array([[fine], [wrong]], pa.large_binary())})
        ),
    ]
    with Producer(cluster) as producer:
        for send in sends:
            with pytest.raises(SchemaMismatchError, match="Confluent's wire format"):
                send(producer)
    ends = Admin(cluster).describe([topic])[topic].partitions[0].ends
    assert ends is not None
    assert ends.high_watermark == 0


def test_record_batches_of_rows_stay_within_the_topics_limit(
    cluster: Cluster, encoding: str
) -> None:
    topic = created(cluster, encoding, config={"max.message.bytes": 20_000})
    big = [order(n, note="\u20ac" * 50, lines=[{"sku": "x" * 20, "count": 1}] * 9)
           for n in range(400)]  # fmt: skip
    with Producer(cluster, LINGERING) as producer:
        futures = [producer.send(topic, row) for row in big]
        with pytest.raises(RecordBatchTooLargeError, match=r"2\d,\d{3}|2\d{4}"):
            producer.send(topic, order(1, note="x" * 20_000))
    assert [future.result(60).offset for future in futures] == list(range(400))
    assert values(cluster, topic, 400) == big
    assert min(record_counts(cluster, topic, 400)[:-1]) > 5


def test_interceptors_see_columns_of_rows(cluster: Cluster) -> None:
    topic = created(cluster, "columns", schema=FLIGHT)

    class Later(ProducerInterceptor):
        def before_append(self, topic: str, records: pa.RecordBatch) -> pa.RecordBatch:
            number = records.schema.get_field_index("value")
            rows = [{**row, "delay": 1.5} for row in records.column("value").to_pylist()]
            changed = pa.array(rows, records.schema.field("value").type)
            return records.set_column(number, "value", changed)

    with Producer(cluster, interceptors=[Later()]) as producer:
        producer.send(topic, flight(3))
    assert values(cluster, topic, 1) == [{**flight(3), "delay": 1.5}]


def test_a_partitioner_sees_the_row(cluster: Cluster) -> None:
    topic = created(cluster, "columns", schema=UNIONS)
    row = union_rows()[1]
    seen: list[Any] = []

    def rule(topic: str, key: bytes | None, value: Any, partitions: int) -> int:
        seen.append(value)
        return 0

    with Producer(cluster, replace(LINGERING, acks=Acks.WRITTEN), partitioner=rule) as producer:
        producer.send(topic, row)
    assert seen == [row]


def test_the_same_with_asyncio(cluster: Cluster, topic: str) -> None:
    async def run() -> list[Any]:
        async with AsyncProducer(cluster) as producer, AsyncConsumer(cluster) as consumer:
            await consumer.assign_topics(topic)
            await producer.send(topic, order(0))
            await producer.send_many(topic, [order(1), order(2)])
            with pytest.raises(SchemaMismatchError, match=r"^id is"):
                await producer.send(topic, order(0, id="x"))
            return [(await anext(consumer)).value for _ in range(3)]

    assert asyncio.run(run()) == [order(0), order(1), order(2)]
