"""The gateway beside one broker: a port, and a thread that serves all its sessions."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from spark_logbus.broker import Broker
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.security.security import Security
from spark_logbus.errors import ConfigError, CoordinationError, StorageError
from spark_logbus.gateway.encrypted import EncryptedEnd
from spark_logbus.gateway.logins import Logins
from spark_logbus.gateway.needs import ROOTS
from spark_logbus.gateway.requests import acl_list
from spark_logbus.gateway.rights import Rights
from spark_logbus.gateway.session import ClientSession, Surroundings
from spark_logbus.gateway.streams import Stream, open_one
from spark_logbus.network import allow_descriptors
from spark_logbus.security.identity import Identity
from spark_logbus.security.tls import CurrentContext, of_server
from spark_logbus.zookeeper.nodes import Nodes

logger = logging.getLogger(__name__)

_BACKLOG: Final = 512
# Connections that have not logged in: strangers may make these.
_MAX_STRANGERS: Final = 200
_MAX_STRANGERS_OF_ADDRESS: Final = 50
_START_S: Final = 30.0
_STOP_S: Final = 10.0
# Of the loop, in which what was cut is closed.
_LAST_TURNS: Final = 4
_NO_ROOM_PAUSE_S: Final = 0.2


class Gateway:
    """``bind`` and ``start`` are called once each, in that order, by one thread; the broker is
    started in between, and stopped after this."""

    def __init__(self, broker: Broker) -> None:
        config, security = broker.config, broker.security
        if security is None or config.tls.server is None:
            raise ConfigError(
                "A gateway needs [security] with authenticate = true, and [tls] with a certificate."
            )
        self._config: BrokerConfig = config
        self._security: Security = security
        self._contexts: CurrentContext = of_server(config.tls.server, security.clock)
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._logins = Logins(security)
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._serving = threading.Event()
        self._main: asyncio.Task[None] | None = None
        self._sessions: dict[asyncio.Task[None], tuple[str, ClientSession | None]] = {}

    def bind(self) -> int:
        """Takes the port, and returns it; nobody can connect yet. Raises StorageError."""
        host, port = self._config.host, self._config.gateway.port or 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            raise StorageError(
                f"Cannot listen on {host}:{port}: {error.strerror}. Choose another port in "
                "[gateway]."
            ) from error
        listener.setblocking(False)
        self._listener = listener
        found: int = listener.getsockname()[1]
        return found

    def start(self) -> None:
        """Serves from now on. Raises CoordinationError, ConfigError."""
        assert self._listener is not None, "bind comes first"
        self._contexts.get()
        gateway, network = self._config.gateway, self._config.network
        allow_descriptors(network.max_connections + 2 * gateway.max_sessions)
        nodes = Nodes(self._security.session)
        for path in ROOTS:
            nodes.ensure(path)
        self._listener.listen(_BACKLOG)
        self._thread.start()
        if not self._serving.wait(_START_S):
            raise CoordinationError("The gateway's thread did not begin in time.")
        self._security.state.follow(self._look_again)
        logger.info(
            "The gateway to ZooKeeper listens on %s:%d.",
            self._config.host,
            self._listener.getsockname()[1],
        )

    def stop(self) -> None:
        """Ends all connections; their clients go on with their sessions elsewhere. Idempotent."""
        if self._thread.is_alive():
            self._call(self._cancel)
            self._thread.join(_STOP_S)
        if self._listener is not None:
            self._listener.close()
        self._logins.stop()
        if not (self._loop.is_running() or self._loop.is_closed()):
            self._loop.close()

    # -- on the gateway's thread ---------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._main = self._loop.create_task(self._serve())
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        except Exception:
            logger.exception("The gateway has failed, and takes no more sessions.")

    def _call(self, f: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(f)
        except RuntimeError:  # the loop is closed
            logger.debug("The gateway has stopped already.")

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

    def _look_again(self) -> None:
        def look() -> None:
            for _, session in list(self._sessions.values()):
                if session is not None:
                    session.look_again()

        self._call(look)

    async def _serve(self) -> None:
        around = self._surroundings()
        listener = self._listener
        assert listener is not None
        self._serving.set()
        try:
            while True:
                try:
                    accepted, address = await self._loop.sock_accept(listener)
                except OSError as error:
                    logger.warning("The gateway could not take a connection: %s", error)
                    await asyncio.sleep(_NO_ROOM_PAUSE_S)
                    continue
                self._take(accepted, str(address[0]), f"{address[0]}:{address[1]}", around)
        finally:
            for task in self._sessions:
                task.cancel()
            await asyncio.gather(*self._sessions, return_exceptions=True)
            for _ in range(_LAST_TURNS):
                await asyncio.sleep(0)

    def _take(self, accepted: socket.socket, address: str, peer: str, around: Surroundings) -> None:
        strangers = Counter(
            of for of, session in self._sessions.values()
            if session is None or session.identity is None
        )  # fmt: skip
        if (
            len(self._sessions) >= self._config.gateway.max_sessions
            or strangers.total() >= _MAX_STRANGERS
            or strangers[address] >= _MAX_STRANGERS_OF_ADDRESS
        ):
            logger.debug("The gateway has no room for %s.", peer)
            accepted.close()
            return
        task = self._loop.create_task(self._session(accepted, address, peer, around))
        self._sessions[task] = (address, None)
        self._count()
        task.add_done_callback(partial(self._ended, accepted))

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            accepted.close()  # it may not have begun, and nothing else has the socket then
        del self._sessions[task]
        self._count()
        if not task.cancelled() and task.exception() is not None:
            logger.error("A session of the gateway has failed.", exc_info=task.exception())

    def _count(self) -> None:
        self._security.gateway.sessions = len(self._sessions)

    async def _session(
        self, accepted: socket.socket, address: str, peer: str, around: Surroundings
    ) -> None:
        until = self._loop.time() + self._config.gateway.login_timeout_ms / 1000
        client = await self._encrypted(accepted, peer, until)
        if client is None:
            return
        session = ClientSession(
            Stream(client, client),
            peer=peer,
            certificate=client.certificate,
            around=around,
            entered=self._require_room,
        )
        task = asyncio.current_task()
        assert task is not None
        self._sessions[task] = (address, session)
        await session.run(until)

    async def _encrypted(
        self, accepted: socket.socket, peer: str, until: float
    ) -> EncryptedEnd | None:
        """Returns the connection once hands are shaken, None if they are not in time."""
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            client = EncryptedEnd(reader, writer, self._contexts.get())
            async with asyncio.timeout_at(until):
                await client.shake_hands()
        except (OSError, EOFError) as error:  # of which those of time and of TLS are some
            logger.debug("The connection of %s could not be encrypted: %s", peer, error)
            writer.close()
            return None
        except BaseException:
            writer.transport.abort()
            raise
        return client

    def _require_room(self, identity: Identity) -> None:
        most = self._config.gateway.max_sessions_per_principal
        count = sum(
            session is not None
            and session.identity is not None
            and session.identity.principal == identity.principal
            for _, session in self._sessions.values()
        )
        if count > most:  # with this one
            raise CoordinationError(
                f"{identity.principal} has {most} sessions already; a gateway takes "
                "max_sessions_per_principal of them."
            )

    def _surroundings(self) -> Surroundings:
        session = self._security.session
        access = session.access

        return Surroundings(
            security=self._security,
            rights=Rights(self._security.authorization, chroot=session.connect.chroot),
            acl=acl_list(access.acl),
            shown=access.logins,
            logins=self._logins,
            open_zookeeper=partial(open_one, session.connect.servers, access.contexts),
        )
