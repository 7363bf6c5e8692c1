"""Counters of producers and consumers: their names, what each says, and how Prometheus reads them.

``client.metrics()`` gives numbers by name. The names are Kafka's, in snake case, where Kafka counts
the same. A name that ends in ``_total`` only grows; any other is the value of the moment.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Final, Literal, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from spark_logbus.errors import ConfigError

ClientKind = Literal["producer", "consumer"]

_COUNTER: Final = "_total"

PRODUCER_METRICS: Final[Mapping[str, str]] = {
    "record_send_total": "Records that were handed over to be sent.",
    "record_acknowledged_total": (
        "Records that brokers have acknowledged, or, with acks none, that were sent."
    ),
    "record_error_total": "Records that were not sent in the end.",
    "record_retry_total": "Records that were sent again after a failure.",
    "outgoing_byte_total": "Bytes of record batches that were sent, each time they were.",
    "buffer_total_bytes": "Bytes that the buffer may hold (buffer_bytes).",
    "buffer_used_bytes": "Bytes in the buffer that are not acknowledged yet.",
}
"""Counters of a producer, each with the sentence that explains it."""

CONSUMER_METRICS: Final[Mapping[str, str]] = {
    "records_consumed_total": "Records that were handed out.",
    "bytes_consumed_total": "Bytes of record batches that were fetched, as they are stored.",
    "fetch_total": "Answers to fetches that brought records.",
    "fetch_error_total": "Tries to read a partition that failed and are repeated.",
    "commit_total": "Commits of offsets that were stored.",
    "commit_error_total": "Commits of offsets that failed.",
    "dropped_record_total": "Records that were left out, as their values do not decode.",
    "assigned_partitions": "Partitions that are read.",
    "paused_partitions": "Partitions of these that are paused.",
    "buffered_bytes": "Bytes that were fetched and not handed out yet, as they are stored.",
    "records_lag": (
        "Records between the positions and the high watermarks that the last fetches told, of all "
        "partitions together. Offsets that were lost are none."
    ),
    "records_lag_max": "The same of the partition that is furthest behind.",
}
"""Counters of a consumer, each with the sentence that explains it."""

METRICS: Final[Mapping[ClientKind, Mapping[str, str]]] = {
    "producer": PRODUCER_METRICS,
    "consumer": CONSUMER_METRICS,
}


class MeasuredClient(Protocol):
    """A producer or a consumer. ``metrics`` may be called from any thread, at any time, and waits
    for nothing."""

    @property
    def metrics_kind(self) -> ClientKind: ...

    def metrics(self) -> dict[str, int | float]: ...


class ClientCollector(Collector):
    """The counters of some clients, for a registry of ``prometheus_client``. Thread-safe.

    ``REGISTRY.register(ClientCollector(orders=producer))`` shows each number of ``metrics()`` as
    ``logbus_producer_...{client="orders"}``, or ``logbus_consumer_...``. A client is shown for as
    long as the program keeps it.
    """

    def __init__(self, *clients: MeasuredClient, **named: MeasuredClient) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, weakref.ref[MeasuredClient]] = {}
        self._numbers = count(1)
        for client in clients:
            self.add(client)
        for name, client in named.items():
            self.add(client, name=name)

    def add(self, client: MeasuredClient, *, name: str | None = None) -> None:
        """Show this client, too. Without a name it is ``producer-1``, ``consumer-2`` and so on.

        Raises ConfigError for a name that another client has.
        """
        with self._lock:
            self._forget_gone()
            if name is None:
                name = next(
                    made
                    for number in self._numbers
                    if (made := f"{client.metrics_kind}-{number}") not in self._clients
                )
            if name in self._clients:
                raise ConfigError(
                    f"Two clients are named {name!r}; give each a name of its own, by which "
                    "Prometheus tells them apart."
                )
            self._clients[name] = weakref.ref(client)

    def remove(self, client: MeasuredClient) -> None:
        """Show this client no more; does nothing about one that is not shown."""
        with self._lock:
            self._clients = {
                name: one for name, one in self._clients.items() if one() is not client
            }

    def _forget_gone(self) -> None:
        self._clients = {
            name: client for name, client in self._clients.items() if client() is not None
        }

    def collect(self) -> Iterator[Family]:
        with self._lock:
            self._forget_gone()
            clients = [(name, client()) for name, client in self._clients.items()]
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, client in clients:
            if client is not None:
                for metric, value in client.metrics().items():
                    family = _family(families, client.metrics_kind, metric)
                    family.add_metric([name], value)
        return iter(families.values())

    def describe(self) -> list[Family]:
        """Returns nothing, so that registering the collector reads no client."""
        return []


def _family(
    families: dict[str, CounterMetricFamily | GaugeMetricFamily], kind: ClientKind, metric: str
) -> CounterMetricFamily | GaugeMetricFamily:
    full_name = f"logbus_{kind}_{metric}"
    if full_name not in families:
        family = CounterMetricFamily if metric.endswith(_COUNTER) else GaugeMetricFamily
        families[full_name] = family(
            full_name, METRICS[kind].get(metric, metric), labels=["client"]
        )
    return families[full_name]
