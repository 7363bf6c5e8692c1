"""Messages over streams: each behind its length."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import struct
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import CoordinationError, ProtocolError
from spark_logbus.gateway import jute
from spark_logbus.gateway.encrypted import EncryptedEnd
from spark_logbus.security.tls import CurrentContext

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 3.0
_CLOSE_S: Final = 1.0
_LENGTH: Final = struct.Struct("!i")


@dataclass(frozen=True, slots=True)
class Stream:
    """One connection. Used by one task for each direction."""

    reader: asyncio.StreamReader | EncryptedEnd
    writer: asyncio.StreamWriter | EncryptedEnd

    async def read(self, most_bytes: int) -> bytes:
        """Reads a message. Raises EOFError at the end of the connection, ProtocolError for a length
        that no message has."""
        [length] = _LENGTH.unpack(await self.reader.readexactly(_LENGTH.size))
        if not 0 <= length <= most_bytes:
            raise ProtocolError(f"A message has up to {most_bytes} bytes, got {length}.")
        return await self.reader.readexactly(length)

    def write(self, message: bytes) -> None:
        self.writer.write(jute.frame(message))


async def close_all(*streams: Stream) -> None:
    """Closes connections, and waits a moment for their other ends; not when it is cancelled."""
    for each in streams:
        each.writer.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            for each in streams:
                with contextlib.suppress(OSError):
                    await each.writer.wait_closed()
    except TimeoutError:
        logger.debug("A connection did not end in time, and is cut.")
    finally:
        for each in streams:
            each.writer.transport.abort()


async def open_one(servers: str, contexts: CurrentContext | None) -> Stream:
    """Connects to one of ZooKeeper's servers, whichever takes it. Raises CoordinationError."""
    named = servers.split(",")
    random.shuffle(named)
    for server in named:
        host, _, port = server.rpartition(":") if _has_port(server) else (server, "", "2181")
        context = None if contexts is None else contexts.get()
        name = host.strip("[]").rstrip(".")
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    name, int(port), ssl=context, server_hostname=name if context else None
                )
            return Stream(reader, writer)
        except (OSError, TimeoutError, ssl.SSLError) as error:
            logger.info("ZooKeeper's server %s is passed over: %s", server, error)
    raise CoordinationError(f"None of ZooKeeper's servers ({servers}) takes a connection.")


def _has_port(server: str) -> bool:
    return ":" in server.rpartition("]")[2]
