"""The broker's one view of the cluster: brokers, topics and leaders, as ZooKeeper has them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import LogbusError
from spark_logbus.model import BrokerAddress
from spark_logbus.retry import Backoff
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState

logger = logging.getLogger(__name__)

_REFRESH_S = 5.0
# A topic has no leaders at first, so one that is new is read again soon; one whose broker is away
# would be so for long, so soon becomes later.
_INCOMPLETE = Backoff(first_ms=100, max_ms=5_000)
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


class MetadataCache:
    """Brokers, topics and leaders, in memory. Thread-safe.

    Brokers and topics are watched, leaders are read after each change and every few seconds; in
    between only those that are not known yet, as of a new topic.
    ``topics_changed`` is called with each new image of the topics: by ``start``, then on the
    session's worker; it must not block.

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
    ) -> None:
        self._session = session
        self._broker_registry = brokers
        self._topic_registry = topics
        self._partition_states = states
        self._notify = topics_changed
        self._brokers: list[BrokerAddress] = []
        self._topics: Mapping[str, TopicRecord] = {}
        self._states: dict[str, tuple[str, dict[int, PartitionState]]] = {}
        self._changed = False  # since the leaders were read
        self._tries = 0  # since the last change, as long as leaders are missing
        self._read_at, self._anew = 0.0, True
        self._thread = Periodic(
            "metadata-cache",
            self._refresh_leaders,
            pause_s=_REFRESH_S,
            failure="The leaders could not be read from ZooKeeper.",
        )

    def start(self) -> None:
        """Read brokers and topics, and watch them from then on. Raises CoordinationError."""
        self._broker_registry.watch(self._brokers_changed)
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
        topic_id, states = self._states.get(record.name, ("", {}))
        state = states.get(partition)
        if topic_id != record.topic_id or state is None:
            return record.partitions[partition][0], UNKNOWN_EPOCH
        return state.leader, state.leader_epoch

    def _brokers_changed(self, brokers: list[BrokerAddress]) -> None:
        self._brokers = brokers
        self._refresh_soon()

    def _topics_changed(self, topics: dict[str, TopicRecord]) -> None:
        self._topics = topics
        self._refresh_soon()
        self._notify(TopicsImage(topics, self._session.session_id))

    def _refresh_soon(self) -> None:
        self._changed = True
        self._thread.wake()

    def _refresh_leaders(self) -> float:
        """Read the leaders after every change, and now and then: they have no watch."""
        if self._changed:
            self._changed = False  # before the topics are looked at
            self._tries, self._anew = 1, True
        if self._session.state is SessionState.CONNECTED:
            now = self._session.clock.monotonic()
            anew = self._anew or now - self._read_at >= _REFRESH_S
            try:
                self._states = {
                    record.name: self._states_of(record, anew=anew)
                    for record in self._topics.values()
                }
                if anew:
                    self._read_at, self._anew = now, False
            except LogbusError as error:
                logger.warning("The leaders could not be read from ZooKeeper: %s", error)
            except Exception:  # looked for again as after any failure
                logger.exception("The leaders could not be read from ZooKeeper.")
            self._tries = 0 if self._is_complete() else self._tries + 1
        return _INCOMPLETE.pause_s(self._tries) if self._tries else _REFRESH_S

    def _states_of(
        self, record: TopicRecord, *, anew: bool
    ) -> tuple[str, dict[int, PartitionState]]:
        topic_id, before = self._states.get(record.name, (record.topic_id, {}))
        known = {} if anew or topic_id != record.topic_id else before
        if known and len(known) == len(record.partitions):
            return record.topic_id, known
        try:
            found = self._partition_states.states(record.name, besides=known)
        except CorruptNodeError:  # was reported; what was known before is as good as anything
            return topic_id, before
        return record.topic_id, {**known, **found}

    def _is_complete(self) -> bool:
        topics = self._topics.values()
        return all(len(self._states.get(t.name, ("", {}))[1]) == len(t.partitions) for t in topics)
