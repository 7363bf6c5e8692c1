"""The places of an HTTP server's connections: how many there are, and who leaves for others.

A client that sends its request, has its response written, or is done and has not closed yet, holds
a place for ``DEADLINE_S`` in each of these states, however steadily it drips. When all places are
taken, one is made for the next client, which may be the one that is meant. Whoever has its response
goes first, then whoever is slowest to send its request; that one is told so. Handlers are left
alone. Fewer may work than there are places, so that there is always somebody who can go.

A place is free when its thread has ended, not when that was asked to: there are never more threads
than places.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.http.routes import HttpError

MAX_CONNECTIONS: Final = 64
#: More would wait for ZooKeeper or brokers, each with a thread, and delay the rest.
MAX_AT_WORK: Final = 32
DEADLINE_S: Final = 5.0
# For one that was asked to go; it takes a millisecond, unless the machine stands still.
_ROOM_S: Final = 0.5
_LINGER_S: Final = 1.0
# Of connections that have their response, without a thread.
_MAX_LINGERING: Final = 128
_MAX_READ: Final = 1 << 16
_MAX_READS: Final = 16  # of one connection at a time


class _State(Enum):
    READING = auto()
    AT_WORK = auto()
    WRITING = auto()
    DONE = auto()
    """The response is out; the client has not closed yet."""


@dataclass(slots=True)
class _Place:
    deadline: float
    state: _State = _State.READING
    refusal: HttpError | None = None
    """What its client is told if its request does not come: it was asked to go."""


class Connections:
    """Thread-safe. Sockets come in with ``admit`` and go with ``leave``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places: dict[socket.socket, _Place] = {}  # oldest first
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._places)

    def admit(self, sock: socket.socket) -> bool:
        """Give it a place, for which another may have to go; False if none became free."""
        until = time.monotonic() + _ROOM_S
        with self._changed:
            while len(self._places) >= MAX_CONNECTIONS:
                self._make_room()
                if not self._changed.wait(until - time.monotonic()):
                    return False
            self._places[sock] = _Place(self._clock.monotonic() + DEADLINE_S)
            return True

    def _make_room(self) -> None:
        """Ask one to go, unless one that was asked is still on its way."""
        places = list(self._places.items())
        if any(place.refusal for _, place in places):
            return
        for state in (_State.DONE, _State.READING, _State.WRITING):
            for sock, place in places:
                if place.state is state:
                    self._send_away(sock, place, _crowded())
                    return

    def _send_away(self, sock: socket.socket, place: _Place, refusal: HttpError) -> None:
        place.refusal = refusal
        place.deadline = self._clock.monotonic() + DEADLINE_S
        # What has come already is still read: a request that is there is served.
        cut_off(sock, socket.SHUT_RDWR if place.state is _State.WRITING else socket.SHUT_RD)

    def begin_work(self, sock: socket.socket) -> HttpError | None:
        """The request is there; the refusal if too many are worked at."""
        with self._changed:
            at_work = sum(each.state is _State.AT_WORK for each in self._places.values())
            if at_work >= MAX_AT_WORK:
                return HttpError(503, f"{MAX_AT_WORK} requests are worked at; ask again.")
            self._set(sock, _State.AT_WORK)
            self._places[sock].refusal = None
            return None

    def begin_response(self, sock: socket.socket) -> None:
        with self._changed:
            self._set(sock, _State.WRITING)

    def end_response(self, sock: socket.socket) -> None:
        with self._changed:
            self._set(sock, _State.DONE)

    def _set(self, sock: socket.socket, state: _State) -> None:
        place = self._places[sock]
        place.state = state
        place.deadline = self._clock.monotonic() + DEADLINE_S
        self._changed.notify_all()

    def refusal(self, sock: socket.socket) -> HttpError | None:
        """Returns the answer to a client whose request stopped before its end; None if it broke
        off."""
        with self._changed:
            return self._places[sock].refusal

    def expire(self) -> None:
        """Send away whose time is over."""
        now = self._clock.monotonic()
        with self._changed:
            for sock, place in self._places.items():
                if place.state is _State.AT_WORK or place.deadline > now:
                    continue
                if place.state is _State.READING and place.refusal is None:
                    self._send_away(sock, place, _late())
                else:
                    cut_off(sock)

    def leave(self, sock: socket.socket) -> bool:
        """Give its place back; whether it was asked to, and its client may not know yet."""
        with self._changed:
            place = self._places.pop(sock, None)
            self._changed.notify_all()
            return place is not None and place.refusal is not None and place.state is _State.DONE

    def cut_off_all(self) -> None:
        with self._changed:
            for sock in self._places:
                cut_off(sock)


class Lingering:
    """Connections that have their response and no thread any more. Thread-safe.

    To close while a client sends would take the response from it. So they stay for a moment, and
    what comes is dropped; when there are too many of them, the oldest is closed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[socket.socket, float] = {}  # oldest first
        self._lock = threading.Lock()
        self._closed = False

    def add(self, sock: socket.socket) -> None:
        """Takes the socket over. Its client sees the end of the response when its time is set."""
        with self._lock:
            if self._closed:
                sock.close()
                return
            sock.setblocking(False)
            if len(self._until) >= _MAX_LINGERING:
                self._close(next(iter(self._until)))
            self._until[sock] = self._clock.monotonic() + _LINGER_S
            cut_off(sock, socket.SHUT_WR)

    def tick(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            for sock, until in list(self._until.items()):
                if until <= now or not _drain(sock):
                    self._close(sock)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for sock in list(self._until):
                self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        del self._until[sock]
        sock.close()


def _drain(sock: socket.socket) -> bool:
    """Drop what has come; False when the connection is broken. Its end cannot be told from that of
    a socket which was asked to read no more."""
    try:
        for _ in range(_MAX_READS):
            if not receive_raw(sock, _MAX_READ):
                break
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


def cut_off(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """End the wait of a socket's thread, which then closes it."""
    # Not by the method of an encrypted one, which would send in the open from then on.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)


def end_sending(sock: socket.socket) -> None:
    """Tell the client that nothing more comes."""
    if isinstance(sock, ssl.SSLSocket):
        sock.setblocking(False)  # its farewell is not waited for
        with contextlib.suppress(OSError, ValueError):
            sock.unwrap()
        sock.setblocking(True)
    cut_off(sock, socket.SHUT_WR)


def receive_raw(sock: socket.socket, limit: int) -> bytes:
    """Receives what is not looked at, so that it need not be decrypted."""
    return socket.socket.recv(sock, limit)


def _crowded() -> HttpError:
    return HttpError(
        503, f"All {MAX_CONNECTIONS} connections are taken and this one waited; ask again."
    )


def _late() -> HttpError:
    return HttpError(
        int(HTTPStatus.REQUEST_TIMEOUT), f"The request did not come within {DEADLINE_S:g} seconds."
    )
