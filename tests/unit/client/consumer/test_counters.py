"""What a consumer counts, and how it shows itself."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
from prometheus_client import CollectorRegistry, generate_latest

from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig
from spark_logbus.client.consumer.positions import Iteration
from spark_logbus.client.metrics import CONSUMER_METRICS, ClientCollector
from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.protocol import Api
from tests.builders.arrow_batches import T0, T1, numbered, record_batch
from tests.fakes.broker import FakeCluster
from tests.helpers import wait_until

QUICK_POLL = ConsumerConfig(max_wait_ms=20)


def fill(fake: FakeCluster, records: int = 100) -> int:
    """Record batches of ten, in both partitions; returns their bytes in one."""
    fake.create("t", partitions=2)
    for each in (T0, T1):
        for start in range(0, records, 10):
            fake.append(each, record_batch(numbered(start, 10)))
    return sum(len(data) for _, data in fake.partition(T0).batches)


def test_lost_offsets_are_no_lag(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake)
    fake.partition(T0).lost = [(30, 50), (60, 70)]
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0])
        assert next(consumer).offset == 0
        for at, lag in ((0, 70), (29, 41), (40, 40), (55, 35), (65, 30), (100, 0), (200, 0)):
            consumer.seek(T0, at)
            told = consumer.metrics()
            assert told["records_lag"] == told["records_lag_max"] == lag


def test_records_count_when_they_are_handed_out(fake: FakeCluster, cluster: Cluster) -> None:
    size = fill(fake)
    with Consumer(cluster, replace(QUICK_POLL, partition_fetch_bytes=size)) as consumer:
        assert consumer.metrics() == dict.fromkeys(CONSUMER_METRICS, 0)
        consumer.assign([T0])
        for number in range(7):
            assert next(consumer).offset == number
        told = consumer.metrics()
        assert told["records_consumed_total"] == 7
        assert told["records_lag"] == told["records_lag_max"] == 93
        assert told["bytes_consumed_total"] == size
        assert told["fetch_total"] == 1
        consumer.poll(60, max_records=5)
        assert consumer.metrics()["records_consumed_total"] == 12
        consumer.poll_arrow(60)
        told = consumer.metrics()
        assert (told["records_consumed_total"], told["records_lag"]) == (100, 0)
        assert told["buffered_bytes"] == 0
        consumer.seek(T0, 40)
        assert consumer.metrics()["records_lag"] == 60
        consumer.assign([T0, T1])
        consumer.pause([T0])
        for record in consumer:
            if record.offset == 30:
                break
        told = consumer.metrics()
        assert told["records_consumed_total"] == 131
        assert (told["records_lag"], told["records_lag_max"]) == (60 + 69, 69)
        assert (told["assigned_partitions"], told["paused_partitions"]) == (2, 1)
        assert told["buffered_bytes"] < size
        consumer.assign([T0])
        assert consumer.metrics()["records_lag"] == 60
        shown = CollectorRegistry()
        shown.register(ClientCollector(orders=consumer))
        assert b'logbus_consumer_records_lag{client="orders"} 60.0' in generate_latest(shown)


def test_gaps_of_compaction_are_no_records(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 10)
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0])
        [batch] = consumer.poll_arrow(60)
    deltas = pa.array(range(0, 30, 3), pa.int32())
    gaps = replace(batch, arrow_batch=batch.arrow_batch.append_column("offset_delta", deltas))
    iteration = Iteration()
    iteration.begin(gaps, end=30)
    for count in range(1, 11):
        iteration.last = next(iteration.rows)
        assert iteration.handed_out == count
    iteration.end()
    assert iteration.handed_out == 10


def test_failed_tries_count(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake)
    fake.brokers[0].fault(Api.FETCH, "error", BrokerUnavailableError("going down"))
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0])
        assert len(consumer.poll(60)) > 0
        assert consumer.metrics()["fetch_error_total"] == 1


def test_another_thread_may_look_at_any_time(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 1_000)
    ended = threading.Event()
    told: list[dict[str, int | float]] = []
    with Consumer(cluster, replace(QUICK_POLL, partition_fetch_bytes=1_000)) as consumer:
        consumer.assign([T0, T1])

        def look() -> None:
            while not ended.is_set():
                told.append(consumer.metrics())

        looking = threading.Thread(target=look)
        looking.start()
        read = 0
        while read < 2_000:
            read += len(consumer.poll(60, max_records=7))
        ended.set()
        looking.join()
        wait_until(lambda: consumer.metrics()["records_lag"] == 0)
        assert consumer.metrics()["records_consumed_total"] == 2_000
    assert all(0 <= one["records_consumed_total"] <= 2_000 for one in told)


def test_clients_say_who_they_are(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    places = ",".join(f"{one.address.host}:{one.address.port}" for one in fake.brokers)
    assert repr(cluster) == f"<Cluster at {places}>"
    assert repr(Admin(cluster)) == f"<Admin at {places}>"
    consumer = Consumer(cluster, ConsumerConfig(group="billing"))
    assert repr(consumer) == f"<Consumer at {places}, group 'billing', no topics, 0 partitions>"
    plain = Consumer(cluster)
    plain.assign([T0, T1])
    assert repr(plain) == f"<Consumer at {places}, topics t, 2 partitions>"
    plain.close()
    assert repr(plain).endswith(", closed>")
    consumer.close()
