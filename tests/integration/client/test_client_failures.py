"""What the clients do while real brokers are killed, stopped and started on other ports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    RangeReader,
    TopicDescription,
)
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from tests.servers.broker import restart_elsewhere

# Over TCP: the other integration tests use the brokers' local sockets.
CONFIG = ClientConfig(
    client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100, local_sockets=False
)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), brokers=2) as embedded:
        yield embedded


@pytest.fixture
def cluster(brokers: EmbeddedCluster) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as connected:
        yield connected


def leader_of(brokers: EmbeddedCluster, topic: TopicDescription, partition: int) -> BrokerProcess:
    leader = topic.partitions[partition].leader
    assert leader is not None
    return next(one for one in brokers.brokers if one.broker_id == leader.broker_id)


def read_all(cluster: Cluster, topic_partition: TopicPartition) -> list[bytes]:
    end = Admin(cluster).list_offsets({topic_partition: Latest()})[topic_partition] or 0
    found: list[bytes] = []
    for fetched in RangeReader(cluster, OffsetRange(topic_partition, 0, end)):
        found += fetched.arrow_batch.column("value").to_pylist()
    return found


@pytest.mark.long
def test_order_holds_while_a_leader_is_killed(brokers: EmbeddedCluster, cluster: Cluster) -> None:
    topic = Admin(cluster).create_topic("killed", partitions=2)
    victim = leader_of(brokers, topic, 0)
    topic_partitions = [TopicPartition("killed", 0), TopicPartition("killed", 1)]
    acknowledged = threading.Event()
    go_on = threading.Event()
    config = ProducerConfig(linger_ms=1, batch_bytes=2_000)
    sent = 0
    with Producer(cluster, config) as producer:

        def produce() -> None:
            nonlocal sent
            while not go_on.is_set():
                future = producer.send("killed", b"%d" % sent, partition=sent % 2)
                sent += 1
                if sent % 100 == 0:
                    producer.flush(30)
                if sent == 500:
                    future.result(60)
                    acknowledged.set()

        thread = threading.Thread(target=produce)
        thread.start()
        assert acknowledged.wait(60)
        victim.kill()
        victim.start()
        go_on.set()
        thread.join()
        producer.flush(30)
    for topic_partition in topic_partitions:
        got = read_all(cluster, topic_partition)
        # At least once: an append whose answer was lost is there twice, but in order.
        assert list(dict.fromkeys(got)) == [
            b"%d" % n for n in range(topic_partition.partition, sent, 2)
        ]


def test_readers_follow_a_leader_to_another_port(
    brokers: EmbeddedCluster, cluster: Cluster
) -> None:
    topic = Admin(cluster).create_topic("moved", partitions=1)
    topic_partition = TopicPartition("moved", 0)
    expected = [b"%d" % number for number in range(5_000)]
    with Producer(cluster, ProducerConfig(batch_bytes=4_000)) as producer:
        for value in expected:
            producer.send("moved", value)
    leader = leader_of(brokers, topic, 0)
    with Consumer(cluster, ConsumerConfig(max_wait_ms=100)) as consumer:
        consumer.assign([topic_partition])
        consumed = [record.value for record in islice(consumer, 100)]
        reader = RangeReader(cluster, OffsetRange(topic_partition, 0, 5_000), fetch_bytes=1)
        read = next(reader).arrow_batch.column("value").to_pylist()
        restart_elsewhere(leader)
        for fetched in reader:
            read += fetched.arrow_batch.column("value").to_pylist()
        consumed += [record.value for record in islice(consumer, 4_900)]
    assert read == expected
    assert consumed == expected


@pytest.mark.parametrize(
    "end", [BrokerProcess.stop, pytest.param(BrokerProcess.kill, marks=pytest.mark.long)]
)
def test_a_commit_needs_no_broker(
    brokers: EmbeddedCluster, cluster: Cluster, end: Callable[[BrokerProcess], None]
) -> None:
    """A broker that was killed comes back only when its session is over."""
    topic = f"uncommitted-{end.__name__}"
    Admin(cluster).create_topic(topic, partitions=1)
    topic_partition = TopicPartition(topic, 0)
    with Producer(cluster) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    config = ConsumerConfig(group=topic, zookeeper=brokers.zookeeper, max_wait_ms=100)
    with Consumer(cluster, config) as consumer:
        consumer.assign([topic_partition])
        assert [record.offset for record in islice(consumer, 7)] == list(range(7))
        for broker in brokers.brokers:
            end(broker)
        try:
            assert consumer.poll_arrow(0) != []  # the rest, as received
            consumer.commit({topic_partition: 7})
            assert consumer.poll_arrow(0.2) == []  # notices that the leader is away
            assert consumer.committed([topic_partition]) == {topic_partition: 7}
            consumer.commit()
            assert consumer.committed([topic_partition]) == {topic_partition: 10}
        finally:
            for broker in brokers.brokers:
                broker.launch()
            for broker in brokers.brokers:
                broker.wait_until_ready()


def test_brokers_restarted_elsewhere_are_found(brokers: EmbeddedCluster, cluster: Cluster) -> None:
    Admin(cluster).create_topic("restarted", partitions=2)
    with Producer(cluster) as producer:
        producer.send("restarted", b"before", partition=0).result(60)
        restart_elsewhere(*brokers.brokers)
        after = [producer.send("restarted", b"after", partition=number) for number in (0, 1)]
        assert [future.result(60).offset for future in after] == [1, 0]
    assert read_all(cluster, TopicPartition("restarted", 0)) == [b"before", b"after"]
