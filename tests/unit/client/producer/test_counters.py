"""What a producer counts, and how it shows itself."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from spark_logbus.client import AsyncProducer, Cluster, Producer, ProducerConfig
from spark_logbus.client.metrics import PRODUCER_METRICS, ClientCollector
from spark_logbus.errors import DeliveryFailedError, NotLeaderError, StorageError
from spark_logbus.model import Acks
from spark_logbus.protocol import Api
from tests.builders.arrow_batches import T0, record_batch
from tests.fakes.broker import FakeCluster
from tests.helpers import wait_until

CONFIG = ProducerConfig(linger_ms=0)
LONG = ProducerConfig(linger_ms=600_000)


def settled(producer: Producer) -> int:
    told = producer.metrics()
    return int(told["record_acknowledged_total"] + told["record_error_total"])


def test_records_count_by_whatever_way_they_come(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, LONG) as producer:
        nothing = {**dict.fromkeys(PRODUCER_METRICS, 0), "buffer_total_bytes": 64 << 20}
        assert producer.metrics() == nothing
        for _ in range(5):  # the first ones under a lock, the others by a lane
            producer.send("t", b"v", partition=0)
        producer.send("t", b"v", key=b"k", partition=1)
        assert producer.metrics()["record_send_total"] == 6
        assert 0 < producer.metrics()["buffer_used_bytes"] < 1_000
        producer.send_many("t", [b"v"] * 10, partition=0)
        producer.append_encoded("t", record_batch([b"v"] * 3), partition=1)
        assert producer.metrics()["record_send_total"] == 19
        producer.flush()
        told = producer.metrics()
    stored = [data for part in fake.topics["t"].partitions.values() for _, data in part.batches]
    assert told == {
        "record_send_total": 19,
        "record_acknowledged_total": 19,
        "record_error_total": 0,
        "record_retry_total": 0,
        "outgoing_byte_total": sum(map(len, stored)),
        "buffer_total_bytes": 64 << 20,
        "buffer_used_bytes": 0,
    }


def test_failures_and_repetitions_count(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, CONFIG) as producer:
        fake.brokers[0].fault(Api.APPEND, "partition_error", NotLeaderError("not any more"))
        producer.send_many("t", [b"v"] * 4)
        producer.flush()
        fake.brokers[0].fault(Api.APPEND, "partition_error", StorageError("full"))
        producer.send_many("t", [b"v"] * 3)
        with pytest.raises(DeliveryFailedError):
            producer.flush()
        told = producer.metrics()
        assert (told["record_send_total"], told["record_acknowledged_total"]) == (7, 4)
        assert (told["record_error_total"], told["record_retry_total"]) == (3, 4)
        stored = sum(len(data) for _, data in fake.partition(T0).batches)
        assert told["outgoing_byte_total"] > 2 * stored


def test_what_is_given_up_counts(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, replace(LONG, delivery_timeout_ms=50)) as producer:
        futures = [producer.send("t", b"v") for _ in range(9)]
        wait_until(lambda: settled(producer) == 9)
        assert producer.metrics()["record_send_total"] == 9
        assert {future.exception(0) is None for future in futures} == {False}
        producer.send("t", b"v").add_done_callback(lambda _: None)
        producer._abandon()
        assert producer.metrics()["record_send_total"] == settled(producer) == 10


def test_a_counter_never_falls_while_threads_send(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    config = ProducerConfig(linger_ms=0, batch_bytes=2_000)
    with Producer(cluster, config) as producer:

        def work() -> None:
            for number in range(4_000):
                producer.send("t", b"v", partition=number % 2 if number % 3 else None)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        last = producer.metrics()
        while any(thread.is_alive() for thread in threads):
            told = producer.metrics()
            for name in PRODUCER_METRICS:
                assert told[name] >= last[name] or not name.endswith("_total")
            last = told
        producer.flush()
        assert producer.metrics()["record_send_total"] == settled(producer) == 8_000


def test_prometheus_shows_them(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    registry = CollectorRegistry()
    with Producer(cluster, ProducerConfig(linger_ms=0, acks=Acks.NONE)) as producer:
        registry.register(ClientCollector(orders=producer))
        producer.send("t", b"v").result(60)
        text = generate_latest(registry).decode()
    assert 'logbus_producer_record_acknowledged_total{client="orders"} 1.0' in text
    assert 'logbus_producer_buffer_used_bytes{client="orders"} 0.0' in text


def test_it_says_where_it_sends_to(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, CONFIG) as producer:
        assert repr(producer) == f"<Producer at {cluster.address}, no topics>"
        producer.send("t", b"v")
        assert repr(producer) == f"<Producer at {cluster.address}, topics t>"
    assert repr(producer) == f"<Producer at {cluster.address}, topics t, closed>"

    async def run() -> tuple[str, int | float]:
        async with AsyncProducer(cluster) as producer:
            await producer.send("t", b"v")
            return repr(producer), producer.metrics()["record_send_total"]

    assert asyncio.run(run()) == (f"<AsyncProducer at {cluster.address}, topics t>", 1)
