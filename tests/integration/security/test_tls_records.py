"""Records of TLS of all sizes, in all pieces, and of kinds that nobody needs, at a broker.

A broker waits for sockets, and what OpenSSL has decrypted already is in no socket: here each byte
of a request comes in a record, or a call, or an order of its own.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import ssl
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, NetworkConfig, TlsConfig
from spark_logbus.protocol import (
    Api,
    FetchResponse,
    HandshakeRequest,
    MetadataRequest,
    MetadataResponse,
    decode_response,
)
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_here, create_topic, offsets_in
from tests.servers.certificates import Authority
from tests.servers.tls_client import TlsClient
from tests.servers.wire import Wire, append_request, fetch_request, request

MIB = 1 << 20
HELLO = request(Api.HANDSHAKE, HandshakeRequest("records"))
ASK = request(Api.METADATA, MetadataRequest(["t"]), correlation=7)


class Encrypted:
    """A broker with a TLS port, and topic t."""

    def __init__(self, broker: Broker, authority: Authority, directory: Path) -> None:
        self.broker = broker
        self.authority = authority
        assert broker.address.tls_port is not None
        self.port: int = broker.address.tls_port
        self._directory = directory
        self._clients = 0

    def client(self, *, forging: bool = False) -> TlsClient:
        self._clients += 1
        keys = self._directory / f"keys-{self._clients}" if forging else None
        return TlsClient("127.0.0.1", self.port, self.authority.ca, keys=keys)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.ca)

    def wire(self) -> Wire:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        wire = Wire(self.context().wrap_socket(sock, server_hostname="127.0.0.1"))
        wire.shake_hands()
        return wire

    def works(self) -> bool:
        with self.wire() as wire:
            base = wire.append("t", 0, record_batch()).results[0].base_offset
            wire.fetch("t", 0, base)
            return offsets_in(wire.payload)[0] == (base, base + 1)

    @property
    def connections(self) -> int:
        assert self.broker._network is not None
        return self.broker._network.connection_count


@pytest.fixture(scope="module")
def encrypted(
    tmp_path_factory: pytest.TempPathFactory, new_chroot: Callable[[], str]
) -> Iterator[Encrypted]:
    directory = tmp_path_factory.mktemp("records")
    authority = Authority(directory / "ca")
    files = authority.files("broker", "127.0.0.1")
    network = NetworkConfig(
        threads=4,
        stall_timeout_ms=3_000,
        max_frame_bytes=17 * MIB,
        max_header_bytes=MIB,
        # Frames wait for memory, while more of them is decrypted already.
        max_buffered_bytes=64 * MIB,
        max_buffered_bytes_per_peer=2 * MIB,
    )
    tls = TlsConfig(certificate=files.certificate, key=files.key, port=0)
    with broker_here(directory / "broker", new_chroot(), network=network, tls=tls) as broker:
        found = Encrypted(broker, authority, directory)
        with found.wire() as wire:
            create_topic(wire, "t")
        yield found


def names(client: TlsClient) -> list[str]:
    frame = client.receive()
    answer = decode_response(Api.METADATA, frame.header)
    assert isinstance(answer, MetadataResponse)
    return [each.name for each in answer.topics]


def test_pipelined_requests_in_one_record_are_all_answered(encrypted: Encrypted) -> None:
    """Sends more than a turn starts, and than may be under way, in a record, and nothing more."""
    for count in (1, 7, 8, 9, 16, 17, 33, 150):
        with encrypted.client() as client:
            data = HELLO + ASK * count
            assert len(data) < 1 << 14
            client.sock.sendall(client.seal(data))
            client.receive()
            assert [names(client) for _ in range(count)] == [["t"]] * count


def test_requests_behind_one_that_waits_are_answered_after_it(encrypted: Encrypted) -> None:
    with encrypted.wire() as wire:
        end = wire.append("t", 0, record_batch()).results[0].base_offset + 1
        with encrypted.client() as client:
            wait = request(Api.FETCH, fetch_request("t", 0, end, wait_ms=30_000))
            client.sock.sendall(client.seal(HELLO + wait + ASK * 40))
            client.receive()
            network = encrypted.broker._network
            assert network is not None
            wait_until(lambda: network.waiting() >= 16)
            wire.append("t", 0, record_batch())
            assert isinstance(decode_response(Api.FETCH, client.receive().header), FetchResponse)
            assert [names(client) for _ in range(40)] == [["t"]] * 40


@pytest.mark.parametrize("seed", range(12))
def test_requests_come_in_any_records_and_pieces(encrypted: Encrypted, seed: int) -> None:
    dice = random.Random(seed)
    batches = [
        record_batch(payload=dice.randbytes(dice.choice((0, 1, 500, 16_384, 70_000, 900_000))))
        for _ in range(12)
    ]
    stream = HELLO + b"".join(
        request(Api.APPEND, append_request("t", 0, each), each, correlation=1) + ASK
        for each in batches
    )
    most = dice.choice((1, 3, 100, 5_000, 16_384))
    sizes = [dice.randint(1, most) for _ in range(5_000)] + [1 << 14]
    with encrypted.client() as client:
        sealed = client.seal(stream, sizes)
        sent = threading.Thread(target=trickle, args=(client.sock, sealed, dice))
        sent.start()
        client.receive()
        for _ in batches:
            assert client.receive().api == Api.APPEND
            assert names(client) == ["t"]
        sent.join(60)


def trickle(sock: socket.socket, data: bytes, dice: random.Random) -> None:
    """Sends data in pieces that end anywhere, most of them in the middle of a record."""
    view, at = memoryview(data), 0
    small = dice.random() < 0.5
    while at < len(data):
        count = dice.randint(1, 40) if small and at < 20_000 else dice.randint(1, 300_000)
        sock.sendall(view[at : at + count])
        at += count


def test_many_frames_that_wait_for_memory_get_it(encrypted: Encrypted) -> None:
    """Appends of more than one peer may hold at a time, from eight connections at once."""
    batch = record_batch(payload=random.Random(1).randbytes(900_000))
    done: list[int] = []

    def append_all() -> None:
        with encrypted.client() as client:
            data = request(Api.APPEND, append_request("t", 0, batch), batch)
            client.sock.sendall(client.seal(HELLO + data * 4))
            done.extend(client.receive().api for _ in range(5))

    threads = [threading.Thread(target=append_all) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert sorted(done) == sorted([Api.HANDSHAKE, *[Api.APPEND] * 4] * 8)


def test_a_reader_that_does_not_read_holds_up_nobody_and_gets_all(encrypted: Encrypted) -> None:
    batch = record_batch(payload=random.Random(2).randbytes(MIB - 1000))
    with encrypted.wire() as wire:
        first = wire.append("t", 0, batch).results[0].base_offset
        for _ in range(5):
            wire.append("t", 0, batch)
    with encrypted.client() as slow:
        ask = request(Api.FETCH, fetch_request("t", 0, first, max_bytes=8 * MIB))
        slow.sock.sendall(slow.seal(HELLO + ask * 12))
        for _ in range(3):
            assert encrypted.works()
        slow.receive()
        for _ in range(12):
            offsets = offsets_in(slow.receive().payload)
            assert offsets[:6] == [(first + each, first + each + 1) for each in range(6)]


def test_empty_records_and_new_keys_say_nothing(encrypted: Encrypted) -> None:
    with encrypted.client(forging=True) as client:
        half = len(HELLO) // 2
        client.sock.sendall(
            client.forge(b"", 23)
            + client.forge(HELLO[:half], 23)
            + client.forge(b"", 23)
            + client.key_update()
            + client.forge(HELLO[half:] + ASK, 23)
        )
        client.receive()
        assert names(client) == ["t"]


@pytest.mark.parametrize("kind", ["keys", "empty records"])
def test_a_flood_of_records_without_content_holds_up_nobody(
    encrypted: Encrypted, kind: str
) -> None:
    """Floods more connections than the broker has threads, none of which reads an answer."""
    stopping = threading.Event()

    def flood() -> None:
        with encrypted.client(forging=True) as client:
            client.sock.settimeout(1)
            while not stopping.is_set():
                try:
                    one = client.key_update if kind == "keys" else lambda: client.forge(b"", 23)
                    client.sock.sendall(b"".join(one() for _ in range(200)))
                except OSError:  # ended, or not read further
                    return

    threads = [threading.Thread(target=flood) for _ in range(6)]
    for each in threads:
        each.start()
    try:
        for _ in range(3):
            assert encrypted.works()
    finally:
        stopping.set()
        for each in threads:
            each.join(60)


@pytest.mark.parametrize(
    "bytes_of", ["cut", "garbled", "plain", "garbled later", "alert", "cut record"]
)
def test_what_is_no_tls_ends_its_connection_alone(encrypted: Encrypted, bytes_of: str) -> None:
    context = encrypted.context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    hello, dice = outgoing.read(), random.Random(3)
    before = encrypted.connections
    for _ in range(60):
        if bytes_of in ("garbled later", "cut record"):
            with encrypted.client() as client:
                record = bytearray(client.seal(HELLO + ASK))
                if bytes_of == "cut record":
                    record = record[: dice.randrange(len(record))]
                else:
                    record[dice.randrange(5, len(record))] ^= 1 << dice.randrange(8)
                client.sock.sendall(record)
                client.sock.shutdown(socket.SHUT_WR)
                with pytest.raises(ConnectionError):
                    client.receive()
            continue
        data = bytearray(hello)
        if bytes_of == "cut":
            data = data[: dice.randrange(1, len(data))]
        elif bytes_of == "plain":
            data = bytearray(HELLO + ASK)
        elif bytes_of == "alert":
            data = bytearray(bytes([21, 3, 3, 0, 2, dice.choice((1, 2)), dice.randrange(256)]))
        else:
            for _ in range(dice.randint(1, 6)):
                data[dice.randrange(len(data))] = dice.randrange(256)
        with socket.create_connection(("127.0.0.1", encrypted.port), timeout=60) as sock:
            with contextlib.suppress(OSError):  # it was ended before
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            while received := answer_of(sock):
                assert b"records" not in received
    wait_until(lambda: encrypted.connections <= before)
    assert encrypted.works()


def answer_of(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 16)
    except ConnectionError:
        return b""


def test_tls_at_the_plain_port_is_no_frame(encrypted: Encrypted) -> None:
    with (
        socket.create_connection(("127.0.0.1", encrypted.broker.address.port), timeout=60) as sock,
        pytest.raises(OSError),
    ):
        encrypted.context().wrap_socket(sock, server_hostname="127.0.0.1")
    assert encrypted.works()


def test_who_says_nothing_or_byte_by_byte_is_closed_and_holds_no_thread(
    encrypted: Encrypted,
) -> None:
    """Three times as many as the broker has threads; it takes others meanwhile."""
    before = encrypted.connections
    socks = [socket.create_connection(("127.0.0.1", encrypted.port), timeout=60) for _ in range(12)]
    ended: list[int] = []
    try:
        hello = bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]) + bytes(400)  # of a ClientHello
        for at in range(100):
            for number, sock in enumerate(socks[:6]):
                try:
                    sock.sendall(hello[at : at + 1])
                except OSError:
                    ended.append(number)
            if at % 20 == 0:
                assert encrypted.works()
        wait_until(lambda: encrypted.connections <= before)
        for sock in socks[6:]:
            assert answer_of(sock) == b""
    finally:
        for sock in socks:
            sock.close()


def test_nobody_renegotiates(encrypted: Encrypted) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl to ask for it")
    ca = encrypted.authority.ca_file
    command = [program, "s_client", "-connect", f"127.0.0.1:{encrypted.port}", "-CAfile", str(ca)]
    done = subprocess.run(
        [*command, "-tls1_2"],
        input="R\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Verify return code: 0 (ok)" in done.stdout
    assert "RENEGOTIATING" in done.stderr
    assert "no renegotiation" in done.stderr
    assert encrypted.works()


def test_tls_1_2_will_do_and_1_1_is_refused(encrypted: Encrypted) -> None:
    context = encrypted.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    sock = socket.create_connection(("127.0.0.1", encrypted.port), timeout=60)
    with Wire(context.wrap_socket(sock, server_hostname="127.0.0.1")) as wire:
        wire.shake_hands()
        version = wire.sock.version()  # type: ignore[attr-defined]
        assert version == "TLSv1.2"
        cipher = wire.sock.cipher()[0]  # type: ignore[attr-defined]
        assert cipher.startswith("ECDHE-")
    old = encrypted.context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", encrypted.port), timeout=60) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(sock, server_hostname="127.0.0.1")
    assert encrypted.works()
