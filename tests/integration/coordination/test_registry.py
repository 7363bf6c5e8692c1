"""Broker registration against a real ZooKeeper."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.errors import BrokerIdInUseError, InvalidRequestError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import BrokerAddress
from spark_logbus.zookeeper import Session, SessionState
from spark_logbus.zookeeper.nodes import Nodes
from tests.helpers import wait_until
from tests.servers.zookeeper import MULTI, Proxy, States, expire, put, session

ONE = BrokerAddress(broker_id=1, host="127.0.0.1", port=9001)
TWO = BrokerAddress(broker_id=2, host="127.0.0.1", port=9002)
ONE_ELSEWHERE = BrokerAddress(broker_id=1, host="127.0.0.1", port=9999)


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def observer(chroot: str) -> Iterator[BrokerRegistry]:
    with session(chroot, name="observer") as live:
        yield BrokerRegistry(live)


class TestRegister:
    def test_brokers_come_and_go(self, chroot: str, observer: BrokerRegistry) -> None:
        seen: list[list[BrokerAddress]] = []
        observer.watch(seen.append)
        assert seen == [[]]
        with session(chroot) as a, session(chroot) as b:
            BrokerRegistry(b).register(TWO, version="1")
            registry = BrokerRegistry(a)
            registry.register(ONE, version="1")
            assert observer.live() == [ONE, TWO]
            wait_until(lambda: seen[-1] == [ONE, TWO])
            registry.deregister()
            registry.deregister()
            wait_until(lambda: seen[-1] == [TWO])
        wait_until(lambda: seen[-1] == [])

    def test_it_can_be_registered_again_after_deregistering(
        self, opened: Session, observer: BrokerRegistry
    ) -> None:
        registry = BrokerRegistry(opened)
        registry.register(ONE, version="1")
        with pytest.raises(InvalidRequestError, match="registered here already"):
            registry.register(TWO, version="1")
        registry.deregister()
        registry.register(ONE_ELSEWHERE, version="1")
        assert observer.live() == [ONE_ELSEWHERE]

    def test_a_live_rival_that_started_later_is_refused_at_once(
        self, chroot: str, observer: BrokerRegistry
    ) -> None:
        early = session(chroot, name="early")
        with early as first, session(chroot, name="late") as second:
            older = BrokerRegistry(first)
            BrokerRegistry(second).register(ONE_ELSEWHERE, version="7")
            with pytest.raises(
                BrokerIdInUseError,
                match=r"id 1 is taken by a live broker \(at 127.0.0.1:9999, version 7.*give this",
            ):
                older.register(ONE, version="1")
            older.register(TWO, version="1")  # the failure left nothing behind
            assert observer.live() == [ONE_ELSEWHERE, TWO]

    def test_a_live_owner_is_waited_for_then_refused(
        self, chroot: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("spark_logbus.zookeeper.ephemeral._EXPIRY_MARGIN_MS", -9_000)
        monkeypatch.setattr("spark_logbus.zookeeper.ephemeral._LOOK_AGAIN_S", 0.1)
        with session(chroot) as first, session(chroot) as second:
            BrokerRegistry(first).register(ONE, version="1")
            with (
                caplog.at_level(logging.INFO, "spark_logbus.coordination.cluster.brokers"),
                pytest.raises(BrokerIdInUseError, match=r"127\.0\.0\.1:9001"),
            ):
                BrokerRegistry(second).register(ONE_ELSEWHERE, version="1")
        assert "waiting up to 1 s" in caplog.text
        assert "Still waiting" in caplog.text

    def test_a_restarted_broker_waits_for_its_own_leftover(
        self, chroot: str, observer: BrokerRegistry
    ) -> None:
        """The first run was killed: its node stays until its session ends."""
        with session(chroot) as new_run, ThreadPoolExecutor(1) as pool:
            with session(chroot) as killed_run:
                BrokerRegistry(killed_run).register(ONE, version="1")
                registering = pool.submit(BrokerRegistry(new_run).register, ONE, version="2")
                with pytest.raises(TimeoutError):
                    registering.result(0.2)
            registering.result(60)
            assert observer.live() == [ONE]

    def test_a_node_that_nobody_can_read_is_a_rival(self, opened: Session, chroot: str) -> None:
        put(chroot, "/brokers/ids/1", b"garbage")
        with pytest.raises(BrokerIdInUseError, match="not readable"):
            BrokerRegistry(opened).register(ONE, version="1")
        with pytest.raises(BrokerIdInUseError, match="/brokers/ids/1 is not readable"):
            BrokerRegistry(opened).register(ONE, version="1")

    def test_nodes_that_are_no_brokers_are_passed_over_and_told_once(
        self, opened: Session, chroot: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        registry = BrokerRegistry(opened)
        registry.register(ONE, version="1")
        for name in ("2", "readme", "01", "-1"):
            put(chroot, f"/brokers/ids/{name}", b"garbage")
        seen: list[list[BrokerAddress]] = []
        with caplog.at_level(logging.ERROR):
            registry.watch(seen.append)
            assert seen == [[ONE]]
            for _ in range(3):
                assert registry.live() == [ONE]
        for name in ("2", "readme", "01", "-1"):
            path = f"/brokers/ids/{name}"
            assert path in opened.unreadable.messages
            assert caplog.text.count(f"node {path} ") == 1

    def test_a_node_that_was_overwritten_is_set_right(
        self, opened: Session, chroot: str, observer: BrokerRegistry
    ) -> None:
        conflicts: list[BrokerIdInUseError] = []
        BrokerRegistry(opened).register(ONE, version="1", on_conflict=conflicts.append)
        put(chroot, "/brokers/ids/1", b"garbage")
        wait_until(lambda: observer.live() == [ONE])
        assert conflicts == []

    def test_a_registration_whose_reply_was_lost_is_ours(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, observer: BrokerRegistry
    ) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            proxy.lose_reply(MULTI)
            registry = BrokerRegistry(unlucky)
            registry.register(ONE, version="1")
            assert proxy.lost == 1
            assert observer.live() == [ONE]
            proxy.lose_reply(MULTI)
            registry.deregister()
            assert proxy.lost == 2
            assert observer.live() == []


class TestSessionLoss:
    def test_a_lost_session_is_registered_again(
        self, opened: Session, observer: BrokerRegistry
    ) -> None:
        registry = BrokerRegistry(opened)
        registry.register(ONE, version="1")
        seen: list[list[BrokerAddress]] = []
        observer.watch(seen.append)
        lost = [opened.session_id]
        for _ in range(3):
            expire(opened)
            wait_until(lambda: opened.session_id not in lost)
            wait_until(lambda: _owner(opened, 1) == opened.session_id)
            lost.append(opened.session_id)
        assert seen[0] == [ONE]
        wait_until(lambda: seen[-1] == [ONE])
        registry.deregister()
        wait_until(lambda: seen[-1] == [])

    def test_a_short_disconnection_changes_nothing(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, observer: BrokerRegistry
    ) -> None:
        seen: list[list[BrokerAddress]] = []
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as weak:
            BrokerRegistry(weak).register(ONE, version="1")
            observer.watch(seen.append)
            created = _created(weak, 1)
            states = States(weak)
            proxy.cut()
            wait_until(lambda: states.seen[-2:] == [SessionState.SUSPENDED, SessionState.CONNECTED])
            assert _created(weak, 1) == created
            assert seen == [[ONE]]

    def test_a_deregistered_broker_does_not_come_back(
        self, opened: Session, observer: BrokerRegistry
    ) -> None:
        registry = BrokerRegistry(opened)
        registry.register(ONE, version="1")
        registry.deregister()
        done: list[list[BrokerAddress]] = []
        registry.watch(done.append)
        wait_until(lambda: done)
        before = len(done)
        expire(opened)
        wait_until(lambda: len(done) > before)  # the worker has dealt with the new session
        assert observer.live() == []

    def test_a_node_removed_by_hand_comes_back(self, opened: Session, chroot: str) -> None:
        BrokerRegistry(opened).register(ONE, version="1")
        with session(chroot, name="by-hand") as other:
            created = _created(other, 1)
            path = Nodes(other)._absolute("/brokers/ids/1")
            other.call("delete", lambda c: c.delete_async(path), other.deadline())
            wait_until(lambda: _created(other, 1) not in (None, created))

    def test_it_comes_back_in_a_zookeeper_that_lost_its_data(
        self, opened: Session, chroot: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The parent that its node could be put under is gone, too."""
        BrokerRegistry(opened).register(ONE, version="1")
        with session(chroot, name="by-hand") as other:
            created = _created(other, 1)

            def wipe(client: Any) -> Any:
                transaction = client.transaction()
                for path in ("/brokers/ids/1", "/brokers/ids", "/brokers"):
                    transaction.delete(Nodes(other)._absolute(path))
                return transaction.commit_async()

            other.call("wipe", wipe, other.deadline())
            wait_until(lambda: _created(other, 1) not in (None, created))
        assert "could not be refreshed" not in caplog.text

    def test_a_broker_that_lost_its_id_gets_it_back(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, observer: BrokerRegistry
    ) -> None:
        conflicts: list[BrokerIdInUseError] = []
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as weak:
            BrokerRegistry(weak).register(ONE, version="1", on_conflict=conflicts.append)
            with session(chroot) as current_owner:
                proxy.refuse.set()
                expire(weak, through=zookeeper.address)
                BrokerRegistry(current_owner).register(ONE_ELSEWHERE, version="1")
                proxy.refuse.clear()
                wait_until(lambda: conflicts)
                assert "127.0.0.1:9999" in conflicts[0].message
                assert observer.live() == [ONE_ELSEWHERE]
            wait_until(lambda: observer.live() == [ONE])


def _owner(opened: Session, broker_id: int) -> int | None:
    node = Nodes(opened).get(f"/brokers/ids/{broker_id}")
    return None if node is None else node.owner


def _created(opened: Session, broker_id: int) -> int | None:
    node = Nodes(opened).get(f"/brokers/ids/{broker_id}")
    return None if node is None else node.changed[0]
