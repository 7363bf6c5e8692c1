"""A topic's configuration and partitions changed while it is in use, on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Admin, ClientConfig, Cluster, Producer
from spark_logbus.errors import ConfigError, RecordBatchTooLargeError, UnknownTopicError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.protocol import Api, AppendResponse
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, failure
from tests.servers.wire import append_request

BATCH = record_batch(payload=bytes(2000))
SETTINGS = {
    "broker": {"max_partitions_per_topic": 30, "max_partitions_per_broker": 40},
    "log": {"segment_bytes": 4096},
}


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path, chroot, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def admin(broker: BrokerProcess, chroot: str) -> Iterator[Admin]:
    with Cluster.from_zookeeper(chroot) as cluster:
        yield Admin(cluster)


def log_start(admin: Admin) -> int:
    ends = admin.describe(["t"])["t"].partitions[0].ends
    assert ends is not None
    return ends.log_start_offset


def high_watermarks(admin: Admin) -> list[int]:
    parts = admin.describe(["t"])["t"].partitions.values()
    return [part.ends.high_watermark for part in parts if part.ends is not None]


@pytest.mark.parametrize("retention", [{"retention.bytes": "5000"}, {"retention.ms": "1"}])
def test_lowered_retention_deletes_live_segments(
    broker: BrokerProcess, admin: Admin, retention: dict[str, str]
) -> None:
    admin.create_topic("t", partitions=1, config={"retention.ms": "-1"})
    old = record_batch(payload=bytes(2000), timestamps=(1, 1))  # of 1970
    with connect(broker) as wire:
        for data in [old] * 10 + [BATCH]:
            wire.append("t", 0, data)
        segments = broker.directory / "data" / "t-0"
        assert len(list(segments.glob("*.log"))) == 11
        done = admin.alter_topic("t", put=retention)
        assert (done.config_before, done.config) == (
            {"retention.ms": "-1"},
            {"retention.ms": "-1", **retention},
        )
        wait_until(lambda: log_start(admin) >= 8, deadline_s=60)
        wait_until(lambda: len(list(segments.glob("*.log"))) <= 3, deadline_s=60)
        assert wire.append("t", 0, BATCH).results[0].base_offset == 11


def test_a_lower_max_message_bytes_refuses_larger_record_batches(
    broker: BrokerProcess, admin: Admin
) -> None:
    admin.create_topic("t", partitions=1)
    with connect(broker) as wire:
        wire.append("t", 0, BATCH)
        admin.alter_topic("t", put={"max.message.bytes": "1000"})

        def refused() -> bool:
            return wire.append("t", 0, BATCH).results[0].error is not None

        wait_until(refused, deadline_s=60)
        with pytest.raises(RecordBatchTooLargeError, match="1000"):
            raise failure(wire.append("t", 0, BATCH).results[0].error)
        admin.alter_topic("t", drop=["max.message.bytes"])
        wait_until(lambda: not refused(), deadline_s=60)


def test_a_change_of_flush_ms_flushes_what_waited(broker: BrokerProcess, admin: Admin) -> None:
    admin.create_topic("t", partitions=1, config={"flush.ms": "3600000"})
    with connect(broker) as wire:
        request = append_request("t", 0, BATCH, acks="written")
        assert wire.call(Api.APPEND, request, AppendResponse, BATCH).results[0].error is None
        assert wire.fetch("t", 0, 0).results[0].length == 0, "it is not flushed yet"
        admin.alter_topic("t", put={"flush.ms": "1"})
        wait_until(lambda: wire.fetch("t", 0, 0).results[0].length, deadline_s=60)
        wire.call(Api.APPEND, request, AppendResponse, BATCH)
        wait_until(lambda: wire.fetch("t", 0, 1).results[0].length, deadline_s=60)


def test_what_cannot_be_set_is_refused_and_nothing_is_changed(admin: Admin) -> None:
    admin.create_topic("t", partitions=2, config={"retention.ms": "5000"})
    with pytest.raises(ConfigError, match=r"did you mean retention\.ms"):
        admin.alter_topic("t", put={"segment.ms": "1000", "retention.sm": "1"})
    with pytest.raises(ConfigError, match="both set and unset"):
        admin.alter_topic("t", put={"segment.ms": "1000"}, drop=["segment.ms"])
    with pytest.raises(ConfigError, match="'a week'"):
        admin.alter_topic("t", put={"retention.ms": "a week"})
    with pytest.raises(ConfigError, match="has 2 partitions and cannot have 1"):
        admin.alter_topic("t", partitions=1)
    with pytest.raises(ConfigError, match="max_partitions_per_topic"):
        admin.alter_topic("t", partitions=31)
    with pytest.raises(UnknownTopicError):
        admin.alter_topic("other", put={"retention.ms": "1"})
    admin.alter_topic("t", drop=["segment.ms"])  # not set
    found = admin.describe(["t"])["t"]
    assert (found.config, len(found.partitions)) == ({"retention.ms": "5000"}, 2)


def test_topics_and_partitions_are_limited(admin: Admin) -> None:
    with pytest.raises(ConfigError, match="max_partitions_per_topic"):
        admin.create_topic("t", partitions=31)
    admin.create_topic("t", partitions=20)
    admin.create_topic("u", partitions=19)
    with pytest.raises(ConfigError, match="max_partitions_per_broker"):
        admin.create_topic("v", partitions=2)
    with pytest.raises(ConfigError, match="max_partitions_per_broker"):
        admin.alter_topic("u", partitions=21)
    admin.create_topic("v", partitions=1)
    admin.alter_topic("t", put={"retention.ms": "1"})  # which adds no partition


def test_no_change_is_lost_when_many_are_made_at_once(admin: Admin) -> None:
    admin.create_topic("t", partitions=1, config={"retention.bytes": "1"})
    keys = ["segment.ms", "segment.bytes", "flush.ms", "retention.ms", "index.interval.bytes"]

    def alter(key: str) -> None:
        for value in (5000, 6000, 7000):
            admin.alter_topic("t", put={key: str(value)}, drop=["retention.bytes"])

    threads = [threading.Thread(target=alter, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admin.describe(["t"])["t"].config == dict.fromkeys(keys, "7000")


def test_partitions_that_are_added_are_led_and_used(
    broker: BrokerProcess, admin: Admin, chroot: str
) -> None:
    admin.create_topic("t", partitions=1)
    config = ClientConfig(metadata_max_age_ms=1)
    with Cluster.from_zookeeper(chroot, config) as cluster, Producer(cluster) as producer:
        assert producer.send("t", b"a").result(60).partition == 0
        done = admin.alter_topic("t", partitions=3)
        assert (done.partitions_before, done.partitions) == (1, 3)
        assert admin.alter_topic("t", partitions=3).partitions_before == 3
        assert Admin(cluster).describe(["t"])["t"].partitions.keys() == {0, 1, 2}
        wait_until(lambda: producer.send("t", b"b").result(60).partition == 2)
        assert producer.send("t", b"b", partition=1).result(60).partition == 1
    broker.stop()
    broker.start()
    wait_until(lambda: len(marks := high_watermarks(admin)) == 3 and min(marks) >= 1)
