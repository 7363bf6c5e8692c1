"""Consumers of topics with a schema, against real brokers and a real ZooKeeper."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from avro_columns.confluent import with_confluent_id
from avro_columns.encode.encoder import Encoder
from avro_columns.values.rows import columns_of
from spark_logbus.client import (
    Admin,
    Cluster,
    Consumer,
    ConsumerConfig,
    ConsumerRecord,
    Producer,
    ProducerConfig,
)
from spark_logbus.errors import (
    CoordinationError,
    InvalidRequestError,
    UndecodableRecordError,
)
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Compression, TopicPartition
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from tests.builders.typed import FLIGHT, UNIONS, flight, flights, union_rows
from tests.helpers import wait_until
from tests.servers.cluster import CONFIG
from tests.servers.zookeeper import session

NEWER = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "number", "type": "int"},
            {"name": "delay", "type": ["null", "double"], "default": None},
            {"name": "gate", "type": "string", "default": "?"},
        ],
    }
)


@pytest.fixture(params=["columns", "avro"])
def encoding(request: pytest.FixtureRequest) -> str:
    encoding: str = request.param
    return encoding


@pytest.fixture
def topic(cluster: Cluster, encoding: str) -> str:
    return created(cluster, encoding)


def created(cluster: Cluster, encoding: str, *, partitions: int = 1, schema: str = FLIGHT) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(
        name, partitions=partitions, value_schema=schema, value_encoding=encoding
    )
    return name


def publish(cluster: Cluster, topic: str, rows: list[Any], **config: Any) -> None:
    with Producer(cluster, ProducerConfig(**config)) as producer:
        for future in producer.send_arrow(topic, pa.Table.from_pylist(rows)):
            future.result()


def records(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while len(found) < count:
        found += consumer.poll(60)
    return found


def test_records_have_dicts_for_values(cluster: Cluster, topic: str) -> None:
    publish(cluster, topic, flights(0, 100), compression=Compression.ZSTD)
    with Consumer(cluster) as consumer:
        consumer.assign_topics(topic)
        found = records(consumer, 100)
        assert [record.value for record in found] == flights(0, 100)
        assert [record.offset for record in found] == list(range(100))
        publish(cluster, topic, flights(100, 1))
        assert next(consumer).value == flight(100)


def test_unions_are_sent_on_as_records_and_as_tables(cluster: Cluster, encoding: str) -> None:
    source, records_topic, table_topic = (
        created(cluster, encoding, schema=UNIONS) for _ in range(3)
    )
    rows = union_rows()
    with Producer(cluster) as producer, Consumer(cluster) as consumer:
        for row in rows:
            producer.send(source, row, key=b"k")
        producer.flush()
        consumer.assign_topics(source)
        found = records(consumer, len(rows))
        assert [record.value for record in found] == rows
        producer.send_many(records_topic, [record.value for record in found])
        consumer.seek(TopicPartition(source, 0), 0)
        table = consumer.to_arrow()
        producer.send_arrow(table_topic, table.select(["key", "value"]))
        producer.flush()
        assert consumer.value_schema(source) is not None
        for topic in (records_topic, table_topic):
            consumer.assign_topics(topic)
            assert [record.value for record in records(consumer, len(rows))] == rows
            consumer.seek(TopicPartition(topic, 0), 0)
            assert consumer.to_arrow().column("value").equals(table.column("value"))


def test_tables_have_structs_for_values(cluster: Cluster, topic: str) -> None:
    with Consumer(cluster) as consumer:
        consumer.assign_topics(topic)
        empty = consumer.to_arrow()
        assert empty.num_rows == 0
        publish(cluster, topic, flights(0, 100))
        table = consumer.to_arrow()
    assert table.schema == empty.schema
    assert table.schema.field("value").type.field("number").type == pa.int32()
    assert table.column("value").to_pylist() == flights(0, 100)
    frame = table.flatten().to_pandas()
    assert frame["value.number"].sum() == sum(range(100))


def test_many_small_record_batches_come_together(cluster: Cluster, topic: str) -> None:
    for number in range(30):
        publish(cluster, topic, flights(number, 1))
    with Consumer(cluster) as consumer:
        consumer.assign_topics(topic)
        assert [record.value for record in records(consumer, 30)] == flights(0, 30)
        assert consumer.position(TopicPartition(topic, 0)) == 30


def test_values_are_read_under_the_version_of_when_the_topic_was_met(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str
) -> None:
    publish(cluster, topic, flights(0, 3))
    with Consumer(cluster) as early:
        early.assign_topics(topic)
        assert len(records(early, 3)) == 3
        with session(brokers.zookeeper) as opened:
            SchemaRegistry(opened).register(f"{topic}-value", NEWER)
        later = {"carrier": "B6", "number": 7, "delay": None, "gate": "C1"}
        publish(cluster, topic, [later])
        assert records(early, 1)[0].value == {
            "carrier": "B6", "number": 7, "delay": None, "tail": None
        }  # fmt: skip
    with Consumer(cluster) as late:
        late.assign_topics(topic)
        found = [record.value for record in records(late, 4)]
    assert found[3] == later
    assert found[1] == {"carrier": "UA", "number": 1, "delay": 0.25, "gate": "?"}
    with Consumer(cluster, ConsumerConfig(schema_version=1)) as chosen:
        chosen.assign_topics(topic)
        assert [record.value for record in records(chosen, 3)] == flights(0, 3)


def test_what_is_known_is_read_while_zookeeper_is_away(
    brokers: EmbeddedCluster, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as other:
        topic = created(other, encoding, partitions=2)
        first, second = (TopicPartition(topic, number) for number in range(2))
        with (
            Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as cluster,
            Consumer(cluster) as consumer,
            Producer(other) as early,
        ):
            early.send(topic, flight(0), partition=0).result()
            consumer.assign([first, second])
            assert records(consumer, 1)[0].value == flight(0)
            with session(brokers.zookeeper) as opened:
                SchemaRegistry(opened).register(f"{topic}-value", NEWER)
            with Producer(other) as late:
                later = {"carrier": "B6", "number": 7, "delay": None, "gate": "C1"}
                late.send(topic, later, partition=0).result()
            cluster.zookeeper = "127.0.0.1:1/logbus"  # nobody is there
            early.send_many(topic, flights(1, 5), partition=1)
            early.flush()
            assert [record.value for record in records(consumer, 5)] == flights(1, 5)
            assert consumer.position(first) == 1
            consumer.pause([second])
            consumer.assign([first])
            with monkeypatch.context() as patched:
                patched.setattr(cluster, "config", replace(CONFIG, retry_deadline_ms=2_000))
                with pytest.raises(CoordinationError, match=f"Reading {topic}-0"):
                    records(consumer, 1)
            cluster.zookeeper = brokers.zookeeper
            found: list[ConsumerRecord] = []

            def reads_again() -> bool:
                with suppress(CoordinationError):  # until the next try is due
                    found.extend(consumer.poll(1))
                return bool(found)

            wait_until(reads_again)
            assert found[0].value["carrier"] == "B6"


def framed(rows: list[Any], schema_id: int) -> list[bytes]:
    datums = Encoder(FLIGHT).encode(columns_of(rows, FLIGHT))
    values: list[bytes] = with_confluent_id(datums, schema_id).to_pylist()
    return values


def schema_id_of(cluster: Cluster, topic: str) -> int:
    found = Admin(cluster).describe_schemas([topic])[topic][0].schema_id
    assert found is not None
    return found


@pytest.mark.parametrize("together", [True, False])
def test_values_that_do_not_decode_are_told_and_gone_past(cluster: Cluster, together: bool) -> None:
    topic = created(cluster, "avro")
    good = framed(flights(0, 4), schema_id_of(cluster, topic))
    odd = framed(flights(0, 1), 1_000_000)
    with Producer(cluster) as producer:
        for value in [good[0], good[0][:5] + b"\x07no", good[1], odd[0], good[2], good[3]]:
            producer.send(topic, value)
            if not together:
                producer.flush()
    partition = TopicPartition(topic, 0)
    with Consumer(cluster) as consumer:
        consumer.assign([partition])
        assert [record.value for record in records(consumer, 1)] == [flight(0)]
        assert consumer.position(partition) == 1
        for _ in range(2):
            with pytest.raises(UndecodableRecordError, match=r"at offset 1 does not decode"):
                records(consumer, 1)
        consumer.seek(partition, 2)
        assert next(consumer).value == flight(1)
        with pytest.raises(UndecodableRecordError, match=r"at offset 3 .*id is 1000000"):
            records(consumer, 1)
        consumer.seek(partition, 4)
        assert [record.value for record in records(consumer, 2)] == flights(2, 2)
    with Consumer(cluster, ConsumerConfig(on_undecodable="drop")) as consumer:
        consumer.assign([partition])
        found = records(consumer, 4)
        assert [record.value for record in found] == flights(0, 4)
        assert [record.offset for record in found] == [0, 2, 4, 5]
        assert consumer.dropped_records == 2


def test_a_client_without_zookeeper_says_so(cluster: Cluster, topic: str) -> None:
    publish(cluster, topic, flights(0, 1))
    with Cluster.connect(cluster.bootstrap) as alone, Consumer(alone) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(InvalidRequestError, match=r"Cluster\.from_zookeeper"):
            consumer.poll(60)


def test_records_of_a_schema_that_is_gone_are_told_or_left_out(
    brokers: EmbeddedCluster, cluster: Cluster, encoding: str
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    own = json.loads(FLIGHT) | {"doc": topic}  # or another subject would keep the id
    Admin(cluster).create_topic(topic, partitions=1, value_schema=own, value_encoding=encoding)
    publish(cluster, topic, flights(0, 2))
    first = schema_id_of(cluster, topic)
    with session(brokers.zookeeper) as opened:
        SchemaRegistry(opened).register(f"{topic}-value", NEWER)
        later = {"carrier": "B6", "number": 7, "delay": None, "gate": "C1"}
        publish(cluster, topic, [later])
        for permanent in (False, True):
            SchemaAdministration(opened).delete_version(f"{topic}-value", 1, permanent=permanent)
            if not permanent:
                with Consumer(cluster) as consumer:
                    consumer.assign_topics(topic)
                    assert len(records(consumer, 3)) == 3
    partition = TopicPartition(topic, 0)
    with Consumer(cluster) as consumer:
        consumer.assign([partition])
        for poll in (consumer.poll, consumer.poll_arrow):
            with pytest.raises(UndecodableRecordError) as raised:
                poll(30)
            said = str(raised.value)
            assert f"The value of {partition} at offset 0 does not decode" in said
            assert f"its schema id is {first}, which the topic's subject '{topic}-value'" in said
            assert "in the mode IMPORT" in said
            assert "on_undecodable" in said
    with Consumer(cluster, ConsumerConfig(on_undecodable="drop")) as consumer:
        consumer.assign([partition])
        [found] = records(consumer, 1)
        assert (found.offset, found.value) == (2, later)
        assert consumer.dropped_records == 2
