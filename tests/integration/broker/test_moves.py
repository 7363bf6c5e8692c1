"""Partitions move between two brokers on a real ZooKeeper, while they are written and read."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_logbus.broker import MovesConfig
from spark_logbus.client import (
    Admin,
    AtomicWrites,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    WriteIdentity,
)
from spark_logbus.client.producer.acknowledgements import RecordFuture
from spark_logbus.log import PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.record import RecordBatchHeader
from spark_logbus.record.stage_id import WRITE_BITS
from tests.fakes.log_directory import batches_from
from tests.helpers import wait_until
from tests.servers.brokers_here import NO_RESERVE, BrokersHere, fill, held, stage
from tests.servers.replicas import CONFIG


@pytest.fixture
def brokers(tmp_path: Path, chroot: str) -> Iterator[BrokersHere]:
    pair = BrokersHere(tmp_path, chroot)
    pair.start(1)
    pair.start(2)
    yield pair
    pair.stop_all()


@pytest.fixture
def cluster(brokers: BrokersHere) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as cluster:
        yield cluster


def create(
    brokers: BrokersHere, cluster: Cluster, name: str = "t", **config: str
) -> TopicPartition:
    """A topic with one partition, which the first broker leads."""
    Admin(cluster).create_topic(name, partitions=1, config=config)
    where = TopicPartition(name, 0)
    first = 1 if wait_until(lambda: [n for n in (1, 2) if brokers.leads(where, n)]) == [1] else 2
    if first != 1:
        brokers.move(where, 1)
        brokers.wait_until_at(where, 1)
    return where


def described(log: PartitionLog) -> list[RecordBatchHeader]:
    return [header for header, _ in batches_from(log, log.ends().log_start_offset)]


def numbers(cluster: Cluster, where: TopicPartition, count: int) -> list[tuple[int, int]]:
    """Offsets and numbers of so many records from the beginning on, as soon as they are there."""
    found: list[tuple[int, int]] = []
    with Consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign([where])
        consumer.seek(where, "earliest")

        def has_come() -> bool:
            found.extend((each.offset, int(each.value)) for each in consumer.poll(0.2))
            return len(found) >= count

        wait_until(has_come, message=f"{count} records")
    return found


def dense(count: int) -> list[tuple[int, int]]:
    return [(number, number) for number in range(count)]


def test_a_partition_moves_with_its_records(brokers: BrokersHere, cluster: Cluster) -> None:
    where = create(brokers, cluster)
    fill(cluster, where, 5_000)
    before = brokers.log_of(where, 1)
    ends, epochs = before.ends(), before.epochs.entries
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    log = brokers.log_of(where, 2)
    assert log.ends() == ends
    assert log.epochs.entries == epochs
    assert numbers(cluster, where, 5_000) == dense(5_000)
    assert not brokers.leads(where, 1)
    fill(cluster, where, 100, start=5_000)
    assert numbers(cluster, where, 5_100) == dense(5_100)
    wait_until(lambda: brokers.directories(1) == {".moved"})


def test_a_partition_moves_that_only_the_operating_system_flushes(
    brokers: BrokersHere, cluster: Cluster
) -> None:
    """Its new broker flushes before it leads, though nobody asks for that otherwise."""
    where = create(brokers, cluster, **{"flush.policy": "os"})
    fill(cluster, where, 500)
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    assert brokers.log_of(where, 2).flushed_end == 500
    fill(cluster, where, 10, start=500)
    assert numbers(cluster, where, 510) == dense(510)


def test_nothing_is_lost_or_twice_while_a_partition_goes_to_and_fro(
    brokers: BrokersHere, cluster: Cluster
) -> None:
    where = create(brokers, cluster)
    stopping = threading.Event()
    sent: list[RecordFuture] = []

    def write() -> None:
        config = ProducerConfig(linger_ms=1, delivery_timeout_ms=60_000)
        with Producer(cluster, config) as producer:
            while not stopping.wait(0.001):
                sent.append(producer.send("t", b"%08d" % len(sent), partition=0))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for to in (2, 1, 2, 1):
                so_far = len(sent)
                wait_until(lambda: len(sent) > so_far + 50)  # noqa: B023
                brokers.move(where, to)
                brokers.wait_until_at(where, to)
        finally:
            stopping.set()
        writing.result(60)
    assert [future.result(0).offset for future in sent] == [*range(len(sent))]
    assert numbers(cluster, where, len(sent)) == dense(len(sent))


def test_a_cancelled_move_leaves_all_as_it_was(brokers: BrokersHere, cluster: Cluster) -> None:
    where = create(brokers, cluster)
    fill(cluster, where, 2_500, padding=1_000)
    brokers.move(where, 2, throttle=100_000)
    wait_until(lambda: brokers.copied_bytes(where, 2) > 0)
    brokers.move(where, None)
    wait_until(lambda: brokers.directories(2) == set(), message="no copy to be left")
    assert brokers.leads(where, 1)
    fill(cluster, where, 10, start=2_500)
    assert numbers(cluster, where, 2_510) == dense(2_510)
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    assert numbers(cluster, where, 2_510) == dense(2_510)


def test_a_broker_without_room_takes_no_partition(brokers: BrokersHere, cluster: Cluster) -> None:
    brokers.stop(2)
    brokers.moves = MovesConfig(reserve_bytes=1 << 50)
    brokers.start(2)
    where = create(brokers, cluster)
    fill(cluster, where, 100)
    brokers.move(where, 2)
    error = wait_until(lambda: brokers.move_error(where))
    assert "Broker 2 has no room for t-0: " in error
    assert "1024.0 TiB are to stay free ([moves] reserve_bytes)" in error
    wait_until(lambda: brokers.directories(2) == set(), message="no copy to be left")
    fill(cluster, where, 10, start=100)
    assert numbers(cluster, where, 110) == dense(110)
    assert brokers.leads(where, 1)
    brokers.stop(2)
    brokers.moves = NO_RESERVE
    brokers.start(2)
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    assert numbers(cluster, where, 110) == dense(110)


@pytest.mark.parametrize("restarted", [1, 2])
def test_a_move_goes_on_when_a_broker_comes_back(
    brokers: BrokersHere, cluster: Cluster, restarted: int
) -> None:
    where = create(brokers, cluster)
    fill(cluster, where, 2_500, padding=1_000)
    brokers.move(where, 2, throttle=400_000)
    wait_until(lambda: brokers.copied_bytes(where, 2) > 200_000)
    copied = brokers.copied_bytes(where, 2)
    brokers.stop(restarted)
    brokers.start(restarted)
    assert restarted == 1 or brokers.copied_bytes(where, 2) >= copied, "it began anew"
    brokers.wait_until_at(where, 2)
    fill(cluster, where, 10, start=2_500)
    assert numbers(cluster, where, 2_510) == dense(2_510)
    wait_until(lambda: brokers.directories(1) == {".moved"})


def test_an_old_log_goes_after_its_time(brokers: BrokersHere, cluster: Cluster) -> None:
    brokers.stop(1)
    brokers.moves = MovesConfig(reserve_bytes=0, retention_ms=200)
    brokers.start(1)
    where = create(brokers, cluster)
    fill(cluster, where, 100)
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    wait_until(lambda: brokers.directories(1) == set())
    assert numbers(cluster, where, 100) == dense(100)


def test_old_logs_of_a_deleted_topic_go_with_it(brokers: BrokersHere, cluster: Cluster) -> None:
    where = create(brokers, cluster)
    fill(cluster, where, 100)
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    wait_until(lambda: brokers.directories(1) == {".moved"})
    Admin(cluster).delete_topic(where.topic)
    wait_until(lambda: brokers.directories(1) == brokers.directories(2) == set())


def test_a_topic_that_is_deleted_while_it_moves(brokers: BrokersHere, cluster: Cluster) -> None:
    where = create(brokers, cluster)
    fill(cluster, where, 2_500, padding=1_000)
    brokers.move(where, 2, throttle=100_000)
    wait_until(lambda: brokers.copied_bytes(where, 2) > 0)
    Admin(cluster).delete_topic(where.topic)
    wait_until(lambda: brokers.directories(1) == brokers.directories(2) == set())
    again = create(brokers, cluster)
    fill(cluster, again, 10)
    brokers.move(again, 2)
    brokers.wait_until_at(again, 2)
    assert numbers(cluster, again, 10) == dense(10)


def test_a_compacted_log_moves_as_it_is(brokers: BrokersHere, cluster: Cluster) -> None:
    where = create(
        brokers,
        cluster,
        **{"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0"},
    )
    with Producer(cluster, ProducerConfig(batch_bytes=1_000)) as producer:
        for number in range(3_000):
            producer.send("t", b"%08d" % number, key=b"k%d" % (number % 7), partition=0)
            if number % 500 == 0:  # what comes at once stays in one segment
                producer.flush()
    log = brokers.log_of(where, 1)
    wait_until(lambda: len(held(log)) < 3_000, message="it to be compacted")
    values = sorted(held(log), key=int)
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    copy = brokers.log_of(where, 2)
    assert copy.ends().log_end_offset == 3_000
    assert [*map(int, held(copy))][-7:] == [*range(2_993, 3_000)]
    assert {*held(copy)} <= {*values}, "what was compacted away is back"
    last = described(copy)[-1]
    assert copy.offset_at(last.max_timestamp_us) == last.base_offset


def test_writes_that_span_a_move_commit_once(brokers: BrokersHere, cluster: Cluster) -> None:
    """Moves the partition when one write has prepared and another has staged some records."""
    where = create(brokers, cluster)
    writes = AtomicWrites(cluster)
    first, second = secrets.randbits(WRITE_BITS), secrets.randbits(WRITE_BITS)
    task = stage(cluster, where, first, 1, range(100))
    decision = writes._decision(WriteIdentity(writer="me", version=1), first, [task])
    promises = writes._prepare(WriteIdentity(writer="me", version=1), decision)
    begun = stage(cluster, where, second, 1, range(100, 200))
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    identity = WriteIdentity(writer="me", version=1)
    assert writes._decide(identity, decision, promises, None) is None
    assert writes.commit(identity, first, [task]).visible
    more = stage(cluster, where, second, 2, range(200, 300))
    identity = WriteIdentity(writer="me", version=2)
    assert writes.commit(identity, second, [begun, more]).visible
    assert writes.commit(identity, second, [begun, more]).visible
    assert numbers(cluster, where, 300) == dense(300)
    fill(cluster, where, 1, start=300)
    assert numbers(cluster, where, 301) == dense(301)
