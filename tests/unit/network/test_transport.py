"""A transport that is no plain socket, under connections that do not know."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.log import OS_FILES, LogSlice
from spark_logbus.network import Connection, Response
from spark_logbus.network import server as network_module
from spark_logbus.network.transport import SocketTransport
from spark_logbus.protocol import Api, DeleteTopicRequest, Frame
from spark_logbus.security.identity import NOBODY
from tests.servers.wire import Wire, request
from tests.unit.network.ends import RESPONSE, over
from tests.unit.network.test_network import serving

CONTENT = bytes(range(256)) * 1000
CIPHER = bytes(byte ^ 0x5A for byte in range(256))  # its own inverse


class Enciphered(SocketTransport):
    """Takes from the socket all that is there, as TLS does with a record."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._received = b""

    @property
    def has_buffered(self) -> bool:
        return bool(self._received)

    def receive_into(self, buffer: memoryview) -> int:
        if not self._received:
            self._received = self._sock.recv(1 << 20).translate(CIPHER)
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        self._received = self._received[count:]
        return count

    def send(self, data: memoryview, *, more: bool) -> int:
        return self._sock.send(bytes(data).translate(CIPHER))

    def send_file(self, descriptor: int, position: int, count: int) -> int:
        return self.send(memoryview(os.pread(descriptor, count, position)), more=False)


class EncipheringSocket(socket.socket):
    """The client's end."""

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(bytes(data).translate(CIPHER), flags)

    def recv_into(self, buffer: Any, *_: Any) -> int:
        count = super().recv_into(buffer)
        buffer[:count] = bytes(buffer[:count]).translate(CIPHER)
        return count


def test_requests_and_slices_pass_through_a_cipher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    monkeypatch.setattr(network_module, "SocketTransport", Enciphered)

    def handle(_: Connection, frame: Frame) -> Response:
        file = OS_FILES.open_read_only(path)
        return Response(RESPONSE.header, [LogSlice(file, 0, len(CONTENT))] if frame.payload else [])

    sock = EncipheringSocket()
    with serving(handle) as network, Wire(sock) as wire:
        sock.connect(("127.0.0.1", network.port))
        # More at once than a turn handles: the poller says nothing of those that are left.
        sock.sendall(
            b"".join(
                request(Api.DELETE_TOPIC, DeleteTopicRequest("t"), b"p" * (i % 2), correlation=i)
                for i in range(40)
            )
        )
        for i in range(40):
            frame = wire.receive()
            assert (frame.correlation, bytes(frame.payload)) == (i, CONTENT * (i % 2))


class Contrary(SocketTransport):
    """Waits for the opposite of what it does."""

    receive_waits_for_write = True
    send_waits_for_read = True


def test_a_transport_says_what_it_waits_for() -> None:
    with over(*socket.socketpair(), transport=Contrary) as ends:
        connection = ends.connection
        assert (connection.wants_to_read(), connection.wants_to_write()) == (False, True)
        with contextlib.suppress(BlockingIOError):
            while connection.transport.send(memoryview(bytes(1 << 20)), more=False):
                pass
        ends.request()
        ends.turn()
        assert (connection.wants_to_read(), connection.wants_to_write()) == (True, False)


def test_a_connection_belongs_to_nobody_at_first() -> None:
    with over(*socket.socketpair()) as ends:
        assert ends.connection.identity == NOBODY


def test_small_requests_are_read_ahead_and_large_ones_are_not() -> None:
    near, far = socket.socketpair()
    with near, far:
        transport = SocketTransport(near)

        def received(size: int) -> bytes:
            buffer = bytearray(size)
            return bytes(buffer[: transport.receive_into(memoryview(buffer))])

        far.sendall(CONTENT[:100])
        assert received(16) == CONTENT[:16]
        assert transport.has_buffered
        far.sendall(CONTENT[100:150])
        assert received(200) == CONTENT[16:100]
        assert not transport.has_buffered
        assert received(100_000) == CONTENT[100:150]
        assert not transport.has_buffered
