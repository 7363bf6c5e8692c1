"""A connection of the broker's and its other end, without threads."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from spark_logbus.network.config import NetworkConfig
from spark_logbus.network.connection import Connection
from spark_logbus.network.memory import BufferPool, Memory
from spark_logbus.network.responses import Answer, DelayedResponse, Response
from spark_logbus.network.strand import Strand
from spark_logbus.network.transport import SocketTransport, Transport
from spark_logbus.protocol import (
    Api,
    DeleteTopicRequest,
    DeleteTopicResponse,
    Frame,
    Message,
    encode_response,
)
from tests.servers.wire import Wire

RESPONSE = Response(encode_response(DeleteTopicResponse()))
STALL_S = 30.0  # the default of stall_timeout_ms


class Later(DelayedResponse):
    """A delayed answer that the test gives."""

    def __init__(self, deadline: float = 100.0) -> None:
        super().__init__(deadline=deadline)
        self.response: Response | None = None
        self.polls = 0

    def poll(self) -> Response | None:
        self.polls += 1
        return self.response


@dataclass
class Ends:
    """Both ends of a connection; ``answers`` are given to its requests in turn."""

    connection: Connection
    wire: Wire
    answers: list[Answer]
    frames: list[Frame]
    armed: list[tuple[bool, bool]]
    now: float = 1000.0
    sent: int = field(default=0)

    def turn(self, *, may_send_slices: bool = True) -> None:
        """Works as the network does: a connection that has ended is forgotten, then closed."""
        self.connection.turn(self.now, may_send_slices=may_send_slices)
        if self.connection.closed:
            self.connection.close()

    def request(self, message: Message | None = None) -> int:
        return self.wire.send(Api.DELETE_TOPIC, message or DeleteTopicRequest("t"))


@contextmanager
def over(
    here: socket.socket,
    there: socket.socket,
    config: NetworkConfig | None = None,
    memory: Memory | None = None,
    buffers: BufferPool | None = None,
    transport: Callable[[socket.socket], Transport] = SocketTransport,
) -> Iterator[Ends]:
    """Both ends, on two connected sockets."""
    config = config or NetworkConfig(max_in_flight=3)
    here.setblocking(False)
    answers: list[Answer] = []
    frames: list[Frame] = []
    armed: list[tuple[bool, bool]] = []

    def handle(_: Connection, frame: Frame) -> Answer:
        frames.append(frame)
        return answers.pop(0) if answers else RESPONSE

    def arm(*, reads: bool, writes: bool) -> None:
        armed.append((reads, writes))

    connection = Connection(
        transport(here),
        "peer",
        config=config,
        handle=handle,
        strand=Strand(arm),
        address="here",
        buffers=buffers or BufferPool(),
        memory=memory or Memory(config),
        now=1000.0,
    )
    connection.handshake_done()
    with Wire(there) as wire:
        yield Ends(connection, wire, answers, frames, armed)
        connection.close()
