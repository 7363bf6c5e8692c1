"""The HTTP server of metrics, against clients that mean well and others."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_logbus.broker.monitoring.http import HttpServer, Page
from spark_logbus.errors import StorageError
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until

BIG = b"x" * (8 << 20)  # more than socket buffers hold


def broken() -> Page:
    raise ZeroDivisionError


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Iterator[HttpServer]:
    routes = {
        "/hello": lambda: Page(b"hello\n"),
        "/ill": lambda: Page(b"ill\n", status=503),
        "/big": lambda: Page(BIG),
        "/broken": broken,
    }
    made = HttpServer(host="127.0.0.1", port=0, routes=routes, clock=clock)
    made.start()
    yield made
    made.stop()


def ask(server: HttpServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def dial(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def everything(sock: socket.socket) -> bytes:
    """What the server sends until it closes; nothing more if it breaks off."""
    parts = []
    try:
        while part := sock.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_pages(server: HttpServer) -> None:
    assert ask(server, "/hello") == (200, b"hello\n")
    assert ask(server, "/hello?with=query") == (200, b"hello\n")
    assert ask(server, "/ill") == (503, b"ill\n")
    assert ask(server, "/hello", "HEAD") == (200, b"")
    assert ask(server, "/big") == (200, BIG)
    status, body = ask(server, "/nothing")
    assert (status, b"/hello" in body) == (404, True)
    assert ask(server, "/hello", "POST")[0] == 405


def test_a_page_that_cannot_be_made_does_not_end_the_server(server: HttpServer) -> None:
    assert ask(server, "/broken")[0] == 500
    assert ask(server, "/hello")[0] == 200


@pytest.mark.parametrize("garbage", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n"])
def test_what_is_no_request(server: HttpServer, garbage: bytes) -> None:
    with dial(server) as sock:
        sock.sendall(garbage)
        assert everything(sock).startswith(b"HTTP/1.1 400 ")


def test_an_endless_request_is_refused(server: HttpServer) -> None:
    with dial(server) as sock:
        sock.sendall(b"GET /hello HTTP/1.1\r\nX: " + b"y" * 9_000)
        assert everything(sock)[:12] in (b"HTTP/1.1 431", b"")  # or cut off while it was sending
    assert ask(server, "/hello")[0] == 200


def test_a_request_that_comes_byte_by_byte_is_served_in_time(server: HttpServer) -> None:
    with dial(server) as sock:
        for byte in b"GET /hello HTTP/1.1\r\n\r\n":
            sock.sendall(bytes((byte,)))
        assert everything(sock).endswith(b"\r\n\r\nhello\n")


def test_a_request_that_does_not_end_is_cut_off(server: HttpServer, clock: ManualClock) -> None:
    with dial(server) as sock:
        sock.sendall(b"GET /hello HTT")
        assert ask(server, "/hello")[0] == 200
        clock.advance(60)
        assert everything(sock) == b""


def test_an_answer_that_nobody_reads_is_cut_off(server: HttpServer, clock: ManualClock) -> None:
    with dial(server) as sock:
        sock.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        assert ask(server, "/hello")[0] == 200
        clock.advance(60)
        wait_until(lambda: not server._exchanges)
        assert len(everything(sock)) < len(BIG)


def test_many_silent_connections_keep_nobody_out_and_take_no_threads(server: HttpServer) -> None:
    before = threading.active_count()
    silent = [dial(server) for _ in range(200)]
    try:
        assert ask(server, "/hello")[0] == 200
        assert threading.active_count() == before
        assert len(server._exchanges) <= 32
    finally:
        for sock in silent:
            sock.close()


def test_a_port_that_is_taken(server: HttpServer, clock: ManualClock) -> None:
    with pytest.raises(StorageError, match=r"another host or port in \[metrics\]"):
        HttpServer(host="127.0.0.1", port=server.port, routes={}, clock=clock)
