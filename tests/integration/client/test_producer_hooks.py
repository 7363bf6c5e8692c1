"""A producer's own rules and lookers-on: partitioners and interceptors, with a real broker."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.client import (
    Admin,
    AppendedRange,
    Cluster,
    Consumer,
    Producer,
    ProducerConfig,
    ProducerInterceptor,
)
from spark_logbus.errors import InvalidRequestError, LogbusError, UnknownTopicError
from spark_logbus.model import TopicPartition


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(name, partitions=3)
    return name


def read(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    with Consumer(cluster) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(3)])
        rows: list[dict[str, Any]] = consumer.to_arrow().to_pylist()
        return rows


# -- partitioners -------------------------------------------------------------------------


def by_country(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    """Records of Austria go to the last partition, all others where their key leads."""
    del topic, key
    return partitions - 1 if value is not None and value.startswith(b"at") else None


def test_a_partitioner_chooses_for_single_records_and_columns(cluster: Cluster, topic: str) -> None:
    values, keys = [b"at1", b"de1", b"at2", b"fr1"], [b"a", b"b", None, b"c"]
    with Producer(cluster, partitioner=by_country) as producer:
        for value, key in zip(values, keys, strict=True):
            producer.send(topic, value, key=key)
        producer.flush()
        producer.send_many(topic, values, keys=keys)
        producer.send_many(topic, [b"at3"])  # without keys
        producer.send(topic, b"at4", partition=0)  # named: nobody is asked
    with Producer(cluster) as producer:  # the usual rule, to compare with
        usual = {key: producer.send(topic, b"", key=key).result().partition for key in keys if key}
    rows = [row for row in read(cluster, topic) if row["value"]]
    assert len(rows) == 10
    for row in rows:
        if row["value"] == b"at4":
            assert row["partition"] == 0
        elif row["value"].startswith(b"at"):
            assert row["partition"] == 2
        else:
            assert row["partition"] == usual[row["key"]]


@pytest.mark.parametrize(("chosen", "error"), [(3, UnknownTopicError), ("1", InvalidRequestError)])
def test_a_partition_that_is_not_there_is_refused(
    cluster: Cluster, topic: str, chosen: Any, error: type[LogbusError]
) -> None:
    with Producer(cluster, partitioner=lambda *_: chosen) as producer:
        with pytest.raises(error, match="partition"):
            producer.send(topic, b"v")
        with pytest.raises(error, match="partition"):
            producer.send_many(topic, [b"v"])
    assert read(cluster, topic) == []


# -- interceptors -------------------------------------------------------------------------


class Stamps(ProducerInterceptor):
    """Adds a header to each record, and notes what became of them."""

    def __init__(self) -> None:
        self.fates: list[tuple[str, int, AppendedRange | None, LogbusError | None]] = []
        self.on_their_way: list[pa.RecordBatch] = []
        self.closed = 0

    def before_append(self, topic: str, records: pa.RecordBatch) -> pa.RecordBatch:
        column = [[{"key": "seen", "value": topic.encode()}]] * records.num_rows
        return pa.RecordBatch.from_pydict(
            {"value": records.column("value"), "timestamp": records.column("timestamp"),
             "headers": column}
        )  # fmt: skip

    def after_append(
        self,
        topic: str,
        records: pa.RecordBatch,
        appended: AppendedRange | None,
        error: LogbusError | None,
    ) -> None:
        self.fates.append((topic, records.num_rows, appended, error))
        assert any(records is each for each in self.on_their_way)
        self.on_their_way = [each for each in self.on_their_way if each is not records]

    def under_way(self, topic: str, records: pa.RecordBatch) -> None:
        del topic
        self.on_their_way.append(records)

    def close(self) -> None:
        assert not self.on_their_way
        self.closed += 1


def test_interceptors_change_records_and_learn_their_places(cluster: Cluster, topic: str) -> None:
    stamps = Stamps()
    with Producer(cluster, interceptors=[stamps]) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, timestamp_us=number, partition=1)
        producer.flush()
        producer.send_many(topic, [b"5", b"6"], timestamps_us=[5, 6], partition=1)
    assert (stamps.closed, stamps.on_their_way) == (1, [])
    rows = read(cluster, topic)
    assert [row["value"] for row in rows] == [b"%d" % number for number in range(7)]
    assert {row["headers"][0]["value"] for row in rows} == {topic.encode()}
    assert all(name == topic and error is None for name, _, _, error in stamps.fates)
    places = [
        offset
        for _, count, appended, _ in stamps.fates
        if appended is not None and appended.base_offset is not None
        for offset in range(appended.base_offset, appended.base_offset + count)
    ]
    assert places == list(range(7))


def test_interceptors_learn_what_failed(cluster: Cluster, topic: str) -> None:
    stamps = Stamps()
    with Producer(cluster, ProducerConfig(linger_ms=0), interceptors=[stamps]) as producer:
        producer.send(topic, b"first").result(60)
        Admin(cluster).delete_topic(topic)
        error = producer.send(topic, b"late").exception(60)
    assert isinstance(error, LogbusError)
    *fate, learned = stamps.fates[-1]
    assert (fate, repr(learned)) == ([topic, 1, None], repr(error))


class Broken(ProducerInterceptor):
    """Fails as it is told."""

    def __init__(self, returns: Any) -> None:
        self._returns = returns

    def before_append(self, topic: str, records: pa.RecordBatch) -> pa.RecordBatch:
        del topic
        if isinstance(self._returns, Exception):
            raise self._returns
        return records.slice(0, 0) if self._returns == "fewer" else self._returns


@pytest.mark.parametrize("returns", [ValueError("no"), "fewer", None])
def test_an_interceptor_that_fails_fails_its_records_alone(
    cluster: Cluster, topic: str, returns: Any
) -> None:
    with Producer(cluster, interceptors=[Broken(returns)]) as producer:
        with pytest.raises(InvalidRequestError, match="Broken"):
            producer.send(topic, b"one").result(60)
        with pytest.raises(InvalidRequestError, match="Broken"):
            producer.send_many(topic, [b"many"])
    assert read(cluster, topic) == []
    with pytest.raises(InvalidRequestError, match="ProducerInterceptor"):
        Producer(cluster, interceptors=[object()])  # type: ignore[list-item]
