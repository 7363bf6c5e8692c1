"""A broker whose disk takes no more, as its producers see it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Producer, ProducerConfig, RangeReader, RecordFuture
from spark_logbus.errors import StorageError
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import OffsetRange, TopicPartition

TP = TopicPartition("t", 0)
ROOM = 300_000  # bytes that a file of the broker may have: more is refused as by a full disk


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process's files")
def test_what_a_full_disk_refuses_fails_with_the_disks_error(tmp_path: Path) -> None:
    """This holds for producers that have never got anything through, and for all that was
    queued."""
    config = ProducerConfig(batch_bytes=20_000, linger_ms=1)
    with (
        EmbeddedCluster(tmp_path) as brokers,
        Cluster.from_zookeeper(brokers.zookeeper) as cluster,
    ):
        Admin(cluster).create_topic("t", partitions=1)
        (broker,) = brokers.brokers
        unlimited = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (ROOM, unlimited[1]))
        sent: dict[bytes, RecordFuture] = {}

        def send(producer: Producer, count: int) -> list[RecordFuture]:
            values = [b"%07d" % (len(sent) + number) for number in range(count)]
            futures = {value: producer.send("t", value * 300) for value in values}
            for future in futures.values():
                future.exception(60)
            sent.update(futures)
            return list(futures.values())

        with Producer(cluster, config) as first:
            assert not all(future.exception(30) is None for future in send(first, 300))
            for _ in range(3):
                with Producer(cluster, config) as fresh:
                    refused = [future.exception(30) for future in send(fresh, 100)]
                    assert {type(error) for error in refused if error is not None} == {StorageError}
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, unlimited)
            assert all(future.exception(30) is None for future in send(first, 50))
        errors = [future.exception(0) for future in sent.values()]
        assert {type(error) for error in errors if error is not None} == {StorageError}
        there = {
            value: future.result(0).offset
            for value, future in sent.items()
            if future.exception(0) is None
        }
        found: dict[bytes, int] = {}
        for fetched in RangeReader(cluster, OffsetRange(TP, 0, len(there))):
            values = [value[:7] for value in fetched.arrow_batch.column("value").to_pylist()]
            found.update(zip(values, fetched.offsets().to_pylist(), strict=True))
        assert found == there  # all that was acknowledged, once, and nothing that was refused
