"""One client's session: its connection, and the one to ZooKeeper that stands for it.

ZooKeeper answers requests in their order, so what was asked and not answered is a queue. A request
that is refused is replaced by a harmless one, and that one's answer by the refusal: so the refusal
comes in its place between the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from spark_logbus.broker.security.security import Security
from spark_logbus.errors import AuthenticationError, ConfigError, LogbusError, ProtocolError
from spark_logbus.gateway import passwords, requests
from spark_logbus.gateway.logins import Logins
from spark_logbus.gateway.requests import Connect, Connected, Kind, Request
from spark_logbus.gateway.rights import Rights
from spark_logbus.gateway.streams import Stream, close_all
from spark_logbus.security.identity import Identity

logger = logging.getLogger(__name__)

#: ZooKeeper itself takes no request above 1 MiB less one byte, unless it is told to.
MAX_REQUEST_BYTES: Final = (1 << 20) + 4_096
# The names below one node may be many.
_MAX_ANSWER_BYTES: Final = 32 << 20
_MAX_FIRST_BYTES: Final = 1_000
_MAX_LOGIN_BYTES: Final = 8_192
# A view of a large cluster asks for 500 nodes at once.
_MAX_WAITING: Final = 2_000
_TELL_S: Final = 5.0
_LAST_XID: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Parts of a gateway that all its sessions use."""

    security: Security
    rights: Rights
    #: The access list of nodes that clients make, as a request has it.
    acl: bytes
    #: What the gateway itself shows ZooKeeper, by scheme.
    shown: tuple[tuple[str, str], ...]
    logins: Logins
    open_zookeeper: Callable[[], Awaitable[Stream]]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that is not answered."""

    xid: int
    is_refused: bool = False
    keep: Callable[[str], bool] | None = None


class ClientSession:
    """A session from its first message to its end. Used by the gateway's thread."""

    def __init__(
        self,
        client: Stream,
        *,
        peer: str,
        certificate: bytes | None,
        around: Surroundings,
        entered: Callable[[Identity], None],
    ) -> None:
        self._client = client
        self._peer = peer
        self._certificate = certificate
        self._around = around
        self._entered = entered
        self._zookeeper: Stream | None = None
        self._is_new = False
        self._session_id = 0  # until ZooKeeper has granted it
        self._is_nobody = False
        self._waiting: deque[_Waiting] = deque()
        self._answered = asyncio.Event()
        #: Whom it belongs to; None before the login.
        self.identity: Identity | None = None
        self._ending: AuthenticationError | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, until: float) -> None:
        """Serves the session until either end ends it. ``until``: the loop's time by which it is
        to be known whose it is."""
        try:
            async with asyncio.timeout_at(until) as limit:
                zookeeper = await self._begin()
                if zookeeper is None:
                    return
                if self._certificate is not None:
                    limit.reschedule(None)  # it is known who it is, whenever it asks
                first = await self._log_in(zookeeper)
            await self._relay(zookeeper, first)
        except TimeoutError:
            self._note(AuthenticationError("Nobody has logged in in time."))
        except AuthenticationError as error:
            self._is_nobody = self.identity is not None
            await self._tell(error)
        except (EOFError, OSError) as error:
            self._note(AuthenticationError("It ended before a login."))
            logger.debug("The connection of %s has ended: %s", self._peer, error)
        except LogbusError as error:
            self._note(error)
            logger.warning("The gateway ends a connection of %s: %s", self._peer, error.message)
        finally:
            try:
                if self._zookeeper is not None and self._has_to_end():
                    await _end(self._zookeeper)
            finally:
                opened = (self._client, self._zookeeper)
                await close_all(*(each for each in opened if each is not None))

    def look_again(self) -> None:
        """Ends the session if it belongs to nobody any more; for when users have changed."""
        if self.identity is None:
            return
        try:
            self._around.security.authorization.require_current(self.identity)
        except AuthenticationError as error:
            self._ending = error
            for task in self._tasks:
                task.cancel()

    # -- the beginning -------------------------------------------------------------------

    async def _begin(self) -> Stream | None:
        """Gets the session from ZooKeeper, and tells the client of it. Returns the connection to
        ZooKeeper, None where there is no such session any more."""
        connect = requests.parse_connect(await self._client.read(_MAX_FIRST_BYTES))
        secret, password = self._around.security.state.secret, connect.password
        if not connect.is_new:
            shown = passwords.opened(connect.session_id, connect.password, secret)
            if shown is None:
                self._client.write(Connected(0, 0, 0, bytes(16)).message())
                raise ProtocolError("A session was asked for that no gateway has given.")
            password = shown
        self._is_new = connect.is_new
        if self._certificate is None:
            self._around.logins.require_few(self._peer)
        zookeeper = self._zookeeper = await self._around.open_zookeeper()
        asked = Connect(0, connect.last_zxid, connect.timeout_ms, connect.session_id, password)
        zookeeper.write(asked.message())
        try:
            granted = requests.parse_connected(await zookeeper.read(_MAX_FIRST_BYTES))
        except EOFError as error:
            raise ConfigError(
                "ZooKeeper has closed a connection unanswered. It allows one address "
                "maxClientCnxns of them, 60 by default: raise that in zoo.cfg, where there are "
                "gateways."
            ) from error
        for scheme, proof in self._around.shown:
            zookeeper.write(requests.login(scheme, proof))
        is_there = granted.timeout_ms > 0
        if is_there:
            sealed = passwords.sealed(granted.session_id, granted.password, secret)
            granted = Connected(0, granted.timeout_ms, granted.session_id, sealed)
        self._client.write(granted.message())
        self._session_id = granted.session_id if is_there else 0
        return zookeeper if is_there else None

    async def _log_in(self, zookeeper: Stream) -> bytes | None:
        """Finds out whom the session belongs to. Returns the first request, if that was read: a
        certificate is enough where no login comes first. Raises AuthenticationError."""
        logins = self._around.logins
        if self._certificate is not None:
            self._enter(logins.by_certificate(self._certificate))
        while True:
            message = await self._client.read(
                MAX_REQUEST_BYTES if self.identity is not None else _MAX_LOGIN_BYTES
            )
            xid, kind = requests.head_of(message)
            if (xid, kind) == (requests.PING_XID, Kind.PING):
                await self._ping(zookeeper, message)
            elif kind == Kind.AUTH:
                scheme, proof = requests.parse_auth(message)
                self.identity = None  # a login counts more than a certificate
                self._enter(await logins.prove(scheme, proof, self._peer))
                self._client.write(requests.refusal(requests.AUTH_XID, 0, 0))
                return None
            elif self.identity is not None:
                return message
            else:
                raise AuthenticationError("It sent a request before a login.")

    async def _ping(self, zookeeper: Stream, message: bytes) -> None:
        """Keeps the session of a client that is about to log in."""
        zookeeper.write(message)
        answer = await zookeeper.read(_MAX_FIRST_BYTES)
        while requests.head_of(answer)[0] == requests.AUTH_XID:
            answer = await zookeeper.read(_MAX_FIRST_BYTES)
        self._client.write(answer)

    def _enter(self, identity: Identity) -> None:
        self.identity = identity
        self._around.logins.proved(self._session_id)
        self._entered(identity)  # of whom it belongs to, also where there is no room

    # -- the relay -----------------------------------------------------------------------

    async def _relay(self, zookeeper: Stream, first: bytes | None) -> None:
        identity = self.identity
        assert identity is not None
        loop = asyncio.get_running_loop()
        expiry = None
        if identity.scope is not None:
            left_us = identity.scope.expires_us - self._around.security.now_us()
            expiry = loop.call_later(max(0.0, left_us / 1e6) + 0.01, self.look_again)
        self._tasks = [
            loop.create_task(self._from_client(identity, zookeeper, first)),
            loop.create_task(self._from_zookeeper(identity, zookeeper)),
        ]
        try:
            self.look_again()  # something may have changed since the login began
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if expiry is not None:
                expiry.cancel()
            for task in self._tasks:
                task.cancel()
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ending is not None:
            raise self._ending
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _from_client(
        self, identity: Identity, zookeeper: Stream, message: bytes | None
    ) -> None:
        while True:
            if message is None:
                message = await self._client.read(MAX_REQUEST_BYTES)
            self._send_on(identity, zookeeper, message)
            message = None
            await zookeeper.writer.drain()
            while len(self._waiting) >= _MAX_WAITING:
                self._answered.clear()
                await self._answered.wait()

    def _send_on(self, identity: Identity, zookeeper: Stream, message: bytes) -> None:
        security, rights = self._around.security, self._around.rights
        security.authorization.require_current(identity)
        request = requests.parse(message, acl=self._around.acl)
        if request.kind is Kind.PING:
            zookeeper.write(request.message)
            return
        if request.kind is Kind.AUTH:
            raise ProtocolError("A login came after the first request of a connection.")
        refused = None if request.kind is Kind.CLOSE else rights.refused(identity, request)
        if refused is not None:
            security.gateway.refused += 1
            security.audit.denied(identity, self._peer, _name(request), refused)
            zookeeper.write(requests.harmless(request.xid))
            self._waiting.append(_Waiting(request.xid, is_refused=True))
            return
        if altered := rights.altered(request):
            security.audit.asked(identity, self._peer, _name(request), ", ".join(altered[:20]))
        keep = rights.hidden(identity, request)
        zookeeper.write(request.message)
        self._waiting.append(_Waiting(request.xid, keep=keep))

    async def _from_zookeeper(self, identity: Identity, zookeeper: Stream) -> None:
        while True:
            message = await zookeeper.read(_MAX_ANSWER_BYTES)
            answer = self._answer(identity, message)
            if answer is not None:
                self._client.write(answer)
                await self._client.writer.drain()

    def _answer(self, identity: Identity, message: bytes) -> bytes | None:
        """Returns what the client is told; None: nothing."""
        xid = requests.head_of(message)[0]
        if xid == requests.PING_XID:
            return message
        if xid == requests.AUTH_XID:
            return None  # of the gateway's own login
        if xid == requests.WATCH_XID:
            may = self._around.rights.may_read(identity, requests.watched_path(message))
            return message if may else None
        waiting = self._waiting.popleft() if self._waiting else None
        self._answered.set()
        if waiting is None or waiting.xid != xid:
            raise ProtocolError(f"ZooKeeper has answered {xid}, which was not asked next.")
        if waiting.is_refused:
            return requests.refusal(xid, requests.zxid_of(message))
        return message if waiting.keep is None else requests.filtered(message, waiting.keep)

    # -- the end -------------------------------------------------------------------------

    async def _tell(self, error: AuthenticationError) -> None:
        """Tells a client that its login has failed."""
        logger.info("The gateway lets %s in no further: %s", self._peer, error.message)
        if self.identity is None and self._session_id:
            self._client.write(requests.refusal(requests.AUTH_XID, 0, requests.AUTH_FAILED))
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_TELL_S):
                    await self._client.writer.drain()

    def _note(self, error: LogbusError) -> None:
        """Notes an end before a login, but where that was for want of ZooKeeper."""
        if self.identity is None and (self._session_id or isinstance(error, ProtocolError)):
            self._around.logins.failed(self._peer, error)

    def _has_to_end(self) -> bool:
        """Tells if the session itself ends, with its ephemeral nodes, and not the connection alone:
        that of somebody who is nobody any more, and one that nobody has shown to be his."""
        if self.identity is not None or not self._session_id:
            had_no_room = self._is_new and self.identity is not None and not self._tasks
            return self._is_nobody or had_no_room
        is_kept_going = self._around.logins.ended_unproved(self._peer, self._session_id)
        return self._is_new or is_kept_going


async def _end(zookeeper: Stream) -> None:
    """Ends a session, and waits for ZooKeeper's word: before its client can hear of that, and go on
    with it elsewhere."""
    zookeeper.write(requests.close(_LAST_XID))
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_TELL_S):
            while await zookeeper.reader.read(_MAX_FIRST_BYTES):
                pass


def _name(request: Request) -> str:
    return "gateway" if request.kind is None else f"gateway {request.kind.name.lower()}"
