"""Requests of ZooKeeper's protocol: what each does to which nodes, and how it is sent on. Pure.

A request is parsed to its last byte: what is left over, or is no request that clients of logbus
send, is refused. What is sent on is written anew where that matters: nodes that are made get the
access list of the cluster's own nodes, whatever the client wants.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from spark_logbus.errors import ProtocolError
from spark_logbus.gateway import jute
from spark_logbus.gateway.needs import Act

PING_XID: Final = -2
AUTH_XID: Final = -4
WATCH_XID: Final = -1
NO_AUTH: Final = -102
AUTH_FAILED: Final = -115
#: Operations of one transaction; 900,000 bytes of the shortest would be four times that.
MAX_OPERATIONS: Final = 10_000
_EPHEMERAL: Final = 1
_NUMBERED: Final = 2


class Kind(enum.IntEnum):
    """The number of each kind of request that a gateway knows."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    AUTH = 100
    CLOSE = -11


_KINDS: Final = frozenset(Kind)
_READS: Final = {
    Kind.EXISTS: Act.READ,
    Kind.GET_DATA: Act.READ,
    Kind.GET_CHILDREN: Act.LIST,
    Kind.GET_CHILDREN2: Act.LIST,
}


@dataclass(frozen=True, slots=True)
class Touch:
    """One act on one node. ``numbered``: ZooKeeper adds a number to the name."""

    act: Act
    path: str
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """``touches`` None: of a kind, or with options, that no client of logbus sends. ``message`` is
    what is sent on."""

    xid: int
    kind: Kind | None
    touches: list[Touch] | None
    message: bytes
    #: The path that is only synchronised.
    synced: str | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """The first message of a connection, which asks for a session, or for one that there is."""

    version: int
    last_zxid: int
    timeout_ms: int
    session_id: int
    password: bytes = field(repr=False)

    @property
    def is_new(self) -> bool:
        return self.session_id == 0

    def message(self) -> bytes:
        return (
            jute.int32(self.version)
            + jute.int64(self.last_zxid)
            + jute.int32(self.timeout_ms)
            + jute.int64(self.session_id)
            + jute.buffer(self.password)
            + b"\0"  # a server that has lost the others is of no use
        )


@dataclass(frozen=True, slots=True)
class Connected:
    """The answer to ``Connect``; without a timeout there is no such session any more."""

    version: int
    timeout_ms: int
    session_id: int
    password: bytes = field(repr=False)

    def message(self) -> bytes:
        return (
            jute.int32(self.version)
            + jute.int32(self.timeout_ms)
            + jute.int64(self.session_id)
            + jute.buffer(self.password)
            + b"\0"
        )


def parse_connect(message: bytes) -> Connect:
    """Raises ProtocolError."""
    reader = jute.Reader(message)
    version, last_zxid = reader.int32(), reader.int64()
    timeout_ms, session_id = reader.int32(), reader.int64()
    password = reader.buffer() or b""
    if reader.at < len(message):
        reader.boolean()
    reader.end()
    if version != 0 or timeout_ms <= 0:
        raise ProtocolError(
            f"A session is asked for with version {version} and a timeout of {timeout_ms} ms."
        )
    return Connect(version, last_zxid, timeout_ms, session_id, password)


def parse_connected(message: bytes) -> Connected:
    """Raises ProtocolError."""
    reader = jute.Reader(message)
    version, timeout_ms = reader.int32(), reader.int32()
    session_id, password = reader.int64(), reader.buffer() or b""
    return Connected(version, timeout_ms, session_id, password)


def parse_auth(message: bytes) -> tuple[str, bytes]:
    """Returns scheme and proof of a login. Raises ProtocolError."""
    reader = jute.Reader(message)
    xid, kind, _ = reader.int32(), reader.int32(), reader.int32()
    scheme, proof = reader.text(), reader.buffer() or b""
    reader.end()
    if (xid, kind) != (AUTH_XID, Kind.AUTH):
        raise ProtocolError("A login was expected, and something else came.")
    return scheme, proof


def head_of(message: bytes) -> tuple[int, int]:
    """Returns the number of a request, and its kind's. Raises ProtocolError."""
    reader = jute.Reader(message)
    return reader.int32(), reader.int32()


def zxid_of(answer: bytes) -> int:
    """Returns the transaction that ZooKeeper knew when it answered. Raises ProtocolError."""
    reader = jute.Reader(answer)
    reader.int32()
    return reader.int64()


def acl_list(acl: Iterable[tuple[int, str, str]]) -> bytes:
    """Returns an access list, of permissions, scheme and id, as requests have it."""
    parts = [jute.int32(permissions) + jute.text(scheme) + jute.text(of)
             for permissions, scheme, of in acl]  # fmt: skip
    return jute.int32(len(parts)) + b"".join(parts)


def login(scheme: str, proof: str) -> bytes:
    """Returns the message that logs in at ZooKeeper."""
    return (
        jute.int32(AUTH_XID) + jute.int32(Kind.AUTH) + jute.int32(0)
        + jute.text(scheme) + jute.text(proof)
    )  # fmt: skip


def harmless(xid: int) -> bytes:
    """Returns a request that changes nothing and tells nothing, to take a refused one's place."""
    return jute.int32(xid) + jute.int32(Kind.EXISTS) + jute.text("/") + b"\0"


def close(xid: int) -> bytes:
    return jute.int32(xid) + jute.int32(Kind.CLOSE)


def parse(message: bytes, *, acl: bytes) -> Request:
    """Parses a request after the login; what it makes gets the access list ``acl``. Raises
    ProtocolError for what no request is."""
    reader = jute.Reader(message)
    xid, number = reader.int32(), reader.int32()
    if number not in _KINDS:
        _require_number(xid)
        return Request(xid, None, None, message)
    kind = Kind(number)
    if kind in (Kind.PING, Kind.AUTH):
        expected = AUTH_XID
        if kind is Kind.PING:
            expected = PING_XID
            reader.end()
        if xid != expected:
            raise ProtocolError(f"A {kind.name} has the number {expected}, got {xid}.")
        return Request(xid, kind, [], message)
    _require_number(xid)
    if kind is Kind.CLOSE:
        reader.end()
        return Request(xid, kind, [], message)
    if kind is Kind.SYNC:
        path = reader.text()
        reader.end()
        return Request(xid, kind, [], message, synced=path)
    if kind in _READS:
        path = reader.text()
        reader.boolean()
        reader.end()
        return Request(xid, kind, [Touch(_READS[kind], path)], message)
    head = jute.int32(xid) + jute.int32(number)
    if kind is Kind.MULTI:
        touches, sent = _transaction(reader, acl)
        return Request(xid, kind, touches, head + sent)
    touch, body = _write(kind, reader, acl)
    reader.end()
    is_alone = kind is not Kind.CHECK  # a condition without anything that depends on it
    return Request(xid, kind, [touch] if touch is not None and is_alone else None, head + body)


def _require_number(xid: int) -> None:
    if xid <= 0:
        raise ProtocolError(f"A request has a number from 1 on, got {xid}.")


def _transaction(reader: jute.Reader, acl: bytes) -> tuple[list[Touch] | None, bytes]:
    touches: list[Touch] = []
    is_known = True
    sent = bytearray()
    while True:
        number, is_over, _ = reader.int32(), reader.boolean(), reader.int32()
        if is_over:
            reader.end()
            sent += jute.int32(-1) + b"\1" + jute.int32(-1)
            return touches if is_known else None, bytes(sent)
        if number not in _IN_TRANSACTIONS:
            reader.rest()  # of a kind whose length is not known
            return None, b""
        if len(touches) == MAX_OPERATIONS:
            raise ProtocolError(f"A transaction has up to {MAX_OPERATIONS} operations.")
        touch, body = _write(Kind(number), reader, acl)
        if touch is None:
            is_known = False
        else:
            touches.append(touch)
        sent += jute.int32(number) + b"\0" + jute.int32(-1) + body


_IN_TRANSACTIONS: Final = frozenset(
    {Kind.CREATE, Kind.CREATE2, Kind.DELETE, Kind.SET_DATA, Kind.CHECK}
)


def _write(kind: Kind, reader: jute.Reader, acl: bytes) -> tuple[Touch | None, bytes]:
    """Reads one operation; returns what it does, None for one with unknown options, and how it is
    sent on."""
    path = reader.text()
    sent = jute.text(path)
    if kind in (Kind.DELETE, Kind.CHECK):
        act = Act.DELETE if kind is Kind.DELETE else Act.READ
        return Touch(act, path), sent + jute.int32(reader.int32())
    data = reader.buffer()
    sent += jute.int32(-1) if data is None else jute.buffer(data)
    if kind is Kind.SET_DATA:
        return Touch(Act.SET, path), sent + jute.int32(reader.int32())
    for _ in range(reader.count(12)):
        reader.int32(), reader.buffer(), reader.buffer()
    flags = reader.int32()
    sent += acl + jute.int32(flags)
    if flags & ~(_EPHEMERAL | _NUMBERED):  # a container, or one that lasts for a time
        return None, sent
    return Touch(Act.CREATE, path, numbered=bool(flags & _NUMBERED)), sent


def refusal(xid: int, zxid: int, error: int = NO_AUTH) -> bytes:
    """Returns the answer that a client gets in the place of a refused request's."""
    return jute.int32(xid) + jute.int64(zxid) + jute.int32(error)


def watched_path(message: bytes) -> str:
    """Returns the node that a notification is about. Raises ProtocolError."""
    reader = jute.Reader(message)
    reader.int32(), reader.int64(), reader.int32()
    reader.int32(), reader.int32()
    return reader.text()


def filtered(message: bytes, keep: Callable[[str], bool]) -> bytes:
    """Returns the answer to a listing with the names alone that ``keep`` is true of. Raises
    ProtocolError."""
    reader = jute.Reader(message)
    reader.int32(), reader.int64()
    if reader.int32():
        return message
    head = message[: reader.at]
    names = [name for name in (reader.text() for _ in range(reader.count(4))) if keep(name)]
    return head + jute.int32(len(names)) + b"".join(map(jute.text, names)) + reader.rest()
