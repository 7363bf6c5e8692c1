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
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.leader_rules import (
    Joins,
    MembersChange,
    Rule,
    Ruling,
    changed_by_leader,
    is_elected,
    is_elected_unclean,
    is_refused,
    joins_by_move,
    leads_on,
    leaves_lead,
)
from spark_logbus.coordination.cluster.state_nodes import StateNodes
from spark_logbus.coordination.cluster.state_watch import StateWatch
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    Reached,
    decode_topic,
)
from spark_logbus.coordination.payloads import PartitionState, TopicPayload, decode, encode
from spark_logbus.errors import (
    CoordinationError,
    InvalidRequestError,
    LogbusError,
    LogMissingError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import ConflictError, LostReplies, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Operation, SetData
from spark_logbus.zookeeper.unreadable import CorruptNodeError

# Partitions that one transaction makes led: with the longest names they take half of what it holds.
MAX_CLAIMS: Final = 250
_NOT_LED: Final = "Its partition is not led."

LeadResult = (
    PartitionState | UnknownTopicError | NotLeaderError | LogMissingError | CorruptNodeError
)


class PartitionStates:
    """Reads and changes the states of partitions. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._state_nodes = StateNodes(session)
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
        for path, node in self._state_nodes.read(
            by_path.values(), self._nodes.session.deadline()
        ).items():
            try:
                state = (
                    None if node is None else self._state_nodes.decode(node, path, instead=instead)
                )
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
        """Have ``broker_id`` lead partitions of which the state says so, or that nobody has led,
        each in a new leader epoch, in one transaction; of up to ``MAX_CLAIMS``.

        Who is in sync stays so. An error in the place of a state costs its own partition only:
        UnknownTopicError, also when the topic of that name has another id; NotLeaderError when
        the partition is not assigned to the broker, when another leads it, or when others are in
        sync and the broker's log is not the one that is, or lacks what was acknowledged: then the
        broker is in sync no more, so that another can be elected; LogMissingError when it was in
        sync alone, with another log; CorruptNodeError, reported, when nobody can say in which
        epoch it is. Conditional on the states that were read and on the
        topics' nodes, so two brokers never get the same epoch and a deleted topic gets no leader.
        """
        description = f"make broker {broker_id} the leader"
        return self._claim_all(description, claims, broker_id, leads_on(broker_id))

    def elect_all(
        self, claims: Sequence[LeadershipClaim], *, broker_id: int, live: Collection[int]
    ) -> dict[TopicPartition, LeadResult]:
        """Have ``broker_id``, which is in sync, lead partitions whose leader is not among the
        ``live`` brokers, or is not in sync any more; of up to ``MAX_CLAIMS``.

        Those that live and were in sync stay so. A partition that moves to the broker is assigned
        to it by that, so that it leads on if the move is cancelled. Errors are as those of
        ``lead_all``; NotLeaderError also when the leader lives.
        """
        description = f"elect broker {broker_id} the leader"
        rule, joins = is_elected(broker_id, live), joins_by_move(broker_id, live)
        return self._claim_all(description, claims, broker_id, rule, joins=joins)

    def leave_all(
        self, claims: Sequence[LeadershipClaim], *, broker_id: int, live: Collection[int]
    ) -> dict[TopicPartition, LeadResult]:
        """Have ``broker_id``, whose logs take nothing any more, be in sync no more of partitions
        that it leads, so that others are elected; of up to ``MAX_CLAIMS``.

        Errors are as those of ``lead_all``; NotLeaderError also where nobody else who is in sync is
        among the ``live`` brokers: then it leads on.
        """
        description = f"have broker {broker_id} leave the lead"
        return self._claim_all(description, claims, broker_id, leaves_lead(broker_id, live))

    def elect_unclean(
        self,
        claim: LeadershipClaim,
        *,
        broker_id: int,
        leader_epoch: int,
        live: Callable[[], Collection[int]],
    ) -> PartitionState:
        """Have ``broker_id`` lead a partition alone, which was led in ``leader_epoch`` last, though
        it is not in sync; where nobody who is lives, or who is alone in sync refuses to. What its
        log lacks is lost: it goes on at the state's ``go_on_at``, behind all that was ever there.
        ``live`` asks who is registered, for each attempt.

        On the word of an operator, or of the topic's configuration. Raises UnknownTopicError,
        CorruptNodeError; NotLeaderError where that is not needed, the partition is not assigned to
        the broker, or another has led it since."""
        description = f"elect broker {broker_id} the unclean leader"
        rule = is_elected_unclean(broker_id, live, leader_epoch=leader_epoch)
        state = self._claim_all(description, [claim], broker_id, rule)[claim.topic_partition]
        if isinstance(state, LogbusError):
            raise state.again()
        return state

    def change_in_sync(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: str,
        leader: int,
        leader_epoch: int,
        add: Mapping[int, str] = MappingProxyType({}),
        remove: Collection[int] = (),
        since_us: int = 0,
    ) -> PartitionState:
        """Takes brokers in sync of one partition, and drops others; returns the state. Raises what
        ``change_in_sync_all`` has in the place of a state."""
        change = MembersChange(topic_partition, topic_id, leader_epoch, add, remove, since_us)
        state = self.change_in_sync_all([change], leader=leader)[topic_partition]
        if isinstance(state, LogbusError):
            raise state.again()
        return state

    def change_in_sync_all(
        self, changes: Sequence[MembersChange], *, leader: int
    ) -> dict[TopicPartition, PartitionState | LogbusError]:
        """Takes brokers in sync, with the ids of their logs, and drops others, in one transaction
        as a rule; of up to ``MAX_CLAIMS`` partitions. Returns the states.

        For the leader in that epoch; NotLeaderError for everybody else. An error in the place of a
        state costs its own partition only: UnknownTopicError, CorruptNodeError; InvalidRequestError
        to drop the leader, or to add a broker that the partition is neither assigned to nor moving
        to, by the move in which it has told of its log; CoordinationError: nobody knows if it was
        done. Each is always written, also where nothing changes: an earlier request that is on its
        way still cannot be carried out after that.
        """
        assert 0 < len(changes) <= MAX_CLAIMS, "more would be too large for a transaction"
        found: dict[TopicPartition, PartitionState | LogbusError] = {}
        parts = [changes]
        while parts:
            part = parts.pop()
            what = f"change who is in sync of {part[0].topic_partition}"
            if more := len(part) - 1:
                what += f" and {more} more partitions"
            try:
                found |= self._nodes.repeat(what, partial(self._change_members, what, part, leader))
            except _ContendedError:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            except CoordinationError as error:
                found |= {each.topic_partition: error for each in part}
        return found

    def _change_members(
        self, description: str, changes: Sequence[MembersChange], leader: int, deadline: Deadline
    ) -> dict[TopicPartition, PartitionState | LogbusError]:
        wheres = [each.topic_partition for each in changes]
        topics = self._state_nodes.topics({each.topic for each in wheres}, deadline)
        nodes = self._state_nodes.read(wheres, deadline)
        found: dict[TopicPartition, PartitionState | LogbusError] = {}
        new: dict[TopicPartition, PartitionState] = {}
        for change in changes:
            where = change.topic_partition
            node = nodes[paths.partition_state(where)]
            try:
                topics[where.topic].require(LeadershipClaim(where, change.topic_id))
                now = (
                    None
                    if node is None
                    else self._state_nodes.decode(node, paths.partition_state(where))
                )
                _, payload = topics[where.topic].alive()
                new[where] = changed_by_leader(now, change, leader=leader, payload=payload)
            except (
                UnknownTopicError, NotLeaderError, InvalidRequestError, CorruptNodeError,
            ) as error:  # fmt: skip
                found[where] = error
        if new:
            try:
                self._state_nodes.write(description, new, topics, nodes, deadline)
            except ConflictError:
                if len(new) > 1:
                    raise _ContendedError from None
                raise
        return {**found, **new}

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
        """Note that the leader does not serve the partition, or the only broker in sync, up to
        where its log is known to have been on disk, and where that ends now if it is there. Raises
        UnknownTopicError, and NotLeaderError when the broker is neither, or another is in sync:
        then this one is not any more, if it led, and the other can be elected."""
        claim = LeadershipClaim(topic_partition, topic_id, end=end)
        path = paths.partition_state(topic_partition)
        description = f"note that {topic_partition} is not served"

        def attempt(deadline: Deadline) -> None:
            topics = self._state_nodes.topics([topic_partition.topic], deadline)
            topics[topic_partition.topic].require_assigned(claim, broker_id)
            node = self._nodes.get(path, deadline=deadline)
            now = PartitionState(leader=broker_id, leader_epoch=0, in_sync=[broker_id])
            if node is not None:
                now = self._state_nodes.decode(node, path)
            new, refusal = is_refused(broker_id, now, claim, why, kept_end)
            if new is not None and (node is None or new != now):
                self._state_nodes.write(
                    description, {topic_partition: new}, topics, {path: node}, deadline
                )
            if refusal is not None:
                raise refusal

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
            topics = self._state_nodes.topics([topic_partition.topic], deadline)
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
                self._state_nodes.write(
                    description, {topic_partition: new}, topics, {path: node}, deadline
                )

        self._nodes.repeat(description, attempt)

    def note_ends(self, reached: Mapping[TopicPartition, Reached]) -> None:
        """Note how far logs have come on disk, and what is acknowledged, all in one transaction.

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
            topics = self._state_nodes.topics(names, deadline)
            writes: list[Operation] = []
            for path, (topic, at) in by_path.items():
                node = states[path]
                if node is None or not topics[topic].has_id(at.topic_id):
                    continue
                try:
                    now = decode(PartitionState, node.data, path=path)
                except CorruptNodeError:
                    continue  # reported by the broker that leads it
                if now.leader_epoch != at.leader_epoch:
                    continue
                new = msgspec.structs.replace(
                    now,
                    end=max(at.end, now.end or 0),
                    committed=_later(at.committed, now.committed),
                )
                if new != now:
                    writes.append(SetData(path, encode(new), node.version))
            if writes:
                self._nodes.transact(description, writes, deadline=deadline)

        self._nodes.repeat(description, attempt)

    # -- claims ---------------------------------------------------------------------------

    def _claim_all(
        self,
        description: str,
        claims: Sequence[LeadershipClaim],
        broker_id: int,
        rule: Rule,
        *,
        joins: Joins | None = None,
    ) -> dict[TopicPartition, LeadResult]:
        """Writes what the rule makes of the claims, in one transaction as a rule. Where others
        write some of the states at the same time, the others do not wait for those: each half is
        tried for itself. With ``joins`` what moves to the broker is assigned to it when that leads
        it."""
        assert 0 < len(claims) <= MAX_CLAIMS, "more would be too large for a transaction"
        lost = LostReplies[dict[TopicPartition, Ruling]]()
        found: dict[TopicPartition, LeadResult] = {}
        parts = [claims]
        while parts:
            part = parts.pop()
            what = f"{description} of {part[0].topic_partition}"
            if more := len(part) - 1:
                what += f" and {more} more partitions"
            attempt = partial(self._claim, what, part, broker_id, rule, joins, lost)
            try:
                found |= self._nodes.repeat(what, attempt)
            except _ContendedError:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
        return {claim.topic_partition: found[claim.topic_partition] for claim in claims}

    def _claim(
        self,
        description: str,
        claims: Sequence[LeadershipClaim],
        broker_id: int,
        rule: Rule,
        joins: Joins | None,
        lost: LostReplies[dict[TopicPartition, Ruling]],
        deadline: Deadline,
    ) -> dict[TopicPartition, LeadResult]:
        topics = self._state_nodes.topics({each.topic_partition.topic for each in claims}, deadline)
        nodes = self._state_nodes.read([each.topic_partition for each in claims], deadline)
        found: dict[TopicPartition, LeadResult] = {}
        ruled: dict[TopicPartition, Ruling] = {}
        new: dict[TopicPartition, PartitionState] = {}
        changed: dict[str, TopicPayload] = {}
        for claim in claims:
            where = claim.topic_partition
            path = paths.partition_state(where)
            node = nodes[path]
            try:
                moves_here = topics[where.topic].moves_to(claim, broker_id)
                if joins is None or not moves_here:
                    topics[where.topic].require_assigned(claim, broker_id)
                now = None if node is None else self._state_nodes.decode(node, path)
            except (UnknownTopicError, NotLeaderError, CorruptNodeError) as error:
                found[where] = error
                continue
            earlier = (made.get(where) for made in lost)
            done = next((each for each in earlier if each and now and each.state == now), None)
            ruling = done or rule(claim, now)
            if ruling.state is not None and done is None:
                ruled[where], new[where] = ruling, ruling.state
            if ruling.refusal is not None:
                found[where] = ruling.refusal
            elif ruling.state is not None:
                found[where] = ruling.state
                if joins is not None and moves_here and where in new and now is not None:
                    payload = changed.get(where.topic) or topics[where.topic].alive()[1]
                    changed[where.topic] = joins(payload, where.partition, now)
        if new:
            try:
                with lost.noting(ruled):
                    self._state_nodes.write(
                        description, new, topics, nodes, deadline, changed=changed
                    )
            except ConflictError:
                if len(new) > 1:
                    raise _ContendedError from None
                raise
        return found


class _ContendedError(Exception):
    """Conflict over one of several states that are to be written together."""


def _later(end: int | None, other: int | None) -> int | None:
    return max((each for each in (end, other) if each is not None), default=None)
