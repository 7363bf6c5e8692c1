"""TLS at a gateway's end, from a client that makes its records itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from spark_logbus.gateway.encrypted import EncryptedEnd
from spark_logbus.security.tls import ServerTls, server_context
from tests.servers.certificates import Authority
from tests.servers.tls_client import TlsClient

CONTENT = 23
LIMIT = 64 << 10


def over(
    directory: Path,
    serve: Callable[[EncryptedEnd], Awaitable[None]],
    ask: Callable[[TlsClient], None],
) -> None:
    """Runs both ends of a connection, the client's on a thread."""
    authority = Authority(directory / "ca")
    files = authority.files("broker", "127.0.0.1")
    context = server_context(ServerTls(certificate=files.certificate, key=files.key))

    def client(port: int) -> None:
        with TlsClient("127.0.0.1", port, authority.ca, keys=directory / "keys") as made:
            ask(made)

    async def both() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            asking = asyncio.create_task(asyncio.to_thread(client, listener.getsockname()[1]))
            listener.setblocking(False)
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            end = EncryptedEnd(reader, writer, context)
            await end.shake_hands()
            await serve(end)
        finally:
            writer.transport.abort()
            await asking

    asyncio.run(asyncio.wait_for(both(), 60))


def wait_for_end(client: TlsClient) -> None:
    while client.sock.recv(1 << 16):
        pass


@pytest.mark.parametrize("one", [TlsClient.key_update, lambda client: client.forge(b"", CONTENT)])
def test_records_without_content_end_the_connection_and_hold_up_nobody(
    tmp_path: Path, one: Callable[[TlsClient], bytes]
) -> None:
    turns = 0

    async def serve(end: EncryptedEnd) -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        with pytest.raises(OSError, match=r"overhead|record too small"):
            await end.read(1)
        other.cancel()

    def ask(client: TlsClient) -> None:
        flood = b"".join(one(client) for _ in range(4 * LIMIT // 22))
        with contextlib.suppress(OSError):  # it is ended meanwhile
            client.sock.sendall(flood)
            wait_for_end(client)

    over(tmp_path, serve, ask)
    assert turns > 1


def test_content_in_the_smallest_records_and_under_ever_new_keys(tmp_path: Path) -> None:
    sent = bytes(each % 251 for each in range(6_000))

    async def serve(end: EncryptedEnd) -> None:
        assert await end.readexactly(len(sent)) == sent
        end.close()

    def ask(client: TlsClient) -> None:
        for at in range(len(sent)):
            client.sock.sendall(client.forge(sent[at : at + 1], CONTENT) + client.key_update())
        wait_for_end(client)

    over(tmp_path, serve, ask)


def test_a_connection_that_ends_in_a_message_is_told(tmp_path: Path) -> None:
    async def serve(end: EncryptedEnd) -> None:
        assert await end.readexactly(3) == b"abc"
        with pytest.raises(EOFError):
            await end.readexactly(5)

    def ask(client: TlsClient) -> None:
        client.sock.sendall(client.seal(b"abcd"))
        # Closed with something unread it would be a reset, which may overtake what was sent.
        client.sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            wait_for_end(client)

    over(tmp_path, serve, ask)
