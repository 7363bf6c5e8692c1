"""A transport that encrypts, over a socket that does not block."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
from collections import Counter
from typing import Final

logger = logging.getLogger(__name__)

_NOTHING: Final = memoryview(b"")
# What is read from a file, encrypted and sent in one call: sixteen records of TLS.
_PIECE_BYTES: Final = 256 << 10


class FailedHandshakes:
    """Counts handshakes that failed, by reason. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: Counter[str] = Counter()  # since the last report
        self.total = 0

    def add(self, error: ssl.SSLError) -> None:
        reason = (error.reason or "no reason").lower()
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message
        with self._lock:
            self._recent[reason.replace("_", " ")] += 1
            self.total += 1

    def report(self) -> None:
        """Logs those since the last report. Not at once: whoever scans ports comes often."""
        with self._lock:
            recent, self._recent = self._recent, Counter()
        for reason, count in recent.items():
            logger.info("TLS failed on %d connections: %s.", count, reason)


class TlsTransport:
    """One end of a TLS connection. OpenSSL shakes hands within the first bytes that move.

    The other end's principal is known from its certificate once it has shaken hands. A failed
    handshake raises as a broken connection does, and is counted.
    """

    local = False
    uid = None

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, failed: FailedHandshakes
    ) -> None:
        self._failed = failed
        sock.setblocking(False)
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self.receive_waits_for_write = False
        self.send_waits_for_read = False

    @property
    def has_buffered(self) -> bool:
        return self._sock.pending() > 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def certificate(self) -> bytes | None:
        """Returns the other end's certificate as DER, which was checked; None if it has none."""
        return self._sock.getpeercert(binary_form=True)

    def receive_into(self, buffer: memoryview) -> int:
        self.receive_waits_for_write = False
        try:
            return self._sock.recv_into(buffer)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.receive_waits_for_write = True
            raise BlockingIOError from None
        except ssl.SSLError as error:
            if self._sock.version() is None:  # it has not shaken hands
                self._failed.add(error)
            raise

    def send(self, data: memoryview, *, more: bool) -> int:
        self.send_waits_for_read = False
        try:
            return self._sock.send(data)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except ssl.SSLWantReadError:
            self.send_waits_for_read = True
            raise BlockingIOError from None

    def send_file(self, descriptor: int, position: int, count: int) -> int:
        # What was refused for want of room is offered again from the same place: OpenSSL insists on
        # the same bytes, and the file gives them.
        data = os.pread(descriptor, min(count, _PIECE_BYTES), position)
        return self.send(memoryview(data), more=False) if data else 0

    def send_with_descriptor(self, data: bytes, descriptor: int) -> int:
        raise NotImplementedError("Only a local end is passed descriptors.")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()
