"""Brokers' promises to keep what they have prepared of atomic writes: one node a broker.

A broker that is asked to prepare a write answers with its token, which stands in its node. A write
is decided only while the tokens of all leaders that have prepared it stand, by checks in the
transaction that decides. Before a broker drops anything that it has prepared, it writes another
token; what is not decided by then never will be without being prepared again. So no clock is
compared with another one, and no lease runs out.
"""

from __future__ import annotations

import secrets
import threading
from typing import Final, NamedTuple

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import PromisePayload, decode, encode
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Operation, SetData
from spark_logbus.zookeeper.unreadable import CorruptNodeError

_TOKEN_BYTES = 8


class PromiseRegistry:
    """Reads and writes the node of one broker. Thread-safe."""

    def __init__(self, session: Session, broker_id: int) -> None:
        self._nodes = Nodes(session)
        self._path = paths.promise(broker_id)
        self.broker_id = broker_id

    def read(self) -> str | None:
        """The token that stands, None if there is none. Raises CoordinationError."""
        deadline = self._nodes.session.deadline()
        self._nodes.sync(deadline=deadline)
        node = self._nodes.get(self._path, deadline=deadline)
        try:
            return None if node is None else token_of(node.data, self._path)
        except CorruptNodeError:
            return None  # to be written over

    def write(self, token: str) -> None:
        """Put the token in the place of the one that stands. Raises CoordinationError: then
        either of them may stand."""
        payload = encode(PromisePayload(token=token))

        def attempt(deadline: Deadline) -> None:
            node = self._nodes.get(self._path, deadline=deadline)
            write: Operation
            if node is None:
                self._nodes.ensure(paths.PROMISES, deadline=deadline)
                write = Create(self._path, payload)
            else:
                write = SetData(self._path, payload, node.version)
            self._nodes.transact(f"promise anew in {self._path}", [write], deadline=deadline)

        self._nodes.repeat(f"write {self._path}", attempt)

    def end(self) -> None:
        """Have what the broker has prepared count no more until it is prepared anew: another takes
        its lead. Raises CoordinationError."""
        if self.read() is not None:
            self.write(secrets.token_hex(_TOKEN_BYTES))


def token_of(data: bytes, path: str) -> str:
    """CorruptNodeError for anything but the content of a broker's node."""
    return decode(PromisePayload, data, path=path).token


#: Number of the first promise of a process.
FIRST_PROMISE: Final = 1


class Promise(NamedTuple):
    """A token and its number: those of one process count up, each lets go of all before it."""

    number: int
    token: str


class Promises:
    """The promise of this broker. Thread-safe.

    Each process begins with a new one: what an earlier one has promised may be on a disk that was
    taken away.
    """

    def __init__(self, registry: PromiseRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._stands: Promise | None = None
        self._given = FIRST_PROMISE - 1

    @property
    def broker_id(self) -> int:
        return self._registry.broker_id

    def current(self, *, anew: bool = False) -> Promise:
        """The promise that stands. With ``anew`` ZooKeeper is asked whether it does. Raises
        CoordinationError."""
        with self._lock:
            stands = self._stands
            if stands is not None and anew and self._registry.read() != stands.token:
                stands = None  # somebody else has written there, or removed it
            return self._renew() if stands is None else stands

    def renew(self) -> Promise:
        """Let go of all that was promised until now; the new promise. Raises CoordinationError:
        then nothing may be dropped."""
        with self._lock:
            return self._renew()

    def _renew(self) -> Promise:
        self._stands = None
        self._given += 1
        promise = Promise(self._given, secrets.token_hex(_TOKEN_BYTES))
        self._registry.write(promise.token)
        self._stands = promise
        return promise
