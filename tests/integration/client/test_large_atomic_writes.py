"""Atomic writes of many gigabytes, and of many tasks into many partitions."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_logbus.client import (
    Admin,
    AtomicWrites,
    Cluster,
    Producer,
    ProducerConfig,
    RangeReader,
    StagedTask,
    WriteIdentity,
)
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.record.stage_id import stage_id
from tests.servers.peers import resident_mib

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

GIB = int(os.environ.get("LOGBUS_STAGED_GIB", "5"))
ARROW_BATCH = pa.table({"value": pa.array([bytes(1000)] * 4_000, pa.binary())})


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "cluster", brokers=1) as embedded:
        yield embedded


@pytest.fixture
def cluster(brokers: EmbeddedCluster) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(brokers.zookeeper) as connected:
        yield connected


def identity() -> WriteIdentity:
    return WriteIdentity(writer=uuid.uuid4().hex, version=1)


def test_gigabytes_cost_the_broker_no_memory_and_hold_up_nobody(
    brokers: EmbeddedCluster, cluster: Cluster
) -> None:
    Admin(cluster).create_topic("t", partitions=1)
    at = TopicPartition("t", 0)
    with Producer(cluster) as producer:
        producer.send_arrow("t", ARROW_BATCH, partition=0)
    pid = brokers.brokers[0].pid
    before = resident_mib(pid)
    peak, done = before, threading.Event()
    appended = read = 0

    def others() -> None:
        """Append and read beside it, and look at the broker's memory."""
        nonlocal appended, read, peak
        with Producer(cluster, ProducerConfig(linger_ms=0)) as producer:
            while not done.is_set():
                producer.send("t", b"beside", partition=0).result(60)
                appended += 1
                with RangeReader(cluster, OffsetRange(at, 0, 4_000)) as reader:
                    read += sum(batch.arrow_batch.num_rows for batch in reader)
                peak = max(peak, resident_mib(pid))

    beside = threading.Thread(target=others)
    beside.start()
    try:
        records = 0
        with Producer(cluster, stage_id=stage_id(7, 1)) as producer:
            while records < GIB * (1 << 30) // 1_000:
                producer.send_arrow("t", ARROW_BATCH, partition=0)
                records += len(ARROW_BATCH)
        staged = (appended, read)
        task = StagedTask(1, {at: records}, records * 1_000)
        assert AtomicWrites(cluster).commit(identity(), 7, [task]).visible
        published = (appended, read)
    finally:
        done.set()
        beside.join()
    assert peak - before < 100
    assert staged[0] > 0
    assert published[0] > staged[0]
    assert published[1] > staged[1]
    ends = Admin(cluster).describe(["t"])["t"].partitions[0].ends
    assert ends is not None
    assert ends.high_watermark == records + len(ARROW_BATCH) + appended


def test_200_tasks_into_1000_partitions(cluster: Cluster) -> None:
    Admin(cluster).create_topic("t", partitions=1_000)
    tasks = []
    for attempt in range(200):
        with Producer(cluster, ProducerConfig(linger_ms=500), stage_id=stage_id(7, attempt)) as one:
            for partition in range(1_000):
                one.send("t", b"%d" % attempt, partition=partition)
        records = Counter({TopicPartition("t", partition): 1 for partition in range(1_000)})
        tasks.append(StagedTask(attempt, records, 1_000))
    assert AtomicWrites(cluster).commit(identity(), 7, tasks).visible
    found = Admin(cluster).describe(["t"])["t"].partitions
    assert {part.ends.high_watermark for part in found.values() if part.ends} == {200}
    for partition in (0, 999):
        at = TopicPartition("t", partition)
        with RangeReader(cluster, OffsetRange(at, 0, 200)) as reader:
            values = [
                value for batch in reader for value in batch.arrow_batch.column("value").to_pylist()
            ]
        assert values == [b"%d" % attempt for attempt in range(200)]
