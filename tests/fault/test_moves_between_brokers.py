"""Brokers that join, that are drained, and whose disks have no room for what moves to them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import TopicPartition
from tests.fault.load.checks import check_content, read_all
from tests.fault.load.moves import begin
from tests.fault.load.participants import Everyone
from tests.fault.load.readers import Reader
from tests.fault.load.records import CLIENT, WAIT_S
from tests.fault.load.writers import Filler, Sender
from tests.fault.small_disk import BrokerOnSmallDisk, SmallDisk, small_disk
from tests.helpers import wait_until
from tests.servers.broker import SESSION_MS, broker_process
from tests.servers.cluster import Logbus

SETTINGS = {
    "broker": {"zookeeper_session_ms": SESSION_MS},
    "log": {"segment_bytes": 1 << 20},
    "moves": {"retention_ms": 0, "reserve_bytes": 0},
}
NO_SPACE = os.strerror(errno.ENOSPC)


class Brokers:
    """Brokers that are started one after the other."""

    def __init__(self, directory: Path, zookeeper: str, stack: ExitStack) -> None:
        self._directory = directory
        self.zookeeper = zookeeper
        self._stack = stack

    def start(self, broker_id: int) -> BrokerProcess:
        return self._stack.enter_context(
            broker_process(
                self._directory / str(broker_id), self.zookeeper,
                broker_id=broker_id, settings=SETTINGS,
            )
        )  # fmt: skip

    def connect(self) -> Cluster:
        return self._stack.enter_context(Cluster.from_zookeeper(self.zookeeper, CLIENT))


@pytest.fixture
def brokers(tmp_path: Path, chroot: str) -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(tmp_path, chroot, stack)


def leaders(admin: Admin, topics: Sequence[str]) -> Mapping[TopicPartition, int | None]:
    """The brokers that serve the partitions; None for what nobody serves at the moment."""
    return {
        TopicPartition(topic, number): None if part.ends is None else part.leader_id
        for topic, described in admin.describe(topics).items()
        for number, part in described.partitions.items()
    }


def wait_until_led(admin: Admin, topics: Sequence[str], by: set[int]) -> None:
    wait_until(
        lambda: {*leaders(admin, topics).values()} == by,
        deadline_s=WAIT_S, message=f"all to be led by brokers {by}",
    )  # fmt: skip


@pytest.mark.long
def test_a_broker_with_300_partitions_is_drained(brokers: Brokers) -> None:
    topics = ["a", "b", "c"]
    brokers.start(1)
    cluster = brokers.connect()
    logbus, admin = Logbus(brokers.zookeeper, cluster), Admin(cluster)
    for topic in topics:
        admin.create_topic(topic, partitions=100)
        with Producer(cluster) as producer:
            for number in range(100):
                producer.send(topic, b"%d" % number, partition=number)
    brokers.start(2)
    plan = admin.drain(1, throttle=0)
    assert len(plan.moves) == 300
    wait_until_led(admin, topics, {2})
    assert admin.describe_moves() == []
    left = admin.plan_drain(1)
    assert (left.moves, left.under_way, left.left) == ((), (), {})
    for topic in topics:
        assert logbus.values(topic) == [[f"{number}"] for number in range(100)]


@pytest.mark.long
def test_a_broker_that_joins_two_gets_a_third(brokers: Brokers) -> None:
    """Producers and consumers go on meanwhile."""
    for broker_id in (1, 2):
        brokers.start(broker_id)
    cluster = brokers.connect()
    admin = Admin(cluster)
    admin.create_topic("t", partitions=12)
    partitions = [TopicPartition("t", number) for number in range(12)]
    filler = Filler(cluster, dict.fromkeys(partitions, 100))
    sender, reader = Sender(2, cluster, partitions, "send"), Reader(1, cluster, partitions)
    everyone = Everyone([sender, reader])
    with everyone.at_work():
        brokers.start(3)
        assert set(leaders(admin, ["t"]).values()) == {1, 2}
        plan = wait_until(lambda: _plan_with(admin, 3))
        admin.move_partitions(plan, throttle=0)
        wait_until_led(admin, ["t"], {1, 2, 3})
        wait_until(lambda: not admin.describe_moves(), deadline_s=WAIT_S)
        everyone.get_on()
        assert admin.plan_rebalance().moves == ()
        everyone.stop([sender])
        content = read_all(cluster, partitions)
        wait_until(lambda: reader.has_all(content), deadline_s=WAIT_S)
    reader.check(content)
    check_content(content, [filler, sender])
    counts = [*leaders(admin, ["t"]).values()]
    assert [counts.count(broker_id) for broker_id in (1, 2, 3)] == [4, 4, 4]


def _plan_with(admin: Admin, broker_id: int) -> Mapping[TopicPartition, int]:
    """The moves that level the brokers, if that one is known already."""
    plan = admin.plan_rebalance().targets()
    return {where: broker_id for where, to in plan.items() if to == (broker_id,)}


@pytest.mark.long
def test_a_move_without_room_fails_and_changes_nothing(brokers: Brokers, tmp_path: Path) -> None:
    """A move that is known to be too large is not begun; one that no longer fits when it is half
    there is given up. Either way its place on the disk is free again, and clients notice
    nothing."""
    brokers.start(1)
    cluster = brokers.connect()
    admin = Admin(cluster)
    admin.create_topic("t", partitions=2)
    large, small = TopicPartition("t", 0), TopicPartition("t", 1)
    sender = Sender(2, cluster, [large, small], "send")
    filler = Filler(cluster, {large: 900, small: 250})
    directory = tmp_path / "2"
    directory.mkdir()
    with (
        small_disk(directory / "data", mib=16) as disk,
        Everyone([sender]).at_work(),
        _running(BrokerOnSmallDisk(
            directory, broker_id=2, zookeeper=brokers.zookeeper, settings=SETTINGS, disk=disk
        )),
    ):  # fmt: skip
        begin(admin, {large: 2}, 0)
        assert "bytes" in _error_of(admin, large)
        _check_nothing_left(disk, admin)
        assert admin.cancel_moves([large]) == {large}
        begin(admin, {small: 2}, 250_000)  # so there are ten seconds to fill the disk
        wait_until(lambda: _bytes_on(disk, small) > 100_000)
        disk.fill()
        assert NO_SPACE in _error_of(admin, small)
        _check_nothing_left(disk, admin)
        (disk.seen / ".filler").unlink()
        begin(admin, {small: 2}, 0)  # which begins anew
        wait_until(lambda: leaders(admin, ["t"])[small] == 2, deadline_s=WAIT_S)
        Everyone([sender]).get_on()
        Everyone([sender]).stop([sender])
        check_content(read_all(cluster, [large, small]), [filler, sender])


@contextmanager
def _running(broker: BrokerProcess) -> Iterator[None]:
    broker.start()
    try:
        yield
    finally:
        broker.stop()


def _error_of(admin: Admin, where: TopicPartition) -> str:
    """Waits until the move of the partition has failed; returns the reason."""

    def error() -> str:
        moves = {each.topic_partition: each for each in admin.describe_moves()}
        return moves[where].error if where in moves else ""

    return wait_until(error, deadline_s=WAIT_S, message=f"the move of {where} to fail")


def _bytes_on(disk: SmallDisk, where: TopicPartition) -> int:
    return sum(each.stat().st_size for each in (disk.seen / str(where)).glob("*.log"))


def _check_nothing_left(disk: SmallDisk, admin: Admin) -> None:
    """Waits until the copies are gone; the first broker leads all."""
    wait_until(lambda: not list(disk.seen.glob("t-*")), message="the copies to go")
    assert set(leaders(admin, ["t"]).values()) == {1}
