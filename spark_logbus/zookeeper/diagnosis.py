"""Finds the reason why nothing answers as ZooKeeper; kazoo only tries again, and gives none.

One thread for each server looks its name up, connects to it, and asks what every ZooKeeper
answers, be it with a refusal: the word ``srvr``. Whatever else listens there answers something
else, at the latest when the word goes on like the request of a browser.

The sockets here are raw because the question is what is there before it is taken for ZooKeeper.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from spark_logbus.security.tls import CurrentContext
from spark_logbus.zookeeper.access import encrypted

_CONNECT_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 1.0
_AGAIN_S = 1.0  # between two looks at the same server
_DEFAULT_PORT = 2181
_ENOUGH_BYTES = 4096

# An HTTP server waits for the end of the request, a logbus broker for 16 bytes.
_REST_OF_A_REQUEST = b"\r\n" * 6


@dataclass(frozen=True, slots=True)
class ServerFault:
    """The fault of one server, or of all: part of a sentence."""

    reason: str

    there: bool
    """Something listens that may be a ZooKeeper, and may serve yet. Else it has to be mended: the
    address, or a server that has to be started."""

    stays: bool = False
    """Something else answers at the address: no start of a server mends it."""


class Diagnosis:
    """Looks at all ``servers`` (``host:port,host:port``) again and again while it is open; a
    context manager. ``found`` is called, on threads of its own, after every look. Thread-safe."""

    def __init__(
        self, servers: str, found: Callable[[], None], contexts: CurrentContext | None = None
    ) -> None:
        self._servers = servers.split(",")
        self._found = found
        self._contexts = contexts
        self._closed = threading.Event()
        self._findings: dict[str, ServerFault] = {}

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(
                target=self._look_on, args=(server,), name=f"logbus-look-at-{server}", daemon=True
            ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()  # a thread in the middle of a look ends after it

    def finding(self) -> ServerFault | None:
        """The finding for all servers together; None until each has been looked at."""
        findings = [self._findings.get(server) for server in self._servers]
        known = [finding for finding in findings if finding is not None]
        if len(known) < len(findings):
            return None
        return ServerFault("; ".join(dict.fromkeys(one.reason for one in known)),
                       there=any(one.there for one in known),
                       stays=all(one.stays for one in known))  # fmt: skip

    def _look_on(self, server: str) -> None:
        while not self._closed.is_set():
            self._findings[server] = look_at(server, self._contexts)
            self._found()
            self._closed.wait(_AGAIN_S)


def look_at(server: str, contexts: CurrentContext | None = None) -> ServerFault:
    """Find the obstacle to a session with ``server``, encrypted if there are ``contexts``; takes
    some seconds, and the time that the system needs to look up a name."""
    host, port = _split(server)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return ServerFault(_unknown_host(host, error), there=False)
    finding = ServerFault(f"host {host} has no address", there=False)
    for family, kind, protocol, _, address in addresses:
        finding = _ask(server, family, kind, protocol, address, contexts)
        if finding.there:
            break
    return finding


def _split(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = server, str(_DEFAULT_PORT)
    return host.strip("[]"), int(port)


def _unknown_host(host: str, error: OSError | UnicodeError) -> str:
    if isinstance(error, socket.gaierror) and error.errno != socket.EAI_NONAME:
        return f"host {host} cannot be looked up ({error.strerror})"
    return f"there is no host {host}"


def _ask(
    server: str,
    family: int,
    kind: int,
    protocol: int,
    address: Any,
    contexts: CurrentContext | None,
) -> ServerFault:
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(_CONNECT_TIMEOUT_S)
        try:
            connection.connect(address)
        except TimeoutError:
            return ServerFault(f"{server} does not take the connection, nor refuse it", there=True)
        except ConnectionRefusedError:
            return ServerFault(f"nothing listens at {server} (connection refused)", there=False)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            # Without a descriptor to spare nothing is known of the server.
            there = error.errno in (errno.EMFILE, errno.ENFILE)
            return ServerFault(f"{server} cannot be reached ({reason})", there=there)
        connection.settimeout(_ANSWER_TIMEOUT_S)
        if contexts is not None:
            return _ask_encrypted(server, connection, contexts)
        try:
            connection.sendall(b"srvr")
            answer = _receive(connection)
            if answer is None:
                connection.sendall(_REST_OF_A_REQUEST)
                answer = _receive(connection)
        except OSError:
            answer = b""
    return _judge(server, answer)


def _ask_encrypted(server: str, connection: socket.socket, contexts: CurrentContext) -> ServerFault:
    """Finds what is wrong with a server's TLS. One whose TLS is as it has to be is not asked more:
    it is ZooKeeper, or a gateway to it."""
    try:
        encrypted(connection, contexts, _split(server)[0]).close()
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message.rstrip(".")
        return ServerFault(
            f"{server} does not prove that it is that server ({reason}): its certificate has to "
            "name it, and to be signed by an authority that the profile trusts",
            there=False,
        )
    except TimeoutError:
        return ServerFault(f"{server} takes connections and does not encrypt them", there=True)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        return ServerFault(f"{server} does not encrypt connections as asked ({reason})", there=True)
    except OSError as error:
        return ServerFault(
            f"{server} does not encrypt connections as asked ({error.strerror or error})",
            there=True,
        )
    return ServerFault(
        f"{server} encrypts connections, and gives no session; does it ask for a certificate?",
        there=True,
    )


def _receive(connection: socket.socket) -> bytes | None:
    """The beginning of an answer, empty if the other end hung up, None if it says nothing."""
    answer = b""
    try:
        while len(answer) < _ENOUGH_BYTES and (data := connection.recv(_ENOUGH_BYTES)):
            answer += data
    except TimeoutError:
        return answer or None
    return answer


def _judge(server: str, answer: bytes | None) -> ServerFault:
    """The finding that an answer to ``srvr`` gives. Pure."""
    if answer is None:
        return ServerFault(f"{server} takes connections and does not answer", there=True)
    if not answer:
        # As a ZooKeeper does that has too many connections from here.
        return ServerFault(
            f"{server} takes connections and closes them unanswered, as a gateway does if no "
            "profile is named",
            there=True,
        )
    if b"not currently serving" in answer:
        return ServerFault(f"the ZooKeeper at {server} does not serve yet, or has no quorum", True)
    if b"Zookeeper version" in answer or b"whitelist" in answer:
        return ServerFault(f"the ZooKeeper at {server} runs, and gives no session", there=True)
    if b"HTTP/" in answer or b"<html" in answer.lower():
        return ServerFault(
            f"an HTTP server answers at {server}, not ZooKeeper", there=False, stays=True
        )
    if b"A frame announces" in answer:
        return ServerFault(
            f"a logbus broker answers at {server}, not ZooKeeper", there=False, stays=True
        )
    return ServerFault(f"what answers at {server} is not ZooKeeper", there=False, stays=True)
