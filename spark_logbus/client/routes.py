"""Per topic: its partitions' queues and limits, made when a producer first meets the topic."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from spark_logbus.client.cluster import Cluster
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.partitioner import RoundRobin
from spark_logbus.client.queues import BATCH_OVERHEAD_BYTES, PartitionQueue
from spark_logbus.client.sequences import Sequences
from spark_logbus.errors import InvalidRequestError, UnknownTopicError
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.record.builder import Header

_DEFAULT_LIMIT = 16 << 20  # of brokers that name none


@dataclass(frozen=True, slots=True)
class Route:
    """One topic. ``max_record_batch_bytes`` is the smaller of the topic's and the brokers'."""

    topic: str
    queues: list[PartitionQueue]
    keyless: RoundRobin
    max_record_batch_bytes: int

    def queue(self, partition: int) -> PartitionQueue:
        if not 0 <= partition < len(self.queues):
            raise UnknownTopicError(
                f"Topic {self.topic} has the partitions 0 to {len(self.queues) - 1}, "
                f"not {partition}."
            )
        return self.queues[partition]


class Routes:
    """Thread-safe."""

    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._lock = threading.Lock()
        self._routes: dict[str, Route] = {}
        self.known = self._routes.get  # the fast path: one dict lookup

    def open(self, topic: str) -> Route:
        """The topic's route; asks for its metadata, for at most ``max_block_ms``."""
        deadline = self._cluster.deadline_ms(max(self._config.max_block_ms, 1))
        known = self._cluster.retrying(
            f"Looking up topic {topic}",
            lambda deadline: self._cluster.topic(topic, deadline),
            deadline=deadline,
        )
        limit = self._cluster.pool.max_record_batch_bytes or _DEFAULT_LIMIT
        limit = min(limit, known.max_record_batch_bytes or limit)
        batch_limit = max(1, min(self._config.batch_bytes, limit - BATCH_OVERHEAD_BYTES))
        keyless = RoundRobin(len(known.leaders))
        numbered = self._config.idempotent and self._config.acks is not Acks.NONE
        queues = [
            PartitionQueue(
                TopicPartition(topic, number),
                keyless,
                batch_limit=batch_limit,
                sequences=Sequences() if numbered else None,
            )
            for number in range(len(known.leaders))
        ]
        with self._lock:
            return self._routes.setdefault(topic, Route(topic, queues, keyless, limit))


def as_bytes(what: str, data: object) -> bytes:
    """``data`` as bytes. Text is refused: its encoding is the caller's choice."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidRequestError(
        f"A record's {what} must be bytes or None, got {type(data).__name__}; "
        "encode text with .encode()."
    )


def check_headers(headers: Sequence[Header]) -> list[Header]:
    checked: list[Header] = []
    for name, data in headers:
        if not isinstance(name, str):
            raise InvalidRequestError(f"A header's key must be text, got {name!r}.")
        checked.append((name, None if data is None else as_bytes("header value", data)))
    return checked
