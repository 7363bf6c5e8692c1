"""The encrypted end of a plain stream.

asyncio's own TLS hands OpenSSL all that has come, and OpenSSL goes on for as long as records come
that have no content, such as new keys: a stranger would keep the one thread of all sessions busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final

# OpenSSL gets as much at once. Of records without content that is some hundred, a few milliseconds.
_PIECE_BYTES: Final = 4 << 10
# So much may come without content; a handshake fits into it, with a client's certificates.
_CONTENTLESS_BYTES: Final = 64 << 10
# A record of one byte has 23, and one for new keys can be sent with it.
_OVERHEAD: Final = 64


class EncryptedEnd:
    """Reads and writes as asyncio's streams do, through TLS. Not thread-safe: one task reads, and
    any of the same loop write."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._may_receive = _CONTENTLESS_BYTES  # before there is content again

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self._writer.transport

    @property
    def certificate(self) -> bytes | None:
        """Certificate of the other end as DER, which was checked; None if it has none."""
        return self._tls.getpeercert(binary_form=True)

    async def shake_hands(self) -> None:
        """Raises OSError if that fails, EOFError if the other end goes."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send()
                await self._receive()
            except ssl.SSLError:
                self._send()  # it says why
                raise
            else:
                self._send()
                return

    async def read(self, most_bytes: int) -> bytes:
        """Returns what is there, once something is; nothing at the end of the connection. Raises
        OSError, also for a connection on which nothing but overhead comes."""
        while True:
            try:
                content = self._tls.read(most_bytes)
            except ssl.SSLWantReadError:
                self._send()
                try:
                    await self._receive()
                except EOFError:
                    return b""
            except ssl.SSLZeroReturnError:
                return b""
            else:
                received = self._may_receive + _OVERHEAD * len(content)
                self._may_receive = min(_CONTENTLESS_BYTES, received)
                return content

    async def readexactly(self, count: int) -> bytes:
        """Raises EOFError if the connection ends before that."""
        found = bytearray()
        while len(found) < count:
            part = await self.read(count - len(found))
            if not part:
                raise asyncio.IncompleteReadError(bytes(found), count)
            found += part
        return bytes(found)

    def write(self, data: bytes) -> None:
        """Takes all of it. Raises OSError for a connection that is broken."""
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        self._send()

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        """Tells the other end, and closes what is below."""
        with contextlib.suppress(OSError):
            self._tls.unwrap()  # which then waits for the other end's word; nobody does
        self._send()
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()

    async def _receive(self) -> None:
        if self._may_receive <= 0:
            raise ConnectionAbortedError("next to nothing has come but overhead of TLS")
        received = await self._reader.read(min(_PIECE_BYTES, self._may_receive))
        if not received:
            raise EOFError("the connection has ended")
        self._in.write(received)
        self._may_receive -= len(received)
        # What had come already was no wait: others have their turn between two pieces.
        await asyncio.sleep(0)

    def _send(self) -> None:
        if self._out.pending:
            self._writer.write(self._out.read())
