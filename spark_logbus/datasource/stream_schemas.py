"""The schemas of a stream's topics, from one micro-batch to the next.

The planner does not see records, so it asks the registry for all schemas of a topic once the ends
of a micro-batch are known: whatever stands in front of them was registered by then. A schema that
is known stays so without ZooKeeper. While that does not answer, records behind the ends of the last
answer may have schemas that are not known; these records are looked at, and where they have none,
the stream goes on. Else it waits: nothing is read without its schema.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.datasource.value_schemas import ReadSchemas, has_schemas
from spark_logbus.errors import CoordinationError, CorruptRecordBatchError, LogbusError
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Snapshot
from spark_logbus.spark.driver import DriverConnections

logger = logging.getLogger(__name__)


class StreamSchemas:
    """Finds them for one run of one query. Not thread-safe."""

    def __init__(self, schemas: ReadSchemas, connections: DriverConnections) -> None:
        self._schemas = schemas
        self._connections = connections
        # All schemas of the records before these ends are known; by topic id, too.
        self._certain: dict[tuple[str, TopicPartition], int] = {}
        self._does_without = False
        self._looked_at: tuple[list[OffsetRange], set[int]] = ([], set())

    def find(self, seen: Snapshot, ranges: Sequence[OffsetRange]) -> dict[str, ValueSchemas]:
        """Returns the schemas of records of ``ranges``, which lie before the ends of ``seen``.

        Raises InvalidOptionError for topics that do not have the columns, and CoordinationError
        where ZooKeeper does not answer and has to.
        """
        if not has_schemas(seen.configs):
            return self._schemas.find(seen, self._connections.registry)
        known = self._schemas.known(seen, {each.topic_partition.topic for each in ranges})
        try:
            if known is not None:
                self._connections.require_zookeeper()
            found = self._schemas.find(seen, self._connections.registry)
        except CoordinationError as error:
            if known is None or not error.retriable:
                raise
            self._require_known(known, seen, ranges, error)
            if not self._does_without:
                self._does_without = True
                logger.warning("The schemas that are known will do for now: %s", error)
            return known
        self._does_without = False
        self._certain = {
            (seen.topic_ids[topic_partition.topic], topic_partition): span.end
            for topic_partition, span in seen.spans.items()
        }
        return found

    def _require_known(
        self,
        known: Mapping[str, ValueSchemas],
        seen: Snapshot,
        ranges: Sequence[OffsetRange],
        problem: CoordinationError,
    ) -> None:
        """Raises CoordinationError if records of ``ranges`` have other schemas, or may have."""
        uncertain = []
        for each in ranges:
            if each.topic_partition.topic not in known:
                continue  # it is gone, which the tasks find
            place = seen.topic_ids[each.topic_partition.topic], each.topic_partition
            start = max(each.start, self._certain.get(place, 0))
            if start < each.end:
                uncertain.append(OffsetRange(each.topic_partition, start, each.end))
        if uncertain != self._looked_at[0] or not self._looked_at[1]:
            self._looked_at = (uncertain, self._unknown(known, seen, uncertain, problem))
        unknown = self._looked_at[1]
        if unknown:
            ids = ", ".join(map(str, sorted(unknown)[:10]))
            raise CoordinationError(
                f"Records of {', '.join(map(str, uncertain[:10]))} have the schema ids {ids}, "
                f"which are not known yet, and ZooKeeper, which has the schemas, does not answer: "
                f"{problem}"
            ) from problem

    def _unknown(
        self,
        known: Mapping[str, ValueSchemas],
        seen: Snapshot,
        ranges: Sequence[OffsetRange],
        problem: CoordinationError,
    ) -> set[int]:
        # Imported here: as a rule nobody needs it.
        from spark_logbus.client.fetch.schema_ids import schema_ids

        unknown: set[int] = set()
        for each in ranges:
            topic = each.topic_partition.topic
            writers = known[topic].writers
            try:
                for found in schema_ids(
                    self._connections.cluster(), each, topic_id=seen.topic_ids[topic]
                ):
                    if found not in writers:
                        unknown.add(found)
            except CorruptRecordBatchError:
                continue  # nobody reads on from there, and what stands before was looked at
            except LogbusError as error:
                if error.retriable:
                    raise
                raise CoordinationError(f"{problem} {error}") from error
        return unknown
