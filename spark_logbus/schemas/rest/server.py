"""The registry as a service: a ZooKeeper session, and HTTP."""

from __future__ import annotations

import logging

from spark_logbus.clock import SystemClock
from spark_logbus.coordination.security.known import UsersAndRules
from spark_logbus.errors import ConfigError, StorageError
from spark_logbus.http import HttpServer
from spark_logbus.ports import bind_port
from spark_logbus.schemas.registry.administration import SchemaAdministration
from spark_logbus.schemas.registry.registry import SchemaRegistry
from spark_logbus.schemas.rest.access import Access, RegistrySecurity
from spark_logbus.schemas.rest.api import RestApi
from spark_logbus.security.attempts import LoginLimits
from spark_logbus.security.audit_log import AuditLog
from spark_logbus.security.http_logins import HttpLogins
from spark_logbus.security.passwords import PasswordCheck
from spark_logbus.security.tls import of_server
from spark_logbus.zookeeper import Session

logger = logging.getLogger(__name__)

# Of requests that wait for ZooKeeper there are 32 at most, the next are told to come again: soon
# after ZooKeeper has gone there is room again, for schemas that are remembered.
_OPERATION_TIMEOUT_MS = 5_000


class RegistryServer:
    """Serves the registry of one ZooKeeper chroot; any number may run side by side.

    ``start`` and ``stop`` are called once each, ``give_up_start`` from any thread.
    """

    def __init__(
        self,
        *,
        zookeeper: str,
        host: str,
        port: int,
        preferred_port: int | None = None,
        security: RegistrySecurity | None = None,
    ) -> None:
        """Binds, with ``port`` 0, to ``preferred_port`` if it is free, else to any."""
        if not 0 <= port <= 65_535:
            raise ConfigError(f"A port is a number from 0 (any) to 65535, got {port}.")
        self._host = host
        self._port = port
        self._preferred_port = preferred_port
        self._session = Session(
            zookeeper,
            client_name="logbus-registry",
            connect_timeout_ms=None,  # it may be started before ZooKeeper
            operation_timeout_ms=_OPERATION_TIMEOUT_MS,
        )
        self._security = security or RegistrySecurity()
        self._known = UsersAndRules(self._session) if self._security.authenticate else None
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """Known once it is started."""
        assert self._server is not None
        host = f"[{self._host}]" if ":" in self._host else self._host
        scheme = "http" if self._security.tls is None else "https"
        return f"{scheme}://{host}:{self._server.port}"

    def start(self) -> None:
        """Serve, and wait for ZooKeeper; until that answers, requests are told so (503). Raises
        StorageError when the address cannot be had, ConfigError for a certificate that cannot be
        used, CoordinationError when it was given up."""
        self._server = bind_port(self._port, self._preferred_port, self._bind)
        try:
            self._server.start()
            self._session.start()
            if self._known is not None:
                self._known.start()
        except BaseException:
            self.stop()
            raise
        logger.info("Schemas are served at %s.", self.url)

    def give_up_start(self) -> None:
        """Let a start that waits for ZooKeeper end."""
        self._session.close()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._session.close()

    def _bind(self, port: int) -> HttpServer:
        registry, administration = (
            SchemaRegistry(self._session),
            SchemaAdministration(self._session),
        )
        tls = self._security.tls
        try:
            return HttpServer(
                host=self._host,
                port=port,
                routes=RestApi(registry, administration, self._access()).routes(),
                clock=SystemClock(),
                tls=None if tls is None else of_server(tls).get,
            )
        except OSError as error:
            raise StorageError(
                f"Cannot listen on {self._host}:{port}: {error.strerror}. Is another registry "
                "running there? Choose another --host or --port."
            ) from error

    def _access(self) -> Access:
        if self._known is None:
            return Access(self._security)
        clock = SystemClock()
        audit = AuditLog(clock)
        passwords = PasswordCheck(self._known.credential, limits=LoginLimits(clock), clock=clock)
        return Access(
            self._security, known=self._known, logins=HttpLogins(passwords, audit), audit=audit
        )
