"""States of mirrors, in the ZooKeeper of the cluster that they copy to.

A mirror copies in rounds. One write plans a round: which offsets of which topics it copies. It
stands until the round is known to be over; then the topics' nodes are written, and the plan is
taken away last. So whoever takes a mirror up finds either a plan, which may have been carried out
or not (the atomic writer of that round says so), or none; and to note the end of a round again
changes nothing.

Of each partition there are points: where in the target the first record is that has at least a
certain offset in the source. The last one says how far the copy has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import (
    MirroredTopicPayload,
    MirrorPayload,
    PlannedTopicPayload,
    decode,
    encode,
)
from spark_logbus.errors import InvalidRequestError, LockHeldError
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import Nodes, own_names
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import (
    MAX_TRANSACTION_BYTES,
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    in_parts,
)


class Point(NamedTuple):
    """The first record from offset ``source`` on is the first from ``target`` on in the target."""

    source: int
    target: int


class Audited(NamedTuple):
    """Round and time from which on a mirror counts for the audit. What was copied in the round of
    this ``number`` or later is counted; for records with a time of ``time_us`` or later that is
    all."""

    number: int
    time_us: int


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A topic of a mirror: ids here and there, its name in the target, and the points of each
    partition, of which there is one at least, in rising order. ``audited`` is None where the last
    round that copied of it was not counted."""

    topic_id: str
    target: str
    target_id: str
    points: Mapping[int, tuple[Point, ...]]
    audited: Audited | None = None


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """``ranges`` are of source topics with these ids; none when the round is over. ``token`` is the
    plan's own: what is written by another plan of that number has another one."""

    number: int = 0
    token: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    ranges: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class MirrorState:
    """State of a mirror in ZooKeeper; ``source`` is None before its first round."""

    source: str | None
    round: PlannedRound
    topics: Mapping[str, MirroredTopic]


NEW_MIRROR = MirrorState(None, PlannedRound(), {})


class Mirrors:
    """Reads and writes states of mirrors. Thread-safe; of one mirror only who holds its lock
    writes, and who does not gets LockHeldError when the other has written meanwhile."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._clock = session.clock

    def names(self) -> list[str]:
        return own_names(self._nodes, paths.MIRRORS, "mirror")

    def read(self, name: str) -> MirrorState:
        """The state as of now; that of a new mirror if there is none."""
        deadline = self._nodes.session.deadline()
        path = paths.mirror(name)
        self._nodes.sync(deadline=deadline)
        node = self._nodes.get(path, deadline=deadline)
        if node is None or not node.data:
            return NEW_MIRROR
        payload = decode(MirrorPayload, node.data, path=path)
        by_path = {
            paths.mirrored_topic(name, topic): topic
            for topic in own_names(self._nodes, path, "topic", deadline=deadline)
        }
        nodes = self._nodes.get_many(by_path, deadline=deadline)
        topics = {
            by_path[each]: _topic(decode(MirroredTopicPayload, found.data, path=each))
            for each, found in nodes.items()
            if found is not None
        }
        return MirrorState(payload.source, _round(payload), topics)

    def write(self, name: str, before: MirrorState, after: MirrorState) -> None:
        """Replace the state that was read, or written last: the topics that differ, and then the
        round. LockHeldError if the round is not as it was."""
        path = paths.mirror(name)
        description = f"write the state of the mirror {name}"
        changed = {
            paths.mirrored_topic(name, topic): encode(_topic_payload(entry))
            for topic, entry in after.topics.items()
            if before.topics.get(topic) != entry
        }
        gone = [paths.mirrored_topic(name, each) for each in before.topics.keys() - after.topics]
        payload = encode(self._payload(after))
        if len(payload) > MAX_TRANSACTION_BYTES - 10_000:
            raise InvalidRequestError(
                f"A round of the mirror {name!r} has {len(after.round.ranges)} partitions, which "
                "takes more than a node of ZooKeeper holds; mirror fewer topics under one name."
            )

        def attempt(deadline: Deadline) -> None:
            nodes = self._nodes.get_many([path, *changed, *gone], deadline=deadline)
            node = nodes[path]
            if node is not None and node.data == payload:
                return  # an attempt whose reply was lost has done it
            standing = PlannedRound()
            if node is not None and node.data:
                standing = _round(decode(MirrorPayload, node.data, path=path))
            if standing != before.round:
                raise LockHeldError(
                    f"The mirror {name!r} is in round {standing.number}, and was in round "
                    f"{before.round.number} when this process read it: another process runs the "
                    "same mirror. Stop one of them."
                )
            if node is None:
                self._nodes.ensure(path, deadline=deadline)
                node = self._nodes.get(path, deadline=deadline)
                assert node is not None, "only its lock's holder removes it"
            writes: list[Operation] = []
            for each, data in changed.items():
                there = nodes[each]
                if there is None:
                    writes.append(Create(each, data))
                elif there.data != data:
                    writes.append(SetData(each, data, there.version))
            writes += [Delete(each) for each in gone if nodes[each] is not None]
            writes.append(SetData(path, payload, node.version))
            for part in in_parts(writes, each_with=[Check(path, node.version)]):
                self._nodes.transact(description, part, deadline=deadline)

        self._nodes.repeat(description, attempt)

    def _payload(self, state: MirrorState) -> MirrorPayload:
        topics: dict[str, dict[int, tuple[int, int]]] = {}
        for each in state.round.ranges:
            of_topic = topics.setdefault(each.topic_partition.topic, {})
            of_topic[each.topic_partition.partition] = (each.start, each.end)
        return MirrorPayload(
            source=state.source or "",
            round=state.round.number,
            token=state.round.token,
            topics={
                topic: PlannedTopicPayload(id=state.round.topic_ids[topic], ranges=ranges)
                for topic, ranges in topics.items()
            },
            changed_us=self._clock.now_us(),
        )


def _round(payload: MirrorPayload) -> PlannedRound:
    return PlannedRound(
        payload.round,
        payload.token,
        {topic: planned.id for topic, planned in payload.topics.items()},
        tuple(
            OffsetRange(TopicPartition(topic, partition), start, end)
            for topic, planned in sorted(payload.topics.items())
            for partition, (start, end) in sorted(planned.ranges.items())
        ),
    )


def _topic(payload: MirroredTopicPayload) -> MirroredTopic:
    return MirroredTopic(
        payload.id,
        payload.target,
        payload.target_id,
        {
            partition: tuple(Point(*pair) for pair in pairs)
            for partition, pairs in payload.points.items()
        },
        None if payload.audited is None else Audited(*payload.audited),
    )


def _topic_payload(topic: MirroredTopic) -> MirroredTopicPayload:
    return MirroredTopicPayload(
        id=topic.topic_id,
        target=topic.target,
        target_id=topic.target_id,
        points={partition: list(points) for partition, points in sorted(topic.points.items())},
        audited=topic.audited,
    )
