"""Brokers that do not answer, and networks that are slow: the others' records come all the same."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from spark_logbus.client import (
    Admin,
    Bootstrap,
    ClientConfig,
    Cluster,
    Consumer,
    Producer,
    ProducerConfig,
    RangeReader,
)
from spark_logbus.clock import SystemClock
from spark_logbus.errors import LogbusError
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from tests.helpers import frozen, wait_until
from tests.servers.broker import broker_process
from tests.servers.relay import Relay

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)


def created(zookeeper: str, name: str, *, partitions: int) -> dict[TopicPartition, int]:
    """A topic with three record batches of one record in each partition; its leaders."""
    with Cluster.from_zookeeper(zookeeper, CONFIG) as cluster:
        parts = Admin(cluster).create_topic(name, partitions=partitions).partitions
        leaders = {TopicPartition(name, n): part.leader for n, part in parts.items()}
        with Producer(cluster) as producer:
            for number in range(3):
                for topic_partition in leaders:
                    producer.send(name, b"%d" % number, partition=topic_partition.partition)
                producer.flush()
    return {
        topic_partition: leader.broker_id
        for topic_partition, leader in leaders.items()
        if leader is not None
    }


@pytest.mark.long
def test_offsets_are_known_despite_a_silent_first_leader(
    tmp_path: Path,
) -> None:
    with EmbeddedCluster(tmp_path, brokers=2) as brokers:
        leaders = created(brokers.zookeeper, "first-silent", partitions=4)
        silent = leaders[TopicPartition("first-silent", 0)]
        others = [
            topic_partition for topic_partition, leader in leaders.items() if leader != silent
        ]
        config = replace(CONFIG, idle_connections=0)  # so that each leader is greeted anew
        for _ in range(5):
            with Cluster.from_zookeeper(brokers.zookeeper, config) as cluster:
                admin = Admin(cluster)
                admin.describe(["first-silent"], ends=False)
                with frozen(brokers.brokers[silent - 1].pid):
                    found = admin.find_offsets(dict.fromkeys(leaders, Latest()), patience_ms=1_000)
                assert found.found == dict.fromkeys(others, 3)
                assert all(f"broker {silent} " in str(error) for error in found.away.values())


@pytest.mark.long
def test_a_silent_broker_costs_a_poll_one_timeout(chroot: str, tmp_path: Path) -> None:
    config = ClientConfig(request_timeout_ms=500, connect_timeout_ms=1_000, retry_deadline_ms=2_000)
    clock = SystemClock()
    with broker_process(tmp_path, chroot) as broker:
        created(chroot, "many", partitions=60)
        at = Bootstrap.of(broker.address)
        with Cluster.connect(at, config) as cluster, Consumer(cluster) as consumer:
            consumer.assign_topics("many")
            wait_until(lambda: not consumer.poll_arrow(0.1), message="the end of all partitions")

            def poll_until_given_up() -> None:
                while True:
                    began = clock.monotonic()
                    consumer.poll_arrow(0.1)
                    assert clock.monotonic() - began < 10, "60 timeouts, one after the other"

            with frozen(broker.pid), pytest.raises(LogbusError, match="did not succeed within"):
                poll_until_given_up()
            broker.kill()


def test_an_answer_that_is_on_its_way_is_waited_for(
    chroot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is impatient with brokers that are away, as ``logbus consume`` is, reads over a
    slow network all the same."""
    impatient = ClientConfig(local_sockets=False, retry_deadline_ms=2_500)
    with broker_process(tmp_path, chroot) as broker:
        topic_partition = next(iter(created(chroot, "slow", partitions=1)))
        with Cluster.from_zookeeper(chroot, CONFIG) as cluster, Producer(cluster) as producer:
            for _ in range(6):
                producer.send(topic_partition.topic, bytes(1_000_000), partition=0)
        never = threading.Event()  # what it waits for in vain is the time that 1.5 MB/s take
        relay = Relay(broker.address, lambda data: not never.wait(len(data) / 1_500_000))
        relay.take_over(monkeypatch)
        try:
            with (
                Cluster.from_zookeeper(chroot, impatient) as cluster,
                RangeReader(cluster, OffsetRange(topic_partition, 0, 9)) as reader,
            ):
                assert sum(len(fetched.arrow_batch) for fetched in reader) == 9
        finally:
            relay.close()


def test_a_send_waits_for_no_metadata(tmp_path: Path, chroot: str) -> None:
    config = replace(
        CONFIG, metadata_max_age_ms=1, connect_timeout_ms=60_000, request_timeout_ms=60_000
    )
    with (
        broker_process(tmp_path, chroot) as broker,
        Cluster.from_zookeeper(chroot, config) as cluster,
    ):
        Admin(cluster).create_topic("t", partitions=1)
        with Producer(cluster, ProducerConfig(batch_bytes=1, linger_ms=0)) as producer:
            futures = [producer.send("t", b"0")]
            futures[0].result(60)

            def send() -> None:
                futures.extend(producer.send("t", b"%d" % number) for number in range(1, 20))

            sending = threading.Thread(target=send)
            with frozen(broker.pid):
                sending.start()
                sending.join(60)
                assert not sending.is_alive()
            assert [future.result(60).offset for future in futures] == list(range(20))
