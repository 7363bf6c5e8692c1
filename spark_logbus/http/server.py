"""The standard library's HTTP server, with limits.

``http.server`` parses requests, ``socketserver`` accepts connections; what is here bounds them.
A connection carries one request and has a thread, on which TLS shakes hands, too. The head of a
request, its body, their number and their time are limited (``connections``). Every client is
answered: one for which there is no place, or whose request does not come, is told so; but for one
with TLS that has not shaken hands.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import Any, cast
from urllib.parse import parse_qsl

from spark_logbus.clock import Clock
from spark_logbus.http.connections import (
    MAX_CONNECTIONS,
    Connections,
    Lingering,
    cut_off,
    end_sending,
    receive_raw,
)
from spark_logbus.http.routes import HttpError, Request, Response, Routes

logger = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 8 << 10
_MAX_BODY_BYTES = 1 << 20
_TICK_S = 0.5  # between looks at deadlines
_PAUSE_S = 1.0  # without accepting, when there are no descriptors left
_JOIN_S = 5.0


#: Returns the context for a new connection.
TlsContexts = Callable[[], ssl.SSLContext]


class HttpServer:
    """``start`` and ``stop`` are called once each. Handlers run on several threads at a time."""

    def __init__(
        self, *, host: str, port: int, routes: Routes, clock: Clock, tls: TlsContexts | None = None
    ) -> None:
        """``tls`` encrypts each connection by the context that it returns. Raises OSError when the
        address cannot be had, OverflowError when it is no port, and what ``tls`` does."""
        if tls is not None:
            tls()  # it is told now if that cannot be used
        self._server = _Server(host, port, routes=routes, clock=clock, tls=tls)
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
            cut_off(self._server.socket)  # ends the wait; where that is refused, a tick does
            self._server.shutdown()
            self._thread.join(_JOIN_S)
        self._server.server_close()
        self._server.connections.cut_off_all()
        self._server.lingering.close()


class _Server(socketserver.ThreadingTCPServer):
    """Accepts on the thread of ``serve_forever``, answers on one thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, *, routes: Routes, clock: Clock, tls: TlsContexts | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._tls = tls
        self.routes = routes
        self.stopping = threading.Event()
        self.connections = Connections(clock)
        self.lingering = Lingering(clock)
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
        if self._tls is not None:
            context = self._tls()
            # A request says itself where it ends, and one that breaks off can still be answered.
            context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
            sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return sock, address

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.admit(request):
            super().process_request(request, client_address)
            return
        if self._tls is not None:
            super().shutdown_request(request)
            return
        error = HttpError(503, f"All {MAX_CONNECTIONS} connections are taken; ask again.")
        request.setblocking(False)
        request.send(_in_one_piece(self.routes.refusal(error)))  # fits into any new socket's buffer
        self.lingering.add(request)

    def service_actions(self) -> None:
        """Called by ``serve_forever`` after each connection, and at each tick."""
        self.connections.expire()
        self.lingering.tick()

    def shutdown_request(self, request: Any) -> None:
        if self.connections.leave(request):
            self.lingering.add(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            logger.debug("A client of the HTTP server has gone, or was cut off: %s", error)
        else:
            logger.error("A request by HTTP met a failure that was not foreseen.", exc_info=error)


def _in_one_piece(response: Response) -> bytes:
    """A short response, for a request that is not read."""
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Connection: close\r\n"
    )
    head += "".join(f"{name}: {value}\r\n" for name, value in response.headers.items()) + "\r\n"
    return head.encode() + response.body


class _BrokenOffError(ConnectionError):
    """The request has ended before its end."""


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
        if not line.endswith(b"\n"):
            raise _BrokenOffError("The client broke off in the head.")
        return line


class _RequestHandler(BaseHTTPRequestHandler):
    """One request; the base class parses its head."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # not 0.9, whose responses have no status
    server: _Server

    def handle(self) -> None:
        self.requestline = self.command = ""
        self.request_version = self.default_request_version
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        try:
            if self._parse():
                self._respond(self._answer())
        except _BrokenOffError:
            refusal = self.server.connections.refusal(self.request)
            if refusal is None:
                raise
            self._respond(self.server.routes.refusal(refusal))

    def _parse(self) -> bool:
        """Read the head; False when there is none, or it was refused."""
        file, self.rfile = self.rfile, cast(Any, _Head(self.rfile))
        try:
            self.raw_requestline = self.rfile.readline()
            return self.parse_request()
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
        request = Request(
            self.command,
            path,
            parameters,
            body,
            headers=headers,
            address=self.client_address[0],
            certificate=_certificate(self.request),
        )
        refusal = self.server.connections.begin_work(self.request)
        if refusal is not None:
            return self.server.routes.refusal(refusal, request)
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
            raise _BrokenOffError("The client broke off in the body.")
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called by the base class when it cannot parse a head."""
        error = HttpError(int(code), f"{message or HTTPStatus(code).phrase}.")
        self._respond(self.server.routes.refusal(error))

    def _respond(self, response: Response) -> None:
        self.server.connections.begin_response(self.request)
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
        """Waits until the client closes, or its time is over: to close while it sends the rest of
        its request, or another one, would take the response from it."""
        self.server.connections.end_response(self.request)
        end_sending(self.connection)
        while receive_raw(self.connection, 1 << 16):
            pass


def _certificate(sock: socket.socket) -> bytes | None:
    return sock.getpeercert(binary_form=True) if isinstance(sock, ssl.SSLSocket) else None
