"""Removes the logs of topics that were deleted, and keeps those of topics that were perhaps lost.

A topic's logs are removed only when it is seen to disappear within one ZooKeeper session. Logs of
topics that ZooKeeper does not know at the start, or no longer knows in a new session, are left
alone, also by retention and compaction: ZooKeeper may have lost them. So are those of a topic whose
node disappears when it could not be read: nobody deleted the topic, somebody cleared the node away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from spark_logbus.broker.metadata_cache import TopicsImage
from spark_logbus.broker.replica.states import ReplicaEvent, Replicas, ReplicaState
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.errors import LogbusError
from spark_logbus.log import LogDirectory
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)


class TopicRemoval:
    """Removes or keeps the logs of topics that are gone. Used by one thread."""

    def __init__(self, logs: LogDirectory, replicas: Replicas) -> None:
        self._logs = logs
        self._replicas = replicas

    def remove_or_keep(
        self,
        record: TopicRecord,
        partitions: Iterable[TopicPartition],
        *,
        before: TopicsImage,
        now: TopicsImage,
    ) -> bool:
        """Stops serving ``partitions`` of a topic that was in the image ``before`` and is not in
        the one of ``now``; has their logs removed if the topic was deleted. Returns whether it
        was."""
        kept = _why_kept(record, before, now)
        event = ReplicaEvent.DELETE if kept is None else ReplicaEvent.KEEP
        for topic_partition in partitions:
            self._replicas.change(topic_partition, event, topic_id=record.topic_id)
            if kept is not None:
                self._logs.pause_deletion(topic_partition, topic_id=record.topic_id)
                logger.warning(
                    "%s is gone from ZooKeeper %s. All its records are kept, whatever its "
                    "retention was, in case it was not deleted; remove the directory if it was.",
                    topic_partition,
                    kept,
                )
        return kept is None

    def remove_deleted(self, topics: Mapping[str, TopicRecord]) -> bool:
        """Removes the logs of deleted topics; returns False when the disk refuses one, for now."""
        to_remove: dict[TopicPartition, str] = {}
        for topic_partition, replica in self._replicas.in_state(ReplicaState.REMOVING).items():
            now = topics.get(topic_partition.topic)
            if now is not None and now.topic_id == replica.topic_id:  # of a ZooKeeper put back, say
                self._replicas.change(topic_partition, ReplicaEvent.RETURN)
            else:
                to_remove[topic_partition] = replica.topic_id
        if not to_remove:
            return True
        try:
            errors = self._logs.remove(to_remove)
        except LogbusError as error:
            errors = dict.fromkeys(to_remove, error)
        for topic_partition in to_remove:
            about = fields_about(topic_partition)
            if topic_partition in errors:
                logger.error(
                    "Cannot remove %s yet: %s",
                    topic_partition, errors[topic_partition], extra=about,
                )  # fmt: skip
            else:
                self._removed(topic_partition)
                logger.info("Removed %s: its topic was deleted.", topic_partition, extra=about)
        return not errors

    def _removed(self, topic_partition: TopicPartition) -> None:
        """Notes that the log of a deleted topic is gone, unless one of that name is followed by
        now."""
        with self._replicas.lock:
            if self._replicas.get(topic_partition).state is ReplicaState.REMOVING:
                self._replicas.change(topic_partition, ReplicaEvent.REMOVE)


def _why_kept(record: TopicRecord, before: TopicsImage, now: TopicsImage) -> str | None:
    """Returns the reason to keep the logs of a topic that is gone; None if it was deleted."""
    if now.session_id != before.session_id:
        return "since its session was lost"
    return None if record.readable else "where its topic's node could not be read any more"


def fields_about(topic_partition: TopicPartition) -> dict[str, object]:
    """Returns the fields of a line in the log that machines read."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}
