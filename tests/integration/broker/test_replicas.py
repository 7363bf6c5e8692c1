"""Topics with three replicas, on three brokers and a real ZooKeeper; some of them are killed."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_logbus.broker import Broker
from spark_logbus.client import (
    Admin,
    AtomicWrites,
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    StagedTask,
    WriteIdentity,
)
from spark_logbus.errors import NotEnoughReplicasError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.log import PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import WRITE_BITS, stage_id
from tests.builders.record_batches import record_batch
from tests.fakes.log_directory import batches_from
from tests.helpers import wait_until
from tests.servers.broker import broker_here, broker_process, connect, failure

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
KILLED = 3


class Three:
    """Two brokers in this process, and one in a process of its own."""

    def __init__(self, directory: Path, zookeeper: str, stack: ExitStack) -> None:
        self.brokers: dict[int, Broker] = {
            number: stack.enter_context(
                broker_here(directory / str(number), zookeeper, broker_id=number)
            )
            for number in (1, 2)
        }
        self.process: BrokerProcess = stack.enter_context(
            broker_process(
                directory / str(KILLED),
                zookeeper,
                broker_id=KILLED,
                settings={"broker": {"zookeeper_session_ms": 1_000}},
            )
        )
        self.cluster = stack.enter_context(Cluster.from_zookeeper(zookeeper, CONFIG))
        self.admin = Admin(self.cluster)

    def leads(self, where: TopicPartition) -> Broker:
        (broker,) = [
            each for each in self.brokers.values() if each._replica_manager.find(where) is not None
        ]
        return broker

    def in_sync(self, where: TopicPartition) -> list[int]:
        led = self.leads(where)._replica_manager.leader_of(where)
        members = self.leads(where)._in_sync.members(led)
        return [] if members is None else sorted(members.in_sync)

    def log_of(self, where: TopicPartition) -> PartitionLog:
        return self.leads(where)._replica_manager.leader_of(where).log

    def wait_for(self, where: TopicPartition, *in_sync: int) -> None:
        wait_until(
            lambda: self.in_sync(where) == [*in_sync], message=f"{in_sync} in sync of {where}"
        )

    def wait_for_all(self, topic: str) -> None:
        def all_in_sync() -> bool:
            partitions = self.admin.describe([topic])[topic].partitions
            return all(sorted(each.in_sync) == [1, 2, 3] for each in partitions.values())

        wait_until(all_in_sync, message=f"all in sync of {topic}")

    def create(self, name: str, *, config: dict[str, str] | None = None) -> TopicPartition:
        """Creates a topic; returns a partition that is led in this process."""
        self.admin.create_topic(name, partitions=3, replicas=3, config=config or {})
        wheres = [TopicPartition(name, number) for number in range(3)]

        def led_here() -> list[TopicPartition]:
            return [
                where
                for where in wheres
                if any(each._replica_manager.find(where) for each in self.brokers.values())
            ]

        where = wait_until(led_here, message=f"{name} to be led")[0]
        self.wait_for(where, 1, 2, 3)
        return where


@pytest.fixture
def three(tmp_path: Path, chroot: str) -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(tmp_path, chroot, stack)


def test_appends_go_on_while_a_replica_is_gone_and_it_comes_back_in_sync(three: Three) -> None:
    where = three.create("t")
    with Producer(three.cluster, ProducerConfig(acks="replicated", linger_ms=0)) as producer:

        def send(count: int) -> None:
            for number in range(count):
                producer.send("t", value=b"v%d" % number, partition=where.partition).result(60)

        send(50)
        log = three.log_of(where)
        assert log.ends().high_watermark >= 50
        three.process.kill()
        send(50)  # some of these wait until it is noted that the broker is gone
        three.wait_for(where, 1, 2)
        assert three.leads(where)._in_sync.under_replicated() >= 1
        send(50)
        assert log.ends().high_watermark == 150
        three.process.start()
        three.wait_for(where, 1, 2, 3)
        send(50)
    assert log.ends().high_watermark == 200
    (other,) = [each for each in three.brokers.values() if each is not three.leads(where)]
    copy = other._logs.get(where)
    assert copy is not None
    wait_until(lambda: copy.ends().high_watermark == 200)
    assert list(batches_from(copy, 0)) == list(batches_from(log, 0))


def stage(
    cluster: Cluster,
    topic: str,
    write: int,
    attempt: int,
    numbers: Iterable[int],
    *,
    size_kb: int = 0,
) -> StagedTask:
    """Stages numbers in all three partitions in turn, each in a record of that size at least."""
    records: Counter[TopicPartition] = Counter()
    with Producer(cluster, stage_id=stage_id(write, attempt)) as producer:
        futures = []
        for number in numbers:
            where = TopicPartition(topic, number % 3)
            records[where] += 1
            value = b"%d" % number + b" " * (size_kb << 10)
            futures.append(producer.send(topic, value, partition=where.partition))
        for future in futures:
            future.result(60)
    return StagedTask(attempt, dict(records), 1_000)


def numbers(cluster: Cluster, topic: str, count: int) -> list[int]:
    """Numbers that consumers see, so many of them, from the beginning on."""
    found: list[int] = []
    with Consumer(cluster, ConsumerConfig()) as consumer:
        wheres = [TopicPartition(topic, partition) for partition in range(3)]
        consumer.assign(wheres)
        for where in wheres:
            consumer.seek(where, "earliest")

        def has_come() -> bool:
            found.extend(int(each.value) for each in consumer.poll(0.2))
            return len(found) >= count

        wait_until(has_come, message=f"{count} records, got {len(found)}")
    return sorted(found)


def test_what_is_prepared_is_published_by_whoever_is_elected(three: Three) -> None:
    """Kills a leader of one partition at least, when all have prepared a write."""
    three.create("t")
    writes, write = AtomicWrites(three.cluster), secrets.randbits(WRITE_BITS)
    identity = WriteIdentity(writer="me", version=1)
    task = stage(three.cluster, "t", write, 1, range(60))
    decision = writes._decision(identity, write, [task])
    promises = writes._prepare(identity, decision)
    assert KILLED in promises, "each broker leads one of three partitions"
    three.process.kill()
    assert writes._decide(identity, decision, promises, None) is None
    outcome = writes.commit(identity, write, [task])
    assert (outcome.committed, outcome.visible) == (True, True)
    assert numbers(three.cluster, "t", 60) == [*range(60)]
    three.process.start()
    three.wait_for_all("t")
    second = secrets.randbits(WRITE_BITS)
    task = stage(three.cluster, "t", second, 1, range(60, 120))
    identity = WriteIdentity(writer="me", version=2)
    assert writes.commit(identity, second, [task]).visible
    assert numbers(three.cluster, "t", 120) == [*range(120)]


def test_nothing_is_written_while_too_few_replicas_are_in_sync(three: Three) -> None:
    where = three.create("t")
    leader = three.leads(where)
    (other,) = [each for each in three.brokers if three.brokers[each] is not leader]
    three.process.kill()
    three.brokers[other].stop()
    three.wait_for(where, leader.config.id)
    end = three.log_of(where).ends().log_end_offset
    with connect(leader) as wire:
        (result,) = wire.append("t", where.partition, record_batch(), acks="replicated").results
        assert isinstance(failure(result.error), NotEnoughReplicasError)
        assert three.log_of(where).ends().log_end_offset == end
        (result,) = wire.append("t", where.partition, record_batch(), acks="flushed").results
        assert result.error is None
        three.process.start()
        three.wait_for(where, *sorted((leader.config.id, KILLED)))
        (result,) = wire.append("t", where.partition, record_batch(), acks="replicated").results
        assert result.error is None
    assert three.log_of(where).ends().high_watermark == end + 2
