"""Plans for giving up logs that are lost: made purely, shown, then handed to their brokers.

A log that is there and too short, such as one from a backup, is kept by default: what is given up
is its end. One of which nothing is there, or nothing that can be opened, is given up whole.

The log goes on far behind all that is known of it (see ``lost_ends``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_logbus.errors import InvalidRequestError, UnknownTopicError
from spark_logbus.lost_ends import go_on_at
from spark_logbus.model import TopicPartition

if TYPE_CHECKING:  # Spark tasks import this package and have no use for ZooKeeper's client
    from spark_logbus.coordination.payloads import PartitionState
    from spark_logbus.zookeeper import Session


@dataclass(frozen=True, slots=True)
class GiveUpRow:
    """One partition: its log had reached ``known_end`` at least, groups are at ``committed`` at
    most (None: none is anywhere), and it would go on at ``go_on_at``. What is there of it, up to
    ``kept_end``, stays readable; None: nothing does."""

    topic_partition: TopicPartition
    broker_id: int
    known_end: int
    committed: int | None
    go_on_at: int
    kept_end: int | None = None


@dataclass(frozen=True, slots=True)
class GiveUpPlan:
    """The changes that giving up would make; also the table that a dry run shows."""

    topic_id: str
    rows: tuple[GiveUpRow, ...]


def plan(
    topic: str,
    topic_id: str,
    states: Mapping[int, PartitionState],
    committed: Mapping[TopicPartition, int],
    *,
    only: Iterable[int] = (),
    keep: bool | None = None,
) -> GiveUpPlan:
    """The partitions that their brokers refuse: all, or those in ``only`` (pure).

    ``keep`` is whether what is there of the logs stays: None keeps it where there is something.
    Raises InvalidRequestError when one of them, or none at all, is refused, and where something is
    to be kept and nothing is there.
    """
    refused = {number for number, state in states.items() if state.refused is not None}
    wanted = sorted(set(only) or refused)
    served = [str(TopicPartition(topic, number)) for number in wanted if number not in refused]
    if served or not wanted:
        what = ", ".join(served) or f"Of topic {topic} no partition"
        raise InvalidRequestError(
            f"{what} is refused by its broker. Only a log that a running broker has looked for and "
            "not found whole can be given up; if that broker is not running, start it first."
        )
    empty = [str(TopicPartition(topic, each)) for each in wanted if states[each].kept_end is None]
    if keep and empty:
        raise InvalidRequestError(
            f"Of {', '.join(empty)} there is no log that could be kept: it is missing, has no "
            "record, or could not be opened. Put the directory back and restart the broker, or "
            "give it up without keeping anything."
        )
    rows = []
    for number in wanted:
        topic_partition, state = TopicPartition(topic, number), states[number]
        known = max(state.end or 0, committed.get(topic_partition, 0))
        asked = state.go_on_at  # before, and not followed yet
        start = asked if asked is not None and asked >= known else go_on_at(known)
        rows.append(
            GiveUpRow(
                topic_partition,
                state.leader,
                state.end or 0,
                committed.get(topic_partition),
                start,
                None if keep is False else state.kept_end,
            )
        )
    return GiveUpPlan(topic_id, tuple(rows))


def prepare(
    topic: str,
    session: Session,
    *,
    only: Iterable[int] = (),
    keep: bool | None = None,
) -> GiveUpPlan:
    """Plans by what ZooKeeper knows. Raises UnknownTopicError, InvalidRequestError."""
    from spark_logbus.coordination.cluster.partition_states import PartitionStates
    from spark_logbus.coordination.cluster.topics import TopicRegistry
    from spark_logbus.coordination.groups.offsets import GroupOffsets

    record = TopicRegistry(session).get(topic)
    if record is None:
        raise UnknownTopicError(f"There is no topic {topic!r}; check its name.")
    partitions = list(only)
    unknown = sorted(set(partitions) - set(record.partitions))
    if unknown:
        raise UnknownTopicError(
            f"Topic {topic} has the partitions 0 to {len(record.partitions) - 1}, "
            f"not {', '.join(map(str, unknown))}."
        )
    committed: dict[TopicPartition, int] = {}
    topic_partitions = [TopicPartition(topic, number) for number in record.partitions]
    groups, states = GroupOffsets(session), PartitionStates(session)
    for group in groups.groups():
        for topic_partition, at in groups.committed(group, topic_partitions).items():
            if at.is_of(record.topic_id):
                committed[topic_partition] = max(at.offset, committed.get(topic_partition, 0))
    return plan(topic, record.topic_id, states.states(topic), committed, only=partitions, keep=keep)


def apply(made: GiveUpPlan, session: Session) -> None:
    """Hands the plan to the brokers, which follow within seconds. Raises UnknownTopicError,
    InvalidRequestError."""
    from spark_logbus.coordination.cluster.partition_states import PartitionStates

    states = PartitionStates(session)
    for row in made.rows:
        states.give_up(
            row.topic_partition,
            topic_id=made.topic_id,
            go_on_at=row.go_on_at,
            keep=row.kept_end is not None,
        )


def is_followed(row: GiveUpRow, states: Mapping[int, PartitionState]) -> bool:
    """True if the broker serves the partition again (pure)."""
    state = states.get(row.topic_partition.partition)
    return state is not None and state.refused is None
