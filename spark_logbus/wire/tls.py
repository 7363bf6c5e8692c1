"""A transport that encrypts, for connections that are opened here."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Final

from spark_logbus.wire.passed_file import PassedFile

# Smaller buffers are joined up to this, so that the head of a request and its payload share a
# record of TLS.
_JOINED_BYTES: Final = 64 << 10


class TlsTransport:
    """A TLS connection over a socket that does not block. Not thread-safe, but ``shut_down``."""

    takes_files = False

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._offered: bytes | None = None  # joined, and refused for want of room
        self.receive_waits_for_write = False
        self.send_waits_for_read = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive_into(self, buffer: memoryview) -> int:
        self.receive_waits_for_write = False
        try:
            return self._sock.recv_into(buffer)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.receive_waits_for_write = True
            raise BlockingIOError from None

    def receive_with_file(self, buffer: memoryview) -> tuple[int, PassedFile | None]:
        return self.receive_into(buffer), None

    def send(self, buffers: Sequence[memoryview]) -> int:
        self.send_waits_for_read = False
        data = self._next(buffers) if self._offered is None else self._offered
        self._offered = None
        try:
            return self._sock.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
            # OpenSSL insists on the same bytes the next time, though more may be there by then.
            self._offered = bytes(data) if len(data) <= _JOINED_BYTES else None
            self.send_waits_for_read = isinstance(error, ssl.SSLWantReadError)
            raise BlockingIOError from None

    @staticmethod
    def _next(buffers: Sequence[memoryview]) -> memoryview | bytes:
        first = buffers[0]
        if len(first) >= _JOINED_BYTES or len(buffers) == 1:
            return first
        parts, size = [], 0
        for each in buffers:
            part = each[: _JOINED_BYTES - size]
            parts.append(part)
            size += len(part)
            if size == _JOINED_BYTES:
                break
        return b"".join(parts)

    def is_silent(self) -> bool:
        # Tickets of TLS 1.3 lie there to be read without a byte of data, so nothing less than a
        # read tells. What it takes is of a connection that is given up then.
        try:
            self._sock.recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except OSError:
            return False
        return False

    def shut_down(self) -> None:
        with contextlib.suppress(OSError):  # the other end was faster
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()
