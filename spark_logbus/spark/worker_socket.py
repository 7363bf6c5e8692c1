"""Spares Spark and its Python workers the pauses of small writes over loopback TCP.

Nagle's algorithm holds a small write back until the one before it is acknowledged, and the other
side's kernel delays that by 40 ms, in the hope of data to send it with. A task is sent to a worker
in two writes, and the worker's answer in two or more: each pause is longer than a small task.

The worker's own writes go at once with ``TCP_NODELAY``, set once. What the JVM sends goes on when
it is acknowledged, and ``TCP_QUICKACK`` does that, for what has come by then only: so a thread sets
it whenever something comes.

The socket is Spark's, and is found among the process's own. Both options change when bytes travel,
and nothing else. Where there is no such socket or no such option, as with UNIX sockets or on
another system than Linux, or no descriptor left for it, nothing is done: no task fails for this.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import threading
from functools import cache
from typing import Final

_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)

# What is acknowledged at once after a task of ours: the next task, which comes in a few pieces. Not
# all that ever comes, as the worker's other tasks may be sent gigabytes.
_ACKNOWLEDGED: Final = 8

# Of the environment of a process that has connected to the JVM. Else, the JVM has to the process.
_PORT: Final = "PYTHON_WORKER_FACTORY_PORT"
_DESCRIPTORS: Final = "/proc/self/fd"
_LOOPBACK: Final = ("127.", "::1", "::ffff:127.")


def send_at_once() -> None:
    """Has this process's writes to Spark sent at once from now on (TCP_NODELAY)."""
    own = _spark_socket(os.getpid())
    if own is not None:
        with contextlib.suppress(OSError):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def acknowledge_next_task() -> None:
    """The task that Spark sends this worker next is acknowledged as it comes."""
    acknowledger = _acknowledger(os.getpid())
    if acknowledger is not None:
        with contextlib.suppress(OSError):
            acknowledger.begin()


@cache
def _acknowledger(pid: int) -> Acknowledger | None:
    own = _spark_socket(pid)
    if own is None or _QUICK_ACK is None:
        return None
    try:
        return Acknowledger(own, _QUICK_ACK)
    except (OSError, RuntimeError):  # of a process that may have no more descriptors or threads
        return None


class Acknowledger:
    """Sets ``option`` on a socket when something comes. Its thread ends when the peer closes."""

    def __init__(self, own: socket.socket, option: int) -> None:
        self._socket = own
        self._option = option
        self._left = 0
        self._epoll = select.epoll()
        self._epoll.register(own, select.EPOLLRDHUP)
        threading.Thread(target=self._run, name="logbus-quick-ack", daemon=True).start()

    def begin(self) -> None:
        """Begins to watch for the next few pieces that come."""
        self._left = _ACKNOWLEDGED
        # Another thread may have read what came before this one is asked what there is; that the
        # socket can be written to, it is told in any case.
        piece = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
        self._epoll.modify(self._socket, piece | select.EPOLLRDHUP)

    def _run(self) -> None:
        while True:
            for _, events in self._epoll.poll():
                if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                    return
                with contextlib.suppress(OSError):
                    self._socket.setsockopt(socket.IPPROTO_TCP, self._option, 1)
                self._left -= 1
                if self._left <= 0:
                    self._epoll.modify(self._socket, select.EPOLLRDHUP)


@cache
def _spark_socket(_: int) -> socket.socket | None:
    """A copy of the socket to the JVM, which stays open until the process ends, as Spark's does."""
    port = os.environ.get(_PORT, "")
    try:
        found = find_spark_socket(int(port) if port.isdigit() else None)
        return None if found is None else socket.socket(fileno=os.dup(found))
    except OSError:
        return None


def find_spark_socket(port: int | None) -> int | None:
    """The descriptor of the connection to ``port`` of this machine; without one, of the only one
    within this machine that the process has more than one descriptor for, as a worker has.

    None with a default timeout, too: a socket object made then has its connection not block, and
    that goes for all descriptors of it.
    """
    if socket.getdefaulttimeout() is not None:
        return None
    descriptors: dict[int, list[int]] = {}  # of each loopback connection, by its inode
    for name in os.listdir(_DESCRIPTORS) if os.path.isdir(_DESCRIPTORS) else ():
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and _leads_to(int(name), port):
                descriptors.setdefault(status.st_ino, []).append(int(name))
    found = [own[0] for own in descriptors.values() if port is not None or len(own) > 1]
    return found[0] if len(found) == 1 else None


def _leads_to(descriptor: int, port: int | None) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return False
        address, peer_port = one.getpeername()[:2]
        return address.startswith(_LOOPBACK) and port in (None, peer_port)
