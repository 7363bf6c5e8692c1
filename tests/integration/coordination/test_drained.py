"""Marks of drained brokers in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_logbus.coordination.cluster.drained import DrainedBrokers, takers
from spark_logbus.coordination.cluster.gone_brokers import GoneBroker, forget_broker
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.errors import InvalidRequestError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.zookeeper import Session
from tests.servers.zookeeper import MULTI, Proxy, put, read, session


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


def test_a_mark_stands_until_it_is_taken_away(opened: Session, chroot: str) -> None:
    drained = DrainedBrokers(opened)
    assert drained.ids() == set()
    assert not drained.clear(3)
    drained.mark(3, since_us=1)
    drained.mark(3, since_us=2)
    drained.mark(10, since_us=2)
    assert drained.ids() == {3, 10}
    assert read(chroot, "/brokers/drained/3") == b'{"since_us":1}'
    with session(chroot) as other:
        assert DrainedBrokers(other).clear(3)
    assert drained.ids() == {10}
    for call in (lambda: drained.mark(-1, since_us=1), lambda: drained.clear(-1)):
        with pytest.raises(InvalidRequestError, match="0 or more, got -1"):
            call()


def test_replies_that_are_lost(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
        drained = DrainedBrokers(unlucky)
        proxy.lose_reply(MULTI)
        drained.mark(3, since_us=1)
        proxy.lose_reply(MULTI)
        assert drained.clear(3)
        assert drained.ids() == set()
        assert proxy.lost == 2


def test_a_node_of_another_name_is_reported_and_passed_over(opened: Session, chroot: str) -> None:
    drained = DrainedBrokers(opened)
    drained.mark(1, since_us=1)
    for name in ("x", "02"):
        put(chroot, f"/brokers/drained/{name}", b"")
    assert drained.ids() == {1}
    assert {*opened.unreadable.messages} == {"/brokers/drained/x", "/brokers/drained/02"}


def test_a_broker_that_is_forgotten_loses_its_mark(opened: Session) -> None:
    drained = DrainedBrokers(opened)
    drained.mark(2, since_us=1)
    marked = GoneBroker(2, leftover=False, drained=True)
    assert forget_broker(opened, 2, execute=False) == marked
    assert drained.ids() == {2}
    assert forget_broker(opened, 2, execute=True) == marked
    assert drained.ids() == set()


def test_a_broker_to_which_partitions_are_to_move_is_not_forgotten(opened: Session) -> None:
    moves = PartitionMoves(opened)
    TopicRegistry(opened).create("t", partitions=12, brokers=[1], config={})
    moves.begin("t", {each: MovePayload(to=[2], since_us=1) for each in range(12)})
    with pytest.raises(InvalidRequestError, match=r"is to get t-0, .*, t-9 and 2 more\. End"):
        forget_broker(opened, 2, execute=True)
    moves.cancel("t", range(12))
    assert forget_broker(opened, 2, execute=True) == GoneBroker(2, leftover=False, drained=False)


def test_new_partitions_go_to_the_others() -> None:
    assert takers([3, 1, 2], {2, 9}) == [1, 3]
    assert takers([], {2}) == []
    with pytest.raises(InvalidRequestError, match=r"\(1, 3\).*drain 1 --undo"):
        takers([3, 1], {1, 2, 3})
