"""States of partitions in ZooKeeper: who leads them, and how far their logs have come.

The state of a partition is a node below its topic, made when a broker first leads or refuses it. It
is written on the condition that it and the topic are as they were read. So two brokers never get
the same leader epoch, and a deleted topic gets no leader.

ZooKeeper has no watch on all nodes below one. So a transaction that changes states, but for how far
logs have come, also sets the empty data of their parent, on no condition: a broker watches one node
a topic (see ``state_watch``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.state_watch import StateWatch
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    Reached,
    TopicNode,
    decode_topic,
)
from spark_logbus.coordination.payloads import PartitionState, decode, encode
from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import LostReplies, Node, Nodes, name_of
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Create, Operation, SetData
from spark_logbus.zookeeper.unreadable import CorruptNodeError

# Partitions that one transaction makes led: with the longest names they take half of what it holds.
MAX_CLAIMS: Final = 250
_NOT_LED: Final = "Its partition is not led."
_LISTED_FROM: Final = 8  # partitions of a topic, to list what nodes it has before they are read

LeadResult = PartitionState | UnknownTopicError | NotLeaderError | CorruptNodeError


class PartitionStates:
    """Reads and changes the states of partitions. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._unreadable = session.unreadable

    def states(self, name: str) -> dict[int, PartitionState]:
        """Returns the states of the topic's partitions that were led at least once; none for an
        unknown topic. A state whose node is not in order is reported and left out. Raises
        CorruptNodeError when the topic's own node is not in order."""
        topic = self._nodes.get(paths.topic(name))
        if topic is None or decode_topic(name, topic) is None:
            return {}
        parent = paths.partitions(name)
        try:
            numbers = map(paths.number_of, self._nodes.children(parent) or [])
        except CorruptNodeError as failure:
            self._unreadable.met(parent, failure, instead="The topic's leaders are unknown.")
            raise
        self._unreadable.in_order(parent)
        by_path = {
            paths.partition_state(TopicPartition(name, number)): number
            for number in numbers
            if number is not None
        }
        nodes = self._nodes.get_many(by_path)
        found = {}
        for path, node in nodes.items():
            if node is None:
                continue
            try:
                found[by_path[path]] = decode(PartitionState, node.data, path=path)
            except CorruptNodeError as failure:
                self._unreadable.met(path, failure, instead="Its partition's leader is unknown.")
            else:
                self._unreadable.in_order(path)
        return found

    def states_of(
        self, topic_partitions: Iterable[TopicPartition], *, instead: str = _NOT_LED
    ) -> dict[TopicPartition, PartitionState | CorruptNodeError | None]:
        """The state of each partition: None of one that was never led, an error in the place of
        one that cannot be read, which is reported with what is done ``instead``. Few round trips,
        however many there are."""
        by_path = {
            paths.partition_state(topic_partition): topic_partition
            for topic_partition in topic_partitions
        }
        found: dict[TopicPartition, PartitionState | CorruptNodeError | None] = {}
        for path, node in self._state_nodes(
            by_path.values(), self._nodes.session.deadline()
        ).items():
            try:
                state = None if node is None else self._decode_state(node, path, instead=instead)
                found[by_path[path]] = state
            except CorruptNodeError as error:
                found[by_path[path]] = error
        return found

    def watch(self, changed: Callable[[set[str]], None]) -> StateWatch:
        """Call ``changed`` with names of topics whose states may be others now, of the topics that
        ``StateWatch.follow`` is told."""
        watch = StateWatch(self._nodes, changed)
        watch.start()
        return watch

    def lead(
        self,
        topic_partition: TopicPartition,
        *,
        broker_id: int,
        topic_id: str | None = None,
        end: int | None = None,
    ) -> PartitionState:
        """Make ``broker_id`` the leader of one partition: see ``lead_all``. Raises what that has in
        the place of a state."""
        claim = LeadershipClaim(topic_partition, topic_id, end)
        state = self.lead_all([claim], broker_id=broker_id)[topic_partition]
        if isinstance(state, LogbusError):
            raise state.again()
        return state

    def lead_all(
        self, claims: Sequence[LeadershipClaim], *, broker_id: int
    ) -> dict[TopicPartition, LeadResult]:
        """Make ``broker_id`` the leader of partitions, each in a new leader epoch, in one
        transaction; of up to ``MAX_CLAIMS``.

        An error in the place of a state costs its own partition only: UnknownTopicError, also when
        the topic of that name has another id; NotLeaderError when the partition is assigned to
        another broker, to which it was moved; CorruptNodeError, reported, when nobody can say in
        which epoch it is. Conditional on the states that were read and on the topics'
        nodes, so two brokers never get the same epoch and a deleted topic gets no leader.
        """
        assert 0 < len(claims) <= MAX_CLAIMS, "more would be too large for a transaction"
        description = f"make broker {broker_id} the leader of {claims[0].topic_partition}"
        if more := len(claims) - 1:
            description += f" and {more} more partitions"
        lost = LostReplies[dict[TopicPartition, PartitionState]]()

        def attempt(deadline: Deadline) -> dict[TopicPartition, LeadResult]:
            topics = self._topic_nodes({each.topic_partition.topic for each in claims}, deadline)
            nodes = self._state_nodes([each.topic_partition for each in claims], deadline)
            found: dict[TopicPartition, LeadResult] = {}
            new: dict[TopicPartition, PartitionState] = {}
            for claim in claims:
                topic_partition = claim.topic_partition
                path = paths.partition_state(topic_partition)
                node = nodes[path]
                try:
                    topics[topic_partition.topic].require_assigned(claim, broker_id)
                    now = None if node is None else self._decode_state(node, path)
                except (UnknownTopicError, NotLeaderError, CorruptNodeError) as error:
                    found[topic_partition] = error
                    continue
                if now is not None and any(made.get(topic_partition) == now for made in lost):
                    found[topic_partition] = now
                    continue
                new[topic_partition] = PartitionState(
                    leader=broker_id,
                    leader_epoch=max(claim.after_epoch, -1 if now is None else now.leader_epoch)
                    + 1,
                    in_sync=[broker_id],
                    end=_later(claim.end, None if now is None else now.end),
                    replicas={broker_id: claim.log_id} if claim.log_id else {},
                    given_up=None if now is None else _given_up(now),
                )
            if new:
                with lost.noting(new):
                    self._write_states(description, new, topics, nodes, deadline)
            return {**found, **new}

        return self._nodes.repeat(description, attempt)

    def refuse(
        self,
        topic_partition: TopicPartition,
        *,
        broker_id: int,
        topic_id: str,
        why: str,
        end: int,
        kept_end: int | None = None,
    ) -> None:
        """Note that the broker does not serve the partition, up to where its log is known to have
        been on disk, and where that ends now if it is there. Raises UnknownTopicError, and
        NotLeaderError when the partition was moved to another broker."""
        claim = LeadershipClaim(topic_partition, topic_id)
        path = paths.partition_state(topic_partition)
        description = f"note that {topic_partition} is not served"

        def attempt(deadline: Deadline) -> None:
            topics = self._topic_nodes([topic_partition.topic], deadline)
            topics[topic_partition.topic].require_assigned(claim, broker_id)
            node = self._nodes.get(path, deadline=deadline)
            now = PartitionState(leader=broker_id, leader_epoch=0, in_sync=[broker_id])
            if node is not None:
                now = self._decode_state(node, path)
            new = msgspec.structs.replace(
                now, refused=why, end=_later(end, now.end), kept_end=kept_end
            )
            if node is None or new != now:
                self._write_states(
                    description, {topic_partition: new}, topics, {path: node}, deadline
                )

        self._nodes.repeat(description, attempt)

    def give_up(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: str,
        go_on_at: int,
        keep: bool = False,
    ) -> None:
        """Have the leader go on at ``go_on_at`` with a log that it refuses: behind what is there of
        it if ``keep`` is true, else in an empty one. UnknownTopicError, InvalidRequestError when
        the partition is not refused."""
        claim = LeadershipClaim(topic_partition, topic_id)
        path = paths.partition_state(topic_partition)
        description = f"give up the log of {topic_partition}"
        lost = LostReplies[PartitionState]()

        def attempt(deadline: Deadline) -> None:
            topics = self._topic_nodes([topic_partition.topic], deadline)
            topics[topic_partition.topic].require(claim)
            node = self._nodes.get(path, deadline=deadline)
            now = None if node is None else decode(PartitionState, node.data, path=path)
            if now is not None and now in lost:
                return
            if node is None or now is None or now.refused is None:
                if lost:
                    return  # done, and followed already
                raise InvalidRequestError(
                    f"{topic_partition} is not refused by its broker, so its log cannot be given "
                    "up."
                )
            if go_on_at < (now.end or 0):
                raise InvalidRequestError(
                    f"{topic_partition} cannot go on at {go_on_at}: its log has reached {now.end}."
                )
            new = msgspec.structs.replace(now, go_on_at=go_on_at, keep=keep)
            with lost.noting(new):
                self._write_states(
                    description, {topic_partition: new}, topics, {path: node}, deadline
                )

        self._nodes.repeat(description, attempt)

    def note_ends(self, reached: Mapping[TopicPartition, Reached]) -> None:
        """Note how far logs have come on disk, all in one transaction.

        Passes over what is no longer led in that leader epoch: another broker or another topic of
        that name has the partition now.
        """
        by_path = {
            paths.partition_state(topic_partition): (topic_partition.topic, at)
            for topic_partition, at in reached.items()
        }
        names = {topic_partition.topic for topic_partition in reached}
        description = f"note the ends of {len(reached)} logs"

        def attempt(deadline: Deadline) -> None:
            states = self._nodes.get_many(by_path, deadline=deadline)
            # Read after the states: those that were there before are of this topic, or an older.
            topics = self._topic_nodes(names, deadline)
            writes: list[Operation] = []
            for path, (topic, at) in by_path.items():
                node = states[path]
                if node is None or not topics[topic].has_id(at.topic_id):
                    continue
                try:
                    now = decode(PartitionState, node.data, path=path)
                except CorruptNodeError:
                    continue  # reported by the broker that leads it
                if now.leader_epoch == at.leader_epoch and (now.end or 0) < at.end:
                    new = msgspec.structs.replace(now, end=at.end)
                    writes.append(SetData(path, encode(new), node.version))
            if writes:
                self._nodes.transact(description, writes, deadline=deadline)

        self._nodes.repeat(description, attempt)

    def _topic_nodes(self, names: Collection[str], deadline: Deadline) -> dict[str, TopicNode]:
        nodes = self._nodes.get_many(map(paths.topic, names), deadline=deadline)
        return {name: TopicNode.read(name, nodes[paths.topic(name)]) for name in names}

    def _write_states(
        self,
        description: str,
        states: Mapping[TopicPartition, PartitionState],
        topics: Mapping[str, TopicNode],
        nodes: Mapping[str, Node | None],
        deadline: Deadline,
    ) -> None:
        """Put ``states`` in the place of the ``nodes`` that were read, if their topics are as they
        were read too, with what is missing above them: of partitions that are new, or of a topic
        whose node was put back by hand. Who watches the topics' states is told."""
        writes: list[Operation] = []
        made: list[TopicPartition] = []
        for topic_partition, state in states.items():
            path = paths.partition_state(topic_partition)
            node = nodes[path]
            if node is None:
                made.append(topic_partition)
                writes.append(Create(path, encode(state)))
            else:
                writes.append(SetData(path, encode(state), node.version))
        names = dict.fromkeys(each.topic for each in states)
        checks = [Check(paths.topic(name), topics[name].alive()[0].version) for name in names]
        above = [paths.partitions(name) for name in names]
        unlisted = self._unlisted(made, deadline)
        asked = [*above, *(paths.partition(each) for each in made if each not in unlisted)]
        there = self._nodes.get_many(asked, deadline=deadline)
        absent = [path for path, node in there.items() if node is None]
        missing = [Create(path) for path in (*absent, *map(paths.partition, unlisted))]
        notices = [
            SetData(path, b"")
            for path in above
            if (parent := there[path]) is not None and not parent.refused  # or nobody watches it
        ]
        self._nodes.transact(description, [*checks, *missing, *writes, *notices], deadline=deadline)

    def _state_nodes(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[str, Node | None]:
        """The nodes of their states, by path; those of a new topic are not asked for one by one."""
        wanted = list(topic_partitions)
        unlisted = self._unlisted(wanted, deadline)
        read = self._nodes.get_many(
            [paths.partition_state(each) for each in wanted if each not in unlisted],
            deadline=deadline,
        )
        return {path: read.get(path) for path in map(paths.partition_state, wanted)}

    def _unlisted(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, None]:
        """Finds partitions without a node, where so many of a topic are asked for that it is
        cheaper to list what there is. A write that relies on it must be conditional."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for each in topic_partitions:
            by_topic.setdefault(each.topic, []).append(each)
        large = [topic for topic, wanted in by_topic.items() if len(wanted) >= _LISTED_FROM]
        names = self._nodes.children_of(map(paths.partitions, large), deadline=deadline)
        unlisted: dict[TopicPartition, None] = {}
        for topic in large:
            children = names[paths.partitions(topic)]
            if isinstance(children, CorruptNodeError):
                continue  # what is below a node that may not be listed can be read all the same
            listed = set(children or ())
            unlisted |= {
                each: None
                for each in by_topic[topic]
                if name_of(paths.partition(each)) not in listed
            }
        return unlisted

    def _decode_state(self, node: Node, path: str, *, instead: str = _NOT_LED) -> PartitionState:
        try:
            now = decode(PartitionState, node.data, path=path)
        except CorruptNodeError as failure:
            self._unreadable.met(path, failure, instead=instead)
            raise
        self._unreadable.in_order(path)
        return now


def _given_up(state: PartitionState) -> int | None:
    """Returns the last leader epoch after which the log was given up, as of the next one."""
    return state.given_up if state.go_on_at is None else state.leader_epoch


def _later(end: int | None, other: int | None) -> int | None:
    return max((each for each in (end, other) if each is not None), default=None)
