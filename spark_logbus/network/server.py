"""The listener, the network threads and all connections.

All threads wait on one epoll, and none waits for another. A connection is armed one-shot, so an
event gives it to one thread for one turn, after which that thread arms it again for what it needs
next. An idle connection, a reader that does not read and a request that waits for a flush
therefore cost no thread. Blocking work (a write to a segment, a ``sendfile`` that must read the
disk) happens in the turn and holds up one of ``threads``, not the others. The measurements for
this choice are in ``docs/adr/0002-broker-threads.md``.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from spark_logbus.clock import Clock
from spark_logbus.errors import ConfigError, LimitExceededError
from spark_logbus.network.config import NetworkConfig
from spark_logbus.network.connection import Connection
from spark_logbus.network.deadlines import DeadlineQueue
from spark_logbus.network.limits import ConnectionQuotas, SendSlots, turn_away
from spark_logbus.network.memory import BufferPool, Memory
from spark_logbus.network.responses import Answer
from spark_logbus.network.sockets import (
    configure,
    first_reserved_descriptor,
    is_out_of_room,
    listen,
    listen_locally,
    peer_key,
    peer_name,
)
from spark_logbus.network.strand import Strand
from spark_logbus.network.tls import FailedHandshakes, TlsTransport
from spark_logbus.network.transport import SocketTransport, Transport
from spark_logbus.protocol import Frame
from spark_logbus.security.tls import CurrentContext

logger = logging.getLogger(__name__)

_ONCE = select.EPOLLONESHOT
_GONE = select.EPOLLHUP | select.EPOLLERR
_SWEEP_S = 1.0
_THREADS_WITHOUT_SLOT = 2  # are left for appends while all others wait for the disk
_JOIN_S = 10.0

Handle = Callable[[Connection, Frame], Answer]


@dataclass(frozen=True, slots=True)
class TlsPort:
    """A port on which connections are encrypted, and what they are encrypted with."""

    port: int
    contexts: CurrentContext


class Network:
    """The listeners, their threads and all connections. Thread-safe.

    ``port`` is for connections without encryption; None: there are none but of this machine.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int | None,
        config: NetworkConfig,
        clock: Clock,
        tls: TlsPort | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._handle: Handle | None = None
        self._listeners: list[socket.socket] = []
        self._tls: dict[int, CurrentContext] = {}  # by the descriptor of the listener
        self.port: int | None = None
        self.tls_port: int | None = None
        if tls is not None:
            tls.contexts.get()  # wrong files are told now
            self.tls_port = self._listen(host, tls.port)
            self._tls[self._listeners[-1].fileno()] = tls.contexts
        try:
            if port is not None:
                self.port = self._listen(host, port)
        except BaseException:
            for each in self._listeners:
                each.close()
            raise
        self.local_socket: str | None = None
        if config.local_socket and (local := listen_locally()) is not None:
            self._listeners.append(local[0])
            self.local_socket = local[1]
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._lock = threading.Lock()
        self._deadlines: DeadlineQueue[Connection] = DeadlineQueue()
        self._send_slots: SendSlots[Connection] = SendSlots(
            max(1, config.threads - _THREADS_WITHOUT_SLOT)
        )
        self._buffers = BufferPool()
        self._memory = Memory(config)
        self._quotas = ConnectionQuotas(config, first_reserved=first_reserved_descriptor())
        self._failed_handshakes = FailedHandshakes()
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._wake_read, self._wake_write = socket.socketpair()

    def _listen(self, host: str, port: int) -> int:
        listener = listen(host, port)
        self._listeners.append(listener)
        bound: int = listener.getsockname()[1]
        return bound

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def accepted(self) -> int:
        """Connections that were let in since the start."""
        return self._quotas.accepted

    @property
    def refused(self) -> int:
        """Connections that were turned away since the start, for want of room."""
        return self._quotas.refused

    @property
    def failed_handshakes(self) -> int:
        """Handshakes of TLS that failed since the start."""
        return self._failed_handshakes.total

    def certificate_expires_s(self) -> float | None:
        """Returns when a certificate of the TLS port expires, in seconds since 1970; None where
        there is no such port."""
        known = [each.expires_s() for each in self._tls.values()]
        return min((each for each in known if each is not None), default=None)

    # -- start and stop -------------------------------------------------------------------

    def start(self, handle: Handle) -> None:
        """Serve: ``handle`` is called once for each frame, on a network thread."""
        self._handle = handle
        for listener in self._listeners:
            self._epoll.register(listener.fileno(), select.EPOLLIN | _ONCE)
        self._epoll.register(self._wake_read.fileno(), select.EPOLLIN)
        for number in range(self._config.threads):
            self._spawn(self._serve, f"network-{number}")
        self._spawn(self._time, "network-timer")

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(listener.fileno())
            listener.close()

    def look_again(self) -> None:
        """Have all connections look at what they wait for, as it may have become forbidden."""
        for connection in self._snapshot():
            connection.strand.call()

    def waiting(self) -> int:
        """Requests that were started and are not answered yet."""
        return sum(connection.waiting for connection in self._snapshot())

    def stop(self) -> None:
        """Close every connection and end the threads. Call after ``stop_accepting``."""
        self._stopping = True
        self._wake_write.send(b"x")  # stays readable: wakes every thread
        self._deadlines.close()
        for thread in self._threads:
            thread.join(timeout=_JOIN_S)
        for connection in self._send_slots.clear():
            self._drop(connection)
        for connection in self._snapshot():
            if connection.strand.take():  # else a thread is stuck in it
                self._drop(connection)
        self._epoll.close()
        self._wake_read.close()
        self._wake_write.close()

    def _snapshot(self) -> list[Connection]:
        with self._lock:
            return list(self._connections.values())

    # -- network threads ------------------------------------------------------------------

    def _serve(self) -> None:
        listeners = {listener.fileno(): listener for listener in self._listeners}
        while not self._stopping:
            try:
                for fd, events in self._epoll.poll(maxevents=1):
                    if fd in listeners:
                        self._accept(listeners[fd], self._tls.get(fd))
                    elif (connection := self._connections.get(fd)) is not None:
                        self._turn(connection, gone=bool(events & _GONE))
            except Exception:
                logger.exception(
                    "A network thread met a failure that was not foreseen; it goes on."
                )

    def _turn(self, connection: Connection, *, gone: bool) -> None:
        """Give a turn to the connection, then to others that wait for a slot to send slices."""
        if not connection.strand.take():
            return
        at_slice = connection.at_slice and not gone
        if at_slice or not self._work(connection, may_send_slices=False, gone=gone):
            if not self._send_slots.enter(connection):
                return
            sending: Connection | None = connection
            while sending is not None:
                self._work(sending, may_send_slices=True)
                sending = self._send_slots.leave()

    def _work(self, connection: Connection, *, may_send_slices: bool, gone: bool = False) -> bool:
        """Give it a turn and end that; False: it keeps its turn, and wants to send slices."""
        try:
            if gone:
                connection.check_peer()
            connection.turn(self._clock.monotonic(), may_send_slices=may_send_slices)
            if connection.closed:
                self._drop(connection)
            elif connection.at_slice and not may_send_slices:
                return False
            else:
                self._give_back(connection)
        except Exception:
            logger.exception(
                "A request of %s failed unexpectedly; its connection is closed.", connection.peer
            )
            self._drop(connection)
        return True

    def _give_back(self, connection: Connection) -> None:
        deadline = connection.next_deadline()
        if deadline is not None:
            self._deadlines.set(connection, deadline)
        connection.strand.give_back(
            reads=connection.wants_to_read(), writes=connection.wants_to_write()
        )

    def _accept(self, listener: socket.socket, tls: CurrentContext | None) -> None:
        """Accept one connection. Out of descriptors: pause, and let those who are in live on."""
        try:
            sock, address = listener.accept()
        except OSError as error:
            if listener.fileno() < 0:
                return  # closed meanwhile
            if is_out_of_room(error):
                logger.error("A connection could not be accepted: %s. Pausing.", error.strerror)
            else:  # another thread took it, or its client gave up
                self._listen_again()
            return
        self._listen_again()
        peer = peer_name(sock, address)
        try:
            self._admit(sock, peer, peer_key(sock, address), tls)
        except ConfigError as error:
            logger.error("The connection from %s was closed at once: %s", peer, error.message)
            sock.close()
        except OSError as error:
            logger.info("The connection from %s was lost at once: %s.", peer, error.strerror)
            sock.close()
        except Exception:
            sock.close()
            raise

    def _listen_again(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.modify(listener.fileno(), select.EPOLLIN | _ONCE)

    def _admit(
        self, sock: socket.socket, peer: str, address: str, tls: CurrentContext | None
    ) -> None:
        configure(sock, peer_timeout_ms=self._config.peer_timeout_ms)
        transport: Transport = (
            SocketTransport(sock)
            if tls is None
            else TlsTransport(sock, tls.get(), failed=self._failed_handshakes)
        )
        fd = transport.fileno()

        def arm(*, reads: bool, writes: bool) -> None:
            events = (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if writes else 0)
            self._epoll.modify(fd, _ONCE | events)

        try:
            self._quotas.admit(address, local=transport.local, descriptor=fd)
        except LimitExceededError as error:
            turn_away(transport, error)
            return
        assert self._handle is not None
        connection = Connection(
            transport, peer, address=address, config=self._config, handle=self._handle,
            strand=Strand(arm), buffers=self._buffers, memory=self._memory,
            now=self._clock.monotonic(),
        )  # fmt: skip
        with self._lock:
            self._connections[fd] = connection
        try:
            self._epoll.register(fd, _ONCE)
            connection.strand.give_back(reads=True, writes=False)
        except OSError:
            self._drop(connection)
            raise

    def _drop(self, connection: Connection) -> None:
        """Forget a connection; its descriptor is closed last, as it may be reused at once."""
        with self._lock:
            known = self._connections.get(connection.fd) is connection
            if known:
                del self._connections[connection.fd]
        if known:
            self._quotas.leave(connection.address, local=connection.local)
        connection.close()
        self._deadlines.forget(connection)

    # -- the timer ------------------------------------------------------------------------

    def _time(self) -> None:
        """Gives turns at deadlines, ends stalled connections."""
        next_sweep = self._clock.monotonic() + _SWEEP_S
        while not self._stopping:
            now = self._clock.monotonic()
            try:
                for connection in self._deadlines.take_due(now):
                    connection.strand.call()
                if now >= next_sweep:
                    next_sweep = now + _SWEEP_S
                    self._listen_again()
                    self._end_overdue(now)
                    self._quotas.report()
                    self._failed_handshakes.report()
            except Exception:
                logger.exception("The network's timer met a failure that was not foreseen.")
            self._deadlines.wait(now=now, until=next_sweep)

    def _end_overdue(self, now: float) -> None:
        for connection in self._snapshot():
            is_crowded = not connection.handshaken and self._quotas.is_crowded(
                connection.address, local=connection.local
            )
            # One that somebody works on is not overdue; it is looked at next time.
            if (
                connection.overdue(now, is_crowded=is_crowded) is not None
                and connection.strand.take()
            ):
                if (reason := connection.overdue(now, is_crowded=is_crowded)) is not None:
                    logger.info(
                        "Closing the connection from %s: %s.",
                        connection.peer, reason, extra={"peer": connection.peer},
                    )  # fmt: skip
                    self._drop(connection)
                else:
                    self._give_back(connection)
