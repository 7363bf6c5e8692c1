"""Records of TLS at a transport, from a client that makes them itself."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_logbus.network.tls import FailedHandshakes, TlsTransport
from spark_logbus.security.tls import ServerTls, server_context
from tests.servers.certificates import Authority
from tests.servers.tls_client import TlsClient

CONTENT = 23
LIMIT = 64 << 10


def has_shaken_hands(transport: TlsTransport) -> bool:
    try:
        transport.certificate()
    except ValueError:
        return False
    return True


@contextmanager
def connected(directory: Path) -> Iterator[tuple[TlsClient, TlsTransport]]:
    authority = Authority(directory / "ca")
    files = authority.files("broker", "127.0.0.1")
    context = server_context(ServerTls(certificate=files.certificate, key=files.key))
    clients: list[TlsClient] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        shaking = threading.Thread(
            target=lambda: clients.append(
                TlsClient("127.0.0.1", port, authority.ca, keys=directory / "keys")
            )
        )
        shaking.start()
        transport = TlsTransport(listener.accept()[0], context, failed=FailedHandshakes())
        while not has_shaken_hands(transport):
            with contextlib.suppress(BlockingIOError):
                transport.receive_into(memoryview(bytearray(1)))
            select.select([transport], [], [], 0.1)
        shaking.join(60)
    [client] = clients
    with client, contextlib.closing(transport):
        yield client, transport


def receive(transport: TlsTransport, count: int) -> bytes:
    found = b""
    buffer = memoryview(bytearray(1 << 16))
    while len(found) < count:
        try:
            received = transport.receive_into(buffer[: count - len(found)])
        except BlockingIOError:
            assert select.select([transport], [], [], 60)[0]
        else:
            assert received
            found += buffer[:received]
    return found


@pytest.mark.parametrize("one", [TlsClient.key_update, lambda client: client.forge(b"", CONTENT)])
def test_records_without_content_end_the_connection_before_they_cost_much(
    tmp_path: Path, one: Callable[[TlsClient], bytes]
) -> None:
    with connected(tmp_path) as (client, transport):
        flood = b"".join(one(client) for _ in range(4 * LIMIT // 22))
        sender = threading.Thread(target=client.sock.sendall, args=(flood,))
        sender.start()
        with pytest.raises(OSError, match=r"overhead|record too small"):
            receive(transport, 1)
        sock = transport._sock
        sock.setblocking(True)
        left = 0
        while left < len(flood) - LIMIT - 4_096:
            left += len(sock.recv(1 << 16))
        sender.join(60)


def test_content_may_come_in_the_smallest_records_and_under_ever_new_keys(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, transport):
        for kind in range(2):
            sent = bytes(each % 251 for each in range(6_000))
            records = b"".join(
                client.forge(sent[at : at + 1], CONTENT) + (client.key_update() if kind else b"")
                for at in range(len(sent))
            )
            sender = threading.Thread(target=client.sock.sendall, args=(records,))
            sender.start()
            assert receive(transport, len(sent)) == sent
            sender.join(60)


def test_what_is_not_sent_at_once_is_offered_again_and_sent_once(tmp_path: Path) -> None:
    sent = bytes(each % 249 for each in range(3_000_000))
    (tmp_path / "file").write_bytes(sent)
    received = bytearray()
    with connected(tmp_path) as (client, transport), (tmp_path / "file").open("rb") as file:

        def take() -> None:
            while len(received) < 2 * len(sent):
                try:
                    received.extend(client._tls.read(1 << 16))
                except ssl.SSLWantReadError:
                    client._in.write(client.sock.recv(1 << 16))

        reader = threading.Thread(target=take)
        refused = 0
        for way in ("bytes", "file"):
            at = 0
            while at < len(sent):
                try:
                    if way == "bytes":
                        at += transport.send(memoryview(sent)[at:], more=False)
                    else:
                        at += transport.send_file(file.fileno(), at, len(sent) - at)
                except BlockingIOError:
                    refused += 1
                    if not reader.is_alive():
                        reader.start()
                    assert select.select([], [transport], [], 60)[1]
        reader.join(60)
    assert refused
    assert bytes(received) == sent + sent
