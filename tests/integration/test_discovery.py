"""A new stream's look at ZooKeeper, which goes on while its process imports the rest."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from spark_logbus.coordination.brokers import BrokerRegistry
from spark_logbus.errors import CoordinationError, ZooKeeperAddressError
from spark_logbus.model import BrokerAddress
from spark_logbus.spark.discovery import Discovery
from spark_logbus.spark.driver import DriverConnections
from spark_logbus.zookeeper import Session, SessionState
from tests.helpers import wait_until
from tests.servers.spark import Logbus

ADDRESS = BrokerAddress(1, "127.0.0.1", 9)


@pytest.fixture
def registered(chroot: str) -> Iterator[str]:
    """A chroot with one broker in it, which does not run."""
    with Session(chroot, client_name="test") as session:
        registry = BrokerRegistry(session)
        registry.register(ADDRESS, version="test")
        yield chroot


def begun(zookeeper: str, *, keep_session: bool = False) -> Discovery:
    discovery = Discovery(zookeeper, keep_session=keep_session)
    discovery.begin()
    return discovery


def test_it_finds_the_registered_brokers(registered: str) -> None:
    assert begun(registered).result() == ([ADDRESS], None)


def test_a_group_takes_over_the_session_that_asked(logbus: Logbus) -> None:
    discovery = begun(logbus.zookeeper, keep_session=True)
    _, session = discovery.result()
    assert session is not None
    link = DriverConnections(logbus.zookeeper, group="discovered", discovery=discovery)
    assert link.progress() is not None
    assert len(link.cluster().brokers) == 2
    states = [session.state]
    link.close()
    states.append(session.state)
    assert states == [SessionState.CONNECTED, SessionState.CLOSED]


def test_what_it_meets_is_raised_once_and_then_asked_anew(logbus: Logbus, chroot: str) -> None:
    link = DriverConnections(logbus.zookeeper, discovery=begun(f"{chroot}/missing"))
    with pytest.raises(ZooKeeperAddressError, match="no such chroot"):
        link.cluster()
    assert len(link.cluster().brokers) == 2
    link.close()


def test_closing_ends_a_look_that_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        discovery = begun(f"127.0.0.1:{listener.getsockname()[1]}/logbus")
        link = DriverConnections("nowhere", discovery=discovery)
        connection, _ = listener.accept()  # it is under way
        with connection:
            link.close()
            with pytest.raises(CoordinationError, match="closed"):
                discovery.result()


def test_a_session_that_is_not_kept_is_closed(
    registered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = Session.close

    def watched(session: Session) -> None:
        close(session)
        closed.append(session.client_name)

    monkeypatch.setattr(Session, "close", watched)
    begun(registered).result()
    wait_until(lambda: closed == ["spark-driver"])
