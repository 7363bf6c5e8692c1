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
        """Cut off all connections, and wait for handlers, but not for long."""
        self._server.stopping.set()
        if self._thread.is_alive():
            with contextlib.suppress(OSError):  # where it is refused, a tick ends the wait
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
            self._thread.join(_JOIN_S)
        self._server.server_close()
        self._server.cut_off_all()


class _Exchange:
    """One connection: a request and its response. ``deadline`` is None while its handler works."""

    def __init__(self, sock: socket.socket, *, deadline: float) -> None:
        self.sock = sock
        self.deadline: float | None = deadline
        self.thread: threading.Thread | None = None

    def cut_off(self) -> None:
        """End the wait of its thread, which closes the connection."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class _Server(socketserver.TCPServer):
    """Accepts on the thread of ``serve_forever``, answers on one thread for each connection."""

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, *, routes: Routes, clock: Clock) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        self.stopping = threading.Event()
        self._clock = clock
        self._lock = threading.Lock()
        self._exchanges: dict[Any, _Exchange] = {}  # by socket, oldest first
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
        exchange = _Exchange(request, deadline=self._clock.monotonic() + _DEADLINE_S)
        if not self._admit(exchange):
            request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        exchange.thread = threading.Thread(
            target=self._exchange, args=(request, client_address), name="http-request", daemon=True
        )
        exchange.thread.start()

    def _admit(self, exchange: _Exchange) -> bool:
        with self._lock:
            if len(self._exchanges) >= _MAX_CONNECTIONS:
                waiting = [each for each in self._exchanges.values() if each.deadline is not None]
                if not waiting:
                    return False
                waiting[0].cut_off()
                del self._exchanges[waiting[0].sock]
            self._exchanges[exchange.sock] = exchange
            return True

    def _exchange(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError as error:
            logger.debug("A client of the HTTP server has gone, or was cut off: %s", error)
        except Exception:
            logger.exception("A request by HTTP met a failure that was not foreseen.")
        finally:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._exchanges.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.error("The HTTP server cannot take a connection: %s", sys.exception())

    def service_actions(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            for exchange in self._exchanges.values():
                if exchange.deadline is not None and exchange.deadline <= now:
                    exchange.cut_off()

    def set_deadline(self, request: Any, seconds: float | None) -> None:
        deadline = None if seconds is None else self._clock.monotonic() + seconds
        with self._lock:
            exchange = self._exchanges.get(request)
            if exchange is not None:
                exchange.deadline = deadline

    def cut_off_all(self) -> None:
        with self._lock:
            exchanges = list(self._exchanges.values())
        for exchange in exchanges:
            exchange.cut_off()
        until = self._clock.monotonic() + _JOIN_S
        for exchange in exchanges:
            if exchange.thread is not None:
                exchange.thread.join(max(0.0, until - self._clock.monotonic()))


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
        self._all_read = False
        file, self.rfile = self.rfile, cast(Any, _Head(self.rfile))
        try:
            self.raw_requestline = self.rfile.readline()
            if self.raw_requestline and self.parse_request():
                self._respond(self._answer(file))
        except LineTooLong:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _answer(self, file: BufferedIOBase) -> Response:
        path, _, query = self.path.partition("?")
        try:
            body = self._read_body(file)
        except HttpError as error:
            return error.response()
        request = Request(self.command, path, dict(parse_qsl(query)), body)
        self.server.set_deadline(self.request, None)
        return self.server.routes.answer(request)

    def _read_body(self, file: BufferedIOBase) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise HttpError(411, "Send the body in one piece, with its Content-Length.")
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise HttpError(400, f"Content-Length is {length[:20]!r}; it must be a number.")
        if len(length) > 10 or int(length) > _MAX_BODY_BYTES:
            raise HttpError(
                413, f"The body has {length[:20]} bytes, the limit is {_MAX_BODY_BYTES}."
            )
        body = file.read(int(length))
        if len(body) < int(length):
            raise ConnectionError("The client broke off in the body.")
        self._all_read = True
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called by the base class when it cannot parse a head."""
        self._respond(HttpError(int(code), f"{message or HTTPStatus(code).phrase}.").response())

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
        if not self._all_read:
            self._drop_the_rest()

    def _drop_the_rest(self) -> None:
        """Until the client closes, or its time is over: to close before it has sent all of its
        request would take the response from it."""
        self.connection.shutdown(socket.SHUT_WR)
        while self.connection.recv(1 << 16):
            pass
