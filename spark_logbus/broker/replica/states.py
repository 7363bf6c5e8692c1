"""States of the partitions that a broker has to do with, and the table of what changes them.

A partition is in one state. What happens to it is an event, and the table says which state follows;
what is not in the table cannot happen.

A topic may be deleted and created anew under its name, while the disk does not let go of the log of
the one before. So a partition can be led or refused although it was to be removed: the log of the
topic before has been set aside by then.

A partition is followed that moves here, until it is led here, or that is assigned here and led by
another broker. One that moved away is another broker's until nothing of it is left here.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import PartitionOfflineError, UnknownTopicError
from spark_logbus.log import PartitionLog
from spark_logbus.model import TopicPartition


class ReplicaState(enum.Enum):
    """State of a partition on a broker that it is, was or will be assigned to."""

    #: The broker has not taken it yet, or nothing is left of it.
    ABSENT = "absent"
    #: It is served.
    LEADING = "leading"
    #: It is not served, as its log is missing or too short, until that log is given up.
    REFUSED = "refused"
    #: It is not served, and its log is left alone: another broker has or had the id of this one, or
    #: ZooKeeper may have lost the topic.
    HELD = "held"
    #: Its topic was deleted, and its log is to go as soon as the disk lets it.
    REMOVING = "removing"
    #: Another broker leads it, and its log here is to be as that one's; it is not served.
    FOLLOWING = "following"
    #: It is another broker's: its log here, which is not served, is to be set aside or deleted.
    MOVED = "moved"


class ReplicaEvent(enum.Enum):
    """Event that may change the state of a partition."""

    #: Its leadership stands in ZooKeeper.
    LEAD = "lead"
    #: Its log was found to be missing or too short.
    REFUSE = "refuse"
    #: Another broker has the id of this one.
    RESIGN = "resign"
    #: Another broker, which had the id for a while, has taken the log further.
    OVERTAKE = "overtake"
    #: Its topic is gone from ZooKeeper, and may not have been deleted.
    KEEP = "keep"
    #: Its topic was deleted.
    DELETE = "delete"
    #: Its log was removed.
    REMOVE = "remove"
    #: The topic whose log was to be removed is in ZooKeeper again.
    RETURN = "return"
    #: It moves here, or another broker has taken its lead; its log is there to be copied into.
    FOLLOW = "follow"
    #: It is assigned to another broker: it has moved there, or does not move here any more.
    HAND_OVER = "hand over"


_ABSENT, _LEADING, _REFUSED, _HELD, _REMOVING, _FOLLOWING, _MOVED = ReplicaState
(_LEAD, _REFUSE, _RESIGN, _OVERTAKE, _KEEP, _DELETE, _REMOVE, _RETURN, _FOLLOW,
 _HAND_OVER) = ReplicaEvent  # fmt: skip

# Where a log is to be removed, one that is to be kept is of a later topic, and not there yet.
TRANSITIONS: Final[Mapping[ReplicaState, Mapping[ReplicaEvent, ReplicaState]]] = {
    _ABSENT: {
        _LEAD: _LEADING, _REFUSE: _REFUSED, _RESIGN: _ABSENT, _KEEP: _HELD, _DELETE: _REMOVING,
        _FOLLOW: _FOLLOWING, _HAND_OVER: _MOVED,
    },
    _LEADING: {
        _LEAD: _LEADING, _REFUSE: _REFUSED, _RESIGN: _HELD, _KEEP: _HELD, _DELETE: _REMOVING,
        _OVERTAKE: _HELD, _HAND_OVER: _MOVED, _FOLLOW: _FOLLOWING,
    },
    _REFUSED: {
        _LEAD: _LEADING, _REFUSE: _REFUSED, _RESIGN: _REFUSED, _KEEP: _HELD, _DELETE: _REMOVING,
        _HAND_OVER: _MOVED, _FOLLOW: _FOLLOWING,
    },
    _HELD: {
        _LEAD: _LEADING, _REFUSE: _REFUSED, _RESIGN: _HELD, _KEEP: _HELD, _DELETE: _REMOVING,
        _FOLLOW: _FOLLOWING, _HAND_OVER: _MOVED,
    },
    _REMOVING: {
        _LEAD: _LEADING, _REFUSE: _REFUSED, _RESIGN: _REMOVING, _KEEP: _REMOVING,
        _DELETE: _REMOVING, _REMOVE: _ABSENT, _RETURN: _ABSENT, _FOLLOW: _FOLLOWING,
    },
    _FOLLOWING: {
        _LEAD: _LEADING, _REFUSE: _REFUSED, _RESIGN: _HELD, _KEEP: _HELD, _DELETE: _REMOVING,
        _FOLLOW: _FOLLOWING, _HAND_OVER: _MOVED,
    },
    _MOVED: {
        _LEAD: _LEADING, _REFUSE: _REFUSED, _RESIGN: _MOVED, _KEEP: _HELD, _DELETE: _REMOVING,
        _REMOVE: _ABSENT, _HAND_OVER: _MOVED, _FOLLOW: _FOLLOWING,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeaderPartition:
    """A partition that this broker leads, under a leader epoch."""

    log: PartitionLog
    leader_epoch: int

    def of_topic(self, topic_id: str | None) -> LeaderPartition:
        """Returns it if it is of the topic of that id. Raises UnknownTopicError if it is not."""
        if topic_id not in (None, self.log.topic_id):
            topic = self.log.topic_partition.topic
            raise UnknownTopicError(
                f"The topic {topic} that is meant has the id {topic_id}, the one of that name here "
                f"has the id {self.log.topic_id}."
            )
        return self


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition in its state.

    ``topic_id`` is of the topic that was refused, is to be removed, or moves or has moved.
    ``leader`` is what is led, or what was led last; ``error`` is the reason why a partition is
    refused.
    """

    state: ReplicaState
    topic_id: str = ""
    leader: LeaderPartition | None = None
    error: PartitionOfflineError | None = None


_NO_REPLICA: Final = Replica(_ABSENT)


class Replicas:
    """The partitions that a broker has to do with, by state. Thread-safe; reads take no lock.

    Changes are made under ``lock``, which a caller holds if its change depends on what it read.
    ``ended`` is called, with the lock held, with what is led no more; it must not block.
    """

    def __init__(self, ended: Callable[[LeaderPartition], None] = lambda _: None) -> None:
        self._ended = ended
        self.lock = threading.RLock()
        #: Stands for the time since this broker has its id; None while another one has it.
        self.term: object | None = object()
        self._replicas: dict[TopicPartition, Replica] = {}

    def get(self, topic_partition: TopicPartition) -> Replica:
        return self._replicas.get(topic_partition, _NO_REPLICA)

    def leader(self, topic_partition: TopicPartition) -> LeaderPartition | None:
        """Returns the partition as it is led here, None if it is not."""
        replica = self._replicas.get(topic_partition)
        return replica.leader if replica is not None and replica.state is _LEADING else None

    def leading(self) -> dict[TopicPartition, LeaderPartition]:
        """Returns all that are led here, as of now."""
        return {
            topic_partition: replica.leader
            for topic_partition, replica in self.in_state(_LEADING).items()
            if replica.leader is not None
        }

    def in_state(self, state: ReplicaState) -> dict[TopicPartition, Replica]:
        """Returns the partitions that are in ``state``, as of now."""
        return {
            topic_partition: replica
            for topic_partition, replica in self._replicas.copy().items()
            if replica.state is state
        }

    def change(
        self,
        topic_partition: TopicPartition,
        event: ReplicaEvent,
        *,
        topic_id: str | None = None,
        leader: LeaderPartition | None = None,
        error: PartitionOfflineError | None = None,
    ) -> None:
        """Brings a partition into the state that follows; what is not given stays as it was."""
        with self.lock:
            now = self.get(topic_partition)
            state = TRANSITIONS[now.state][event]
            if state is _ABSENT:
                self._replicas.pop(topic_partition, None)
            elif state is not now.state or event not in (_RESIGN, _KEEP):  # else nothing changes
                self._replicas[topic_partition] = Replica(
                    state,
                    topic_id=now.topic_id if topic_id is None else topic_id,
                    leader=None if state is _REMOVING else leader or now.leader,
                    error=error if state is _REFUSED else None,
                )
            if now.state is _LEADING and state is not _LEADING and now.leader is not None:
                self._ended(now.leader)

    def begin_term(self) -> None:
        """Notes that this broker has its id again."""
        self.term = object()

    def resign(self) -> list[TopicPartition]:
        """Leads nothing any more, as the id is another broker's; returns what was led."""
        with self.lock:
            self.term = None
            led = list(self.in_state(_LEADING))
            for topic_partition in self._replicas.copy():
                self.change(topic_partition, _RESIGN)
        return led
