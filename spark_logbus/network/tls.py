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
# What is encrypted and sent in one call: four records of TLS. As much is kept for a slow reader.
_PIECE_BYTES: Final = 64 << 10
# A small request is received at once, with its record.
_READ_AHEAD_BYTES: Final = 4 << 10
_RECORD_OVERHEAD_BYTES: Final = 512
# What may come without content. OpenSSL would go on with records that have none, such as new keys,
# for as long as they come, and to make keys takes so long that a few connections would keep all
# threads. A handshake fits into it, with a client's certificates.
_CONTENTLESS_BYTES: Final = 64 << 10
# A record of one byte has 23, and one for new keys can be sent with it.
_OVERHEAD: Final = 64


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
    handshake raises as a broken connection does, and is counted. A connection on which next to
    nothing but overhead comes raises, too.
    """

    local = False
    uid = None

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, failed: FailedHandshakes
    ) -> None:
        self._failed = failed
        sock.setblocking(False)
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._unsent = _NOTHING  # encrypted
        self._promised = 0  # bytes before they were encrypted, of which some are not sent
        self._may_receive = _CONTENTLESS_BYTES  # before there is content again
        self.has_buffered = False
        self.receive_waits_for_write = False
        self.send_waits_for_read = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def certificate(self) -> bytes | None:
        """Returns the other end's certificate as DER, which was checked; None if it has none."""
        return self._tls.getpeercert(binary_form=True)

    def receive_into(self, buffer: memoryview) -> int:
        self._answer()
        try:
            count = self._read(buffer)
            if count is None:
                wanted = max(_READ_AHEAD_BYTES, len(buffer) + _RECORD_OVERHEAD_BYTES)
                received = self._sock.recv(min(wanted, self._may_receive))
                if not received:
                    return 0
                self._in.write(received)
                self._may_receive -= len(received)
                count = self._read(buffer)
        except ssl.SSLError as error:
            if self._tls.version() is None:  # it has not shaken hands
                self._failed.add(error)
            with contextlib.suppress(OSError):
                self._flush()  # it says why
            raise
        if count is None:
            self._answer()
            if self._may_receive <= 0:
                raise ConnectionAbortedError("next to nothing has come but overhead of TLS")
            raise BlockingIOError  # the poller tells if there is more
        self._may_receive = min(_CONTENTLESS_BYTES, self._may_receive + _OVERHEAD * count)
        return count

    def _read(self, buffer: memoryview) -> int | None:
        """Returns the bytes that are there, 0 at the end of the connection, None if all that was
        received has been decrypted."""
        try:
            count = int(self._tls.read(len(buffer), buffer))
        except ssl.SSLWantReadError:
            self.has_buffered = False
            return None
        except ssl.SSLZeroReturnError:
            return 0
        self.has_buffered = self._tls.pending() > 0 or self._in.pending > 0
        return count

    def _answer(self) -> None:
        """Sends what OpenSSL itself has to say. Raises BlockingIOError if that does not go: nothing
        more is received until then."""
        self.receive_waits_for_write = False
        try:
            self._flush()
        except BlockingIOError:
            self.receive_waits_for_write = True
            raise

    def send(self, data: memoryview, *, more: bool) -> int:
        """Sends as all transports do. What was refused for want of room is offered again from the
        same place, and is not encrypted again."""
        self.send_waits_for_read = False
        if not self._promised:
            try:
                self._promised = self._tls.write(data[:_PIECE_BYTES])
            except ssl.SSLWantReadError:  # before hands are shaken
                self._flush()
                self.send_waits_for_read = True
                raise BlockingIOError from None
        self._flush()
        sent, self._promised = self._promised, 0
        return sent

    def send_file(self, descriptor: int, position: int, count: int) -> int:
        if self._promised:
            return self.send(_NOTHING, more=False)
        data = os.pread(descriptor, min(count, _PIECE_BYTES), position)
        return self.send(memoryview(data), more=False) if data else 0

    def send_with_descriptor(self, data: bytes, descriptor: int) -> int:
        raise NotImplementedError("Only a local end is passed descriptors.")

    def _flush(self) -> None:
        """Sends all that is encrypted. Raises BlockingIOError while some is left."""
        while True:
            if not self._unsent:
                if not self._out.pending:
                    return
                self._unsent = memoryview(self._out.read())
            self._unsent = self._unsent[self._sock.send(self._unsent) :]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()
