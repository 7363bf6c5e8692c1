"""The broker's metrics as Prometheus reads them, and its health as JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from spark_logbus.broker.monitoring.metric_table import METRICS, Metric, MetricKind, MetricSources
from spark_logbus.clock import Clock
from spark_logbus.http import Request, Response, Routes
from spark_logbus.metrics import PROMETHEUS_TEXT, Distribution

PREFIX = "logbus_"

_FRESH_S = 1.0  # a page is made once in this time, however many ask for it


class BrokerCollector(Collector):
    """Reads the table of metrics at each scrape. Thread-safe, as far as the sources are."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        per_partition = sources.config.metrics.partitions
        self._metrics = [m for m in METRICS if per_partition or not m.per_partition]

    def collect(self) -> Iterator[Family]:
        for metric in self._metrics:
            yield _family(metric, self._sources)

    def describe(self) -> list[Family]:
        """Names no metrics: asked for them, the registry would read all, and the broker is not
        started."""
        return []


def _family(metric: Metric, sources: MetricSources) -> Family:
    name = PREFIX + metric.name
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        for labels, value in metric.read(sources):
            assert isinstance(value, Distribution)
            bounds = [*(repr(bound) for bound in value.bounds), "+Inf"]
            buckets = list(zip(bounds, value.cumulative, strict=True))
            histogram.add_metric(labels, buckets, value.sum)
        return histogram
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(name, metric.help, labels=metric.labels)
    for labels, value in metric.read(sources):
        assert not isinstance(value, Distribution)
        family.add_metric(labels, float(value))
    return family


class Pages:
    """The pages of the broker's HTTP server. Thread-safe."""

    def __init__(
        self,
        sources: MetricSources,
        *,
        clock: Clock,
        require_reader: Callable[[Request], None] = lambda _: None,
    ) -> None:
        """``require_reader`` raises HttpError for who may not read metrics."""
        self._require_reader = require_reader
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._registry.register(BrokerCollector(sources))
        self._broker_id = sources.config.id
        self._health = sources.health
        self._clock = clock
        self._lock = threading.Lock()
        self._made: Response | None = None
        self._made_at = 0.0

    def routes(self) -> Routes:
        return Routes(
            {
                "GET /metrics": self.metrics,
                "GET /healthz": self.healthz,
                "GET /livez": self.livez,
            }
        )

    def metrics(self, request: Request) -> Response:
        self._require_reader(request)
        with self._lock:
            now = self._clock.monotonic()
            if self._made is None or now - self._made_at >= _FRESH_S:
                self._made = Response(generate_latest(self._registry), PROMETHEUS_TEXT)
                self._made_at = now
            return self._made

    def healthz(self, request: Request) -> Response:
        report = self._health.report()
        answer = {"status": report.status, "reasons": report.reasons, "notes": report.notes}
        return self._json(answer, status=200 if report.healthy else 503)

    def livez(self, request: Request) -> Response:
        """Answers, which is all that is asked for."""
        return self._json({"status": "alive"})

    def _json(self, fields: Mapping[str, object], *, status: int = 200) -> Response:
        return Response.json({"broker": self._broker_id, **fields}, status=status)
