"""``spark.streams.addListener(LagListener())``: the lag of logbus sources, as queries go on."""

from __future__ import annotations

import json
import logging
import threading
from typing import Self

from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_logbus.clock import SystemClock
from spark_logbus.errors import ConfigError
from spark_logbus.http import HttpServer, Request, Response, Routes
from spark_logbus.metrics import PROMETHEUS_TEXT
from spark_logbus.security.tls import ServerTls, of_server
from spark_logbus.spark.lag.gauges import MAX_QUERIES, LagGauges
from spark_logbus.spark.lag.progress import QueryLag, SourceLag, read_progress

logger = logging.getLogger(__name__)


class LagListener(StreamingQueryListener):
    """Writes a line to the log for each progress of each logbus source, and keeps gauges.

    Without ``port`` there is only the log. Port 0 is a free one, which ``port`` then tells; give
    ``registry`` to serve the gauges from a program's own metrics instead. Thread-safe. It runs
    where the Spark session is made, also of Spark Connect.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
        warn_after: int = 10,
        tls: ServerTls | None = None,
    ) -> None:
        """``warn_after``: warn when the lag of a query has grown so many times in a row. ``tls``:
        serve by HTTPS with that certificate.

        Raises ConfigError when the address cannot be had.
        """
        if warn_after < 1:
            raise ConfigError(f"warn_after must be 1 or more, got {warn_after}.")
        self._lock = threading.Lock()
        self._closed = False
        self._gauges = LagGauges()
        self._growth = _Growth(warn_after)
        self._registry = CollectorRegistry() if registry is None else registry
        self._server = None if port is None else self._bind(host, port, tls)
        self._registry.register(self._gauges)
        if self._server is not None:
            self._server.start()

    def _bind(self, host: str, port: int, tls: ServerTls | None) -> HttpServer:
        routes = Routes({"GET /metrics": self._page, "GET /": self._page})
        try:
            contexts = None if tls is None else of_server(tls).get
            return HttpServer(
                host=host, port=port, routes=routes, clock=SystemClock(), tls=contexts
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Cannot serve metrics on {host}:{port}: {error}. Use another port, or 0 for a "
                "free one."
            ) from error

    def _page(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), PROMETHEUS_TEXT)

    @property
    def port(self) -> int | None:
        """The port for Prometheus; None without one."""
        return None if self._server is None else self._server.port

    def close(self) -> None:
        """Stop serving, and leave the registry. Call it when Spark calls no more: after
        ``spark.streams.removeListener``, or ``spark.stop`` with Connect (see docs/spark.md)."""
        with self._lock:
            closed, self._closed = self._closed, True
            server, self._server = self._server, None
        if not closed:
            self._registry.unregister(self._gauges)
        if server is not None:
            server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- what Spark calls -----------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            self._take(read_progress(json.loads(event.progress.json)))
        except Exception:  # a listener that raises disturbs the query's other listeners
            logger.exception("The progress of a query could not be read; its lag is not known now.")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        query_id = str(event.id)
        self._gauges.remove(query_id, str(event.runId))
        with self._lock:
            self._growth.forget(query_id)

    def _take(self, query: QueryLag) -> None:
        if not query.sources:
            return
        self._gauges.update(query)
        for source in query.sources:
            logger.info("%s", describe(query, source))
        with self._lock:
            times = self._growth.observe(query)
        if times:
            logger.warning(
                "Query %s falls behind: its lag grew %d times in a row and is %d records now. "
                "Give it more cores or a larger maxOffsetsPerTrigger, or look for a slow sink.",
                query.name, times, query.records_behind(),
            )  # fmt: skip


def describe(query: QueryLag, source: SourceLag) -> str:
    """One line for people and for programs that look for ``name=value``."""
    behind = list(source.behind.values())
    values: dict[str, object] = {
        "source": source.number,
        "topics": ",".join(list(source.by_topic())[:10]),
        "numInputRows": source.input_rows,
        "inputRowsPerSecond": round(source.input_rows_per_second, 1),
        "processedRowsPerSecond": round(source.processed_rows_per_second, 1),
        "batchDurationMs": round(query.duration_s * 1000),
    }
    if behind:
        values["minOffsetsBehindLatest"] = min(behind)
        values["maxOffsetsBehindLatest"] = max(behind)
        values["avgOffsetsBehindLatest"] = round(sum(behind) / len(behind), 1)
    if source.bytes_behind is not None:
        values["bytesBehind"] = source.bytes_behind
    told = " ".join(f"{name}={value}" for name, value in values.items())
    return f"Query {query.name} has processed micro-batch {query.batch_id}: {told}"


class _Growth:
    """Counts how many times in a row each query's lag has grown. Not thread-safe."""

    def __init__(self, warn_after: int) -> None:
        self._warn_after = warn_after
        self._seen: dict[str, tuple[int, int]] = {}  # by query id: last lag, times grown

    def observe(self, query: QueryLag) -> int:
        """The count, whenever there is reason to report it; else 0."""
        lag = query.records_behind()
        before, times = self._seen.pop(query.id, (lag, 0))
        times = times + 1 if lag > before else 0
        self._seen[query.id] = (lag, times)
        if len(self._seen) > MAX_QUERIES:
            del self._seen[next(iter(self._seen))]
        return times if times and times % self._warn_after == 0 else 0

    def forget(self, query_id: str) -> None:
        self._seen.pop(query_id, None)
