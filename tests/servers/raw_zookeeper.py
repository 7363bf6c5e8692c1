"""ZooKeeper's protocol by hand, for what no client would send."""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kazoo.protocol import serialization as kazoo

from spark_logbus.gateway import jute

_PATIENCE_S = 60.0


@dataclass
class RawClient:
    """A connection to ZooKeeper or a gateway. Raises EOFError where the other end has ended it, and
    TimeoutError where it says nothing."""

    sock: socket.socket
    session_id: int = 0
    password: bytes = b""

    @classmethod
    def connect(cls, port: int, ca: Path | None = None, *, host: str = "127.0.0.1") -> Self:
        """Connects, encrypted if there is a ``ca`` to believe."""
        sock = socket.create_connection((host, port), _PATIENCE_S)
        if ca is not None:
            context = ssl.create_default_context(cafile=ca)
            sock = context.wrap_socket(sock, server_hostname=host)
        return cls(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, message: bytes) -> None:
        self.send_bytes(jute.frame(message))

    def send_bytes(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> bytes:
        return self._exactly(struct.unpack("!i", self._exactly(4))[0])

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            try:
                part = self.sock.recv(count - len(found))
            except TimeoutError:
                raise
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            found += part
        return found

    def attach(self, session_id: int = 0, password: bytes = bytes(16)) -> int:
        """Asks for a session, new or by number and password; returns the timeout that was granted,
        0 if there is none."""
        asked = kazoo.Connect(0, 0, 30_000, session_id, password, False)
        self.send(bytes(asked.serialize()))
        granted, _ = kazoo.Connect.deserialize(self.receive(), 0)
        self.session_id, self.password = granted.session_id, granted.passwd
        return int(granted.time_out)

    def log_in(self, scheme: str, proof: str) -> int:
        """Returns the error of a login, 0 for none."""
        self.send(struct.pack("!ii", -4, 100) + kazoo.Auth(0, scheme, proof).serialize())
        return self.header()[2]

    def ask(self, request: Any, xid: int = 1) -> int:
        """Returns the error of a request, 0 for none."""
        self.send(struct.pack("!ii", xid, request.type) + bytes(request.serialize()))
        return self.header()[2]

    def header(self) -> tuple[int, int, int]:
        """The number, transaction and error of the next answer."""
        xid, zxid, error = struct.unpack("!iqi", self.receive()[:16])
        return xid, zxid, error

    def headers_to_the_end(self) -> list[tuple[int, int, int]]:
        """Returns the answers that come before the other end ends the connection."""
        found = []
        while True:
            try:
                found.append(self.header())
            except EOFError:
                return found


def guessed_password(session_id: int) -> bytes:
    """The password that ZooKeeper has for a session: Java's random bytes from a known seed."""
    mask = (1 << 48) - 1
    seed = ((session_id ^ 0xB3415C00) ^ 0x5DEECE66D) & mask
    found = b""
    while len(found) < 16:
        seed = (seed * 0x5DEECE66D + 0xB) & mask
        found += struct.pack("<I", seed >> 16)
    return found
