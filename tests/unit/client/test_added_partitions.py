"""Partitions that a topic was given after a client had asked for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_logbus.client import Admin, Cluster, Consumer, Producer, ProducerConfig, RangeReader
from spark_logbus.errors import BrokerUnavailableError, RequestTimeoutError, UnknownTopicError
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from spark_logbus.protocol import Api, MetadataRequest
from tests.builders.arrow_batches import record_batch
from tests.fakes.broker import FakeCluster, FakePartition

ADDED = TopicPartition("t", 2)
CONFIG = ProducerConfig(linger_ms=0)


def add(fake: FakeCluster) -> None:
    with fake.lock:
        fake.topics["t"].partitions[ADDED.partition] = FakePartition(1)


def asked(fake: FakeCluster) -> int:
    requests = [request for broker in fake.brokers for request in broker.requests]
    return sum(isinstance(request, MetadataRequest) for request in requests)


SENDS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send("t", b"v", partition=2),
    "send with a key": lambda producer: producer.send("t", b"v", key=b"k", partition=2),
    "send_many": lambda producer: producer.send_many("t", [b"v"], partition=2),
    "send_arrow": lambda producer: producer.send_arrow(
        "t", pa.table({"value": [b"v"]}), partition=2
    ),
    "append_encoded": lambda producer: producer.append_encoded(
        "t", record_batch([b"v"]), partition=2
    ),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_producer_looks_again_before_it_refuses_a_partition(
    fake: FakeCluster, cluster: Cluster, send: Callable[[Producer], object]
) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, CONFIG) as producer:
        producer.send("t", b"v", partition=0).result(60)
        with pytest.raises(UnknownTopicError, match="partitions 0 to 1, not 2"):
            send(producer)
        add(fake)
        send(producer)
        producer.flush()
        assert len(fake.partition(ADDED).batches) == 1
        before = asked(fake)
        send(producer)
        assert asked(fake) == before


def test_a_rule_of_the_callers_is_believed_likewise(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, CONFIG, partitioner=lambda *_: 2) as producer:
        with pytest.raises(UnknownTopicError):
            producer.send("t", b"v")
        add(fake)
        producer.send("t", b"v").result(60)
    assert len(fake.partition(ADDED).batches) == 1


def test_a_partition_that_cannot_be_is_refused_without_a_look(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, CONFIG) as producer:
        producer.send("t", b"v").result(60)
        before = asked(fake)
        with pytest.raises(UnknownTopicError, match="not -1"):
            producer.send("t", b"v", partition=-1)
        assert asked(fake) == before


def test_the_look_is_bounded(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, replace(CONFIG, max_block_ms=200)) as producer:
        producer.send("t", b"v").result(60)
        hangs = [broker.fault(Api.METADATA, "hang") for broker in fake.brokers for _ in range(50)]
        try:
            with pytest.raises((RequestTimeoutError, BrokerUnavailableError)):
                producer.send("t", b"v", partition=2)
        finally:
            for hang in hangs:
                hang.release.set()


READS: dict[str, Callable[[Cluster], object]] = {
    "RangeReader": lambda cluster: list(RangeReader(cluster, OffsetRange(ADDED, 0, 1))),
    "Admin": lambda cluster: Admin(cluster).list_offsets({ADDED: Latest()})[ADDED] == 1,
    "Consumer": lambda cluster: _consumed(cluster),
}


def _consumed(cluster: Cluster) -> object:
    with Consumer(cluster) as consumer:
        consumer.assign([ADDED])
        return consumer.poll(60)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_readers_look_again_too(
    fake: FakeCluster, cluster: Cluster, read: Callable[[Cluster], object]
) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, CONFIG) as producer:
        producer.send("t", b"v", partition=0).result(60)
        add(fake)
        with Cluster.connect(fake.bootstrap) as another, Producer(another, CONFIG) as of_another:
            of_another.send("t", b"v", partition=2).result(60)
        assert read(cluster)
