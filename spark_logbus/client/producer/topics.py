"""A producer's topics: their partitions' queues and limits, made at the first send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.metadata import KnownTopic
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.batches import PartitionQueue, overhead_bytes
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.client.producer.sequences import Sequences
from spark_logbus.config import choice
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.topic_schemas import VALUE_ENCODING

if TYPE_CHECKING:
    from spark_logbus.client.producer.values import ValueWriter
    from spark_logbus.client.schemas.topic import WriterSchema

_DEFAULT_LIMIT = 16 << 20  # of brokers that name none


@dataclass(slots=True)
class Route:
    """One topic. ``max_record_batch_bytes`` is the smaller of the topic's and the brokers'.

    ``queues`` grows when the topic is given more partitions."""

    topic: str
    queues: list[PartitionQueue]
    keyless: RoundRobin
    max_record_batch_bytes: int

    values: ValueWriter | None = None
    """Of a topic with a schema."""


class ProducerTopics:
    """The topics that one producer has met. Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        *,
        stage_id: int | None = None,
        schemas: Mapping[str, WriterSchema | None] | None = None,
    ) -> None:
        self._stage_id = stage_id
        self._schemas = schemas or {}
        self._cluster = cluster
        self._config = config
        self._lock = threading.Lock()
        self._topics: dict[str, Route] = {}
        self.known_topic = self._topics.get  # the fast path: one dict lookup
        self._refuse: Callable[[], None] = _no_objection

    @property
    def names(self) -> list[str]:
        """The topics that were met."""
        return list(self._topics)

    def refuse(self, refuse: Callable[[], None]) -> None:
        """Let every look-up of a topic call ``refuse``, which raises."""
        self._refuse = refuse
        self._topics = {}
        self.known_topic = self._topics.get

    def open_topic(self, topic: str) -> Route:
        """The topic's route; asks for its metadata, for at most ``max_block_ms``."""
        self._refuse()
        known = self._look_up(
            f"Looking up topic {topic}", lambda deadline: self._cluster.topic(topic, deadline)
        )
        values = self._value_writer(known)
        limit = self._cluster.pool.max_record_batch_bytes or _DEFAULT_LIMIT
        limit = min(limit, known.max_record_batch_bytes or limit)
        batch_limit = max(1, min(self._config.batch_bytes, limit - overhead_bytes(values)))
        keyless = RoundRobin(len(known.leaders))
        queues: list[PartitionQueue] = []
        for number in range(len(known.leaders)):
            topic_partition = TopicPartition(topic, number)
            queues.append(self._queue(topic_partition, keyless, batch_limit, queues))
        with self._lock:
            made = Route(topic, queues, keyless, limit, values)
            return self._topics.setdefault(topic, made)

    def require_partition(self, route: Route, partition: int) -> None:
        """Raise UnknownTopicError unless the topic has that partition.

        One that is not known may have been added: the brokers are asked before it is refused, for
        at most ``max_block_ms``. Raises what fails meanwhile.
        """
        if not 0 <= partition < len(route.queues):
            topic_partition = TopicPartition(route.topic, partition)
            known = self._look_up(
                f"Looking up {topic_partition}",
                lambda deadline: self._cluster.topic_with(topic_partition, deadline),
            )
            self._grow(route, len(known.leaders))

    def _look_up(self, what: str, ask: Callable[[Deadline], KnownTopic]) -> KnownTopic:
        deadline = self._cluster.deadline_ms(max(self._config.max_block_ms, 1))
        return self._cluster.retrying(what, ask, deadline=deadline)

    def _value_writer(self, known: KnownTopic) -> ValueWriter | None:
        """Of a topic that has a schema. Raises CoordinationError."""
        if VALUE_ENCODING not in known.config:
            return None
        # Imported here: most producers need none of it.
        from spark_logbus.client.producer.values import ValueWriter, look_up_writer_schema

        if known.name in self._schemas:
            schema = self._schemas[known.name]
        else:
            schema = look_up_writer_schema(self._cluster, known.config)
        return None if schema is None else ValueWriter(schema)

    def _queue(
        self,
        topic_partition: TopicPartition,
        keyless: RoundRobin,
        batch_limit: int,
        siblings: list[PartitionQueue],
    ) -> PartitionQueue:
        numbered = (
            self._config.idempotent and choice(Acks, self._config.acks, key="acks") is not Acks.NONE
        )
        numbered = numbered or self._stage_id is not None
        sequences = Sequences(self._stage_id) if numbered else None
        return PartitionQueue(
            topic_partition,
            keyless,
            batch_limit=batch_limit,
            sequences=sequences,
            siblings=siblings,
        )

    def refresh_partitions(self, route: Route) -> None:
        """Take up partitions that the topic was given since, as far as the cluster has learned of
        them: the sender's thread has it ask again after ``metadata_max_age_ms``. Asks nobody, for
        whoever sends must not wait for a broker that may hang."""
        partitions = self._cluster.cached_partition_count(route.topic)
        if partitions > len(route.queues):
            self._grow(route, partitions)

    def _grow(self, route: Route, partitions: int) -> None:
        with self._lock:
            batch_limit = route.queues[0].batch_limit
            for number in range(len(route.queues), partitions):
                topic_partition = TopicPartition(route.topic, number)
                route.queues.append(
                    self._queue(topic_partition, route.keyless, batch_limit, route.queues)
                )
            route.keyless.partitions = len(route.queues)


def _no_objection() -> None:
    """Refuses nothing: the check where nobody has given one."""
