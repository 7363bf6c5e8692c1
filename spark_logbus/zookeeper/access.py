"""Proofs between a session and ZooKeeper: of who it is, and that the server is the right one.

kazoo's own TLS neither checks the server's name nor bounds a handshake, and it waits for data that
it has decrypted already. So a handler of our own opens connections. Nor is a login left to kazoo,
which reports a connection before it has logged in: see ``kazoo_client``.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.security import (
    ACL,
    OPEN_ACL_UNSAFE,
    Id,
    Permissions,
    make_digest_acl_credential,
)

from spark_logbus.errors import ConfigError
from spark_logbus.security.profiles import Digest, Profile
from spark_logbus.security.tls import CurrentContext, of_client, of_client_files

# Of the session timeout: a server that takes a connection and says no more is left for the next.
_HANDSHAKE_SHARE: Final = 1 / 3


# Where things stand that have access rules of their own, for messages; a gateway decides by paths.
_THINGS: Final = {
    "/brokers/topics/": "topic",
    "/consumers/": "group",
    "/locks/": "lock",
    "/mirrors/": "mirror",
    "/schemas/subjects/": "subject",
}
# Every subject's, so who writes there needs the right on all.
_OF_ALL_SUBJECTS: Final = ("/schemas/ids", "/schemas/contents")
_NODE: Final = re.compile(r"/[^\s,;:]*")


def thing_in(description: str) -> str:
    """Returns the thing whose access rules a gateway has asked, in words: that of the node that a
    description of a request names, else the cluster."""
    node = _NODE.search(description)
    for parent, kind in _THINGS.items():
        if node is not None and node[0].startswith(parent):
            return f"the {kind} {unquote(node[0][len(parent) :].partition('/')[0])}"
    if node is not None and node[0].startswith(_OF_ALL_SUBJECTS):
        return "the subject *"
    return "the cluster"


def things_in(description: str, paths: Iterable[str]) -> str:
    """Returns the things at those paths in words, else the one that a description names."""
    return " and ".join(dict.fromkeys(map(thing_in, paths))) or thing_in(description)


class Hidden(str):
    """A secret as kazoo sends it, and as no log shows it: kazoo tells of its requests."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Logins of a session, and what it asks the server to prove."""

    #: Schemes of ZooKeeper's with what each takes; shown at the beginning of every connection.
    logins: tuple[tuple[str, Hidden], ...] = ()
    #: The only user of nodes that the session makes; None: whoever reaches ZooKeeper.
    owner: Digest | None = None
    #: None: connections are not encrypted.
    contexts: CurrentContext | None = None
    #: Name that a gateway knows this by; None: the server is ZooKeeper itself.
    at_gateway: str | None = None

    @property
    def name(self) -> str:
        """Name that the server knows this by, for messages."""
        if self.at_gateway is not None:
            return self.at_gateway
        return "a session without a login" if self.owner is None else f"{self.owner.user!r}"

    @property
    def acl(self) -> list[tuple[int, str, str]]:
        """The access list of nodes that the session makes: permissions, scheme and id."""
        acl = OPEN_ACL_UNSAFE if self.owner is None else acl_of(self.owner)
        return [(each.perms, each.id.scheme, each.id.id) for each in acl]


def of_profile(profile: Profile | None, digest: Digest | None = None) -> Access:
    """Returns what a profile says of ZooKeeper; ``digest`` stands in the place of its own.
    Raises ConfigError for files that cannot be used."""
    if profile is not None and profile.gateway is not None:
        return _of_gateway(profile)
    if profile is not None and digest is None:
        digest = profile.digest
    logins = () if digest is None else (("digest", Hidden(f"{digest.user}:{digest.password}")),)
    tls = None if profile is None else profile.zookeeper_tls
    contexts = None if tls is None else of_client_files(tls)
    if contexts is not None:
        contexts.get()  # while there is somebody to tell that files are missing
    return Access(logins=logins, owner=digest, contexts=contexts)


def _of_gateway(profile: Profile) -> Access:
    tls, login = profile.tls, profile.login
    assert tls is not None, "a profile with a gateway has it"
    contexts = of_client(tls)
    contexts.get()
    if login is None:
        return Access(contexts=contexts, at_gateway=f"the certificate in {tls.certificate}")
    proof = Hidden(f"{login.user}:{login.password}")
    return Access(logins=(("plain", proof),), contexts=contexts, at_gateway=f"user:{login.user}")


def acl_of(owner: Digest) -> list[ACL]:
    """Returns the access list of nodes that belong to ``owner`` alone. It names the digest: what
    ZooKeeper has for a connection's own user would also name its certificate, which is another one
    for each broker."""
    credential = Hidden(make_digest_acl_credential(owner.user, owner.password))
    return [ACL(Permissions.ALL, Id("digest", credential))]


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with connections that are encrypted."""

    def __init__(self, contexts: CurrentContext) -> None:
        super().__init__()
        self._contexts = contexts

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: object
    ) -> ssl.SSLSocket:
        """Connects to an address of ``hostname``, whose certificate has to name that. Raises
        OSError, which kazoo takes for a connection that was lost, and tries again."""
        timeout *= _HANDSHAKE_SHARE
        return encrypted(socket.create_connection(address, timeout), self._contexts, hostname)

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> Any:
        """Waits for sockets. A record of TLS may hold several replies, and who has read one of
        them finds nothing more in the kernel."""
        decrypted = [
            each for each in rlist if isinstance(each, ssl.SSLSocket) and each.pending() > 0
        ]
        return (decrypted, [], []) if decrypted else super().select(rlist, wlist, xlist, timeout)


def encrypted(sock: socket.socket, contexts: CurrentContext, hostname: str) -> ssl.SSLSocket:
    """Encrypts a connection that stands, and closes it if it cannot. Raises OSError."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return contexts.get().wrap_socket(sock, server_hostname=hostname.rstrip("."))
    except ConfigError as error:  # files that were there when the session was made
        with contextlib.suppress(OSError):
            sock.close()
        raise OSError(error.message) from error
    except (OSError, ValueError) as error:  # ValueError: not a name that a certificate can have
        with contextlib.suppress(OSError):
            sock.close()
        raise error if isinstance(error, OSError) else OSError(str(error)) from error
