"""Sockets and threads: many connections, few threads, nobody waits for anybody else.

All threads wait on one epoll. A connection is armed one-shot, so an event gives it to one thread
for one turn, after which that thread arms it again for what it needs next. An idle connection, a
reader that does not read and a request that waits for a flush therefore cost no thread. Blocking
work (a write to a segment, a ``sendfile`` that must read the disk) happens in the turn and holds
up one of ``threads``, not the others. The measurement behind this choice is in
``docs/adr/0002-broker-threads.md``.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import select
import socket
import sys
import threading
import uuid
from collections.abc import Callable

from spark_logbus.broker.config import NetworkConfig
from spark_logbus.broker.connection import Connection
from spark_logbus.broker.replies import Answer
from spark_logbus.clock import Clock
from spark_logbus.errors import StorageError
from spark_logbus.protocol import Frame

log = logging.getLogger(__name__)

_ONCE = select.EPOLLONESHOT
_GONE = select.EPOLLHUP | select.EPOLLERR
_SWEEP_S = 1.0
_BACKLOG = 512
_LOCAL_BUFFER_BYTES = 4 << 20

Handle = Callable[[Connection, Frame], Answer]


class Network:
    """The listener, its threads and all connections. Thread-safe."""

    def __init__(self, *, host: str, port: int, config: NetworkConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._handle: Handle | None = None
        self._listener = _listen(host, port)
        self._local_listener, self.local_socket = _listen_locally(config)
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._lock = threading.Lock()
        self._deadlines: list[tuple[float, int, Connection]] = []
        self._deadline_added = threading.Condition()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._wake_read, self._wake_write = socket.socketpair()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def _listeners(self) -> list[socket.socket]:
        return [one for one in (self._listener, self._local_listener) if one is not None]

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    # -- start and stop -------------------------------------------------------------------

    def start(self, handle: Handle) -> None:
        """Serve: ``handle`` is called once for each frame, on a network thread."""
        self._handle = handle
        for listener in self._listeners:
            self._epoll.register(listener.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        self._epoll.register(self._wake_read.fileno(), select.EPOLLIN)
        for number in range(self._config.threads):
            self._spawn(self._serve, f"network-{number}")
        self._spawn(self._time, "network-deadlines")

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(listener.fileno())
            listener.close()

    def waiting(self) -> int:
        """Requests that have been started and are not answered yet."""
        return sum(connection.waiting for connection in list(self._connections.values()))

    def stop(self) -> None:
        """Close every connection and end the threads. Call after ``stop_accepting``."""
        self._stopping = True
        self._wake_write.send(b"x")  # stays readable: wakes every thread
        with self._deadline_added:
            self._deadline_added.notify_all()
        for thread in self._threads:
            thread.join(timeout=10)
        for connection in list(self._connections.values()):
            with connection.lock:
                self._drop(connection)
        self._epoll.close()
        self._wake_read.close()
        self._wake_write.close()

    # -- network threads ------------------------------------------------------------------

    def _serve(self) -> None:
        listeners = {listener.fileno(): listener for listener in self._listeners}
        while not self._stopping:
            for fd, events in self._epoll.poll(maxevents=1):
                if fd in listeners:
                    self._accept(listeners[fd])
                    continue
                connection = self._connections.get(fd)
                if connection is not None:
                    self._turn(connection, gone=bool(events & _GONE))

    def _turn(self, connection: Connection, *, gone: bool) -> None:
        with connection.lock:
            if connection.closed:
                return
            try:
                if gone:
                    connection.close()
                else:
                    connection.turn(self._clock.monotonic())
            except Exception:
                log.exception("A request of %s failed unexpectedly; its connection is closed.",
                              connection.peer)  # fmt: skip
                connection.close()
            if connection.closed:
                self._drop(connection)
                return
            self._arm(connection)
            # An answer that came between the turn and the arming would have no event left.
            if connection.has_answer():
                self._arm(connection, to_write=True)
            self._schedule(connection)

    def _arm(self, connection: Connection, *, to_write: bool = False) -> None:
        reads, writes = connection.interest()
        events = _ONCE | (select.EPOLLIN if reads else 0)
        if writes or to_write:
            events |= select.EPOLLOUT
        self._epoll.modify(connection.fd, events)

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection. Out of descriptors: pause, and let those who are in live on."""
        try:
            sock, address = listener.accept()
        except BlockingIOError:
            self._listen_again()
        except OSError as error:
            if not self._stopping:
                log.error("A connection could not be accepted: %s. Pausing.", error.strerror)
        else:
            self._listen_again()
            self._admit(sock, f"{address[0]}:{address[1]}" if address else "this machine")

    def _listen_again(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.modify(listener.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        if len(self._connections) >= self._config.max_connections:
            log.warning(
                "Refused a connection from %s: %d connections are open, which is the limit.",
                peer, len(self._connections),
            )  # fmt: skip
            sock.close()
            return
        _configure(sock)
        assert self._handle is not None
        connection = Connection(
            sock, peer, config=self._config, handle=self._handle, wake=self._wake,
            now=self._clock.monotonic(),
        )  # fmt: skip
        with self._lock:
            self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, _ONCE | select.EPOLLIN)

    def _drop(self, connection: Connection) -> None:
        """Forget a connection; its descriptor is closed last, as it may be reused at once."""
        with self._lock:
            if self._connections.get(connection.fd) is connection:
                del self._connections[connection.fd]
        connection.close()

    # -- answers that come later ----------------------------------------------------------

    def _wake(self, connection: Connection) -> None:
        """Give the connection another turn, on a network thread."""
        if self._connections.get(connection.fd) is connection:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.modify(connection.fd, _ONCE | select.EPOLLIN | select.EPOLLOUT)

    def _schedule(self, connection: Connection) -> None:
        """See to a turn at the deadline of the request that is next to be answered.

        One entry a connection is enough: when it comes due, the turn schedules the next.
        """
        deadline = connection.next_deadline()
        if deadline is None or connection.scheduled <= deadline:
            return
        connection.scheduled = deadline
        with self._deadline_added:
            heapq.heappush(self._deadlines, (deadline, next(self._numbers), connection))
            if self._deadlines[0][0] == deadline:
                self._deadline_added.notify()

    def _time(self) -> None:
        """The timer thread: wakes connections at deadlines, ends stalled ones."""
        next_sweep = self._clock.monotonic() + _SWEEP_S
        while not self._stopping:
            now = self._clock.monotonic()
            due = []
            with self._deadline_added:
                while self._deadlines and self._deadlines[0][0] <= now:
                    due.append(heapq.heappop(self._deadlines)[2])
                if not due and now < next_sweep:
                    until = self._deadlines[0][0] if self._deadlines else next_sweep
                    self._deadline_added.wait(max(0.0, min(until, next_sweep) - now))
            for connection in due:
                connection.scheduled = math.inf
                self._wake(connection)
            if now >= next_sweep:
                next_sweep = now + _SWEEP_S
                self._listen_again()
                self._end_stalled(now)

    def _end_stalled(self, now: float) -> None:
        for connection in list(self._connections.values()):
            if connection.stalled(now) and connection.lock.acquire(blocking=False):
                try:
                    if connection.stalled(now) and not connection.closed:
                        log.info("Closing the connection from %s: it stalled.", connection.peer)
                        self._drop(connection)
                finally:
                    connection.lock.release()


def _configure(sock: socket.socket) -> None:
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        # The kernel does not tune this one; it cuts the wish to net.core.wmem_max.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer that vanished without a word is noticed within two minutes.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)


def _listen_locally(config: NetworkConfig) -> tuple[socket.socket | None, str | None]:
    """A UNIX socket under a random abstract name (Linux), and that name."""
    if not config.local_socket or sys.platform != "linux":
        return None, None
    name = f"logbus-{uuid.uuid4().hex}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener, name


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), backlog=_BACKLOG, reuse_port=False)
    except OSError as error:
        raise StorageError(
            f"Cannot listen on {host}:{port}: {error.strerror}. Is another broker running there? "
            "Choose another port in [broker]."
        ) from error
    listener.setblocking(False)
    return listener
