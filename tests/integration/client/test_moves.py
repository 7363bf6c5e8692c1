"""``Admin`` and moves of partitions: begun, described, followed, planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Bootstrap, Cluster
from spark_logbus.client.admin.move_plans import MovePlan, PlannedMove
from spark_logbus.client.admin.move_progress import MoveFollower
from spark_logbus.client.admin.placement import mark_drained
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.moves import HandOver, PartitionMoves
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import (
    BrokerUnavailableError,
    InvalidNameError,
    InvalidRequestError,
    UnknownTopicError,
)
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_process
from tests.servers.ports import reserved_port

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
U0, U1 = TopicPartition("u", 0), TopicPartition("u", 1)


class World:
    """A topic with two partitions on broker 1, and one that is registered as broker 2 and is not
    there: moves to it stand, and what it would do is done by hand."""

    def __init__(self, chroot: str, cluster: Cluster, session: Session) -> None:
        self.chroot = chroot
        self.cluster = cluster
        self.session = session
        self.admin = Admin(cluster)
        self.moves = PartitionMoves(session)

    def hand_over(self, where: TopicPartition) -> None:
        state = PartitionStates(self.session).states_of([where])[where]
        assert isinstance(state, PartitionState)
        record = TopicRegistry(self.session).get("t")
        assert record is not None
        since_us = record.moves[where.partition].since_us
        self.moves.hand_over(
            HandOver(where, record.topic_id, 1, state.leader_epoch, 2, "x", 0, since_us)
        )


@pytest.fixture
def world(tmp_path: Path, chroot: str) -> Iterator[World]:
    with broker_process(tmp_path, chroot, broker_id=1), Cluster.from_zookeeper(chroot) as cluster:
        for topic in ("t", "u"):
            Admin(cluster).create_topic(topic, partitions=2)
        with reserved_port() as port, Session(chroot, client_name="test") as session:
            BrokerRegistry(session).register(BrokerAddress(2, "127.0.0.1", port), version="test")
            yield World(chroot, cluster, session)


@pytest.fixture
def two(tmp_path: Path, chroot: str) -> Iterator[Cluster]:
    """Two brokers that run."""
    with (
        broker_process(tmp_path / "1", chroot, broker_id=1),
        broker_process(tmp_path / "2", chroot, broker_id=2),
    ):
        wait_until(lambda: len(Bootstrap.from_zookeeper(chroot).brokers) == 2)
        with Cluster.from_zookeeper(chroot) as cluster:
            yield cluster


def test_moves_are_begun_described_and_cancelled(world: World) -> None:
    admin = world.admin
    assert admin.describe_moves() == []
    assert admin.move_partitions({T0: 2, T1: 1}, throttle=1_000) == {T0}
    (move,) = wait_until(admin.describe_moves)
    assert (move.topic_partition, move.leader, move.to) == (T0, 1, (2,))
    assert (move.throttle, move.error, move.bytes_per_s) == (1_000, "", None)
    assert move.since_us > 0
    # Begun again, it is the same move.
    admin.move_partitions({T0: 2})
    wait_until(lambda: [each.throttle for each in admin.describe_moves()] == [50_000_000])
    assert [each.since_us for each in admin.describe_moves()] == [move.since_us]
    assert [each.topic_partition for each in admin.describe_cluster().moves] == [T0]
    assert admin.cancel_moves([T0, T1]) == {T0}
    assert admin.cancel_moves([T0, T1]) == set()
    wait_until(lambda: not admin.describe_moves())


def test_what_cannot_be_moved_is_said(world: World) -> None:
    admin = world.admin
    with pytest.raises(BrokerUnavailableError, match="Broker 9 is not running"):
        admin.move_partitions({T0: 9})
    with pytest.raises(UnknownTopicError, match="no partition 7"):
        admin.move_partitions({T0: 2, TopicPartition("t", 7): 2})
    with pytest.raises(InvalidNameError):
        admin.move_partitions({TopicPartition("a/b", 0): 2})
    with pytest.raises(InvalidRequestError, match="got -1"):
        admin.move_partitions({T0: 2}, throttle=-1)
    with pytest.raises(UnknownTopicError):
        admin.cancel_moves([TopicPartition("v", 0)])
    with pytest.raises(UnknownTopicError, match=r"\(What was asked of 1 other partition is done"):
        admin.move_partitions({TopicPartition("v", 0): 2, T0: 2})
    assert admin.cancel_moves([T0]) == {T0}


def test_a_broker_is_drained(world: World) -> None:
    admin = world.admin
    with pytest.raises(InvalidRequestError, match="no broker 9; there are: 1, 2"):
        admin.drain(9)
    plan = admin.drain(1)
    assert plan.targets() == dict.fromkeys((T0, T1, U0, U1), (2,))
    wait_until(lambda: len(admin.describe_moves()) == 4)
    again = admin.plan_drain(1)
    assert (again.moves, [each.to for each in again.under_way]) == ((), [(2,)] * 4)
    assert admin.plan_rebalance().moves == ()
    assert [each.drained for each in admin.describe_cluster().brokers] == [True, False]
    assert admin.plan_drain(2).left.keys() == {T0, T1, U0, U1}
    admin.cancel_moves([T0, T1, U0, U1])
    assert admin.undo_drain(1)
    assert not admin.undo_drain(1)
    mark_drained(world.cluster, 2)
    with pytest.raises(InvalidRequestError, match="broker 2 is being drained"):
        admin.drain(1)
    with pytest.raises(InvalidRequestError, match="Broker 2 is being drained, so no partition"):
        admin.move_partitions({T0: 2})
    assert [each.drained for each in admin.describe_cluster().brokers] == [False, True]


def test_a_broker_that_is_drained_gets_nothing_new(two: Cluster) -> None:
    admin = Admin(two)

    def leaders(topic: str) -> list[int | None]:
        return [each.leader_id for each in admin.describe([topic])[topic].partitions.values()]

    admin.create_topic("t", partitions=2)
    mark_drained(two, 1)
    admin.create_topic("u", partitions=4)
    assert leaders("u") == [2, 2, 2, 2]
    admin.alter_topic("t", partitions=4)
    assert leaders("t") == [1, 2, 2, 2]
    mark_drained(two, 2)
    with pytest.raises(InvalidRequestError, match=r"being drained \(1, 2\).*drain 1 --undo"):
        admin.create_topic("v", partitions=1)
    with pytest.raises(InvalidRequestError, match=r"being drained \(1, 2\)"):
        admin.alter_topic("t", partitions=5)
    assert admin.alter_topic("t", put={"retention.ms": "5"}).partitions == 4
    admin.undo_drain(1)
    admin.create_topic("v", partitions=2)
    assert leaders("v") == [1, 1]


def test_moves_are_followed_until_each_is_over(world: World) -> None:
    admin = world.admin
    wanted = [PlannedMove(each, 100, (1,), (2,)) for each in (T0, T1, U0, U1)]
    plan = MovePlan(moves=tuple(wanted[:3]), under_way=(wanted[3],))
    admin.move_partitions({each.topic_partition: 2 for each in wanted})
    follower = MoveFollower(admin, world.cluster, plan)
    first = follower.look()
    assert not first.over
    assert {each.topic_partition for each in first.moving} | first.waiting == {T0, T1, U0, U1}
    assert (first.copied_bytes, first.bytes_per_s) == (0, None)
    world.hand_over(T0)
    wait_until(lambda: follower.look().arrived == {T0})
    admin.cancel_moves([U0])
    wait_until(lambda: follower.look().stayed)
    standing = world.moves.begin("t", {1: MovePayload(to=[2], since_us=1)}).moves[1]
    topic_id = admin.describe(["t"], ends=False)["t"].topic_id
    world.moves.fail(T1, topic_id=topic_id, move=standing, error="No room.")
    wait_until(lambda: follower.look().failed)
    admin.delete_topic("u")
    wait_until(lambda: follower.look().over)
    last = follower.look()
    assert last.arrived == {T0}
    assert last.failed == {T1: "No room."}
    assert last.stayed == {
        U0: "The move was cancelled; it is on broker 1.",
        U1: "Its topic was deleted.",
    }
    assert (last.moving, last.waiting) == ([], set())
