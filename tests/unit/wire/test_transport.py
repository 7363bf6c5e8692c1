"""A transport that is no plain socket, under a connection that does not know."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from spark_logbus.clock import SystemClock
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import (
    Api,
    MetadataRequest,
    MetadataResponse,
    encode_response,
    frame_head,
)
from spark_logbus.retry import Deadline
from spark_logbus.wire.connection import BrokerConnection
from spark_logbus.wire.transport import SocketTransport
from tests.servers.wire import frames

HERE = BrokerAddress(1, "h", 1)
CIPHER = bytes(byte ^ 0x5A for byte in range(256))  # its own inverse


class Enciphered(SocketTransport):
    """Takes from the socket all that is there, as TLS does with a record."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.takes_files = False
        self._received = b""

    def receive_into(self, buffer: memoryview) -> int:
        if not self._received:
            self._received = self._sock.recv(1 << 20).translate(CIPHER)
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        self._received = self._received[count:]
        return count

    def send(self, buffers: Sequence[memoryview]) -> int:
        return self._sock.send(bytes(buffers[0]).translate(CIPHER))


def test_requests_and_responses_pass_through_a_cipher() -> None:
    ours, theirs = socket.socketpair()
    connection = BrokerConnection(Enciphered(ours), HERE, max_response_bytes=1 << 20)
    with theirs:
        pending = [connection.send(Api.METADATA, MetadataRequest([])) for _ in range(2)]
        asked = frames([theirs.recv(1 << 20).translate(CIPHER)])
        header = encode_response(MetadataResponse([], []))
        # Both at once: once the first was received, the poller says nothing of the second.
        theirs.sendall(
            b"".join(
                frame_head(api=Api.METADATA, version=1, correlation=each.correlation, header=header)
                for each in asked
            ).translate(CIPHER)
        )
        for each in pending:
            deadline = Deadline.after_ms(SystemClock(), 5_000)
            assert each.result(MetadataResponse, deadline) == MetadataResponse([], [])
    connection.close()


def test_a_connection_waits_for_what_its_transport_waits_for() -> None:
    ours, theirs = socket.socketpair()
    transport = SocketTransport(ours)
    connection = BrokerConnection(transport, HERE, max_response_bytes=1 << 20)
    with theirs:
        assert not connection.wants_to_write
        transport.receive_waits_for_write = True
        assert connection.wants_to_write
        transport.receive_waits_for_write = False
        connection.send(Api.APPEND, MetadataRequest([]), [memoryview(bytes(8 << 20))])
        assert connection.wants_to_write
        transport.send_waits_for_read = True
        assert not connection.wants_to_write
    connection.close()
