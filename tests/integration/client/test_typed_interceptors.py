"""Interceptors of a producer whose topic has a schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_logbus.client import Admin, Cluster, Producer, RangeReader
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.producer.interceptors import ProducerInterceptor
from spark_logbus.client.schemas.topic import find_value_schemas
from spark_logbus.errors import LogbusError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.record.rows.columns import HEADERS
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.topic_schemas import Encoding
from tests.builders.typed import FLIGHT, flights
from tests.servers.broker import broker_process
from tests.servers.zookeeper import session

SIGNED = [{"key": "by", "value": b"me"}]


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path, chroot) as broker:
        yield broker


@pytest.fixture
def cluster(broker: BrokerProcess, chroot: str) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(chroot) as cluster:
        yield cluster


class Signing(ProducerInterceptor):
    def before_append(self, topic: str, records: pa.RecordBatch) -> pa.RecordBatch:
        return records.append_column("headers", pa.array([SIGNED] * len(records), HEADERS))


class Spoiling(ProducerInterceptor):
    def before_append(self, topic: str, records: pa.RecordBatch) -> pa.RecordBatch:
        at = records.schema.get_field_index("value")
        return records.set_column(at, "value", pa.array(range(len(records))))


def read(cluster: Cluster, chroot: str, topic: str, count: int) -> pa.Table:
    config = Admin(cluster).describe([topic], ends=False)[topic].config
    with session(chroot) as live:
        schemas = find_value_schemas(SchemaRegistry(live), topic, config)
    assert schemas is not None
    wanted = OffsetRange(TopicPartition(topic, 0), 0, count)
    with RangeReader(cluster, wanted, values=ValueReader(schemas)) as reader:
        return pa.Table.from_batches([batch.arrow_batch for batch in reader])


@pytest.mark.parametrize("encoding", Encoding)
def test_what_an_interceptor_adds_comes_with_the_values(
    cluster: Cluster, chroot: str, encoding: Encoding
) -> None:
    Admin(cluster).create_topic(
        "t", partitions=1, value_schema=FLIGHT, value_encoding=encoding.value
    )
    rows = [*flights(0, 3), None]
    kind = pa.struct(list(pa.Table.from_pylist(flights(1, 1)).schema))
    with Producer(cluster, interceptors=[Signing()]) as producer:
        for future in producer.send_arrow("t", pa.table({"value": pa.array(rows, kind)})):
            future.result()
        producer.send("t", flights(4, 1)[0]).result()
    table = read(cluster, chroot, "t", len(rows) + 1)
    assert table.column("value").to_pylist() == [*rows, *flights(4, 1)]
    assert table.column("headers").to_pylist() == [SIGNED] * (len(rows) + 1)


@pytest.mark.parametrize("encoding", Encoding)
def test_values_that_are_not_the_topics_are_refused(cluster: Cluster, encoding: Encoding) -> None:
    Admin(cluster).create_topic(
        "t", partitions=1, value_schema=FLIGHT, value_encoding=encoding.value
    )
    said = "is int64" if encoding is Encoding.COLUMNS else "value"
    producer = Producer(cluster, interceptors=[Spoiling()])
    with producer, pytest.raises(LogbusError, match=said):
        producer.send_arrow("t", pa.Table.from_pylist(flights(0, 3)))
