"""States of the partitions that have several replicas, one of them on this broker, or moving to it.

Who leads such a partition changes without a change of its topic. So their states are read again
when ZooKeeper gives notice of it, and kept here.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from spark_logbus.broker.replica.assignments import Assignments
from spark_logbus.broker.replica.states import Replicas
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError

#: States as they were just read, by partition; None of one that was never led.
ReadStates = Mapping[TopicPartition, PartitionState | CorruptNodeError | None]


class KnownStates:
    """Reads states on one thread; ``changed`` and ``get`` are for all."""

    def __init__(
        self, assignments: Assignments, *, states: PartitionStates, replicas: Replicas
    ) -> None:
        self._assignments = assignments
        self._states = states
        self._replicas = replicas
        self._lock = threading.Lock()
        self._changed: set[str] = set()  # names of topics; under _lock
        self._known: dict[TopicPartition, tuple[str, PartitionState]] = {}  # with topic ids

    def changed(self, topics: Iterable[str]) -> None:
        """Has the states of these topics read again. It does not block."""
        with self._lock:
            self._changed.update(topics)

    def get(self, topic_partition: TopicPartition, topic_id: str) -> PartitionState | None:
        """Returns the state of a partition with several replicas, as it was last read."""
        known = self._known.get(topic_partition)
        return known[1] if known is not None and known[0] == topic_id else None

    def forget(self) -> None:
        """Has all read again."""
        self._known = {}

    def read(self, records: Collection[TopicRecord]) -> ReadStates:
        """Reads the states of partitions that are assigned here, or move here: those that are not
        led here and should be, perhaps, and those of which there is news. Raises
        CoordinationError."""
        with self._lock:
            changed, self._changed = self._changed, set()
        try:
            here = {
                topic_partition: record
                for record in records
                for topic_partition in self._assignments.electable_here(record)
            }
            for topic_partition in self._known.keys() - here.keys():
                del self._known[topic_partition]
            wanted = {
                topic_partition: record
                for topic_partition, record in here.items()
                if self._is_wanted(topic_partition, record, changed)
            }
            read = self._states.states_of(wanted)
        except BaseException:
            self.changed(changed)
            raise
        for topic_partition, state in read.items():
            record = wanted[topic_partition]
            if not self._assignments.is_sole(record, topic_partition.partition):
                self._keep(topic_partition, record.topic_id, state)
        return read

    def _is_wanted(
        self, topic_partition: TopicPartition, record: TopicRecord, changed: Collection[str]
    ) -> bool:
        led = self._replicas.leader(topic_partition)
        is_led = led is not None and led.log.topic_id == record.topic_id
        if self._assignments.is_sole(record, topic_partition.partition):
            return not is_led
        known = self.get(topic_partition, record.topic_id)
        return (
            record.name in changed
            or known is None
            or (not is_led and known.leader == self._assignments.broker_id)
        )

    def _keep(
        self,
        topic_partition: TopicPartition,
        topic_id: str,
        state: PartitionState | CorruptNodeError | None,
    ) -> None:
        if isinstance(state, PartitionState):
            self._known[topic_partition] = topic_id, state
        elif state is None:
            self._known.pop(topic_partition, None)
