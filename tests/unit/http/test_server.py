"""The HTTP server of metrics, against clients that mean well and others."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_logbus.http import HttpServer, Request, Response, Routes
from spark_logbus.http import connections as connections_module
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until

BIG = b"x" * (8 << 20)  # more than socket buffers hold


def broken(request: Request) -> Response:
    raise ZeroDivisionError


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> Iterator[HttpServer]:
    routes = {
        "GET /hello": lambda _: Response(b"hello\n"),
        "GET /ill": lambda _: Response(b"ill\n", status=503),
        "GET /big": lambda _: Response(BIG),
        "GET /broken": broken,
        "POST /echo": lambda request: Response(request.body),
        "GET /query": lambda request: Response.json(dict(request.query)),
        "GET /headers": lambda request: Response.json(dict(request.headers)),
    }
    made = HttpServer(host="127.0.0.1", port=0, routes=Routes(routes), clock=clock)
    made.start()
    yield made
    wait_until(lambda: not made._server.connections)
    made.stop()
    unforeseen = [line for line in caplog.messages if "not foreseen" in line]
    assert not unforeseen


def ask(
    server: HttpServer, path: str, method: str = "GET", body: bytes | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def dial(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def everything(sock: socket.socket) -> bytes:
    """Reads what the server sends until it closes; nothing more if it breaks off."""
    parts = []
    try:
        while part := sock.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def assert_told_to_come_again(sock: socket.socket) -> None:
    head, _, body = everything(sock).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in head + b"\r\n"
    assert json.loads(body)["error_code"] == 503


def test_pages(server: HttpServer) -> None:
    assert ask(server, "/hello") == (200, b"hello\n")
    assert ask(server, "/hello?with=query") == (200, b"hello\n")
    assert ask(server, "/ill") == (503, b"ill\n")
    assert ask(server, "/hello", "HEAD") == (200, b"")
    assert ask(server, "/big") == (200, BIG)
    status, body = ask(server, "/nothing")
    assert (status, b"/hello" in body) == (404, True)
    assert ask(server, "/hello", "POST")[0] == 405


def test_a_handler_sees_the_headers_under_small_letters(server: HttpServer) -> None:
    with dial(server) as sock:
        head = b"ACCEPT: text/x\r\nHost: me\r\naccept: text/y\r\n"
        sock.sendall(b"GET /headers HTTP/1.1\r\n" + head + b"\r\n")
        assert everything(sock).endswith(b'{"accept": "text/x, text/y", "host": "me"}\n')


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
        assert everything(sock).startswith(b"HTTP/1.1 408 ")


def test_an_answer_that_nobody_reads_is_cut_off(server: HttpServer, clock: ManualClock) -> None:
    with dial(server) as sock:
        sock.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        assert ask(server, "/hello")[0] == 200

        def is_cut_off() -> bool:
            clock.advance(60)  # its time begins when its response is written
            return not server._server.connections

        wait_until(is_cut_off)
        assert len(everything(sock)) < len(BIG)


def test_silent_connections_keep_nobody_out_and_take_few_threads(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_ROOM_S", 20)
    before = threading.active_count()
    silent = [dial(server) for _ in range(200)]
    try:
        assert ask(server, "/hello")[0] == 200
        assert len(server._server.connections) <= 64
        wait_until(lambda: threading.active_count() <= before + 64)
        assert_told_to_come_again(silent[0])
    finally:
        for sock in silent:
            sock.close()


def test_who_went_for_another_has_a_response_though_it_still_sends(server: HttpServer) -> None:
    with dial(server) as slow:
        slow.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        others = [dial(server) for _ in range(200)]
        try:
            slow.sendall(b"half")
            assert_told_to_come_again(slow)
        finally:
            for sock in others:
                sock.close()


def test_a_request_that_is_there_is_served_though_its_place_is_wanted(server: HttpServer) -> None:
    """The clients come and send faster than the server starts to read."""
    crowd = []
    try:
        for _ in range(200):
            crowd.append(dial(server))
            crowd[-1].sendall(b"GET /hello HTTP/1.1\r\n\r\n")
        for sock in crowd:
            assert everything(sock).endswith((b"hello\n", b"}\n"))
    finally:
        for sock in crowd:
            sock.close()


def test_a_client_for_which_no_place_becomes_free_is_told(
    server: HttpServer, clock: ManualClock
) -> None:
    """Threads may not get on: those of the other places do not end here."""
    connections = server._server.connections
    pairs = [socket.socketpair() for _ in range(64)]
    for sock, _ in pairs:
        assert connections.admit(sock)
    with dial(server) as one_more:
        one_more.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
        assert_told_to_come_again(one_more)
    for pair in pairs:
        connections.leave(pair[0])
        for sock in pair:
            sock.close()
    clock.advance(60)  # what lingers is closed
    assert ask(server, "/hello")[0] == 200
    wait_until(lambda: not server._server.lingering._until)


def test_a_body_is_read(server: HttpServer) -> None:
    assert ask(server, "/echo", "POST", b"body" * 1_000) == (200, b"body" * 1_000)
    assert ask(server, "/echo", "POST") == (200, b"")
    assert ask(server, "/query?a=1&b=%20&a=2") == (200, b'{"a": "1", "b": " "}\n')


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Length: -1", 400),
        ("Content-Length: 1e3", 400),
        ("Content-Length: 1\r\nContent-Length: 2", 400),
        ("Content-Length: " + "9" * 5_000, 413),
        ("Content-Length: 1048577", 413),
        ("Transfer-Encoding: chunked", 411),
    ],
)
def test_a_body_that_cannot_be_taken_is_refused(
    server: HttpServer, header: str, status: int
) -> None:
    with dial(server) as sock:
        sock.sendall(f"POST /echo HTTP/1.1\r\n{header}\r\n\r\n".encode())
        assert everything(sock).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_large_body_is_answered_though_it_is_not_taken(server: HttpServer) -> None:
    assert ask(server, "/echo", "POST", BIG)[0] == 413


def test_a_request_behind_another_one_does_not_take_its_answer(server: HttpServer) -> None:
    """One is answered, but the client is not cut off while it sends the next."""
    with dial(server) as sock:
        sock.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
        sock.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 8388608\r\n\r\n" + BIG)
        assert everything(sock).endswith(b"\r\n\r\nhello\n")


def test_a_body_that_breaks_off_is_not_handled(server: HttpServer) -> None:
    with dial(server) as sock:
        sock.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf")
        sock.shutdown(socket.SHUT_WR)
        assert everything(sock) == b""


def test_handlers_that_work_are_left_alone(clock: ManualClock) -> None:
    go_on = threading.Event()
    waiting = threading.Semaphore(0)

    def wait(request: Request) -> Response:
        waiting.release()
        go_on.wait(60)
        return Response(b"done")

    server = HttpServer(host="127.0.0.1", port=0, routes=Routes({"GET /wait": wait}), clock=clock)
    server.start()
    busy = [dial(server) for _ in range(32)]
    try:
        for sock in busy:
            sock.sendall(b"GET /wait HTTP/1.1\r\n\r\n")
        for _ in busy:
            assert waiting.acquire(timeout=60)
        clock.advance(60)
        with dial(server) as one_more:
            one_more.sendall(b"GET /wait HTTP/1.1\r\n\r\n")
            assert_told_to_come_again(one_more)
        go_on.set()
        for sock in busy:
            assert everything(sock).endswith(b"done")
    finally:
        go_on.set()
        for sock in busy:
            sock.close()
        server.stop()


def test_a_server_stops_at_once_and_cuts_off_who_waits(clock: ManualClock) -> None:
    server = HttpServer(host="127.0.0.1", port=0, routes=Routes({}), clock=clock)
    server.start()
    with dial(server) as silent:
        wait_until(lambda: server._server.connections)
        server.stop()
        assert everything(silent) == b""
    assert not server._thread.is_alive()
    wait_until(lambda: not server._server.connections)


def test_a_server_that_never_started_can_be_stopped(clock: ManualClock) -> None:
    HttpServer(host="127.0.0.1", port=0, routes=Routes({}), clock=clock).stop()


def test_a_port_that_is_taken(server: HttpServer, clock: ManualClock) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpServer(host="127.0.0.1", port=server.port, routes=Routes({}), clock=clock)
