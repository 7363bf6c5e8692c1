from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client.mapped_file import mapped
from spark_logbus.client.memory import arrow_memory
from spark_logbus.clock import SystemClock
from spark_logbus.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LogbusError,
    ProtocolError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import (
    Api,
    AppendPartition,
    AppendRequest,
    AppendResponse,
    HandshakeResponse,
    MetadataRequest,
    MetadataResponse,
    encode_response,
    frame_head,
)
from spark_logbus.retry import Deadline
from spark_logbus.wire.buffers import Allocate, ReusableBuffer, new_buffer
from spark_logbus.wire.connect import connect as dial
from spark_logbus.wire.connection import BrokerConnection
from spark_logbus.wire.pool import ConnectionPool
from spark_logbus.wire.transport import SocketTransport
from tests.builders.arrow_batches import QUICK, record_batch
from tests.fakes.broker import FakeCluster
from tests.helpers import is_open, name_of_descriptor, open_files
from tests.servers.ports import reserved_port

pytestmark = pytest.mark.usefixtures("no_collector")  # descriptors are looked at

HERE = BrokerAddress(1, "127.0.0.1", 1)


def soon(milliseconds: float = 5_000) -> Deadline:
    return Deadline.after_ms(SystemClock(), milliseconds)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def connected(sock: socket.socket, allocate: Allocate = new_buffer) -> BrokerConnection:
    transport = SocketTransport(sock)
    return BrokerConnection(transport, HERE, max_response_bytes=1 << 20, allocate=allocate)


@pytest.fixture
def pair(
    sockets: tuple[socket.socket, socket.socket],
) -> Iterator[tuple[BrokerConnection, socket.socket]]:
    """A connection and the bare socket at its other end."""
    ours, theirs = sockets
    connection = connected(ours)
    yield connection, theirs
    connection.close()


def metadata_answer(correlation: int, *, payload: bytes = b"") -> bytes:
    header = encode_response(MetadataResponse([], []))
    head = frame_head(
        api=Api.METADATA, version=1, correlation=correlation, header=header,
        payload_length=len(payload),
    )  # fmt: skip
    return head + payload


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    return path


def pass_over(sock: socket.socket, data: bytes, path: Path) -> None:
    """Send ``data`` with a descriptor of the file."""
    with path.open("rb") as file:
        assert socket.send_fds(sock, [data], [file.fileno()]) == len(data)


def test_responses_come_in_the_order_of_the_requests(
    pair: tuple[BrokerConnection, socket.socket],
) -> None:
    connection, theirs = pair
    pending = [connection.send(Api.METADATA, MetadataRequest()) for _ in range(3)]
    assert not connection.idle
    theirs.sendall(b"".join(metadata_answer(number) for number in (1, 2, 3)))
    pending[0].result(MetadataResponse, soon())
    assert not pending[1].done  # read no further than asked: the rest stays in the socket
    for one in pending:
        assert one.result(MetadataResponse, soon()) == MetadataResponse([], [])
    assert connection.idle


def test_a_payload_is_received_into_aligned_arrow_memory(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    import pyarrow as pa

    ours, theirs = sockets
    connection = connected(ours, arrow_memory)
    pending = connection.send(Api.METADATA, MetadataRequest())
    theirs.sendall(metadata_answer(1, payload=b"x" * 1000))
    pending.result(MetadataResponse, soon())
    assert bytes(pending.payload) == b"x" * 1000
    assert pa.py_buffer(pending.payload).address % 64 == 0
    connection.close()


def test_payloads_are_received_one_after_the_other_into_the_same_memory(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets
    connection = connected(ours, ReusableBuffer().take)
    payloads = []
    for number, content in enumerate([b"a" * 1000, b"b" * 10, b"c" * 1000], start=1):
        pending = connection.send(Api.METADATA, MetadataRequest())
        theirs.sendall(metadata_answer(number, payload=content))
        pending.result(MetadataResponse, soon())
        assert bytes(pending.payload) == content
        payloads.append(pending.payload)
    assert bytes(payloads[0]) == b"c" * 1000, "it grows only for what is larger than all before"
    connection.close()


def test_another_thread_ends_the_wait_for_an_answer(
    pair: tuple[BrokerConnection, socket.socket],
) -> None:
    connection, theirs = pair
    pending = connection.send(Api.METADATA, MetadataRequest())
    caught: list[LogbusError] = []

    def wait() -> None:
        try:
            pending.result(MetadataResponse, soon(60_000))
        except LogbusError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    theirs.sendall(metadata_answer(1, payload=b"x" * 1000)[:-1])  # in the middle of an answer
    connection.interrupt(BrokerUnavailableError("This broker stops."))
    waiter.join(30)
    assert [str(error) for error in caught] == ["This broker stops."]
    assert isinstance(caught[0], BrokerUnavailableError)
    with pytest.raises(BrokerUnavailableError, match="This broker stops"):
        connection.send(Api.METADATA, MetadataRequest())


def test_an_interrupted_connection_takes_up_nothing_more(
    pair: tuple[BrokerConnection, socket.socket],
) -> None:
    connection, theirs = pair
    connection.interrupt(BrokerUnavailableError("This broker stops."))
    assert not connection.looks_alive()
    pending = connection.send(Api.METADATA, MetadataRequest())
    with pytest.raises(BrokerUnavailableError, match="This broker stops"):
        pending.result(MetadataResponse, soon())
    assert theirs.recv(10) == b""
    connection.interrupt(BrokerUnavailableError("Too late."))  # closed long since


def test_a_file_belongs_to_the_response_that_it_came_with(
    pair: tuple[BrokerConnection, socket.socket], segment: Path
) -> None:
    connection, theirs = pair
    pending = [connection.send(Api.METADATA, MetadataRequest()) for _ in range(5)]
    theirs.sendall(metadata_answer(1))
    pass_over(theirs, metadata_answer(2), segment)
    theirs.sendall(metadata_answer(3, payload=b"abc"))
    pass_over(theirs, metadata_answer(4)[:5], segment)  # cut in the prelude
    pending[2].result(MetadataResponse, soon())
    connection.progress()
    theirs.sendall(metadata_answer(4)[5:] + metadata_answer(5))
    pending[4].result(MetadataResponse, soon())
    assert [one.file is not None for one in pending] == [False, True, False, True, False]
    for one in (pending[1], pending[3]):
        assert one.file is not None
        assert not os.get_inheritable(one.file.fileno()), "programs started here do not get it"
        assert bytes(mapped(one.file, 2, 3)) == b"234"
    del one
    pending.clear()
    assert open_files(segment) == []


def test_a_file_within_a_frame_leaves_no_descriptor(
    pair: tuple[BrokerConnection, socket.socket], segment: Path
) -> None:
    connection, theirs = pair
    pending = connection.send(Api.METADATA, MetadataRequest())
    answer = metadata_answer(1)
    theirs.sendall(answer[:16])
    pass_over(theirs, answer[16:], segment)
    pending.result(MetadataResponse, soon())
    assert pending.file is None
    assert open_files(segment) == []


def test_files_that_nobody_receives_leave_no_descriptor(
    pair: tuple[BrokerConnection, socket.socket], segment: Path
) -> None:
    connection, theirs = pair
    socket_name = name_of_descriptor(connection.fileno())
    connection.send(Api.METADATA, MetadataRequest())
    pass_over(theirs, metadata_answer(1)[:20], segment)
    connection.progress()  # half of the frame, and its file
    assert open_files(segment) == [str(segment)]
    connection.close()
    assert open_files(segment) == []
    assert not is_open(socket_name)


def test_a_response_out_of_order_ends_the_connection(
    pair: tuple[BrokerConnection, socket.socket],
) -> None:
    connection, theirs = pair
    pending = connection.send(Api.METADATA, MetadataRequest())
    theirs.sendall(metadata_answer(2))
    with pytest.raises(ProtocolError, match="not next in line"):
        pending.result(MetadataResponse, soon())
    with pytest.raises(ProtocolError):
        connection.send(Api.METADATA, MetadataRequest())


def test_a_frame_above_the_limit_is_refused_before_it_is_read(
    pair: tuple[BrokerConnection, socket.socket],
) -> None:
    connection, theirs = pair
    pending = connection.send(Api.METADATA, MetadataRequest())
    theirs.sendall(b"\xff" * 16)
    with pytest.raises(InvalidRequestError, match="the limit is"):
        pending.result(MetadataResponse, soon())


def test_no_answer_in_time_closes_the_connection(
    pair: tuple[BrokerConnection, socket.socket],
) -> None:
    connection, _ = pair
    pending = connection.send(Api.METADATA, MetadataRequest())
    later = connection.send(Api.METADATA, MetadataRequest())
    with pytest.raises(RequestTimeoutError, match="may or may not"):
        pending.result(MetadataResponse, soon(5))
    with pytest.raises(RequestTimeoutError):
        later.result(MetadataResponse, soon())


def test_the_other_end_hangs_up(pair: tuple[BrokerConnection, socket.socket]) -> None:
    connection, theirs = pair
    pending = connection.send(Api.METADATA, MetadataRequest())
    theirs.close()
    with pytest.raises(BrokerUnavailableError, match=r"closed the connection|broke"):
        pending.result(MetadataResponse, soon())


def test_a_large_request_is_written_as_the_socket_takes_it(
    pair: tuple[BrokerConnection, socket.socket],
) -> None:
    connection, theirs = pair
    theirs.setblocking(False)
    part = memoryview(bytes(range(256)) * 4096)
    request = AppendRequest("none", 1, [AppendPartition("t", 0, 8 * len(part))])
    pending = connection.send(Api.APPEND, request, [part] * 8, answered=False)
    assert connection.wants_to_write
    received = bytearray()
    while not pending.done:
        try:
            received += theirs.recv(1 << 16)
        except BlockingIOError:
            connection.progress()
    while True:
        try:
            received += theirs.recv(1 << 16)
        except BlockingIOError:
            break
    assert received.endswith(bytes(part) * 8)
    assert pending.error is None


def test_a_request_above_the_brokers_limit_is_not_sent(
    pair: tuple[BrokerConnection, socket.socket],
) -> None:
    connection, _ = pair
    connection.take_limits(max_request_bytes=100, max_record_batch_bytes=50)
    with pytest.raises(InvalidRequestError, match="limit of broker 1"):
        connection.send(Api.METADATA, MetadataRequest(["x" * 200]))
    assert connection.idle


def test_dial_refuses_another_broker_at_the_address(fake: FakeCluster) -> None:
    address = fake.brokers[0].address
    with pytest.raises(BrokerUnavailableError, match="broker 1 listens there now"):
        dial(BrokerAddress(9, address.host, address.port), QUICK.connections, soon())
    dial(BrokerAddress(-1, address.host, address.port), QUICK.connections, soon()).close()


def test_dial_names_what_it_cannot_reach() -> None:
    with (
        reserved_port() as port,
        pytest.raises(BrokerUnavailableError, match=f"127.0.0.1:{port}"),
    ):
        dial(BrokerAddress(1, "127.0.0.1", port), QUICK.connections, soon())


def test_dial_refuses_another_protocol_version() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = BrokerAddress(1, "127.0.0.1", listener.getsockname()[1])
        header = encode_response(HandshakeResponse(1, 2, 1, 1))
        answer = frame_head(api=Api.HANDSHAKE, version=1, correlation=1, header=header)

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(answer)
                sock.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UnsupportedVersionError, match="speaks protocol version 2"):
            dial(address, QUICK.connections, soon())
        thread.join()


def test_the_pool_keeps_living_connections_only(fake: FakeCluster) -> None:
    pool = ConnectionPool(QUICK.connections)
    address = fake.brokers[0].address
    with pool.lease(address, soon()) as first, pool.lease(address, soon()) as second:
        assert second is not first
    with pool.lease(address, soon()) as again:
        assert again in (first, second)
        again.send(Api.METADATA, MetadataRequest())
    assert again.failure is not None  # given back with an answer outstanding
    fake.brokers[0].stop()
    fake.brokers[0].start()
    with pytest.raises(BrokerUnavailableError):
        pool.take(address, soon())  # the idle one was found dead, and nobody listens there
    pool.close()
    with pytest.raises(BrokerUnavailableError, match="closed"):
        pool.take(fake.brokers[0].address, soon())


def test_an_append_can_be_answered_while_more_is_sent(fake: FakeCluster) -> None:
    fake.create("t")
    connection = dial(fake.brokers[0].address, QUICK.connections, soon())
    data = record_batch([b"x" * 1000] * 500)
    pending = []
    for _ in range(20):
        request = AppendRequest("flushed", 1000, [AppendPartition("t", 0, len(data))])
        pending.append(connection.send(Api.APPEND, request, [data]))
    offsets = [one.result(AppendResponse, soon()).results[0].base_offset for one in pending]
    assert offsets == list(range(0, 10_000, 500))
    connection.close()
