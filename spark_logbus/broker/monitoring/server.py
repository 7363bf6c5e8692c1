"""Serves the broker's metrics and health by HTTP."""

from __future__ import annotations

import logging

from spark_logbus.broker.data_directory import remember_metrics_port, remembered_metrics_port
from spark_logbus.broker.monitoring.metric_table import MetricSources
from spark_logbus.broker.monitoring.metrics import Pages
from spark_logbus.clock import Clock
from spark_logbus.errors import StorageError
from spark_logbus.http import HttpServer
from spark_logbus.ports import bind_port

logger = logging.getLogger(__name__)


class MonitoringServer:
    """Does nothing when the configuration switches it off. ``start`` and ``stop`` are called once
    each."""

    def __init__(self, sources: MetricSources, *, clock: Clock) -> None:
        self._config = sources.config
        self._routes = Pages(sources, clock=clock).routes()
        self._clock = clock
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Raises StorageError when the address cannot be had."""
        config = self._config.metrics
        if not config.enabled:
            return
        last = remembered_metrics_port(self._config.data_dir)
        self._server = bind_port(config.port, last, self._bind)
        self._server.start()
        logger.info("Metrics are at http://%s:%d/metrics, health is at /healthz there.",
                    config.host, self._server.port)  # fmt: skip

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
            return HttpServer(host=host, port=port, routes=self._routes, clock=self._clock)
        except OSError as error:
            raise StorageError(
                f"Cannot listen on {host}:{port}: {error.strerror}. Is another broker running "
                "there? Choose another host or port in [metrics]."
            ) from error
