"""How slowly requests may come, and which memory they take meanwhile; no threads."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

from spark_logbus.network.config import NetworkConfig
from spark_logbus.network.connection import Connection
from spark_logbus.network.memory import BufferPool, Memory
from spark_logbus.network.strand import Strand
from spark_logbus.network.transport import SocketTransport
from spark_logbus.protocol import Api, DeleteTopicRequest, HandshakeRequest
from tests.servers.wire import request
from tests.unit.network.ends import RESPONSE, STALL_S, Ends, Later, over


def test_an_idle_connection_never_stalls(ends: Ends) -> None:
    assert not ends.connection.overdue(ends.now + 10 * STALL_S)


def test_half_a_frame_stalls_after_a_while_without_a_byte(ends: Ends) -> None:
    ends.wire.sock.sendall(b"\x40")
    ends.turn()
    assert not ends.connection.overdue(ends.now + STALL_S - 1)
    assert ends.connection.overdue(ends.now + STALL_S + 1)
    ends.now += STALL_S - 1
    ends.wire.sock.sendall(b"\x00")
    ends.turn()
    assert not ends.connection.overdue(ends.now + STALL_S - 1)


def large_request(size: int) -> bytes:
    return request(Api.DELETE_TOPIC, DeleteTopicRequest("t"), bytes(size))


def test_a_dripping_large_frame_is_too_slow(ends: Ends) -> None:
    data = large_request(1 << 20)
    began, sent = ends.now, 0
    while (reason := ends.connection.overdue(ends.now)) is None:
        ends.wire.sock.sendall(data[sent : sent + 1])
        sent += 1
        ends.turn()
        ends.now += 1
    assert "min_receive_bytes_per_s" in reason
    assert STALL_S < ends.now - began <= STALL_S + 2


def test_a_large_frame_over_a_slow_link_comes_through(ends: Ends) -> None:
    """The client is as slow as it may be, with a pause in the middle that is nearly a stall."""
    data = large_request(400_000)
    sent = 0
    while sent < len(data):
        assert ends.connection.overdue(ends.now) is None
        paused = sent == 10 * 8_192
        ends.wire.sock.sendall(data[sent : sent + 8_192])
        sent += 8_192
        ends.turn()
        ends.now += STALL_S - 2 if paused else 1
    assert len(ends.frames) == 1
    assert len(ends.frames[0].payload) == 400_000


def test_a_frame_that_has_paid_in_advance_cannot_rest_on_it(ends: Ends) -> None:
    data = large_request(1 << 20)
    ends.wire.sock.sendall(data[:100_000])
    ends.turn()
    for _ in range(int(STALL_S)):
        ends.now += 1
        ends.wire.sock.sendall(b"x")
        ends.turn()
    assert ends.connection.overdue(ends.now) is None
    assert "min_receive_bytes_per_s" in (ends.connection.overdue(ends.now + 1) or "")


def test_what_a_frame_announces_takes_no_memory_of_others() -> None:
    config = NetworkConfig()
    memory, buffers = Memory(config), BufferPool()
    started = large_request(60 << 20)[: (16 << 10) - 1]
    with ExitStack() as stack:
        for _ in range(40):
            mine = stack.enter_context(over(*socket.socketpair(), config, memory, buffers))
            mine.wire.sock.sendall(started)
            mine.turn()
        assert memory.incoming_bytes == 0
        other = stack.enter_context(over(*socket.socketpair(), config, memory, buffers))
        other.wire.sock.sendall(large_request(100_000))
        other.turn()
        assert len(other.frames) == 1
    assert memory.incoming_bytes == 0


def test_usual_requests_do_not_wait_for_large_ones() -> None:
    config = NetworkConfig(
        max_frame_bytes=2 << 20, max_header_bytes=1_000, max_buffered_bytes=6 << 20
    )
    memory, buffers = Memory(config), BufferPool()
    data = large_request(2_000_000)
    with ExitStack() as stack:
        for _ in range(50):
            mine = stack.enter_context(over(*socket.socketpair(), config, memory, buffers))
            mine.wire.sock.sendall(data[:100_000])
            mine.turn()
        assert memory.incoming_bytes > 2 << 20
        other = stack.enter_context(over(*socket.socketpair(), config, memory, buffers))
        other.wire.sock.sendall(large_request(150_000))
        other.turn()
        assert len(other.frames) == 1


def test_frames_that_each_hold_a_part_get_through() -> None:
    config = NetworkConfig(
        max_frame_bytes=1 << 20, max_header_bytes=1_000, max_buffered_bytes=(1 << 20) + 330_000
    )
    memory, buffers = Memory(config), BufferPool()
    data = large_request(900_000)
    with ExitStack() as stack:
        all_ends = [
            stack.enter_context(over(*socket.socketpair(), config, memory, buffers))
            for _ in range(8)
        ]
        rest = dict.fromkeys(range(8), data)
        for _ in range(1_000):  # rounds; it takes some 70
            for number in list(rest):
                mine = all_ends[number]
                mine.wire.sock.setblocking(False)
                with suppress(BlockingIOError):
                    rest[number] = rest[number][mine.wire.sock.send(rest[number]) :]
                mine.turn()
                if mine.frames:
                    del rest[number]
            assert memory.incoming_bytes <= config.max_buffered_bytes
        assert not rest, "they wait for each other"
        assert all(len(mine.frames[0].payload) == 900_000 for mine in all_ends)
    assert memory.incoming_bytes == 0


def test_waiting_for_memory_counts_against_nobody() -> None:
    config = NetworkConfig(
        max_frame_bytes=1 << 20, max_header_bytes=1_000, max_buffered_bytes=(1 << 20) + 30_000
    )
    memory, buffers = Memory(config), BufferPool()
    data = large_request(900_000)
    with (
        over(*socket.socketpair(), config, memory, buffers) as first,
        over(*socket.socketpair(), config, memory, buffers) as second,
    ):
        for mine in (first, second):
            mine.wire.sock.sendall(data[:50_000])
            mine.turn()
        second.now += 1_000
        assert second.connection.overdue(second.now) is None
        first.connection.close()
        assert second.connection.wants_to_read(), "there is memory"
        second.turn()
        assert second.connection.overdue(second.now + STALL_S - 1) is None
        assert second.connection.overdue(second.now + STALL_S + 1)


def test_a_large_decoded_header_waits_for_memory() -> None:
    config = NetworkConfig(max_header_bytes=100_000, max_buffered_bytes=(64 << 20) + 3_800_000)
    memory, buffers = Memory(config), BufferPool()
    data = request(Api.DELETE_TOPIC, DeleteTopicRequest("t" * 90_000))
    with (
        over(*socket.socketpair(), config, memory, buffers) as first,
        over(*socket.socketpair(), config, memory, buffers) as second,
    ):
        first.wire.sock.setblocking(False)
        rest = large_request(2 << 20)[:300_000]
        while rest:
            rest = rest[first.wire.sock.send(rest) :]
            first.turn()
        assert memory.incoming_bytes > 0, "it has the last resort"
        second.wire.sock.sendall(data)
        second.turn()
        assert not second.frames
        first.connection.close()
        second.turn()
        assert len(second.frames[0].header) > 90_000
    assert memory.incoming_bytes == 0


def test_half_a_frame_that_we_do_not_read_on_does_not_stall(ends: Ends) -> None:
    waiting = [Later() for _ in range(3)]
    ends.answers += list(waiting)
    for _ in range(2):
        ends.request()
    data = request(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
    ends.wire.sock.sendall(data + data[:5])
    ends.turn()
    ends.now += STALL_S + 1
    assert not ends.connection.overdue(ends.now)
    for later in waiting:
        later.response = RESPONSE
    ends.turn()
    assert not ends.connection.overdue(ends.now + 1), "our sending counts as progress"


def test_before_the_handshake_bytes_do_not_buy_time() -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    connection = Connection(
        SocketTransport(here),
        "peer",
        address="here",
        config=NetworkConfig(),
        handle=lambda *_: RESPONSE,
        strand=Strand(lambda *, reads, writes: None),
        buffers=BufferPool(),
        memory=Memory(NetworkConfig()),
        now=0.0,
    )
    hello = request(Api.HANDSHAKE, HandshakeRequest(client_id="x" * 200))
    with there:
        seconds = 0.0
        while not connection.overdue(seconds):
            there.sendall(hello[int(seconds) : int(seconds) + 1])
            connection.turn(seconds, may_send_slices=True)
            seconds += 1
        assert STALL_S < seconds <= STALL_S + 2
        assert not connection.closed
    connection.close()
