"""Files that are passed over a UNIX socket in place of their bytes."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.log import OS_FILES, LogSlice
from spark_logbus.log.disk.filesystem import OSFile
from spark_logbus.network.responses import FileHandover, Response
from spark_logbus.protocol import Api, CreateTopicResponse, Frame, decode_response, encode_response
from spark_logbus.protocol.frames import PRELUDE, PRELUDE_SIZE
from tests.helpers import open_files
from tests.servers.wire import Wire, frames
from tests.unit.network.ends import RESPONSE, over

pytestmark = pytest.mark.usefixtures("no_collector")  # descriptors are looked at

CONTENT = b"0123456789" * 10_000
BY_FILE = CreateTopicResponse("by file")


@pytest.fixture
def piece(tmp_path: Path) -> Callable[[int], LogSlice]:
    """A slice of the file from byte 10 on."""
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    return lambda length: LogSlice(OS_FILES.open(path), 10, length)


def by_file(piece: LogSlice, *, instead: Sequence[LogSlice] = ()) -> Response:
    return Response(RESPONSE.header, instead, FileHandover(encode_response(BY_FILE), piece))


def receive(wire: Wire) -> tuple[Frame, int | None]:
    """The next frame, and the descriptor that came with its first byte."""
    first, descriptors, _, _ = socket.recv_fds(wire.sock, 1, 4)
    prelude = first + wire.sock.recv(PRELUDE_SIZE - 1, socket.MSG_WAITALL)
    length = PRELUDE.unpack(prelude)[0] - (PRELUDE_SIZE - 4)
    (frame,) = frames([prelude, wire.sock.recv(length, socket.MSG_WAITALL)])
    assert len(descriptors) <= 1
    return frame, descriptors[0] if descriptors else None


def holds(descriptor: int | None) -> bytes:
    """Returns what the passed file holds from byte 10 on, and closes it."""
    assert descriptor is not None
    try:
        return os.pread(descriptor, 10, 10)
    finally:
        os.close(descriptor)


class Unwilling(socket.socket):
    """Sends a byte at a time; with descriptors fails with ``code``, if there is one."""

    code: int | None = None
    calls = 0

    @classmethod
    def of(cls, sock: socket.socket) -> Unwilling:
        return cls(sock.family, sock.type, fileno=sock.detach())

    def sendmsg(self, buffers: Any, ancillary: Any = (), *_: Any) -> int:
        self.calls += 1
        if self.code is not None:
            raise OSError(self.code, os.strerror(self.code))
        return super().sendmsg([bytes(buffers[0][:1])], ancillary)

    def send(self, data: Any, flags: int = 0) -> int:
        return super().send(bytes(data[:1]), flags)


def test_a_file_is_passed_with_its_own_response(
    piece: Callable[[int], LogSlice], tmp_path: Path
) -> None:
    with over(*socket.socketpair()) as ends:
        slices = [piece(7), piece(30)]
        (tmp_path / "segment").unlink()  # as retention does
        ends.answers += [Response(RESPONSE.header, slices[:1]), by_file(slices[1]), RESPONSE]
        del slices
        for _ in range(3):
            ends.request()
        ends.turn()
        assert open_files(tmp_path) == [], "the broker keeps none"
        frame, descriptor = receive(ends.wire)
        assert (bytes(frame.payload), descriptor) == (b"0123456", None)
        frame, descriptor = receive(ends.wire)
        assert decode_response(Api.CREATE_TOPIC, frame.header) == BY_FILE
        assert not frame.payload
        assert holds(descriptor) == b"0123456789"
        frame, descriptor = receive(ends.wire)
        assert (frame.header, descriptor) == (RESPONSE.header, None)


def test_a_passed_file_cannot_be_written(piece: Callable[[int], LogSlice]) -> None:
    with over(*socket.socketpair()) as ends:
        ends.answers.append(by_file(piece(30)))
        ends.request()
        ends.turn()
        _, descriptor = receive(ends.wire)
        assert descriptor is not None
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(descriptor, b"x", 0)
        with pytest.raises(OSError, match="Invalid argument"):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def test_the_file_goes_once_with_the_first_byte(piece: Callable[[int], LogSlice]) -> None:
    here, there = socket.socketpair()
    slow = Unwilling.of(here)
    with over(slow, there) as ends:
        ends.answers += [RESPONSE, by_file(piece(30)), RESPONSE]
        for _ in range(3):
            ends.request()
        ends.turn()
        assert slow.calls == 1
        frame, descriptor = receive(ends.wire)
        assert (frame.header, descriptor) == (RESPONSE.header, None)
        frame, descriptor = receive(ends.wire)
        assert decode_response(Api.CREATE_TOPIC, frame.header) == BY_FILE
        assert holds(descriptor) == b"0123456789"
        assert receive(ends.wire)[0].header == RESPONSE.header


def test_a_client_that_does_not_read_is_waited_for(piece: Callable[[int], LogSlice]) -> None:
    with over(*socket.socketpair()) as ends:
        full = memoryview(b"x" * 4096)
        try:
            while True:
                ends.connection.transport.send(full, more=False)
        except BlockingIOError:
            pass
        ends.answers.append(by_file(piece(30)))
        ends.request()
        ends.turn()
        assert ends.connection.wants_to_write()
        ends.wire.sock.setblocking(False)
        try:
            while ends.wire.sock.recv(1 << 20):
                pass
        except BlockingIOError:
            pass
        ends.wire.sock.settimeout(60)
        ends.turn()
        assert holds(receive(ends.wire)[1]) == b"0123456789"


def test_the_bytes_go_out_when_the_file_cannot_be_opened_again(
    piece: Callable[[int], LogSlice], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(OSFile, "open_again", full)
    with over(*socket.socketpair()) as ends:
        ends.answers += [by_file(piece(30), instead=[piece(7), piece(10)]), RESPONSE]
        for _ in range(2):
            ends.request()
        ends.turn()
        frame, descriptor = receive(ends.wire)
        assert frame.header == RESPONSE.header
        assert (bytes(frame.payload), descriptor) == (b"0123456" + b"0123456789", None)
        assert receive(ends.wire)[0].header == RESPONSE.header


@pytest.mark.parametrize(("code", "answered"), [(errno.ETOOMANYREFS, True), (errno.EPIPE, False)])
def test_the_bytes_go_out_when_too_many_files_are_under_way(
    piece: Callable[[int], LogSlice], code: int, answered: bool
) -> None:
    here, there = socket.socketpair()
    unwilling = Unwilling.of(here)
    unwilling.code = code
    with over(unwilling, there) as ends:
        ends.answers.append(by_file(piece(30), instead=[piece(20)]))
        ends.request()
        ends.turn()
        assert ends.connection.closed != answered
        if answered:
            frame, descriptor = receive(ends.wire)
            assert (bytes(frame.payload), descriptor) == (b"0123456789" * 2, None)
