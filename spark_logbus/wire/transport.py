"""Transports, which move a connection's bytes.

Connections know no sockets, so that encryption can be put here without touching them. A transport
that encrypts may have to write to receive and to read to send, for which there are properties. It
may also hold bytes of which a poller knows nothing, so whoever waits for a connection lets it
``progress`` first.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from typing import Protocol

from spark_logbus.wire.passed_file import ONE_DESCRIPTOR, PassedFile, passed_file


class Transport(Protocol):
    """The end of a connection that was opened here; it never blocks. Not thread-safe, but
    ``shut_down``.

    Methods that move bytes raise BlockingIOError when they have to wait for the other end, and
    another OSError when the connection is broken.
    """

    @property
    def takes_files(self) -> bool:
        """True if the other end is on this machine and can pass files over."""
        ...

    @property
    def receive_waits_for_write(self) -> bool:
        """True if the receive that raised BlockingIOError goes on when bytes can be written."""
        ...

    @property
    def send_waits_for_read(self) -> bool:
        """True if the send that raised BlockingIOError goes on when bytes can be read."""
        ...

    def fileno(self) -> int: ...

    def receive_into(self, buffer: memoryview) -> int:
        """Bytes received; 0: the other end has closed the connection."""
        ...

    def receive_with_file(self, buffer: memoryview) -> tuple[int, PassedFile | None]:
        """Receives as ``receive_into`` does, and the file that came with the first byte."""
        ...

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Bytes sent, from the beginning of the first buffer on."""
        ...

    def is_silent(self) -> bool:
        """True if the other end has neither sent anything nor closed the connection."""
        ...

    def shut_down(self) -> None:
        """Ends both directions, so that another thread that waits for the transport goes on and
        meets the end; it has still to be closed."""
        ...

    def close(self) -> None: ...


class SocketTransport:
    """A TCP or UNIX socket as it is."""

    receive_waits_for_write = False
    send_waits_for_read = False

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self.takes_files = sys.platform == "linux" and sock.family == socket.AF_UNIX

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive_into(self, buffer: memoryview) -> int:
        return self._sock.recv_into(buffer)

    def receive_with_file(self, buffer: memoryview) -> tuple[int, PassedFile | None]:
        received, ancillary, _, _ = self._sock.recvmsg_into(
            [buffer], ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC
        )
        return received, passed_file(ancillary) if ancillary else None

    def send(self, buffers: Sequence[memoryview]) -> int:
        return self._sock.sendmsg(buffers)

    def is_silent(self) -> bool:
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def shut_down(self) -> None:
        with contextlib.suppress(OSError):  # the other end was faster
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()
