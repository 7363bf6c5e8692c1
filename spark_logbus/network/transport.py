"""Transports, which move a connection's bytes.

Connections know no sockets, so that encryption can be put here without touching them. A transport
that encrypts differs from a socket in three ways, for which there are properties: a receive may
have to write, a send may have to read, and it may hold bytes of which the poller knows nothing.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Final, Protocol

from spark_logbus.network.sockets import peer_uid

# A small request is received at once, its frame's parts and its payload. More than this at a time
# goes straight to where it belongs.
_READ_AHEAD_BYTES: Final = 4 << 10
_NOTHING: Final = memoryview(b"")


class Transport(Protocol):
    """One end of a connection, which never blocks. Used by one thread at a time.

    Methods that move bytes raise BlockingIOError when they have to wait for the other end, and
    another OSError when the connection is broken.
    """

    @property
    def local(self) -> bool:
        """True if the other end is a process on this machine, which can be passed descriptors."""
        ...

    @property
    def receive_waits_for_write(self) -> bool:
        """True if the receive that raised BlockingIOError goes on when bytes can be written."""
        ...

    @property
    def send_waits_for_read(self) -> bool:
        """True if the send that raised BlockingIOError goes on when bytes can be read."""
        ...

    @property
    def has_buffered(self) -> bool:
        """True if a receive would give bytes that were read before."""
        ...

    @property
    def uid(self) -> int | None:
        """The user of the process at a local end; None where the system does not say."""
        ...

    def certificate(self) -> bytes | None:
        """Returns the certificate that the other end has shown, as DER, which was checked."""
        ...

    def fileno(self) -> int: ...

    def receive_into(self, buffer: memoryview) -> int:
        """Bytes received; 0: the other end has closed the connection."""
        ...

    def send(self, data: memoryview, *, more: bool) -> int:
        """Bytes sent; ``more``: others follow at once and may share a packet with these."""
        ...

    def send_file(self, descriptor: int, position: int, count: int) -> int:
        """Send from a file, up to ``count`` bytes from ``position`` on; 0: it ends there."""
        ...

    def send_with_descriptor(self, data: bytes, descriptor: int) -> int:
        """Send ``data``, and with its first byte a file to a local end."""
        ...

    def close(self) -> None: ...


class SocketTransport:
    """A TCP or UNIX socket, read ahead by a few KiB."""

    receive_waits_for_write = False
    send_waits_for_read = False

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ahead = _NOTHING
        self.local = sock.family == socket.AF_UNIX
        self.uid = peer_uid(sock) if self.local else None

    def certificate(self) -> bytes | None:
        return None

    @property
    def has_buffered(self) -> bool:
        return bool(self._ahead)

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive_into(self, buffer: memoryview) -> int:
        ahead, wanted = self._ahead, len(buffer)
        if not ahead:
            if wanted >= _READ_AHEAD_BYTES:
                return self._sock.recv_into(buffer)
            ahead = memoryview(self._sock.recv(_READ_AHEAD_BYTES))
        count = min(wanted, len(ahead))
        buffer[:count] = ahead[:count]
        self._ahead = ahead[count:]
        return count

    def send(self, data: memoryview, *, more: bool) -> int:
        return self._sock.send(data, socket.MSG_MORE if more else 0)

    def send_file(self, descriptor: int, position: int, count: int) -> int:
        return os.sendfile(self._sock.fileno(), descriptor, position, count)

    def send_with_descriptor(self, data: bytes, descriptor: int) -> int:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
        return self._sock.sendmsg([data], [rights])

    def close(self) -> None:
        self._sock.close()
