"""Listening sockets, options of accepted ones, and the limit of open files."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import struct
import sys

from spark_logbus.errors import StorageError
from spark_logbus.model import new_local_socket

logger = logging.getLogger(__name__)

_BACKLOG = 512
_LOCAL_BUFFER_BYTES = 4 << 20
# Descriptors that connections leave to the logs, the last ones before the limit: as many sealed
# segments as they keep open, and some for new partitions.
_KEPT_FOR_LOGS = 128 + 64
# Descriptors that a broker may want beside its connections: segments, two epolls, ZooKeeper.
_BESIDE_CONNECTIONS = 4_096
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def listen(host: str, port: int) -> socket.socket:
    """Raises StorageError when the address cannot be had."""
    try:
        listener = socket.create_server((host, port), backlog=_BACKLOG, reuse_port=False)
    except OSError as error:
        raise StorageError(
            f"Cannot listen on {host}:{port}: {error.strerror}. Is another broker running there? "
            "Choose another host or port in [broker]."
        ) from error
    listener.setblocking(False)
    return listener


def listen_locally() -> tuple[socket.socket, str] | None:
    """A UNIX socket under a random abstract name, and that name; None where there are none.

    The name is free while the broker is down, for anybody on this machine: so it tells clients
    whose socket it is."""
    if sys.platform != "linux":
        return None
    name = new_local_socket(os.geteuid())
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind("\0" + name)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        logger.warning("Local clients use TCP: there is no UNIX socket: %s.", error.strerror)
        return None
    listener.setblocking(False)
    return listener, name


def peer_name(sock: socket.socket, address: object) -> str:
    """Peer address as text, of a connection and what ``accept`` says of it."""
    if isinstance(address, tuple) and address:
        return f"{address[0]}:{address[1]}"
    return f"{peer_key(sock, address)} on this machine"


def peer_key(sock: socket.socket, address: object) -> str:
    """Key by which a connection is counted: an IP address, or the process that made it.

    The kernel names the process, so it cannot pretend to be another. One in another container,
    which has no number here, counts by its user.
    """
    if isinstance(address, tuple) and address:
        return str(address[0])
    found = _peer(sock)
    if found is None:
        return "one process"
    pid, uid = found
    return f"process {pid} of user {uid}" if pid else f"the containers of user {uid}"


def peer_uid(sock: socket.socket) -> int | None:
    """Returns the user of the process at the other end of a UNIX socket; None where the system does
    not say."""
    found = _peer(sock)
    return None if found is None else found[1]


def _peer(sock: socket.socket) -> tuple[int, int] | None:
    """Process and user at the other end of a UNIX socket."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return pid, uid


def configure(sock: socket.socket, *, peer_timeout_ms: int) -> None:
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        # The kernel does not tune this one; it cuts the wish to net.core.wmem_max.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer that vanished without a word is noticed: by probes when nothing is under way, and
    # with data under way by its missing confirmations.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, peer_timeout_ms)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)


def is_out_of_room(error: OSError) -> bool:
    """True if ``accept`` failed for want of descriptors or memory, and would fail again."""
    return error.errno in _NO_ROOM


def allow_descriptors(max_connections: int) -> None:
    """Raise this process's limit of open files to what the configuration asks for, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + _BESIDE_CONNECTIONS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    if granted < max_connections + _KEPT_FOR_LOGS:
        logger.warning(
            "The limit of open files is %d, so not all of max_connections (%d) can be open at "
            "once; raise it (ulimit -n), or lower max_connections.",
            granted, max_connections,
        )  # fmt: skip


def first_reserved_descriptor() -> float:
    """Connections with this descriptor or a higher one would take what the logs may need.

    Descriptors are given out lowest first, so the number tells how many are in use.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return float("inf")
    return soft - min(_KEPT_FOR_LOGS, soft // 4)
