"""The registry as a service: a ZooKeeper session, and HTTP."""

from __future__ import annotations

import logging

from spark_logbus.clock import SystemClock
from spark_logbus.errors import ConfigError, StorageError
from spark_logbus.http import HttpServer
from spark_logbus.ports import bind_port
from spark_logbus.schemas.registry.administration import SchemaAdministration
from spark_logbus.schemas.registry.registry import SchemaRegistry
from spark_logbus.schemas.rest.api import RestApi
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
        self, *, zookeeper: str, host: str, port: int, preferred_port: int | None = None
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
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """Known once it is started."""
        assert self._server is not None
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.port}"

    def start(self) -> None:
        """Serve, and wait for ZooKeeper; until that answers, requests are told so (503). Raises
        StorageError when the address cannot be had, CoordinationError when it was given up."""
        self._server = bind_port(self._port, self._preferred_port, self._bind)
        try:
            self._server.start()
            self._session.start()
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
        api = RestApi(SchemaRegistry(self._session), SchemaAdministration(self._session))
        try:
            return HttpServer(host=self._host, port=port, routes=api.routes(), clock=SystemClock())
        except OSError as error:
            raise StorageError(
                f"Cannot listen on {self._host}:{port}: {error.strerror}. Is another registry "
                "running there? Choose another --host or --port."
            ) from error
