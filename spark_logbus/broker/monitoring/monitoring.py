"""Follows the health of a broker, and serves it and the metrics by HTTP."""

from __future__ import annotations

import logging
from dataclasses import replace

from spark_logbus.broker.compaction.run import CompactionStats
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.data_directory import remember_metrics_port, remembered_metrics_port
from spark_logbus.broker.handlers.dispatch import RequestDispatcher
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.monitoring.health import Health, SessionWatch
from spark_logbus.broker.monitoring.metric_table import MetricSources
from spark_logbus.broker.monitoring.metrics import Pages
from spark_logbus.broker.monitoring.moves import MovesHere
from spark_logbus.broker.monitoring.readers import Readers
from spark_logbus.broker.publisher import Publisher
from spark_logbus.broker.replica.followers import Followers
from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.hand_over import HandOverStats
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.security.security import Security
from spark_logbus.clock import Clock
from spark_logbus.errors import StorageError
from spark_logbus.http import HttpServer, TlsContexts
from spark_logbus.log import LogDirectory
from spark_logbus.ports import bind_port
from spark_logbus.security.tls import of_server
from spark_logbus.zookeeper import Session

logger = logging.getLogger(__name__)


class Monitoring:
    """``start`` and ``stop`` are called once each. The broker sets ``health.phase``, and
    ``sources.network`` when it has one."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        session: Session,
        logs: LogDirectory,
        replica_manager: ReplicaManager,
        metadata_cache: MetadataCache,
        followers: Followers,
        following: Following,
        hand_overs: HandOverStats,
        in_sync: InSync,
        publisher: Publisher,
        requests: RequestDispatcher,
        request_metrics: RequestMetrics,
        compaction: CompactionStats,
        security: Security | None,
    ) -> None:
        session_watch = SessionWatch(clock)
        session.add_listener(session_watch.follow)
        moves = MovesHere(
            config.id,
            metadata_cache=metadata_cache,
            replica_manager=replica_manager,
            followers=followers,
        )
        self.health = Health(
            logs=logs,
            replica_manager=replica_manager,
            requests=requests,
            session=session,
            session_watch=session_watch,
            moves=moves,
            following=following,
            in_sync=in_sync,
        )
        self.sources = MetricSources(
            config=config,
            logs=logs,
            replica_manager=replica_manager,
            metadata_cache=metadata_cache,
            followers=followers,
            following=following,
            moves=moves,
            hand_overs=hand_overs,
            in_sync=in_sync,
            publisher=publisher,
            requests=request_metrics,
            session=session,
            session_watch=session_watch,
            health=self.health,
            compaction=compaction,
            security=security,
        )
        self._config = config
        self._clock = clock
        readers = Readers(config.metrics, security, self.health, clock)
        self._routes = Pages(self.sources, clock=clock, require_reader=readers.require).routes()
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Serve, unless the configuration switches that off. Raises StorageError when the address
        cannot be had, ConfigError for a certificate that cannot be used."""
        config = self._config.metrics
        if not config.enabled:
            return
        last = remembered_metrics_port(self._config.data_dir)
        self._server = bind_port(config.port, last, self._bind)
        self._server.start()
        logger.info("Metrics are at %s://%s:%d/metrics, health is at /healthz there.",
                    "https" if config.tls else "http", config.host, self._server.port)  # fmt: skip

    def remember_port(self) -> None:
        """Keep the port for the next start; call it with the data directory's lock held."""
        if self._server is not None:
            remember_metrics_port(self._config.data_dir, self._server.port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def _bind(self, port: int) -> HttpServer:
        host = self._config.metrics.host
        try:
            return HttpServer(
                host=host, port=port, routes=self._routes, clock=self._clock, tls=self._tls()
            )
        except OSError as error:
            raise StorageError(
                f"Cannot listen on {host}:{port}: {error.strerror}. Is another broker running "
                "there? Choose another host or port in [metrics]."
            ) from error

    def _tls(self) -> TlsContexts | None:
        server = self._config.tls.server
        if not self._config.metrics.tls or server is None:
            return None
        if server.client_certificates == "required":
            # What asks for health has none.
            server = replace(server, client_certificates="optional")
        return of_server(server, self._clock).get
