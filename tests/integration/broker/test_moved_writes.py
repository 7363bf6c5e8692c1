"""Atomic writes that are under way while their partitions move, on a real ZooKeeper."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_logbus.broker import Broker
from spark_logbus.broker.replica.hand_over import HandOvers
from spark_logbus.client import Admin, ClientConfig, Cluster, Producer
from spark_logbus.client.fetch.range_reader import RangeReader
from spark_logbus.client.writes.atomic_write import AtomicWrites, StagedTask, WriteIdentity
from spark_logbus.coordination.cluster.moves import HandOver, MoveEndedError, PartitionMoves
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import CoordinationError
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import Api, MoveRequest, MoveResponse, PartitionMove
from spark_logbus.record.stage_id import WRITE_BITS, stage_id
from tests.helpers import wait_until
from tests.servers.broker import broker_here, connect

TOPIC = "t"
CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)


class Pair:
    """Two brokers in this process, and a client of both."""

    def __init__(self, brokers: dict[int, Broker], cluster: Cluster) -> None:
        self.brokers = brokers
        self.cluster = cluster
        self.writes = AtomicWrites(cluster)

    def leader(self, partition: int) -> int | None:
        for broker_id, broker in self.brokers.items():
            if broker._replica_manager.find(TopicPartition(TOPIC, partition)) is not None:
                return broker_id
        return None

    def wait_for_leader(self, partition: int) -> int:
        found: list[int] = []

        def is_led() -> bool:
            found.extend(each for each in [self.leader(partition)] if each is not None)
            return bool(found)

        wait_until(is_led, message=f"a leader of {partition}")
        return found[0]

    def ask_to_move(self, partition: int, to: int) -> None:
        with connect(self.brokers[1]) as wire:
            request = MoveRequest([PartitionMove(TOPIC, partition, to)])
            (result,) = wire.call(Api.MOVE, request, MoveResponse).results
        assert result.error is None

    def move(self, partition: int, to: int) -> None:
        self.ask_to_move(partition, to)
        wait_until(lambda: self.leader(partition) == to, message=f"{partition} at {to}")

    def move_away(self, partition: int) -> int:
        """Moves a partition to the other broker; returns the one that had it."""
        before = self.wait_for_leader(partition)
        self.move(partition, 3 - before)
        return before

    def values(self, partition: int) -> list[str]:
        info = Admin(self.cluster).describe([TOPIC])[TOPIC].partitions[partition]
        assert info.ends is not None
        where = OffsetRange(TopicPartition(TOPIC, partition), 0, info.ends.high_watermark)
        return [
            value.decode()
            for batch in RangeReader(self.cluster, where)
            for value in batch.arrow_batch.column("value").to_pylist()
        ]


@pytest.fixture
def pair(tmp_path: Path, chroot: str) -> Iterator[Pair]:
    with (
        broker_here(tmp_path / "1", chroot, broker_id=1) as one,
        broker_here(tmp_path / "2", chroot, broker_id=2) as two,
        Cluster.from_zookeeper(chroot, CONFIG) as cluster,
    ):
        Admin(cluster).create_topic(TOPIC, partitions=2)
        yield Pair({1: one, 2: two}, cluster)


def write_number() -> int:
    return secrets.randbits(WRITE_BITS)


class Task:
    """An attempt of a task, which stages values one by one, in turn in both partitions."""

    def __init__(self, pair: Pair, write: int, identity: WriteIdentity) -> None:
        self._producer = Producer(pair.cluster, stage_id=stage_id(write, 0), stage_for=identity)
        self._records: Counter[TopicPartition] = Counter()
        self._sent = 0

    def stage(self, *values: str) -> None:
        futures = []
        for value in values:
            partition = self._sent % 2
            futures.append(self._producer.send(TOPIC, value.encode(), partition=partition))
            self._records[TopicPartition(TOPIC, partition)] += 1
            self._sent += 1
        self._producer.flush()
        for each in futures:
            each.result(60)

    def end(self) -> StagedTask:
        self._producer.close()
        return StagedTask(0, dict(self._records), 100)


def test_a_write_that_is_staged_before_and_after_a_move_is_committed_once(pair: Pair) -> None:
    write, me = write_number(), WriteIdentity(writer="me", version=1)
    task = Task(pair, write, me)
    task.stage("a", "b", "c", "d")
    pair.move_away(0)
    task.stage("e", "f")
    pair.move_away(1)
    task.stage("g", "h")
    outcome = pair.writes.commit(me, write, [task.end()])
    assert (outcome.committed, outcome.visible) == (True, True)
    assert [pair.values(0), pair.values(1)] == [["a", "c", "e", "g"], ["b", "d", "f", "h"]]


def test_what_was_prepared_at_the_old_leader_is_prepared_again(pair: Pair) -> None:
    write, me = write_number(), WriteIdentity(writer="me", version=1)
    task = Task(pair, write, me)
    task.stage("a", "b")
    decision = pair.writes._decision(me, write, [task.end()])
    promises = pair.writes._prepare(me, decision)
    before = pair.move_away(0)
    old = pair.brokers[before]._publisher.promises
    assert promises[before] != old.current().token
    assert pair.writes._decide(me, decision, promises, None) is None
    assert pair.writes._publish(me.writer, decision, required=True)
    assert [pair.values(0), pair.values(1)] == [["a"], ["b"]]


def test_what_was_decided_before_a_move_is_published_by_the_new_leader(pair: Pair) -> None:
    write, me = write_number(), WriteIdentity(writer="me", version=1)
    task = Task(pair, write, me)
    task.stage("a", "b")
    decision = pair.writes._decision(me, write, [task.end()])
    assert pair.writes._decide(me, decision, pair.writes._prepare(me, decision), None) is None
    pair.move_away(0)
    wait_until(lambda: [pair.values(0), pair.values(1)] == [["a"], ["b"]])
    assert pair.writes._publish(me.writer, decision, required=True)
    assert [pair.values(0), pair.values(1)] == [["a"], ["b"]]


def test_writes_are_committed_once_each_while_partitions_go_to_and_fro(pair: Pair) -> None:
    stopping = threading.Event()

    def write() -> int:
        version = 0
        while not stopping.is_set():
            me = WriteIdentity(writer="me", version=version)
            number = write_number()
            task = Task(pair, number, me)
            task.stage(f"{version}", f"{version}", f"{version}", f"{version}")
            assert pair.writes.commit(me, number, [task.end()]).committed
            version += 1
        return version

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for number in range(6):
                so_far = len(pair.values(number % 2))
                wait_until(lambda: len(pair.values(number % 2)) > so_far + 4)  # noqa: B023
                pair.move_away(number % 2)
        finally:
            stopping.set()
        versions = writing.result(60)
    expected = [str(version) for version in range(versions) for _ in range(2)]
    for partition in (0, 1):
        wait_until(lambda: len(pair.values(partition)) >= len(expected))  # noqa: B023
        assert pair.values(partition) == expected


def hand_overs(pair: Pair) -> HandOvers:
    """Finds the hand-overs of the broker that leads the first partition."""
    leader = pair.wait_for_leader(0)
    return pair.brokers[leader]._hand_overs


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hand_over_whose_reply_is_lost_is_looked_up(
    pair: Pair, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(pair.cluster) as producer:
        producer.send(TOPIC, b"a", partition=0).result(60)
        before, lost, silent = hand_overs(pair), threading.Event(), [True]
        hand_over = PartitionMoves.hand_over

        def lose(self: PartitionMoves, lead: HandOver) -> PartitionState:
            if when == "after" and not lost.is_set():
                hand_over(self, lead)
            lost.set()
            if silent:
                raise CoordinationError("The reply was lost.")
            return hand_over(self, lead)

        settle = PartitionMoves.settle

        def stay_silent(self: PartitionMoves, lead: HandOver) -> bool:
            if silent:
                raise CoordinationError("ZooKeeper is away.")
            return settle(self, lead)

        monkeypatch.setattr(PartitionMoves, "hand_over", lose)
        monkeypatch.setattr(PartitionMoves, "settle", stay_silent)
        old = pair.wait_for_leader(0)
        pair.ask_to_move(0, 3 - old)
        assert lost.wait(60)
        future = producer.send(TOPIC, b"b", partition=0)
        if when == "after":
            wait_until(lambda: pair.brokers[3 - old]._replica_manager.find(
                TopicPartition(TOPIC, 0)) is not None)  # fmt: skip
        else:
            wait_until(lambda: before._doubts)
            assert not future.done(), "nobody may acknowledge it now"
        silent.clear()
        assert future.result(60).offset == 1
        wait_until(lambda: pair.leader(0) == 3 - old)
    assert pair.values(0) == ["a", "b"]


def test_a_move_that_is_cancelled_at_the_last_moment_is_not_handed_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, ended = hand_overs(pair), threading.Event()
    hand_over = before._moves.hand_over

    def cancel_first(lead: HandOver) -> PartitionState:
        PartitionMoves(before._session).cancel(TOPIC, [0])
        try:
            return hand_over(lead)
        except MoveEndedError:
            ended.set()
            raise

    monkeypatch.setattr(before._moves, "hand_over", cancel_first)
    old = pair.wait_for_leader(0)
    with Producer(pair.cluster) as producer:
        producer.send(TOPIC, b"a", partition=0).result(60)
        pair.ask_to_move(0, 3 - old)
        assert ended.wait(60)
        assert producer.send(TOPIC, b"b", partition=0).result(60).offset == 1
    assert pair.leader(0) == old
    wait_until(lambda: not before._followers.all())
    assert pair.values(0) == ["a", "b"]
