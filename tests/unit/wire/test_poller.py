from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import Api, AppendRequest
from spark_logbus.wire.connection import BrokerConnection
from spark_logbus.wire.poller import Poller
from spark_logbus.wire.transport import SocketTransport

LONG_S = 60.0


@pytest.fixture
def poller() -> Iterator[Poller[str]]:
    poller: Poller[str] = Poller()
    yield poller
    poller.close()


@pytest.fixture
def ends() -> Iterator[tuple[BrokerConnection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = BrokerConnection(
        SocketTransport(ours), BrokerAddress(1, "h", 1), max_response_bytes=1 << 20
    )
    yield connection, theirs
    connection.close()
    theirs.close()


def test_a_wake_ends_this_wait_or_the_next(poller: Poller[str]) -> None:
    poller.wake()
    poller.wake()
    assert poller.wait(LONG_S) == []
    threading.Timer(0.01, poller.wake).start()
    assert poller.wait(LONG_S) == []


def test_wakes_are_used_up(poller: Poller[str]) -> None:
    poller.wake()
    poller.wait(LONG_S)
    assert poller.wait(0) == []
    poller.wake()
    assert poller._wake_end.recv(8) == b"\0", "a later wake gets through"


def test_a_wake_of_a_closed_poller_does_nothing(poller: Poller[str]) -> None:
    poller.close()
    poller.wake()


def test_owners_of_readable_connections_are_reported(
    poller: Poller[str], ends: tuple[BrokerConnection, socket.socket]
) -> None:
    connection, theirs = ends
    poller.add(connection, "one")
    assert poller.wait(0) == []
    theirs.send(b"x")
    assert poller.wait(LONG_S) == ["one"]


def test_writes_are_waited_for_while_there_are_any(
    poller: Poller[str], ends: tuple[BrokerConnection, socket.socket]
) -> None:
    connection, theirs = ends
    poller.add(connection, "one")
    poller.update(connection)
    assert poller.wait(0) == [], "it has nothing to write"
    connection.send(Api.APPEND, AppendRequest("none", 0, []), [memoryview(bytes(8 << 20))])
    poller.update(connection)
    assert poller.wait(0) == [], "it has, and cannot"
    while connection.wants_to_write:
        theirs.recv(1 << 20)
        assert poller.wait(LONG_S) == ["one"]
        connection.progress()
    poller.update(connection)
    assert poller.wait(0) == []


def test_a_closed_connection_can_be_removed(
    poller: Poller[str], ends: tuple[BrokerConnection, socket.socket]
) -> None:
    connection, theirs = ends
    poller.add(connection, "one")
    theirs.send(b"x")
    connection.close()
    poller.remove("one")
    assert poller.wait(0) == []
