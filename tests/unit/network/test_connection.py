"""The state machine of one connection, on a socket pair and without threads."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.errors import FrameTooLargeError, ProtocolError
from spark_logbus.log import OS_FILES, LogSlice
from spark_logbus.network.config import NetworkConfig
from spark_logbus.network.connection import Connection
from spark_logbus.network.memory import BufferPool, Memory
from spark_logbus.network.responses import NoResponse, NotYet, Response
from spark_logbus.network.strand import Strand
from spark_logbus.network.transport import SocketTransport
from spark_logbus.protocol import (
    Api,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    decode_response,
    encode_response,
)
from tests.servers.wire import Wire, request
from tests.unit.network.ends import RESPONSE, STALL_S, Ends, Later


def test_a_request_is_answered_in_one_turn(ends: Ends) -> None:
    correlation = ends.request()
    ends.turn()
    ends.wire.answer(Api.DELETE_TOPIC, DeleteTopicResponse, correlation=correlation)
    assert ends.connection.wants_to_read()
    assert not ends.connection.wants_to_write()


def test_a_frame_that_comes_byte_by_byte(ends: Ends) -> None:
    for byte in request(Api.DELETE_TOPIC, DeleteTopicRequest("t"), b"payload"):
        assert not ends.frames
        ends.wire.sock.sendall(bytes([byte]))
        ends.turn()
    assert bytes(ends.frames[0].payload) == b"payload"
    ends.wire.receive()


def test_several_frames_in_one_turn_but_not_without_end(ends: Ends) -> None:
    for _ in range(20):
        ends.request()
    ends.turn()
    assert 1 < len(ends.frames) < 20
    while len(ends.frames) < 20:
        ends.turn()
    correlations = [ends.wire.receive().correlation for _ in range(20)]
    assert correlations == list(range(1, 21))


def test_answers_keep_the_order_of_requests(ends: Ends) -> None:
    first, last = Later(), Later()
    ends.answers += [first, RESPONSE, last]
    for _ in range(3):
        ends.request()
    ends.turn()
    last.response = RESPONSE
    ends.turn()
    assert ends.connection.waiting == 3 + ends.connection.strand.taken
    first.response = RESPONSE
    ends.turn()
    assert [ends.wire.receive().correlation for _ in range(3)] == [1, 2, 3]


def test_only_the_next_answer_is_asked_for(ends: Ends) -> None:
    first, second = Later(), Later()
    ends.answers += [first, second]
    ends.request()
    ends.request()
    ends.turn()
    assert (first.polls > 0, second.polls) == (True, 0)
    first.response = RESPONSE
    ends.turn()
    assert second.polls > 0


def test_the_next_deadline_is_that_of_the_first_in_order(ends: Ends) -> None:
    assert ends.connection.next_deadline() is None
    ends.answers += [Later(7.0), Later(3.0)]
    ends.request()
    ends.request()
    ends.turn()
    assert ends.connection.next_deadline() == 7.0


def test_a_wake_up_gives_the_next_turn(ends: Ends) -> None:
    later = Later()
    ends.answers.append(later)
    ends.request()
    ends.turn()
    ends.connection.strand.give_back(reads=True, writes=False)
    later.wake()
    assert ends.armed == [(True, False), (True, True)]


class NotNow:
    """Requests that cannot be begun before ``allow``."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    @property
    def answer(self) -> NotYet:
        return NotYet(self._calls.append)

    def allow(self) -> None:
        for call in self._calls:
            call()


def test_a_request_not_yet_begun_keeps_its_place(
    ends: Ends,
) -> None:
    later = NotNow()
    ends.answers += [RESPONSE, later.answer]
    ends.request()
    kept = ends.wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("kept"), b"payload")
    ends.request()
    ends.turn()
    assert len(ends.frames) == 2
    assert not ends.connection.wants_to_read()
    assert ends.connection.waiting == 1 + ends.connection.strand.taken
    assert ends.connection.overdue(ends.now + 10**6) is None, "it waits for us"
    ends.answers += [later.answer]
    ends.turn()
    assert len(ends.frames) == 3, "asked again, and put off again"
    assert bytes(ends.frames[2].payload) == b"payload"
    ends.connection.strand.give_back(reads=False, writes=False)
    later.allow()
    assert ends.armed[-1] == (True, True)
    ends.turn()
    assert [ends.wire.receive().correlation for _ in range(3)] == [1, kept, 3]


def test_a_request_that_cannot_be_begun_goes_with_its_client(ends: Ends) -> None:
    ends.answers += [NotNow().answer]
    ends.request()
    ends.turn()
    ends.wire.sock.close()
    ends.connection.check_peer()
    assert ends.connection.closed
    ends.turn()
    assert len(ends.frames) == 1


def test_memory_of_a_postponed_request_is_reused(ends: Ends) -> None:
    payload = bytes(100_000)
    buffers = ends.connection._receiver._buffers
    buffers.give(buffers.take(len(payload)))
    ends.answers += [NotNow().answer]
    ends.wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("kept"), payload)
    ends.turn()
    (kept,) = ends.frames
    ends.connection.end()
    assert buffers.take(len(payload)).obj is kept.payload.obj


def test_no_more_than_max_in_flight_are_started(ends: Ends) -> None:
    waiting = [Later() for _ in range(3)]
    ends.answers += list(waiting)
    for _ in range(5):
        ends.request()
    ends.turn()
    assert len(ends.frames) == 3
    assert not ends.connection.wants_to_read()
    for later in waiting:
        later.response = RESPONSE
    ends.turn()
    ends.turn()
    assert len(ends.frames) == 5


def test_a_request_that_wants_no_answer_gets_none(ends: Ends) -> None:
    ends.answers += [NoResponse.NOT_WANTED]
    ends.request()
    correlation = ends.request()
    ends.turn()
    assert ends.wire.receive().correlation == correlation


def test_an_unanswerable_failure_closes_after_earlier_responses(
    ends: Ends,
) -> None:
    later = Later()
    ends.answers += [later, NoResponse.CLOSE_CONNECTION]
    for _ in range(3):
        ends.request()
    ends.turn()
    assert not ends.connection.closed
    assert len(ends.frames) == 2, "what comes behind the failure is not started"
    later.response = RESPONSE
    ends.turn()
    assert ends.connection.closed
    assert ends.wire.receive().correlation == 1
    assert ends.wire.is_ended()


# -- what is no valid frame -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\xff" * 16, FrameTooLargeError),
        (b"GET / HTTP/1.1\r\n\r\n", FrameTooLargeError),
        (b"\0" * 16, ProtocolError),
    ],
)
def test_bytes_that_are_no_frame_get_an_error_and_the_end(
    ends: Ends, data: bytes, error: type[Exception]
) -> None:
    ends.wire.sock.sendall(data)
    ends.turn()
    assert ends.connection.closed
    with pytest.raises(error):
        decode_response(Api.HANDSHAKE, ends.wire.receive().header)
    assert ends.wire.is_ended()


def test_the_error_comes_behind_the_answers_that_are_due(ends: Ends) -> None:
    later = Later()
    ends.answers.append(later)
    ends.request()
    ends.wire.sock.sendall(b"\xff" * 16)
    ends.turn()
    assert not ends.connection.closed
    assert not ends.connection.wants_to_read()
    later.response = RESPONSE
    ends.turn()
    assert ends.wire.receive().correlation == 1
    ends.wire.receive()
    assert ends.wire.is_ended()


def test_before_the_handshake_frames_are_small() -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    connection = Connection(
        SocketTransport(here),
        "peer",
        address="here",
        config=NetworkConfig(max_handshake_bytes=100),
        handle=lambda *_: RESPONSE,
        strand=Strand(lambda *, reads, writes: None),
        buffers=BufferPool(),
        memory=Memory(NetworkConfig()),
        now=0.0,
    )
    with Wire(there) as wire:
        wire.sock.sendall(request(Api.HANDSHAKE, DeleteTopicRequest("t" * 100)))
        connection.turn(0.0, may_send_slices=True)
        assert connection.closed
        with pytest.raises(FrameTooLargeError):
            decode_response(Api.HANDSHAKE, wire.receive().header)
    connection.close()


def test_the_descriptor_outlives_the_connection_in_the_network(ends: Ends) -> None:
    ends.wire.sock.close()
    ends.connection.turn(ends.now, may_send_slices=True)
    assert ends.connection.closed
    assert ends.connection.transport.fileno() == ends.connection.fd
    ends.connection.close()
    assert ends.connection.transport.fileno() == -1


def test_the_other_end_closes(ends: Ends) -> None:
    ends.wire.sock.close()
    ends.turn()
    assert ends.connection.closed


def test_what_was_sent_before_the_other_end_went_is_handled(ends: Ends) -> None:
    ends.answers += [NoResponse.NOT_WANTED, RESPONSE, NoResponse.NOT_WANTED]
    for _ in range(3):
        ends.request()
    ends.wire.sock.close()
    ends.connection.check_peer()
    ends.turn()
    assert len(ends.frames) == 3
    assert ends.connection.closed


def test_a_peer_that_is_there_is_not_given_up(ends: Ends) -> None:
    later = Later()
    ends.answers.append(later)
    ends.request()
    ends.turn()
    ends.connection.check_peer()
    later.response = RESPONSE
    ends.turn()
    ends.wire.receive()


# -- slices -----------------------------------------------------------------------------------


@pytest.fixture
def piece(tmp_path: Path) -> Callable[[int], LogSlice]:
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789" * 400_000)

    def make(length: int) -> LogSlice:
        return LogSlice(OS_FILES.open_read_only(path), 10, length)

    return make


def test_slices_follow_their_head(ends: Ends, piece: Callable[[int], LogSlice]) -> None:
    header = encode_response(CreateTopicResponse("x"))
    ends.answers += [
        Response(header, [piece(30), piece(20)]),
        RESPONSE,
        Response(header, [piece(10)]),
    ]
    for _ in range(3):
        ends.request()
    ends.turn()
    assert bytes(ends.wire.receive().payload) == b"0123456789" * 5
    assert bytes(ends.wire.receive().payload) == b""
    assert bytes(ends.wire.receive().payload) == b"0123456789"


def test_slices_wait_for_a_thread_that_may_send_them(
    ends: Ends, piece: Callable[[int], LogSlice]
) -> None:
    ends.answers.append(Response(RESPONSE.header, [piece(20)]))
    ends.request()
    ends.turn(may_send_slices=False)
    assert ends.connection.at_slice
    ends.request()
    ends.turn(may_send_slices=False)
    assert len(ends.frames) == 1, "nothing is read while an answer is not sent"
    ends.turn(may_send_slices=True)
    assert not ends.connection.at_slice
    assert [len(ends.wire.receive().payload) for _ in range(2)] == [20, 0]


def test_a_reader_that_does_not_read_is_waited_for(
    ends: Ends, piece: Callable[[int], LogSlice]
) -> None:
    ends.answers.append(Response(RESPONSE.header, [piece(3_000_000)]))
    ends.request()
    ends.turn()
    assert ends.connection.wants_to_write()
    assert not ends.connection.wants_to_read()
    ends.now += 10 * STALL_S
    assert not ends.connection.overdue(ends.now)
    received = 0
    while received < 3_000_000:
        received += len(ends.wire.sock.recv(1 << 20))
        ends.turn()
    assert not ends.connection.wants_to_write()


def test_a_slice_longer_than_its_file_ends_the_connection(
    ends: Ends, piece: Callable[[int], LogSlice]
) -> None:
    ends.answers.append(Response(RESPONSE.header, [piece(4_000_000)]))
    ends.request()
    ends.turn()
    while ends.wire.sock.recv(1 << 20):
        ends.turn()
    assert ends.connection.closed


def test_a_slice_outlives_its_file(ends: Ends, tmp_path: Path) -> None:
    path = tmp_path / "deleted"
    path.write_bytes(bytes(1000))
    file = OS_FILES.open_read_only(path)
    ends.answers.append(Response(RESPONSE.header, [LogSlice(file, 0, 1000)]))
    del file
    os.unlink(path)
    ends.request()
    ends.turn()
    assert len(ends.wire.receive().payload) == 1000
