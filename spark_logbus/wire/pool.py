"""Idle connections, kept per broker for the next caller.

A connection is leased to one caller at a time: requests of different callers never queue up
after each other's long polls, and a connection needs no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.forks import follow_forks
from spark_logbus.model import BrokerAddress
from spark_logbus.retry import Deadline
from spark_logbus.wire.buffers import Allocate, new_buffer
from spark_logbus.wire.config import ConnectionConfig
from spark_logbus.wire.connect import connect
from spark_logbus.wire.connection import BrokerConnection


class ConnectionPool:
    """Leases connections, and keeps idle ones. Thread-safe."""

    def __init__(self, config: ConnectionConfig, *, allocate: Allocate = new_buffer) -> None:
        self._config = config
        self._allocate = allocate
        self._lock = threading.Lock()
        self._idle: dict[BrokerAddress, list[BrokerConnection]] = {}
        self._closed = False
        self._max_record_batch_bytes: int | None = None
        follow_forks(self)

    def after_fork(self) -> None:
        """Begin anew in the child, without the connections of the parent."""
        self._lock = threading.Lock()
        self._idle = {}

    @property
    def max_record_batch_bytes(self) -> int | None:
        """The smallest limit of the brokers met so far; None before the first handshake."""
        return self._max_record_batch_bytes

    def take(self, address: BrokerAddress, deadline: Deadline) -> BrokerConnection:
        """An idle connection that still looks alive, or a new one."""
        while True:
            with self._lock:
                if self._closed:
                    raise BrokerUnavailableError("This cluster client is closed; open a new one.")
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None:
                break
            if connection.looks_alive():
                return connection
            connection.close()
        connection = connect(address, self._config, deadline, allocate=self._allocate)
        limit = connection.max_record_batch_bytes
        with self._lock:
            known = self._max_record_batch_bytes
            self._max_record_batch_bytes = limit if known is None else min(known, limit)
        return connection

    def give_back(self, connection: BrokerConnection) -> None:
        """Keep the connection for the next caller, if nothing is under way on it."""
        with self._lock:
            if connection.idle and not self._closed:
                idle = self._idle.setdefault(connection.address, [])
                if len(idle) < self._config.idle_connections:
                    idle.append(connection)
                    return
        connection.close()

    @contextmanager
    def lease(self, address: BrokerAddress, deadline: Deadline) -> Iterator[BrokerConnection]:
        connection = self.take(address, deadline)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def close(self) -> None:
        """Close the idle connections; leased ones are closed when they are given back."""
        with self._lock:
            self._closed = True
            idle = [connection for group in self._idle.values() for connection in group]
            self._idle.clear()
        for connection in idle:
            connection.close()
