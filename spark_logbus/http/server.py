"""The standard library's HTTP server, with limits.

``http.server`` parses requests, ``socketserver`` accepts connections; what is here bounds them.
A connection carries one request and has a thread. The head of a request, its body and their
number are limited. A client has ``_DEADLINE_S`` to send its request, and as long again to take the
response, however steadily it drips. When all connections are taken the oldest that waits for its
client is cut off, so that a crowd of slow ones does not keep out the next, which may be the one
that is meant; one whose handler works is left alone, and bounds the number of threads.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import Any, cast
from urllib.parse import parse_qsl

from spark_logbus.clock import Clock
from spark_logbus.http.routes import HttpError, Request, Response, Routes

logger = logging.getLogger(__name__)

_MAX_CONNECTIONS = 32
_MAX_HEAD_BYTES = 8 << 10
_MAX_BODY_BYTES = 1 << 20
_DEADLINE_S = 5.0
_TICK_S = 0.5  # between looks at deadlines
_PAUSE_S = 1.0  # without accepting, when there are no descriptors left
_JOIN_S = 5.0


class HttpServer:
    """``start`` and ``stop`` are called once each. Handlers run on several threads at a time."""

    def __init__(self, *, host: str, port: int, routes: Routes, clock: Clock) -> None:
        """Raises OSError when the address cannot be had, OverflowError when it is no port."""
        self._server = _Server(host, port, routes=routes, clock=clock)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_TICK_S,), name="http", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Accept no more, and cut off all connections. A handler at work is not waited for."""
        self._server.stopping.set()
        if self._thread.is_alive():
            _cut_off(self._server.socket)  # ends the wait; where that is refused, a tick does
            self._server.shutdown()
            self._thread.join(_JOIN_S)
        self._server.server_close()
        self._server.cut_off_all()


class _Server(socketserver.ThreadingTCPServer):
    """Accepts on the thread of ``serve_forever``, answers on one thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, *, routes: Routes, clock: Clock) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        self.stopping = threading.Event()
        self._clock = clock
        self._lock = threading.Lock()
        # Of each connection, oldest first; None while its handler works.
        self._deadlines: dict[Any, float | None] = {}
        super().__init__((host, port), _RequestHandler)
        self.socket.setblocking(False)  # or a client that goes at once would hold up the others

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            sock, address = super().get_request()
        except (BlockingIOError, ConnectionError):
            raise
        except OSError:  # no descriptors, no memory: it would be reported again at once
            self.stopping.wait(_PAUSE_S)
            raise
        sock.setblocking(True)
        return sock, address

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._admit(request):
            super().process_request(request, client_address)
        else:
            error = HttpError(503, f"All {_MAX_CONNECTIONS} connections are at work; ask again.")
            request.sendall(_in_one_piece(self.routes.refusal(error)))
            self.shutdown_request(request)

    def _admit(self, sock: socket.socket) -> bool:
        with self._lock:
            if len(self._deadlines) >= _MAX_CONNECTIONS:
                waiting = (each for each, at in self._deadlines.items() if at is not None)
                oldest = next(waiting, None)
                if oldest is None:
                    return False
                del self._deadlines[oldest]
                _cut_off(oldest)
            self._deadlines[sock] = self._clock.monotonic() + _DEADLINE_S
            return True

    def set_deadline(self, sock: Any, seconds: float | None) -> None:
        """None: the handler works now."""
        with self._lock:
            if sock in self._deadlines:
                now = self._clock.monotonic()
                self._deadlines[sock] = None if seconds is None else now + seconds

    def service_actions(self) -> None:
        """Called by ``serve_forever`` at each tick."""
        now = self._clock.monotonic()
        with self._lock:
            for sock, deadline in self._deadlines.items():
                if deadline is not None and deadline <= now:
                    _cut_off(sock)

    def cut_off_all(self) -> None:
        with self._lock:
            for sock in self._deadlines:
                _cut_off(sock)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            logger.debug("A client of the HTTP server has gone, or was cut off: %s", error)
        else:
            logger.error("A request by HTTP met a failure that was not foreseen.", exc_info=error)


def _cut_off(sock: socket.socket) -> None:
    """End the wait of a socket's thread, which then closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _in_one_piece(response: Response) -> bytes:
    """A short response, for a request that is not read."""
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + response.body


class _Head:
    """Reads the lines of a request's head, as far as its limit."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._left = _MAX_HEAD_BYTES

    def readline(self, limit: int = _MAX_HEAD_BYTES) -> bytes:
        line = self._file.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head")
        return line


class _RequestHandler(BaseHTTPRequestHandler):
    """One request; the base class parses its head."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # not 0.9, whose responses have no status
    server: _Server

    def handle(self) -> None:
        self.requestline = self.command = ""
        self.request_version = self.default_request_version
        if self._parse():
            self._respond(self._answer())

    def _parse(self) -> bool:
        """Read the head; False when there is none, or it was refused."""
        file, self.rfile = self.rfile, cast(Any, _Head(self.rfile))
        try:
            self.raw_requestline = self.rfile.readline()
            return bool(self.raw_requestline) and self.parse_request()
        except LineTooLong:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        finally:
            self.rfile = file

    def _answer(self) -> Response:
        path, _, query = self.path.partition("?")
        try:
            body = self._read_body()
        except HttpError as error:
            return self.server.routes.refusal(error)
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            there = headers.get(name.lower())
            headers[name.lower()] = value if there is None else f"{there}, {value}"
        parameters: dict[str, str] = {}
        for name, value in parse_qsl(query):
            parameters.setdefault(name, value)  # given twice, the first counts
        request = Request(self.command, path, parameters, body, headers=headers)
        self.server.set_deadline(self.request, None)
        return self.server.routes.answer(request)

    def _read_body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise HttpError(411, "Send the body in one piece, with its Content-Length.")
        # Two of them are no number either: nobody knows where such a body ends.
        length = ", ".join(self.headers.get_all("Content-Length", ["0"]))
        if not (length.isascii() and length.isdecimal()):
            raise HttpError(400, f"Content-Length is {length[:20]!r}; it must be a number.")
        if len(length) > 10 or int(length) > _MAX_BODY_BYTES:
            raise HttpError(
                413, f"The body has {length[:20]} bytes, the limit is {_MAX_BODY_BYTES}."
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionError("The client broke off in the body.")
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called by the base class when it cannot parse a head."""
        error = HttpError(int(code), f"{message or HTTPStatus(code).phrase}.")
        self._respond(self.server.routes.refusal(error))

    def _respond(self, response: Response) -> None:
        self.server.set_deadline(self.request, _DEADLINE_S)
        self.send_response_only(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
        self._drop_the_rest()

    def _drop_the_rest(self) -> None:
        """Until the client closes, or its time is over: to close while it sends the rest of its
        request, or another one, would take the response from it."""
        self.connection.shutdown(socket.SHUT_WR)
        while self.connection.recv(1 << 16):
            pass
