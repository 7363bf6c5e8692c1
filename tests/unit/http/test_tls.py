"""The HTTP server with TLS, against clients that mean well and others."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.errors import ConfigError
from spark_logbus.http import HttpServer, Request, Response, Routes
from spark_logbus.http import connections as connections_module
from spark_logbus.security.certificates import common_name
from spark_logbus.security.tls import (
    ClientTls,
    CurrentContext,
    ServerTls,
    client_context,
    of_server,
)
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until
from tests.servers.certificates import Authority

BIG = b"x" * (8 << 20)
HOST = "127.0.0.1"


def who(request: Request) -> Response:
    name = None if request.certificate is None else common_name(request.certificate)
    return Response.json([request.address, name])


ROUTES = {
    "GET /hello": lambda _: Response(b"hello\n"),
    "GET /big": lambda _: Response(BIG),
    "GET /who": who,
    "POST /echo": lambda request: Response(request.body),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def server_tls(
    authority: Authority, name: str, *, days: int = 1, clients: str = "none"
) -> ServerTls:
    files = authority.files(name, HOST, days=days)
    return ServerTls(
        certificate=files.certificate,
        key=files.key,
        client_ca=authority.ca_file,
        client_certificates=clients,
    )


@contextlib.contextmanager
def serving(tls: CurrentContext, clock: ManualClock) -> Iterator[HttpServer]:
    server = HttpServer(host=HOST, port=0, routes=Routes(ROUTES), clock=clock, tls=tls.get)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def server(
    authority: Authority, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> Iterator[HttpServer]:
    with serving(
        of_server(server_tls(authority, "server", clients="optional"), clock), clock
    ) as made:
        yield made
        wait_until(lambda: not made._server.connections)
    unforeseen = [line for line in caplog.messages if "not foreseen" in line]
    assert not unforeseen


@pytest.fixture
def trust(authority: Authority) -> ssl.SSLContext:
    return client_context(ClientTls(ca=authority.ca))


def ask(
    server: HttpServer,
    path: str,
    trust: ssl.SSLContext,
    *,
    method: str = "GET",
    body: bytes | None = None,
    host: str = HOST,
) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection(host, server.port, timeout=60, context=trust)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def dial(server: HttpServer, trust: ssl.SSLContext | None = None) -> socket.socket:
    """Connects; with TLS, shakes hands, and takes no end of the stream that was not announced."""
    sock = socket.create_connection((HOST, server.port), timeout=60)
    if trust is None:
        return sock
    return trust.wrap_socket(sock, server_hostname=HOST, suppress_ragged_eofs=False)


def everything(sock: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_pages(server: HttpServer, trust: ssl.SSLContext) -> None:
    assert ask(server, "/hello", trust) == (200, b"hello\n")
    assert ask(server, "/hello", trust, method="HEAD") == (200, b"")
    assert ask(server, "/big", trust) == (200, BIG)
    assert ask(server, "/echo", trust, method="POST", body=BIG[:900_000]) == (200, BIG[:900_000])
    assert ask(server, "/echo", trust, method="POST", body=BIG)[0] == 413
    assert ask(server, "/nothing", trust)[0] == 404


def test_an_answer_ends_with_a_farewell(server: HttpServer, trust: ssl.SSLContext) -> None:
    """A client cannot tell an end without it from one that somebody on the way has made."""
    with dial(server, trust) as sock:
        sock.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        assert everything(sock).endswith(b"\r\n\r\n" + BIG)


def test_requests_behind_one_another_take_no_answer_away(
    server: HttpServer, trust: ssl.SSLContext
) -> None:
    with dial(server, trust) as sock:
        sock.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
        with contextlib.suppress(OSError):
            sock.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 8388608\r\n\r\n" + BIG)
        assert everything(sock).endswith(b"\r\n\r\nhello\n")


def test_who_shows_a_certificate_is_known_by_it(server: HttpServer, authority: Authority) -> None:
    files = authority.files("prometheus")
    shown = ClientTls(ca=authority.ca, certificate=files.certificate, key=files.key)
    assert json.loads(ask(server, "/who", client_context(shown))[1]) == [HOST, "prometheus"]
    assert json.loads(ask(server, "/who", client_context(ClientTls(ca=authority.ca)))[1]) == [
        HOST,
        None,
    ]


def test_a_certificate_of_another_authority_is_refused(
    server: HttpServer, authority: Authority, tmp_path: Path, trust: ssl.SSLContext
) -> None:
    files = Authority(tmp_path / "other").files("prometheus")
    shown = ClientTls(ca=authority.ca, certificate=files.certificate, key=files.key)
    with pytest.raises(OSError):  # the alert, or a reset before it
        ask(server, "/who", client_context(shown))
    assert ask(server, "/hello", trust)[0] == 200


def test_who_has_to_show_a_certificate_and_does_not_is_refused(
    authority: Authority, clock: ManualClock, trust: ssl.SSLContext
) -> None:
    tls = of_server(server_tls(authority, "strict", clients="required"), clock)
    with serving(tls, clock) as server, pytest.raises((OSError, http.client.BadStatusLine)):
        ask(server, "/hello", trust)


def test_clients_check_the_authority_the_name_and_the_time(
    server: HttpServer, authority: Authority, clock: ManualClock, tmp_path: Path,
    trust: ssl.SSLContext,
) -> None:  # fmt: skip
    stranger = client_context(ClientTls(ca=Authority(tmp_path / "other").ca))
    with pytest.raises(
        ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"
    ):
        ask(server, "/hello", stranger)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        ask(server, "/hello", trust, host="localhost")
    with (
        serving(of_server(server_tls(authority, "old", days=0), clock), clock) as expired,
        pytest.raises(ssl.SSLCertVerificationError, match="expired"),
    ):
        ask(expired, "/hello", trust)
    assert ask(server, "/hello", trust)[0] == 200


def test_a_renewed_certificate_is_shown_without_a_restart(
    authority: Authority, clock: ManualClock, trust: ssl.SSLContext
) -> None:
    files = authority.files("renewed", HOST)
    tls = of_server(ServerTls(certificate=files.certificate, key=files.key), clock)

    def shown(server: HttpServer) -> bytes | None:
        with dial(server, trust) as sock:
            assert isinstance(sock, ssl.SSLSocket)
            return sock.getpeercert(binary_form=True)

    with serving(tls, clock) as server:
        before = shown(server)
        pair = authority.issue("renewed", HOST)
        files.certificate.write_text(pair.certificate)  # its key is to come: the old one is shown
        clock.advance(2)
        assert shown(server) == before
        files.key.write_text(pair.key)
        os.utime(files.key, ns=(1, 1))
        clock.advance(2)
        assert shown(server) == ssl.PEM_cert_to_DER_cert(pair.certificate)


def test_a_certificate_that_cannot_be_used_is_told_before_anybody_connects(
    authority: Authority, clock: ManualClock
) -> None:
    tls = server_tls(authority, "broken")
    tls.key.write_text("no key")
    with pytest.raises(ConfigError, match=r"broken\.pem"):
        HttpServer(
            host=HOST, port=0, routes=Routes(ROUTES), clock=clock, tls=of_server(tls, clock).get
        )


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01\x02", b"GET /hello HTTP/1.1\r\n\r\n", b"\xff" * 999]
)
def test_what_is_no_handshake_is_cut_off(
    server: HttpServer, clock: ManualClock, trust: ssl.SSLContext, sent: bytes
) -> None:
    with dial(server) as sock:
        sock.sendall(sent)
        assert ask(server, "/hello", trust)[0] == 200
        clock.advance(60)
        assert b"hello" not in everything(sock)


def test_half_a_handshake_keeps_nobody_out_and_takes_few_threads(
    server: HttpServer, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_ROOM_S", 20)
    before = threading.active_count()
    silent = [dial(server) for _ in range(200)]
    try:
        for sock in silent:
            with contextlib.suppress(OSError):
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert ask(server, "/hello", trust)[0] == 200
        assert len(server._server.connections) <= 64
        wait_until(lambda: threading.active_count() <= before + 64)
    finally:
        for sock in silent:
            sock.close()


def test_who_sends_no_request_after_the_handshake_is_told_so_and_encrypted(
    server: HttpServer, clock: ManualClock, trust: ssl.SSLContext
) -> None:
    with dial(server, trust) as sock:
        sock.sendall(b"GET /hello HTT")
        assert ask(server, "/hello", trust)[0] == 200
        clock.advance(60)
        assert everything(sock).startswith(b"HTTP/1.1 408 ")


def test_who_goes_for_another_is_told_so_and_encrypted(
    server: HttpServer, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_ROOM_S", 20)
    with dial(server, trust) as slow:
        slow.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        others = [dial(server) for _ in range(200)]
        try:
            with contextlib.suppress(OSError):
                slow.sendall(b"half")
            assert everything(slow).startswith(b"HTTP/1.1 503 ")
        finally:
            for sock in others:
                sock.close()


def test_an_answer_that_nobody_reads_is_cut_off(
    server: HttpServer, clock: ManualClock, trust: ssl.SSLContext
) -> None:
    with dial(server, trust) as sock:
        sock.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        assert ask(server, "/hello", trust)[0] == 200

        def is_cut_off() -> bool:
            clock.advance(60)
            return not server._server.connections

        wait_until(is_cut_off)


def test_a_server_stops_at_once_and_cuts_off_who_has_not_shaken_hands(
    authority: Authority, clock: ManualClock
) -> None:
    with serving(of_server(server_tls(authority, "short"), clock), clock) as server:
        silent = dial(server)
        wait_until(lambda: server._server.connections)
    assert everything(silent) == b""
    silent.close()
    assert not server._thread.is_alive()
    wait_until(lambda: not server._server.connections)


def test_what_is_printed_of_a_request_has_no_password() -> None:
    request = Request("GET", "/", body=b"hunter2", headers={"authorization": "Basic aHVudGVyMg=="})
    assert "hunter" not in repr(request)
    assert "aHVudGVyMg" not in repr(request)
