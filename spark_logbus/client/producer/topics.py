"""A producer's topics: their queues, limits and schemas, found at the first send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.metadata import KnownTopic
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.client.producer.plain_writer import PLAIN_WRITER, PlainWriter
from spark_logbus.client.producer.sequences import Sequences
from spark_logbus.client.producer.topic_queues import TopicQueues
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.topic_schemas import VALUE_ENCODING

if TYPE_CHECKING:
    from spark_logbus.client.schemas.topic import WriterSchema

_DEFAULT_LIMIT = 16 << 20  # of brokers that name none


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
        self._topics: dict[str, TopicQueues] = {}
        self.known_topic = self._topics.get  # the fast path: one dict lookup

    @property
    def names(self) -> list[str]:
        """Names of the topics that were met."""
        return list(self._topics)

    def open_topic(self, topic: str) -> TopicQueues:
        """Returns the topic's queues; asks for its metadata, for at most ``max_block_ms``."""
        known = self._look_up(
            f"Looking up topic {topic}", lambda deadline: self._cluster.topic(topic, deadline)
        )
        writer = self._writer(known)
        limit = self._cluster.pool.max_record_batch_bytes or _DEFAULT_LIMIT
        limit = min(limit, known.max_record_batch_bytes or limit)
        made = TopicQueues(
            topic,
            RoundRobin(len(known.leaders)),
            batch_limit=max(1, min(self._config.batch_bytes, limit - writer.overhead_bytes)),
            max_record_batch_bytes=limit,
            writer=writer,
            new_sequences=self._new_sequences,
        )
        with self._lock:
            return self._topics.setdefault(topic, made)

    def require_partition(self, topic_queues: TopicQueues, partition: int) -> None:
        """Raises UnknownTopicError unless the topic has that partition.

        One that is not known may have been added: the brokers are asked before it is refused, for
        at most ``max_block_ms``. Raises what fails meanwhile.
        """
        if not 0 <= partition < len(topic_queues.queues):
            topic_partition = TopicPartition(topic_queues.topic, partition)
            known = self._look_up(
                f"Looking up {topic_partition}",
                lambda deadline: self._cluster.topic_with(topic_partition, deadline),
            )
            self._grow(topic_queues, len(known.leaders))

    def _look_up(self, what: str, ask: Callable[[Deadline], KnownTopic]) -> KnownTopic:
        deadline = self._cluster.deadline_ms(max(self._config.max_block_ms, 1))
        return self._cluster.retrying(what, ask, deadline=deadline)

    def _writer(self, known: KnownTopic) -> PlainWriter:
        """Returns the writer of the topic's values. Raises CoordinationError."""
        if VALUE_ENCODING not in known.config:
            return PLAIN_WRITER
        # Imported here: most producers need none of it.
        from spark_logbus.client.producer.values import ValueWriter, look_up_writer_schema

        if known.name in self._schemas:
            schema = self._schemas[known.name]
        else:
            schema = look_up_writer_schema(self._cluster, known.config)
        return PLAIN_WRITER if schema is None else ValueWriter(schema)

    def _new_sequences(self) -> Sequences | None:
        """Returns the count of a new partition; None where record batches are not numbered."""
        numbered = self._config.idempotent and self._config.acks is not Acks.NONE
        return Sequences(self._stage_id) if numbered or self._stage_id is not None else None

    def refresh_partitions(self, topic_queues: TopicQueues) -> None:
        """Takes up partitions that the topic was given since, as far as the cluster has learned of
        them: the sender's thread has it ask again after ``metadata_max_age_ms``. Asks nobody, for
        whoever sends must not wait for a broker that may hang."""
        partitions = self._cluster.cached_partition_count(topic_queues.topic)
        if partitions > len(topic_queues.queues):
            self._grow(topic_queues, partitions)

    def _grow(self, topic_queues: TopicQueues, partitions: int) -> None:
        with self._lock:
            topic_queues.grow(partitions)
