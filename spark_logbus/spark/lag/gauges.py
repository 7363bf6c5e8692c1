"""The lag of running queries as Prometheus reads it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_logbus.spark.lag.progress import QueryLag, SourceLag

MAX_QUERIES = 100
"""Of more, the one that has been silent for longest is left out: a Spark session that breaks off
does not say that its queries ended."""

MAX_TOPICS = 200
"""Of a source's topics, those that are furthest behind; a pattern can match thousands."""

_QUERY = ("query", "id")
_SOURCE = (*_QUERY, "source")
_TOPIC = (*_SOURCE, "topic")


class LagGauges(Collector):
    """The last progress of each running query. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryLag] = {}  # by query id, longest silent first

    def update(self, query: QueryLag) -> None:
        with self._lock:
            self._queries.pop(query.id, None)
            self._queries[query.id] = query
            if len(self._queries) > MAX_QUERIES:
                del self._queries[next(iter(self._queries))]

    def remove(self, query_id: str, run_id: str) -> None:
        """The run has ended; a newer run of the same query is left alone."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None and query.run_id == run_id:
                del self._queries[query_id]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            queries = list(self._queries.values())
        return iter(_families(queries))

    def describe(self) -> list[Metric]:
        return _families([])


def _families(queries: list[QueryLag]) -> list[Metric]:
    def gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"logbus_query_{name}", text, labels=labels)

    least = gauge("min_offsets_behind_latest", "Records behind, least of the partitions.", _TOPIC)
    most = gauge("max_offsets_behind_latest", "Records behind, most of the partitions.", _TOPIC)
    mean = gauge("avg_offsets_behind_latest", "Records behind, mean of the partitions.", _TOPIC)
    size = gauge("bytes_behind", "Bytes behind the high watermarks.", _SOURCE)
    came = gauge("input_rows_per_second", "Records that came in per second.", _SOURCE)
    done = gauge("processed_rows_per_second", "Records processed per second.", _SOURCE)
    batch = gauge("batch_id", "The last micro-batch.", _QUERY)
    took = gauge("batch_duration_seconds", "How long the last micro-batch took.", _QUERY)
    for query in queries:
        if not query.sources:
            continue
        own = [query.name, query.id]
        batch.add_metric(own, query.batch_id)
        took.add_metric(own, query.duration_s)
        for source in query.sources:
            labels = [*own, str(source.number)]
            came.add_metric(labels, source.input_rows_per_second)
            done.add_metric(labels, source.processed_rows_per_second)
            if source.bytes_behind is not None:
                size.add_metric(labels, source.bytes_behind)
            for topic, records in _furthest_behind(source):
                least.add_metric([*labels, topic], min(records))
                most.add_metric([*labels, topic], max(records))
                mean.add_metric([*labels, topic], sum(records) / len(records))
    return [least, most, mean, size, came, done, batch, took]


def _furthest_behind(source: SourceLag) -> list[tuple[str, list[int]]]:
    topics = source.by_topic()
    kept = sorted(topics, key=lambda topic: (-sum(topics[topic]), topic))[:MAX_TOPICS]
    return [(topic, topics[topic]) for topic in sorted(kept)]
