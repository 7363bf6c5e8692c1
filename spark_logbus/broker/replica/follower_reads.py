"""Logs that follow, for consumers that are nearer to this broker than to the leader.

All below a follower's own high watermark is below its leader's, and stays whoever is elected. A
follower that is not in sync may lag by any time, so it refuses. It knows what ZooKeeper has told
it; so one that cannot be sure of its session refuses as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.replica.states import Replicas, ReplicaState
from spark_logbus.errors import NotLeaderError
from spark_logbus.log import LogDirectory, PartitionLog
from spark_logbus.model import TopicPartition


class FollowerReads:
    """Looks up logs that are followed here and in sync. Thread-safe.

    ``is_current`` tells if this broker is certain of its session. ``changed`` is called when a
    partition of which a log was looked up has more that can be read.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        replicas: Replicas,
        metadata_cache: MetadataCache,
        is_current: Callable[[], bool],
        changed: Callable[[TopicPartition], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._replicas = replicas
        self._metadata_cache = metadata_cache
        self._is_current = is_current
        self._changed = changed
        self._listened_to: weakref.WeakSet[PartitionLog] = weakref.WeakSet()

    def log_of(self, topic_partition: TopicPartition, topic_id: str | None) -> PartitionLog:
        """Returns the log of a partition that is followed here, of the topic of that id.

        Raises NotLeaderError where it is not followed, or may not be in sync.
        """
        log = self._logs.get(topic_partition)
        if (
            log is None
            or self._replicas.get(topic_partition).state is not ReplicaState.FOLLOWING
            or topic_id not in (None, log.topic_id)
            or not self._is_in_sync(topic_partition, log)
        ):
            raise NotLeaderError(
                f"Broker {self._broker_id} neither leads {topic_partition} nor follows it in sync; "
                "refresh the metadata and ask its leader."
            )
        if log not in self._listened_to:
            self._listened_to.add(log)
            log.add_listener(lambda: self._changed(topic_partition))
        return log

    def _is_in_sync(self, topic_partition: TopicPartition, log: PartitionLog) -> bool:
        record = self._metadata_cache.topics.get(topic_partition.topic)
        if record is None or record.topic_id != log.topic_id or not self._is_current():
            return False
        state = self._metadata_cache.state(record, topic_partition.partition)
        return (
            state is not None
            and self._broker_id in state.in_sync
            and state.replicas.get(self._broker_id, log.log_id) == log.log_id
        )
