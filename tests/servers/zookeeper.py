"""What the coordination tests do to ZooKeeper: end sessions, lose replies."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kazoo.client import KazooClient
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_digest_acl

from spark_logbus.zookeeper import Session, SessionState
from spark_logbus.zookeeper.nodes import Nodes

MULTI = 14  # ZooKeeper's number for a transaction
CREATE = 1
READ = 4
_OWNER = ("owner", "secret")


@contextlib.contextmanager
def session(connect: str, *, name: str = "test", **options: Any) -> Iterator[Session]:
    with Session(connect, client_name=name, **options) as opened:
        yield opened


def expire(victim: Session, *, through: str | None = None) -> None:
    """Do what ZooKeeper does to a session that was silent for too long: a second connection
    takes the session over and closes it. ``through`` names the server if the victim's own
    address is blocked."""
    client_id = victim._client.client_id
    assert client_id is not None
    thief = KazooClient(hosts=through or victim.connect.servers, client_id=client_id)
    thief.start(timeout=60)
    thief.stop()
    thief.close()


def put(connect: str, path: str, data: bytes) -> None:
    """Write a node by hand."""
    with session(connect, name="by-hand") as opened:
        tree = Nodes(opened)
        tree.ensure(path)
        opened.call("set", lambda c: c.set_async(tree._absolute(path), data), opened.deadline())


def read(connect: str, path: str) -> bytes:
    with session(connect, name="by-hand") as opened:
        node = Nodes(opened).get(path)
        assert node is not None
        return node.data


def forbid(connect: str, path: str) -> None:
    """Let nobody but an owner that logbus is not read or change a node."""
    _set_acls(connect, path, [make_digest_acl(*_OWNER, all=True)])


def allow(connect: str, path: str) -> None:
    """Undo ``forbid``."""
    _set_acls(connect, path, OPEN_ACL_UNSAFE)


def _set_acls(connect: str, path: str, acls: list[ACL]) -> None:
    servers, _, chroot = connect.partition("/")
    owner = KazooClient(hosts=servers, auth_data=[("digest", ":".join(_OWNER))])
    owner.start(timeout=60)
    try:
        owner.set_acls(f"/{chroot}{path}", acls)
    finally:
        owner.stop()
        owner.close()


class States:
    """Remembers the states that a session reported."""

    def __init__(self, watched: Session) -> None:
        self.seen: list[SessionState] = []
        watched.add_listener(self.seen.append)


class Proxy:
    """Stands between clients and ZooKeeper, and loses replies on demand.

    ``lose_reply(kind)``: the next request of that kind reaches ZooKeeper and is carried out;
    its reply is swallowed and the connection cut. ``cut()`` breaks all connections;
    ``refuse`` while set accepts none; ``forget_next`` accepts the next one and does nothing more.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.refuse = threading.Event()
        self.lost = 0
        self.forgotten: list[socket.socket] = []
        self._forget = 0
        self._before_cut: Callable[[], None] = lambda: None
        self._lose: int | None = None
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in list(self._threads):
            thread.join(60)
            assert not thread.is_alive()
        for side in (*self.forgotten, *(side for pair in self._pairs for side in pair)):
            side.close()

    def connect_string(self, chroot: str) -> str:
        """``chroot``, but through this proxy."""
        return self.address + "/" + chroot.partition("/")[2]

    def lose_reply(self, kind: int, *, before_cut: Callable[[], None] = lambda: None) -> None:
        """``before_cut`` runs after ZooKeeper has answered and before the client notices."""
        with self._lock:
            self._lose, self._before_cut = kind, before_cut

    def forget_next(self) -> None:
        with self._lock:
            self._forget += 1

    def cut(self) -> None:
        with self._lock:
            for pair in self._pairs:
                for side in pair:
                    with contextlib.suppress(OSError):
                        side.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuse.is_set():
                client.close()
                continue
            with self._lock:
                forget, self._forget = self._forget > 0, max(0, self._forget - 1)
            if forget:
                self.forgotten.append(client)
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            doomed: set[int] = set()
            with self._lock:
                self._pairs.append((client, server))
            for job in (
                lambda c=client, s=server, d=doomed: self._requests(c, s, d),
                lambda c=client, s=server, d=doomed: self._replies(c, s, d),
            ):
                thread = threading.Thread(target=job, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _requests(self, client: socket.socket, server: socket.socket, doomed: set[int]) -> None:
        first = True
        for frame in _frames(client):
            xid, kind = struct.unpack_from("!ii", frame, 4)
            with self._lock:
                if not first and kind == self._lose:
                    self._lose = None
                    doomed.add(xid)
            first = False
            with contextlib.suppress(OSError):
                server.sendall(frame)
        _hang_up(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, doomed: set[int]) -> None:
        first = True
        for frame in _frames(server):
            if not first and struct.unpack_from("!i", frame, 4)[0] in doomed:
                self.lost += 1
                self._before_cut()
                break
            first = False
            with contextlib.suppress(OSError):
                client.sendall(frame)
        _hang_up(client, server)


def _frames(source: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while True:
            head = _exactly(source, 4)
            body = _exactly(source, struct.unpack("!i", head)[0]) if head else b""
            if not body:
                return
            yield head + body


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            return b""
        data += part
    return data


def _hang_up(*sides: socket.socket) -> None:
    for side in sides:
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
