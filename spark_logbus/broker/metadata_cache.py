"""The broker's one view of the cluster: brokers, topics and leaders, as ZooKeeper has them."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import LogbusError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.retry import Backoff
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState

logger = logging.getLogger(__name__)

# Brokers of an earlier release give no notice of what they lead.
_ALL_AGAIN_S = 60.0
# For them, too: a topic has no leaders at first, so one that is new is read again soon; one whose
# broker is away would be so for long, so soon becomes later.
_INCOMPLETE = Backoff(first_ms=100, max_ms=30_000)
# Between two reads of leaders, so that changes one after the other come as one.
_LEAST_PAUSE_S = 0.02
_RETRY_S = 1.0
_UNREAD = "The leaders could not be read from ZooKeeper."
_LAST_KNOWN = "The leader that was last known of its partition counts."
UNKNOWN_EPOCH = -1


class TopicsImage(NamedTuple):
    """All topics, as they were in one session with ZooKeeper."""

    topics: Mapping[str, TopicRecord]
    session_id: int

    def removed_since(self, before: TopicsImage) -> list[TopicRecord]:
        """Topics of ``before`` that are not here, or only by name: as topics created anew."""
        return [
            record
            for name, record in before.topics.items()
            if (now := self.topics.get(name)) is None or now.topic_id != record.topic_id
        ]


class _TopicStates(NamedTuple):
    """The known states of one topic's partitions."""

    topic_id: str
    partitions: Mapping[int, PartitionState]

    def with_those(
        self, read: Mapping[int, PartitionState | CorruptNodeError | None]
    ) -> _TopicStates:
        """Returns these states with those that were ``read``; what cannot be read stays."""
        partitions = dict(self.partitions)
        for partition, state in read.items():
            if state is None:
                partitions.pop(partition, None)
            elif not isinstance(state, CorruptNodeError):
                partitions[partition] = state
        return _TopicStates(self.topic_id, partitions)


class MetadataCache:
    """Brokers, topics and leaders, in memory. Thread-safe.

    Brokers and topics are watched. So are leaders: ``StateWatch`` tells which topics have others,
    and those are read, many topics at once, and no more often than the reads take time. What gives
    no notice is found later: partitions without a leader are looked at again, and all of them now
    and then. ``topics_changed`` is called with each new image of the topics, ``states_changed``
    with names of topics whose leaders may be others, ``brokers_changed`` with the ids of those that
    live: by ``start``, then on the session's worker; they must not block.

    Reads go on while ZooKeeper is away. They may be a moment old; ``look_up`` and
    ``look_up_brokers`` ask ZooKeeper.
    """

    def __init__(
        self,
        session: Session,
        *,
        brokers: BrokerRegistry,
        topics: TopicRegistry,
        states: PartitionStates,
        topics_changed: Callable[[TopicsImage], None],
        states_changed: Callable[[Collection[str]], None] = lambda _: None,
        brokers_changed: Callable[[Collection[int]], None] = lambda _: None,
    ) -> None:
        self._session = session
        self._broker_registry = brokers
        self._topic_registry = topics
        self._partition_states = states
        self._notify = topics_changed
        self._notify_states = states_changed
        self._notify_brokers = brokers_changed
        self._brokers: list[BrokerAddress] = []
        self._topics: Mapping[str, TopicRecord] = {}
        self._states: dict[str, _TopicStates] = {}  # replaced as a whole
        self._lock = threading.Lock()
        self._changed: set[str] = set()  # topics whose leaders are to be read; under _lock
        self._topics_are_new = False
        self._tries = 0  # to find missing leaders, since a topic came or changed
        self._missing_due_at = self._all_read_at = -math.inf
        self._thread = Periodic(
            "metadata-cache",
            self._read_leaders,
            pause_s=_ALL_AGAIN_S,
            failure=_UNREAD,
        )

    def start(self) -> None:
        """Read brokers and topics, and watch them from then on. Raises CoordinationError."""
        self._broker_registry.watch(self._brokers_changed)
        self._state_watch = self._partition_states.watch(self._states_changed)
        self._topic_registry.watch(self._topics_changed)
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    @property
    def brokers(self) -> list[BrokerAddress]:
        return self._brokers

    @property
    def topics(self) -> Mapping[str, TopicRecord]:
        return self._topics

    def look_up(self, names: Sequence[str]) -> dict[str, TopicRecord]:
        """Asks ZooKeeper for the topics of ``names``, which may take as long as that does.

        Raises CoordinationError.
        """
        return self._topic_registry.some(names)

    def look_up_brokers(self) -> list[BrokerAddress]:
        """Asks ZooKeeper for the registered brokers, in the order of their ids. Raises
        CoordinationError."""
        return self._broker_registry.live()

    def leader(self, record: TopicRecord, partition: int) -> tuple[int, int]:
        """(broker id, leader epoch) of a partition; the assigned broker until one has led."""
        state = self.state(record, partition)
        if state is None:
            return record.partitions[partition][0], UNKNOWN_EPOCH
        return state.leader, state.leader_epoch

    def state(self, record: TopicRecord, partition: int) -> PartitionState | None:
        """The state of a partition of that very topic; None until a broker has led it."""
        known = self._states.get(record.name)
        if known is None or known.topic_id != record.topic_id:
            return None
        return known.partitions.get(partition)

    def standing_move(self, topic_partition: TopicPartition, topic_id: str) -> MovePayload | None:
        """Returns the move of a partition that stands, and has not failed; None if there is none,
        or none that is known here yet."""
        record = self._topics.get(topic_partition.topic)
        if record is None or record.topic_id != topic_id:
            return None
        move = record.moves.get(topic_partition.partition)
        return move if move is not None and not move.error else None

    def assigned_to(self, topic_partition: TopicPartition, topic_id: str) -> Sequence[int]:
        """Returns the brokers to which a partition of that very topic is assigned; none if it is
        not known here yet."""
        record = self._topics.get(topic_partition.topic)
        if record is None or record.topic_id != topic_id:
            return ()
        return record.partitions.get(topic_partition.partition, ())

    def _brokers_changed(self, brokers: list[BrokerAddress]) -> None:
        self._brokers = brokers
        self._notify_brokers([each.broker_id for each in brokers])

    def _topics_changed(self, topics: dict[str, TopicRecord]) -> None:
        self._topics = topics
        self._state_watch.follow(topics)
        self._topics_are_new = True
        self._thread.wake()
        self._notify(TopicsImage(topics, self._session.session_id))

    def _states_changed(self, names: set[str]) -> None:
        with self._lock:
            self._changed |= names
        self._thread.wake()
        self._notify_states(names)

    def _read_leaders(self) -> float:
        """Read the leaders that may be others now, those that are missing, or all of them."""
        if self._session.state is not SessionState.CONNECTED:
            return _RETRY_S  # or sooner: all topics count as changed when it is back
        began = self._session.clock.monotonic()
        if self._topics_are_new:
            self._topics_are_new = False  # before the topics are looked at
            self._tries, self._missing_due_at = 0, began
        everything = began - self._all_read_at >= _ALL_AGAIN_S
        looks = began >= self._missing_due_at
        with self._lock:
            changed, self._changed = self._changed, set()
        try:
            topics = self._topics
            anew = topics.keys() if everything else changed
            self._states = self._states_now(topics, anew, look_for_missing=looks)
        except Exception as error:
            with self._lock:
                self._changed |= changed
            if isinstance(error, LogbusError):
                logger.warning("%s %s", _UNREAD, error)
            else:
                logger.exception(_UNREAD)
            return _RETRY_S
        if everything:
            self._all_read_at = began
        if looks:
            self._tries += 1
            self._missing_due_at = began + _INCOMPLETE.pause_s(self._tries)
        now = self._session.clock.monotonic()
        self._thread.stopping.wait(max(_LEAST_PAUSE_S, now - began))
        due_at = self._all_read_at + _ALL_AGAIN_S
        if not self._is_complete():
            due_at = min(due_at, self._missing_due_at)
        return max(0.0, due_at - now)

    def _states_now(
        self, topics: Mapping[str, TopicRecord], anew: Collection[str], *, look_for_missing: bool
    ) -> dict[str, _TopicStates]:
        known = {
            name: states
            if (states := self._states.get(name)) and states.topic_id == record.topic_id
            else _TopicStates(record.topic_id, {})
            for name, record in topics.items()
        }
        wanted = [
            TopicPartition(name, partition)
            for name, record in topics.items()
            if look_for_missing or name in anew
            for partition in record.partitions
            if name in anew or partition not in known[name].partitions
        ]
        found: dict[str, dict[int, PartitionState | CorruptNodeError | None]] = {}
        for where, state in self._partition_states.states_of(wanted, instead=_LAST_KNOWN).items():
            found.setdefault(where.topic, {})[where.partition] = state
        return {**known, **{name: known[name].with_those(read) for name, read in found.items()}}

    def _is_complete(self) -> bool:
        states = self._states
        return all(
            (known := states.get(name)) is not None
            and len(known.partitions) == len(record.partitions)
            for name, record in self._topics.items()
        )
