"""The readers of values of the topics that a consumer meets, for those that have a schema.

A topic is read under one version of its schema from when it is met, so that the columns stay the
same. The schemas that its values were written with are looked up then, and those that are met later
when they are: what is known needs no ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.topic_identity import recreated
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.client.fetch.columns import take_batch
from spark_logbus.client.fetch.plain_reader import PLAIN_READER, PlainReader
from spark_logbus.errors import UndecodableRecordError
from spark_logbus.model import OnUndecodable, TopicPartition
from spark_logbus.record.format import NO_END
from spark_logbus.record.run import RecordBatchRun
from spark_logbus.topic_schemas import VALUE_ENCODING

# So long an id that the registry did not have is not asked for again.
_UNKNOWN_S: Final = 5.0
_MAX_UNKNOWN: Final = 10_000  # ids; damaged values can name any


class ValueReaders:
    """Readers of one consumer's topics, by topic id. Not thread-safe."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._readers: dict[str, PlainReader] = {}

    @property
    def dropped(self) -> int:
        """Number of records that were left out, as their values do not decode."""
        return sum(reader.dropped for reader in list(self._readers.values()))

    def reader(self, topic: str, topic_id: str) -> PlainReader:
        """Returns the reader of a topic's values.

        Raises CoordinationError, InvalidRequestError where ZooKeeper's address is not known,
        UnknownSubjectError and UnknownVersionError.
        """
        try:
            return self._readers[topic_id]
        except KeyError:
            found = self._readers[topic_id] = self._look_up(topic, topic_id)
            return found

    def _look_up(self, topic: str, topic_id: str) -> PlainReader:
        deadline = self._cluster.deadline_ms(self._cluster.config.connect_timeout_ms)
        known = self._cluster.topic(topic, deadline)
        if known.topic_id != topic_id:
            raise recreated(topic, expected=topic_id, actual=known.topic_id)
        if VALUE_ENCODING not in known.config:
            return PLAIN_READER
        return look_up_reader(
            self._cluster,
            topic,
            known.config,
            version=self._config.schema_version,
            # So that what stands before such a record is handed out, and it is told by its offset.
            on_undecodable=OnUndecodable.DROP
            if self._config.on_undecodable == "drop"
            else OnUndecodable.KEEP,
        )


def take_decoded(
    topic_partition: TopicPartition, run: RecordBatchRun, values: PlainReader, *, start: int
) -> tuple[int, FetchedBatch | None]:
    """Takes records as ``take_batch`` does; the number is 0 for those in front of a value that does
    not decode, at which the next call then raises.

    Raises UndecodableRecordError, which names the offset, beside what ``take_batch`` does.
    """
    count, fetched = take_batch(topic_partition, run, start=start, end=NO_END, values=values)
    if fetched is None or "undecodable" not in fetched.arrow_batch.schema.names:
        return count, fetched
    told = fetched.arrow_batch.column("undecodable")
    records = fetched.arrow_batch.drop_columns("undecodable")
    row = len(told)
    if told.null_count < row:
        row = int(np.argmax(told.is_valid()))
        if row == 0:
            offset = fetched.base_offset
            raise UndecodableRecordError(
                f"The value of {topic_partition} at offset {offset} does not decode under its "
                f"schema: {told[0]['reason'].as_py()}. Go on behind it, from offset {offset + 1}, "
                "or have such records left out with on_undecodable."
            )
        count = 0
    return count, replace(fetched, arrow_batch=records.slice(0, row))


def look_up_reader(
    cluster: Cluster,
    topic: str,
    config: Mapping[str, str],
    *,
    version: int | None = None,
    on_undecodable: OnUndecodable = OnUndecodable.FAIL,
) -> PlainReader:
    """Returns a reader of a topic with that configuration, which finds schemas that come later as
    well. Raises as ``ValueReaders.reader`` does."""
    # Imported here: most consumers need none of it.
    from spark_logbus.client.fetch.values import ValueReader
    from spark_logbus.client.schemas.topic import find_value_schemas, opened_registry

    with opened_registry(cluster, client_name="consumer") as registry:
        schemas = find_value_schemas(registry, topic, config, version=version)
    if schemas is None:
        return PLAIN_READER
    return ValueReader(schemas, on_undecodable=on_undecodable, find_writer=_finder(cluster))


def _finder(cluster: Cluster) -> Callable[[int], str | None]:
    """Finds schemas by id, as JSON text; None for an id that the registry does not have."""
    unknown: dict[int, float] = {}

    def find(schema_id: int) -> str | None:
        import json

        from spark_logbus.client.schemas.topic import opened_registry
        from spark_logbus.schemas.errors import UnknownSchemaError

        now = cluster.clock.monotonic()
        if now < unknown.get(schema_id, 0.0):
            return None
        found: Any
        with opened_registry(cluster, client_name="consumer") as registry:
            try:
                found = registry.avro(schema_id)
            except UnknownSchemaError:
                if len(unknown) >= _MAX_UNKNOWN:
                    unknown.clear()
                unknown[schema_id] = now + _UNKNOWN_S
                return None
        return json.dumps(found)

    return find
