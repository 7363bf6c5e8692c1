"""Topics and the leaders of their partitions.

A topic is one node with everything that is decided at its creation, so that creating it is
one transaction. Below it stands one state per partition, made when a broker first leads it.

Deleting cannot be one transaction (10,000 partitions do not fit), so it is decided by one
write that marks the topic's node as deleted. From then on nobody sees the topic; removing the
nodes is cleaning up, and whoever next creates or deletes that name finishes it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    PartitionState,
    Reached,
    TopicRecord,
    check_alteration,
    check_topic,
    decode_topic,
    payload_of,
    record_of,
    spread,
    state_of,
    unknown_topic,
)
from spark_logbus.coordination.payloads import StatePayload, TopicPayload, decode, encode
from spark_logbus.errors import (
    CoordinationError,
    InvalidRequestError,
    LogbusError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import LostReplies, Node, Nodes, name_of
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Create, Delete, Operation, SetData, in_parts
from spark_logbus.zookeeper.unreadable import CorruptNodeError
from spark_logbus.zookeeper.watches import ChildrenView

logger = logging.getLogger(__name__)

# Partitions that one transaction makes led: with the longest names they take half of what it holds.
MAX_CLAIMS: Final = 250
_LISTED_FROM: Final = 8  # partitions of a topic, to list what nodes it has before they are read

LeadResult = PartitionState | UnknownTopicError | CorruptNodeError


class TopicRegistry:
    """Reads and changes topics. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._unreadable = session.unreadable

    # -- topics --------------------------------------------------------------------------

    def create(
        self, name: str, *, partitions: int, brokers: Sequence[int], config: Mapping[str, str]
    ) -> TopicRecord:
        """TopicExistsError, InvalidNameError, or ConfigError for the other arguments."""
        path = paths.topic(name)
        check_topic(name, partitions=partitions, brokers=brokers, config=config)
        payload = TopicPayload(
            id=uuid.uuid4().hex,
            partitions=spread(partitions=partitions, brokers=brokers, existing=self.all().values()),
            config=dict(config),
        )
        self._nodes.ensure(paths.TOPICS)

        def attempt(deadline: Deadline) -> None:
            node = self._nodes.get(path, deadline=deadline)
            if node is not None:
                there = payload_of(name, node)
                if there.id == payload.id:
                    return  # made by an attempt of ours whose reply was lost
                if not there.deleted:
                    count = len(there.partitions)
                    raise TopicExistsError(
                        f"The topic {name!r} exists already, with {count} "
                        f"partition{'s' * (count != 1)}. Choose another name, or delete it first."
                    )
                self._remove_nodes(name, deadline)
            self._nodes.transact(
                f"create the topic {name}",
                [Create(path, encode(payload)), Create(paths.partitions(name))],
                deadline=deadline,
            )

        self._nodes.repeat(f"create the topic {name}", attempt)
        return record_of(name, payload)

    def configure(self, name: str, config: Mapping[str, str]) -> TopicRecord:
        """Replace the topic's configuration. UnknownTopicError, ConfigError."""
        _, after = self.alter(name, lambda now: replace(now, config=dict(config)))
        return after

    def alter(
        self, name: str, change: Callable[[TopicRecord], TopicRecord]
    ) -> tuple[TopicRecord, TopicRecord]:
        """Give the topic the configuration and partitions that ``change`` makes of it; before and
        after. UnknownTopicError, ConfigError, and what ``change`` raises, which is called again
        when others altered the topic meanwhile. Partitions can be added, never taken away."""
        lost = LostReplies[tuple[TopicRecord, TopicPayload]]()

        def attempt(deadline: Deadline) -> tuple[TopicRecord, TopicRecord]:
            node, payload = self._alive(name, deadline)
            for before, made in lost:
                if payload == made:
                    return before, record_of(name, made)
            before = record_of(name, payload)
            after = change(before)
            check_alteration(before, after)
            changed = msgspec.structs.replace(
                payload, config=dict(after.config), partitions=dict(after.partitions)
            )
            if changed != payload:
                write = SetData(paths.topic(name), encode(changed), node.version)
                with lost.noting((before, changed)):
                    self._nodes.transact(f"alter the topic {name}", [write], deadline=deadline)
            return before, after

        return self._nodes.repeat(f"alter the topic {name}", attempt)

    def delete(self, name: str) -> None:
        """UnknownTopicError. When it returns, nobody sees the topic any more."""
        marked: set[str] = set()

        def attempt(deadline: Deadline) -> None:
            node = self._nodes.get(paths.topic(name), deadline=deadline)
            payload = None if node is None else payload_of(name, node)
            gone = payload is None or payload.deleted or payload.id not in (marked or {payload.id})
            if gone and marked:
                return  # whoever did it: we, and the reply was lost, or another one meanwhile
            if node is None or payload is None or payload.deleted:
                self._clean_up(name)
                raise unknown_topic(name)
            marked.add(payload.id)
            self._nodes.transact(
                f"delete the topic {name}",
                [
                    SetData(
                        paths.topic(name),
                        encode(msgspec.structs.replace(payload, deleted=True)),
                        node.version,
                    )
                ],
                deadline=deadline,
            )

        self._nodes.repeat(f"delete the topic {name}", attempt)
        self._clean_up(name)

    def get(self, name: str) -> TopicRecord | None:
        node = self._nodes.get(paths.topic(name))
        return None if node is None else decode_topic(name, node)

    def all(self) -> dict[str, TopicRecord]:
        """All topics whose nodes are in order; the others are reported and left out."""
        names = self._nodes.children(paths.TOPICS) or []
        nodes = self._nodes.get_many(f"{paths.TOPICS}/{name}" for name in names)
        found = {}
        for name in names:
            path = f"{paths.TOPICS}/{name}"
            node = nodes[path]
            try:
                record = None if node is None else decode_topic(name, node)
            except CorruptNodeError as failure:
                self._unreadable.met(path, failure, instead="That topic is passed over.")
                continue
            if record is not None:
                found[name] = record
        return found

    def some(self, names: Iterable[str]) -> dict[str, TopicRecord]:
        """Those of ``names`` that there are. CorruptNodeError for one whose node is not in order:
        nobody can say if there is such a topic."""
        found: dict[str, TopicRecord] = {}
        for name, record in self.each_of(names).items():
            if isinstance(record, CorruptNodeError):
                raise record
            if record is not None:
                found[name] = record
        return found

    def each_of(self, names: Iterable[str]) -> dict[str, TopicRecord | CorruptNodeError | None]:
        """Each topic by name: None where there is none, an error in the place of one whose node is
        not in order."""
        by_path = {paths.topic(name): name for name in names}
        found: dict[str, TopicRecord | CorruptNodeError | None] = {}
        for path, node in self._nodes.get_many(by_path).items():
            name = by_path[path]
            try:
                found[name] = None if node is None else decode_topic(name, node)
            except CorruptNodeError as error:
                found[name] = error
        return found

    def watch(self, f: Callable[[dict[str, TopicRecord]], None]) -> ChildrenView[TopicRecord]:
        """Call ``f`` with all topics: now, on this thread; then, on the session's worker, when a
        topic came, went or was changed, and whenever the session was renewed. Changes in quick
        succession may come as one. ``f`` may make requests, but holds up other callbacks. A topic
        whose node cannot be read any more stays as it was, but for ``readable``. What is returned
        can be cancelled."""
        view = ChildrenView(
            self._nodes,
            paths.TOPICS,
            decode=decode_topic,
            deliver=f,
            outdated=lambda last: replace(last, readable=False),
        )
        view.start()
        return view

    # -- leaders -------------------------------------------------------------------------

    def states(self, name: str, *, besides: Collection[int] = ()) -> dict[int, PartitionState]:
        """Of the partitions that were led at least once, but for ``besides``; empty for an unknown
        topic. One whose node is not in order is reported and left out; CorruptNodeError when that
        is the topic's own."""
        if self.get(name) is None:
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
            if number is not None and number not in besides
        }
        nodes = self._nodes.get_many(by_path)
        found = {}
        for path, node in nodes.items():
            if node is None:
                continue
            try:
                found[by_path[path]] = state_of(decode(StatePayload, node.data, path=path))
            except CorruptNodeError as failure:
                self._unreadable.met(path, failure, instead="Its partition's leader is unknown.")
            else:
                self._unreadable.in_order(path)
        return found

    def states_of(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionState | CorruptNodeError | None]:
        """The state of each partition: None of one that was never led, an error in the place of
        one that cannot be read. Few round trips, however many there are."""
        by_path = {
            paths.partition_state(topic_partition): topic_partition
            for topic_partition in topic_partitions
        }
        found: dict[TopicPartition, PartitionState | CorruptNodeError | None] = {}
        for path, node in self._state_nodes(
            by_path.values(), self._nodes.session.deadline()
        ).items():
            try:
                state = None if node is None else self._decode_state(node, path)
                found[by_path[path]] = None if state is None else state_of(state)
            except CorruptNodeError as error:
                found[by_path[path]] = error
        return found

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
        the topic of that name has another id; CorruptNodeError, reported, when nobody can say in
        which epoch the partition is. Conditional on the states that were read and on the topics'
        nodes, so two brokers never get the same epoch and a deleted topic gets no leader.
        """
        assert 0 < len(claims) <= MAX_CLAIMS, "more would be too large for a transaction"
        description = f"make broker {broker_id} the leader of {claims[0].topic_partition}"
        if more := len(claims) - 1:
            description += f" and {more} more partitions"
        lost = LostReplies[dict[TopicPartition, StatePayload]]()

        def attempt(deadline: Deadline) -> dict[TopicPartition, LeadResult]:
            topics = self._topic_nodes(claims, deadline)
            nodes = self._state_nodes([each.topic_partition for each in claims], deadline)
            found: dict[TopicPartition, LeadResult] = {}
            new: dict[TopicPartition, StatePayload] = {}
            for claim in claims:
                topic_partition = claim.topic_partition
                path = paths.partition_state(topic_partition)
                node = nodes[path]
                try:
                    topics[topic_partition.topic].require(claim)
                    now = None if node is None else self._decode_state(node, path)
                except (UnknownTopicError, CorruptNodeError) as error:
                    found[topic_partition] = error
                    continue
                if now is not None and any(made.get(topic_partition) == now for made in lost):
                    found[topic_partition] = state_of(now)
                    continue
                new[topic_partition] = StatePayload(
                    leader=broker_id,
                    leader_epoch=0 if now is None else now.leader_epoch + 1,
                    in_sync=[broker_id],
                    end=_later(claim.end, None if now is None else now.end),
                )
            if new:
                with lost.noting(new):
                    self._write_states(description, new, topics, nodes, deadline)
            return found | {each: state_of(payload) for each, payload in new.items()}

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
        been on disk, and where that ends now if it is there. UnknownTopicError."""
        claim = LeadershipClaim(topic_partition, topic_id)
        path = paths.partition_state(topic_partition)
        description = f"note that {topic_partition} is not served"

        def attempt(deadline: Deadline) -> None:
            topics = self._topic_nodes([claim], deadline)
            topics[topic_partition.topic].require(claim)
            node = self._nodes.get(path, deadline=deadline)
            now = StatePayload(leader=broker_id, leader_epoch=0, in_sync=[broker_id])
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
        lost = LostReplies[StatePayload]()

        def attempt(deadline: Deadline) -> None:
            topics = self._topic_nodes([claim], deadline)
            topics[topic_partition.topic].require(claim)
            node = self._nodes.get(path, deadline=deadline)
            now = None if node is None else decode(StatePayload, node.data, path=path)
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
            paths.partition_state(topic_partition): (paths.topic(topic_partition.topic), at)
            for topic_partition, at in reached.items()
        }
        by_topic = {
            paths.topic(topic_partition.topic): at.topic_id
            for topic_partition, at in reached.items()
        }
        description = f"note the ends of {len(reached)} logs"

        def attempt(deadline: Deadline) -> None:
            states = self._nodes.get_many(by_path, deadline=deadline)
            # Read after the states: those that were there before are of this topic, or an older.
            topics = self._nodes.get_many(by_topic, deadline=deadline)
            alive = {path for path, id_ in by_topic.items() if _has_id(path, topics[path], id_)}
            writes: list[Operation] = []
            for path, (topic, at) in by_path.items():
                node = states[path]
                if node is None or topic not in alive:
                    continue
                try:
                    now = decode(StatePayload, node.data, path=path)
                except CorruptNodeError:
                    continue  # reported by the broker that leads it
                if now.leader_epoch == at.leader_epoch and (now.end or 0) < at.end:
                    new = msgspec.structs.replace(now, end=at.end)
                    writes.append(SetData(path, encode(new), node.version))
            if writes:
                self._nodes.transact(description, writes, deadline=deadline)

        self._nodes.repeat(description, attempt)

    def _topic_nodes(
        self, claims: Iterable[LeadershipClaim], deadline: Deadline
    ) -> dict[str, _TopicNode]:
        names = dict.fromkeys(each.topic_partition.topic for each in claims)
        nodes = self._nodes.get_many(map(paths.topic, names), deadline=deadline)
        return {name: _TopicNode.read(name, nodes[paths.topic(name)]) for name in names}

    def _write_states(
        self,
        description: str,
        states: Mapping[TopicPartition, StatePayload],
        topics: Mapping[str, _TopicNode],
        nodes: Mapping[str, Node | None],
        deadline: Deadline,
    ) -> None:
        """Put ``states`` in the place of the ``nodes`` that were read, if their topics are as they
        were read too, with what is missing above them: of partitions that are new, or of a topic
        whose node was put back by hand."""
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
        above = dict.fromkeys(paths.partitions(each.topic) for each in made)
        unlisted = self._unlisted(made, deadline)
        asked = [*above, *(paths.partition(each) for each in made if each not in unlisted)]
        there = self._nodes.get_many(asked, deadline=deadline) if asked else {}
        absent = [path for path, node in there.items() if node is None]
        missing = [Create(path) for path in (*absent, *map(paths.partition, unlisted))]
        names = dict.fromkeys(each.topic for each in states)
        checks = [Check(paths.topic(name), topics[name].alive()[0].version) for name in names]
        self._nodes.transact(description, [*checks, *missing, *writes], deadline=deadline)

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
        """Those without a node, in their order, of topics of which so many are asked for that it is
        cheaper to list what there is. A write that relies on it must be conditional."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for each in topic_partitions:
            by_topic.setdefault(each.topic, []).append(each)
        unlisted: dict[TopicPartition, None] = {}
        for topic, wanted in by_topic.items():
            if len(wanted) < _LISTED_FROM:
                continue
            try:
                names = self._nodes.children(paths.partitions(topic), deadline=deadline) or ()
            except CorruptNodeError:
                continue  # what is below a node that may not be listed can be read all the same
            listed = set(names)
            unlisted |= {
                each: None for each in wanted if name_of(paths.partition(each)) not in listed
            }
        return unlisted

    def _decode_state(self, node: Node, path: str) -> StatePayload:
        try:
            now = decode(StatePayload, node.data, path=path)
        except CorruptNodeError as failure:
            self._unreadable.met(path, failure, instead="Its partition is not led.")
            raise
        self._unreadable.in_order(path)
        return now

    # -- help ----------------------------------------------------------------------------

    def _alive(self, name: str, deadline: Deadline) -> tuple[Node, TopicPayload]:
        return _TopicNode.read(name, self._nodes.get(paths.topic(name), deadline=deadline)).alive()

    def _clean_up(self, name: str) -> None:
        try:
            self._nodes.repeat(
                f"remove the nodes of {name}", lambda deadline: self._remove_nodes(name, deadline)
            )
        except CoordinationError as failure:
            logger.warning(
                "The topic %s is deleted, but some of its ZooKeeper nodes are left; creating or "
                "deleting a topic of that name removes them. %s",
                name,
                failure.message,
            )

    def _remove_nodes(self, name: str, deadline: Deadline) -> None:
        """Take away what a deleted topic left, bottom up; the marked node goes last."""
        path = paths.topic(name)
        node = self._nodes.get(path, deadline=deadline)
        if node is None or not payload_of(name, node).deleted:
            return
        below = self._nodes.descendants(path, deadline=deadline)
        operations: list[Operation] = [Delete(each) for each in reversed(below)]
        operations.append(Delete(path, node.version))
        for part in in_parts(operations):
            self._nodes.transact(f"remove the nodes of {name}", part, deadline=deadline)


class _TopicNode(NamedTuple):
    """A topic's node and what is in it: nothing, or the reason why that cannot be read."""

    name: str
    node: Node | None
    payload: TopicPayload | CorruptNodeError | None

    @classmethod
    def read(cls, name: str, node: Node | None) -> _TopicNode:
        try:
            return cls(name, node, None if node is None else payload_of(name, node))
        except CorruptNodeError as error:
            return cls(name, node, error)

    def alive(self) -> tuple[Node, TopicPayload]:
        """UnknownTopicError, CorruptNodeError."""
        if isinstance(self.payload, CorruptNodeError):
            raise self.payload
        if self.node is None or self.payload is None or self.payload.deleted:
            raise unknown_topic(self.name)
        return self.node, self.payload

    def require(self, claim: LeadershipClaim) -> None:
        """UnknownTopicError unless it has the claimed partition; CorruptNodeError."""
        _, payload = self.alive()
        if claim.topic_id not in (None, payload.id):
            raise UnknownTopicError(
                f"The topic {self.name!r} with the id {claim.topic_id} was deleted; the one of "
                f"that name now has the id {payload.id}."
            )
        partition = claim.topic_partition.partition
        if partition not in payload.partitions:
            raise UnknownTopicError(
                f"The topic {self.name!r} has {len(payload.partitions)} partitions and so no "
                f"partition {partition}."
            )


def _later(end: int | None, other: int | None) -> int | None:
    return max((each for each in (end, other) if each is not None), default=None)


def _has_id(path: str, node: Node | None, topic_id: str) -> bool:
    try:
        payload = None if node is None else payload_of(name_of(path), node)
    except CorruptNodeError:
        return False
    return payload is not None and payload.id == topic_id and not payload.deleted
