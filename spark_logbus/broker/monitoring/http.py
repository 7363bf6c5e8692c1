"""A small HTTP server for metrics and health: a few GET requests at a time, on one thread.

Whoever asks can take no more of the broker than this thread, ``_MAX_CONNECTIONS`` connections of
``_MAX_REQUEST_BYTES`` each, and each for ``_DEADLINE_S``, in which the request must have come and
the answer gone. When all connections are taken the oldest one goes, so that a crowd of slow ones
does not keep out the next, which may be the one that is meant.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_logbus.broker.network import is_out_of_room, listen
from spark_logbus.clock import Clock

logger = logging.getLogger(__name__)

_MAX_CONNECTIONS = 32
_MAX_REQUEST_BYTES = 8 << 10
_DEADLINE_S = 5.0
_PAUSE_S = 1.0  # without accepting, when there are no descriptors left
_TICK_S = 1.0
_JOIN_S = 5.0
_END_OF_HEAD = b"\r\n\r\n"

_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
    431: "Request Header Fields Too Large", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """What a path answers."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Routes = Mapping[str, Callable[[], Page]]


class _Exchange:
    """One connection: a request, an answer, the end. For the server's thread."""

    __slots__ = ("deadline", "outbound", "received", "sock")

    def __init__(self, sock: socket.socket, *, deadline: float) -> None:
        self.sock = sock
        self.deadline = deadline
        self.received = bytearray()
        self.outbound: memoryview | None = None


class HttpServer:
    """``start`` and ``stop`` are called once each; pages are made on the server's thread."""

    def __init__(self, *, host: str, port: int, routes: Routes, clock: Clock) -> None:
        """Raises StorageError when the address cannot be had."""
        self._routes = routes
        self._clock = clock
        self._listener = listen(host, port, table="[metrics]")
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._exchanges: dict[socket.socket, _Exchange] = {}  # oldest first
        self._accept_again = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def start(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake_write.send(b"x")
        if self._thread.is_alive():
            self._thread.join(timeout=_JOIN_S)
        for exchange in list(self._exchanges.values()):
            self._close(exchange)
        self._selector.close()
        for sock in (self._listener, self._wake_read, self._wake_write):
            sock.close()

    # -- the server's thread --------------------------------------------------------------

    def _serve(self) -> None:
        while not self._stopping:
            try:
                for key, _ in self._selector.select(_TICK_S):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Exchange):
                        self._go_on(key.data)
                self._end_late()
            except Exception:
                logger.exception("The server of metrics met a failure that was not foreseen.")

    def _end_late(self) -> None:
        now = self._clock.monotonic()
        for exchange in [e for e in self._exchanges.values() if e.deadline <= now]:
            self._close(exchange)
        if self._accept_again and now >= self._accept_again:
            self._accept_again = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if is_out_of_room(error):  # it would be reported again at once
                self._selector.unregister(self._listener)
                self._accept_again = self._clock.monotonic() + _PAUSE_S
            return
        sock.setblocking(False)
        if len(self._exchanges) >= _MAX_CONNECTIONS:
            self._close(next(iter(self._exchanges.values())))
        exchange = _Exchange(sock, deadline=self._clock.monotonic() + _DEADLINE_S)
        self._exchanges[sock] = exchange
        self._selector.register(sock, selectors.EVENT_READ, exchange)

    def _go_on(self, exchange: _Exchange) -> None:
        if exchange.sock not in self._exchanges:
            return  # it was the oldest, and made room in this very round
        try:
            if exchange.outbound is None:
                self._receive(exchange)
            if exchange.outbound is not None:
                self._send(exchange, exchange.outbound)
        except BlockingIOError:
            pass
        except OSError:
            self._close(exchange)

    def _receive(self, exchange: _Exchange) -> None:
        data = exchange.sock.recv(_MAX_REQUEST_BYTES)
        if not data:
            self._close(exchange)
            return
        received = exchange.received
        received += data
        if _END_OF_HEAD in received:
            method, page = self._answer(bytes(received[: received.index(b"\r\n")]))
        elif len(received) >= _MAX_REQUEST_BYTES:
            method, page = b"", Page(b"The request is too long.\n", status=431)
        else:
            return
        exchange.outbound = memoryview(_encode(page, with_body=method != b"HEAD"))
        self._selector.modify(exchange.sock, selectors.EVENT_WRITE, exchange)

    def _answer(self, request_line: bytes) -> tuple[bytes, Page]:
        words = request_line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return b"", Page(b"This is not an HTTP/1 request.\n", status=400)
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return method, Page(b"Only GET and HEAD are answered.\n", status=405)
        path = target.partition(b"?")[0].decode("ascii", "replace")
        make = self._routes.get(path)
        if make is None:
            known = ", ".join(sorted(self._routes))
            return method, Page(f"There are: {known}.\n".encode(), status=404)
        try:
            return method, make()
        except Exception:
            logger.exception("The page %s could not be made.", path)
            return method, Page(b"The page could not be made; see the log.\n", status=500)

    def _send(self, exchange: _Exchange, outbound: memoryview) -> None:
        exchange.outbound = outbound[exchange.sock.send(outbound) :]
        if not exchange.outbound:
            exchange.sock.shutdown(socket.SHUT_WR)
            self._close(exchange)

    def _close(self, exchange: _Exchange) -> None:
        if self._exchanges.pop(exchange.sock, None) is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(exchange.sock)
            exchange.sock.close()


def _encode(page: Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
    return head + page.body if with_body else head
