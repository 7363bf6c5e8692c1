"""Sessions against a real ZooKeeper: start, states, loss, outage."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.errors import CoordinationError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.zookeeper import Session, SessionState
from spark_logbus.zookeeper.nodes import ConflictError, Nodes
from spark_logbus.zookeeper.transactions import Delete
from tests.helpers import frozen, kept_of_caller, wait_until
from tests.servers.ports import refusing_address
from tests.servers.zookeeper import READ, Proxy, States, expire, session

CONNECTED = SessionState.CONNECTED
SUSPENDED = SessionState.SUSPENDED
LOST = SessionState.LOST
CLOSED = SessionState.CLOSED


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64) as server:
        yield server


@pytest.fixture
def unused_address() -> Iterator[str]:
    with refusing_address() as address:
        yield address


class TestStartAndClose:
    def test_the_chroot_is_created(self, chroot: str) -> None:
        with session(f"{chroot}/deep/down") as opened:
            assert opened.state is CONNECTED
            assert opened.session_id != 0
            Nodes(opened).ensure("/a/b")
        with session(chroot) as above:
            assert Nodes(above).children("/deep/down/a") == ["b"]

    def test_an_unreachable_server_is_an_error_with_a_remedy(self, unused_address: str) -> None:
        dead = Session(unused_address, client_name="x", connect_timeout_ms=300)
        with pytest.raises(CoordinationError, match=r"did not answer within 300 ms.*LOGBUS_ZOO"):
            dead.start()
        assert dead.state is CLOSED
        dead.close()

    def test_states_are_reported_in_order(self, chroot: str) -> None:
        opened = Session(chroot, client_name="x")
        states = States(opened)
        assert opened.state is CLOSED
        opened.start()
        wait_until(lambda: states.seen == [CONNECTED])
        opened.close()
        opened.close()
        assert opened.state is CLOSED
        wait_until(lambda: states.seen == [CONNECTED, CLOSED])

    def test_a_closed_session_refuses_requests(self, chroot: str) -> None:
        with session(chroot) as opened:
            topics = TopicRegistry(opened)
        with pytest.raises(CoordinationError, match="is closed, so nothing can be asked"):
            topics.all()
        with pytest.raises(CoordinationError, match="make a new one"):
            opened.start()

    def test_a_session_that_was_never_started_refuses_requests(self, chroot: str) -> None:
        with pytest.raises(CoordinationError, match="is closed, so nothing can be asked"):
            TopicRegistry(Session(chroot, client_name="x")).all()

    def test_closing_wakes_whoever_waits(self, zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
        with Proxy(zookeeper.address) as proxy, ThreadPoolExecutor(1) as pool:
            with session(proxy.connect_string(chroot)) as opened:
                proxy.refuse.set()
                proxy.cut()
                wait_until(lambda: opened.state is SUSPENDED)
                waiting = pool.submit(TopicRegistry(opened).all)
            with pytest.raises(CoordinationError, match="is closed, so nothing can be asked"):
                waiting.result(60)

    def test_no_thread_is_left_behind(self, chroot: str) -> None:
        with session(chroot, name="leaver"):
            assert [t for t in threading.enumerate() if "leaver" in t.name]
        wait_until(lambda: not [t for t in threading.enumerate() if "leaver" in t.name])


class TestConnectionLoss:
    def test_a_broken_connection_is_not_a_lost_session(
        self, zookeeper: EmbeddedZooKeeper, chroot: str
    ) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as opened:
            states = States(opened)
            before = opened.session_id
            proxy.cut()
            wait_until(lambda: states.seen[-2:] == [SUSPENDED, CONNECTED])
            assert LOST not in states.seen
            assert opened.session_id == before

    def test_a_forgotten_connection_is_not_a_lost_session(
        self, zookeeper: EmbeddedZooKeeper, chroot: str
    ) -> None:
        """A ZooKeeper that has begun to listen, and not to serve, does so."""
        with Proxy(zookeeper.address) as proxy:
            opened = Session(
                proxy.connect_string(chroot), client_name="test", session_timeout_ms=8_000
            )
            states = States(opened)
            with opened:
                before = opened.session_id
                proxy.forget_next()
                proxy.cut()
                wait_until(lambda: states.seen.count(CONNECTED) == 2)
                assert states.seen == [CONNECTED, SUSPENDED, CONNECTED]
                assert len(proxy.forgotten) == 1
                assert opened.session_id == before

    def test_an_expired_session_is_replaced(self, chroot: str) -> None:
        with session(chroot) as opened:
            states = States(opened)
            before = opened.session_id
            expire(opened)
            wait_until(lambda: states.seen[-2:] == [LOST, CONNECTED])
            assert opened.session_id not in (0, before)
            assert TopicRegistry(opened).all() == {}

    def test_it_tells_what_zookeeper_granted(self, chroot: str) -> None:
        told: list[tuple[SessionState, int]] = []
        opened = Session(chroot, client_name="greedy", session_timeout_ms=90_000)
        opened.set_state_hook(lambda state, granted_ms: told.append((state, granted_ms)))
        with opened:
            assert told == [(CONNECTED, 60_000)]

    def test_calls_made_meanwhile_wait(self, zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
        topic_partition = TopicPartition("t", 0)
        with (
            Proxy(zookeeper.address) as proxy,
            session(proxy.connect_string(chroot)) as opened,
            ThreadPoolExecutor(1) as pool,
        ):
            offsets = GroupOffsets(opened)
            proxy.refuse.set()
            proxy.cut()
            wait_until(lambda: opened.state is SUSPENDED)
            waiting = pool.submit(lambda: offsets.commit("g", {topic_partition: 3}, actor="x"))
            proxy.refuse.clear()
            waiting.result(60)
            assert offsets.committed("g")[topic_partition].offset == 3

    def test_a_read_whose_reply_was_lost_is_repeated(
        self, zookeeper: EmbeddedZooKeeper, chroot: str
    ) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as opened:
            proxy.lose_reply(READ)
            assert Nodes(opened).get("/nothing") is None
            assert proxy.lost == 1

    @pytest.mark.usefixtures("no_collector")
    def test_what_fails_keeps_nothing_of_who_asks(
        self, zookeeper: EmbeddedZooKeeper, chroot: str
    ) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as opened:
            nodes = Nodes(opened)

            def delete() -> None:
                nodes.transact("delete", [Delete("/a")], deadline=opened.deadline())

            def read_after_a_conflict() -> None:
                conflicts = [delete]
                nodes.repeat("read", lambda _: conflicts.pop()() if conflicts else None)

            with pytest.raises(ConflictError):
                delete()
            assert kept_of_caller(delete) is None
            assert kept_of_caller(read_after_a_conflict) is None
            assert kept_of_caller(lambda: nodes.get("/nothing")) is None
            proxy.lose_reply(READ)
            assert kept_of_caller(lambda: nodes.get("/nothing")) is None
            assert proxy.lost == 1

    def test_they_wait_no_longer_than_the_bound(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as opened:
            proxy.refuse.set()
            proxy.cut()
            wait_until(lambda: opened.state is SUSPENDED)
            monkeypatch.setattr(opened, "_operation_timeout_ms", 400)
            with pytest.raises(
                CoordinationError, match=r"within 400 ms \(read /brokers/topics.*suspended"
            ):
                TopicRegistry(opened).all()

    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_connection_thread_that_dies_is_started_anew(
        self, chroot: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with session(chroot) as opened:
            states = States(opened)

            class Unsendable:
                type = 1

                def serialize(self) -> bytes:
                    raise ValueError("as an unknown reply would")

            with caplog.at_level(logging.CRITICAL, "spark_logbus.zookeeper.kazoo_client"):
                opened._client._call(Unsendable(), opened._client.handler.async_result())
                wait_until(lambda: states.seen[-2:] == [LOST, CONNECTED])
            assert TopicRegistry(opened).all() == {}


class TestOutage:
    def test_a_killed_and_restarted_server_is_survived(
        self, own_zookeeper: EmbeddedZooKeeper
    ) -> None:
        """Registration, watches, data: all there again, without a new session."""
        connect = f"{own_zookeeper.address}/bus"
        address = BrokerAddress(broker_id=1, host="127.0.0.1", port=9)
        topic_partition = TopicPartition("t", 0)
        with session(connect) as opened, ThreadPoolExecutor(1) as pool:
            registry, topics, offsets = (
                BrokerRegistry(opened),
                TopicRegistry(opened),
                GroupOffsets(opened),
            )
            registry.register(address, version="1")
            created = topics.create("t", partitions=1, brokers=[1], config={})
            offsets.commit("g", {topic_partition: 3}, actor="x")
            seen: list[list[str]] = []
            topics.watch(lambda snapshot: seen.append(sorted(snapshot)))
            _kill(own_zookeeper)
            wait_until(lambda: opened.state is SUSPENDED)
            waiting = pool.submit(lambda: offsets.commit("g", {topic_partition: 4}, actor="x"))
            own_zookeeper.start()
            waiting.result(60)
            wait_until(lambda: registry.live() == [address])
            assert topics.get("t") == created
            assert offsets.committed("g")[topic_partition].offset == 4
            with session(connect, name="other") as other:
                TopicRegistry(other).create("u", partitions=1, brokers=[1], config={})
            wait_until(lambda: seen[-1] == ["t", "u"])

    def test_a_server_that_hangs_does_not_hang_us(
        self, own_zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with session(f"{own_zookeeper.address}/bus") as opened:
            with monkeypatch.context() as patched, frozen(own_zookeeper.pid):
                patched.setattr(opened, "_operation_timeout_ms", 300)
                with pytest.raises(CoordinationError, match="did not answer within 300 ms"):
                    TopicRegistry(opened).all()
            assert TopicRegistry(opened).all() == {}

    def test_closing_while_the_server_is_down_is_quick(
        self, own_zookeeper: EmbeddedZooKeeper
    ) -> None:
        with session(f"{own_zookeeper.address}/bus") as opened:
            TopicRegistry(opened).watch(lambda _: None)
            _kill(own_zookeeper)
            wait_until(lambda: opened.state is SUSPENDED)
        assert opened.state is CLOSED


def _kill(server: EmbeddedZooKeeper) -> None:
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.running)
