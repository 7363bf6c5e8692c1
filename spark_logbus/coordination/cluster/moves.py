"""Moves of partitions to other brokers, as they stand in ZooKeeper.

A move stands in its topic's node, so everybody who watches topics learns of it, and it outlives all
processes. It ends in one of three ways, each a write on the condition that the move stands: the
leader hands over the lead to the new broker, in one transaction with the assignment and the end of
the move; somebody cancels it; or the new broker or the leader notes why it has failed. So a
cancelled move is never handed over, and one that was handed over is not cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.lead_nodes import LeadNodes
from spark_logbus.coordination.cluster.leader_rules import arrived
from spark_logbus.coordination.cluster.topic_records import (
    MAX_BYTES_WITH_ERRORS,
    MAX_BYTES_WITH_MOVES,
    LeadershipClaim,
    TopicNode,
    TopicRecord,
    check_size,
    record_of,
)
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
    TopicPayload,
    encode,
)
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.topic_replication import MAX_REPLICAS, TopicReplication
from spark_logbus.zookeeper.nodes import LostReplies, Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Operation, SetData

MAX_MOVES: Final = 1_000  # of one topic, as each change of one writes them all
_MAX_ERROR_BYTES: Final = 300
_SHORT_ERROR: Final = "See its broker's log."
# So many hand-overs of a partition are known: the logs before are deleted after an hour as a rule.
_MAX_HANDED_OVER: Final = 16

_READ = Node(b"", 0, 0, (0, 0))
_Change = Callable[[TopicPayload], TopicPayload]


class MoveEndedError(Exception):
    """The move that is to be handed over does not stand as it was known: it was cancelled or
    replaced, or the lead is not the caller's any more."""


class HandOver(NamedTuple):
    """The lead of a partition as its leader gives it away.

    ``log_id`` is of the new broker's log, which has everything before ``end`` on its disk.
    ``since_us`` says in which move it has told so, None: in none, as it is in sync and stays where
    it is. ``old_log_id`` is of the leader's own log.
    """

    topic_partition: TopicPartition
    topic_id: str
    leader: int
    leader_epoch: int
    to: int
    log_id: str
    end: int
    since_us: int | None
    old_log_id: str = ""


class PartitionMoves:
    """Reads and changes moves. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)

    def begin(
        self, topic: str, moves: Mapping[int, MovePayload], *, topic_id: str | None = None
    ) -> TopicRecord:
        """Asks for moves of partitions of one topic; returns the topic after that.

        A move to the brokers that have the partition is left out. One that stands goes on, with
        the new throttle; one that has failed begins anew. Raises UnknownTopicError, and
        InvalidRequestError for a partition that is on its way to another broker, for more moves
        than a topic may have, and for brokers that no partition can have; ConfigError where its
        node would be too large: then none begins.
        """

        def changed(payload: TopicPayload) -> TopicPayload:
            wanted = dict(payload.moves)
            replication = TopicReplication.from_topic_config(payload.config)
            for partition, move in moves.items():
                _require(payload, TopicPartition(topic, partition), topic_id)
                if len({*move.to}) < len(move.to) or len(move.to) > MAX_REPLICAS:
                    raise InvalidRequestError(
                        f"{topic}-{partition} cannot be moved to {_brokers(move.to)}: name up to "
                        f"{MAX_REPLICAS} brokers, each once."
                    )
                if len(move.to) < len(payload.partitions[partition]):
                    replication.check(topic, len(move.to))
                now = wanted.pop(partition, None)
                if now is not None and not now.error:
                    if now.to != move.to:
                        raise InvalidRequestError(
                            f"{topic}-{partition} is on its way to {_to(now.to)}; "
                            f"cancel that move before it is sent to {_to(move.to)}."
                        )
                    wanted[partition] = msgspec.structs.replace(move, since_us=now.since_us)
                elif payload.partitions[partition] != move.to:
                    wanted[partition] = move
            if len(wanted) > max(MAX_MOVES, len(payload.moves)):
                raise InvalidRequestError(
                    f"Of {topic}, {len(payload.moves)} partitions are on their way and "
                    f"{len(moves)} more are to be moved; at most {MAX_MOVES} are at a time. Move "
                    "the others when those have arrived."
                )
            after = msgspec.structs.replace(payload, moves=wanted)
            check_size(topic, payload, after, limit=MAX_BYTES_WITH_MOVES)
            return after

        return self._change(f"move partitions of {topic}", topic, changed)

    def cancel(
        self, topic: str, partitions: Iterable[int], *, topic_id: str | None = None
    ) -> set[int]:
        """Ends moves, those that have failed too; returns the partitions whose moves it has ended.

        A move whose lead was handed over is over, and its partition stays where it is. Raises
        UnknownTopicError.
        """
        asked = {*partitions}
        standing: dict[int, MovePayload] = {}
        looked = False

        def changed(payload: TopicPayload) -> TopicPayload:
            nonlocal looked
            for partition in asked:
                _require(payload, TopicPartition(topic, partition), topic_id)
            if not looked:
                # Repeated after a lost reply, it does not end a move that began since.
                standing.update({each: payload.moves[each] for each in asked & {*payload.moves}})
                looked = True
            kept = {
                each: move
                for each, move in payload.moves.items()
                if each not in standing or not _is_same(move, standing[each])
            }
            return msgspec.structs.replace(payload, moves=kept)

        after = self._change(f"cancel moves of {topic}", topic, changed)
        return {each for each, move in standing.items() if after.partitions[each] != move.to}

    def fail(
        self, topic_partition: TopicPartition, *, topic_id: str, move: MovePayload, error: str
    ) -> bool:
        """Notes why a move has failed, if it stands as it was known. Returns True if it has failed,
        so that it was not handed over, and never is. Raises UnknownTopicError."""
        # It may quote a file name that is not UTF-8, and a node has room for so much only.
        text = error.encode("utf-8", "backslashreplace")[:_MAX_ERROR_BYTES].decode(errors="ignore")

        def changed(payload: TopicPayload) -> TopicPayload:
            now = payload.moves.get(topic_partition.partition)
            if payload.id != topic_id or now is None or now.error or not _is_same(now, move):
                return payload
            failed = msgspec.structs.replace(now, error=text or "It has failed.")
            after = msgspec.structs.replace(
                payload, moves={**payload.moves, topic_partition.partition: failed}
            )
            if len(encode(after)) > MAX_BYTES_WITH_ERRORS:
                after.moves[topic_partition.partition] = msgspec.structs.replace(
                    now, error=_SHORT_ERROR
                )
            return after

        after = self._change(f"note that the move of {topic_partition} has failed",
                             topic_partition.topic, changed)  # fmt: skip
        now = after.moves.get(topic_partition.partition)
        return (
            after.topic_id == topic_id
            and now is not None
            and _is_same(now, move)
            and bool(now.error)
        )

    def hand_over(self, lead: HandOver) -> PartitionState:
        """Gives the lead to another broker: in a move, which ends then and the partition is
        assigned to whom it moves; or, in none, to one that is in sync. All in one transaction.
        Returns the state of the partition after that.

        Raises MoveEndedError when the move was cancelled, the lead is not the caller's, or others
        to which the partition moves are not in sync; or, in no move, when the broker is not
        assigned and in sync: nothing was written then, or another's word stands. UnknownTopicError.
        BrokerUnavailableError when the broker is not registered.
        CoordinationError: nobody knows if it was done, and the caller takes no append before
        ``settle`` has said it.
        """
        where = lead.topic_partition
        description = f"hand over {where} to broker {lead.to}"
        if lead.to == lead.leader:
            raise InvalidRequestError(f"Broker {lead.leader} leads {where} already.")
        lost = LostReplies[PartitionState]()

        def attempt(deadline: Deadline) -> PartitionState:
            read = LeadNodes.read(self._nodes, where, lead.topic_id, deadline)
            now = read.state
            if now in lost or (lost and _is_with(lead, now)):
                return now  # handed over by an attempt of ours, and the new broker may lead by now
            _require_lead(read, lead)
            if lead.since_us is None:
                members, writes = self._to_member(read, lead, deadline)
            else:
                members, writes = _to_mover(read, lead, lead.since_us)
                writes.append(self._check_lives(lead, deadline))
            state = msgspec.structs.replace(
                members,
                leader=lead.to,
                leader_epoch=now.leader_epoch + 1,
                end=max(lead.end, now.end or 0),
                handed_over=_handed_over(now, members, lead),
            )
            with lost.noting(state):
                self._nodes.transact(description, [*writes, *read.write(state)], deadline=deadline)
            return state

        return self._nodes.repeat(description, attempt)

    def _to_member(
        self, read: LeadNodes, lead: HandOver, deadline: Deadline
    ) -> tuple[PartitionState, list[Operation]]:
        """Returns the state of a hand-over without a move, as to its members, and the conditions of
        it."""
        now, lives = read.state, self._check_lives(lead, deadline)
        assigned = read.payload.partitions[read.topic_partition.partition]
        if (
            lead.to not in assigned
            or lead.to not in now.in_sync
            or now.replicas.get(lead.to, "") != lead.log_id
        ):
            raise MoveEndedError(
                f"{read.topic_partition} is not handed over to broker {lead.to}, which is not in "
                "sync with that log, or not assigned."
            )
        return now, [read.check_topic(), lives]

    def _check_lives(self, lead: HandOver, deadline: Deadline) -> Operation:
        """Returns the condition that the new broker is registered: one that has just died would
        have the lead, and nobody could append until it comes back."""
        path = paths.broker(lead.to)
        broker = self._nodes.get(path, deadline=deadline)
        if broker is None:
            raise BrokerUnavailableError(
                f"{lead.topic_partition} is not handed over to broker {lead.to}, which is not "
                f"registered in ZooKeeper. Broker {lead.leader} leads on, and a move stands "
                "until that broker is back or the move is cancelled."
            )
        return Check(path, broker.version)

    def finish(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: str,
        leader: int,
        leader_epoch: int,
        since_us: int,
        end: int = 0,
    ) -> PartitionState:
        """Ends a move whose brokers are all in sync, the leader among them, which leads on: the
        partition is assigned to them, and nobody else is in sync. ``end`` is how far its log has
        come on disk. Returns the state after that.

        Raises MoveEndedError when the move or the lead is not as it was known, or one of its
        brokers is not in sync; UnknownTopicError. CoordinationError: nobody knows if it was done;
        to call it again says so.
        """
        where = topic_partition
        lead = HandOver(where, topic_id, leader, leader_epoch, leader, "", 0, since_us)
        lost = LostReplies[PartitionState]()

        def attempt(deadline: Deadline) -> PartitionState:
            read = LeadNodes.read(self._nodes, where, topic_id, deadline)
            move = read.payload.moves.get(where.partition)
            if read.state in lost and (move is None or move.since_us != since_us):
                return read.state  # the state alone may be as it was before
            _require_lead(read, lead)
            members, writes = _to_mover(read, lead, since_us)
            handed_over = _handed_over(read.state, members, lead)
            state = msgspec.structs.replace(
                members, handed_over=handed_over, end=max(end, members.end or 0)
            )
            with lost.noting(state):
                self._nodes.transact(
                    f"finish the move of {where}", [*writes, *read.write(state)], deadline=deadline
                )
            return state

        return self._nodes.repeat(f"finish the move of {where}", attempt)

    def handed_over(self, lead: HandOver) -> bool:
        """Tells whether the lead is the caller's no more, as far as it is known now. Raises
        CoordinationError, UnknownTopicError."""
        deadline = self._nodes.session.deadline()
        self._nodes.sync(deadline=deadline)
        read = LeadNodes.read(self._nodes, lead.topic_partition, lead.topic_id, deadline)
        return not read.is_led_by(lead.leader, lead.leader_epoch)

    def settle(self, lead: HandOver) -> bool:
        """Tells whether the lead is the caller's no more, after a ``hand_over`` whose outcome was
        not known; that stays so. Raises CoordinationError, UnknownTopicError.

        To read that it was not done is not enough: the request may be on its way still. So what
        stands is written once more, which the request, made for the version before, cannot follow.
        """
        where = lead.topic_partition

        def attempt(deadline: Deadline) -> bool:
            read = LeadNodes.read(self._nodes, where, lead.topic_id, deadline)
            if not read.is_led_by(lead.leader, lead.leader_epoch):
                return True
            node = read.state_node
            write = SetData(paths.partition_state(where), node.data, node.version)
            self._nodes.transact(f"settle who leads {where}", [write], deadline=deadline)
            return False

        return self._nodes.repeat(f"settle who leads {where}", attempt)

    def _change(self, description: str, topic: str, changed: _Change) -> TopicRecord:
        """Gives the topic's node the content that ``changed`` makes of it."""

        def attempt(deadline: Deadline) -> TopicRecord:
            path = paths.topic(topic)
            node, payload = TopicNode.read(topic, self._nodes.get(path, deadline=deadline)).alive()
            after = changed(payload)
            if after != payload:
                write = SetData(path, encode(after), node.version)
                self._nodes.transact(description, [write], deadline=deadline)
            return record_of(topic, after)

        return self._nodes.repeat(description, attempt)


def _require(payload: TopicPayload, where: TopicPartition, topic_id: str | None) -> None:
    """UnknownTopicError unless the topic has that id and partition."""
    TopicNode(where.topic, _READ, payload).require(LeadershipClaim(where, topic_id))


def _is_same(move: MovePayload, known: MovePayload) -> bool:
    """Tells if it is one move, whatever its throttle is and whether it has failed by now."""
    return (move.to, move.since_us) == (known.to, known.since_us)


def _require_lead(read: LeadNodes, lead: HandOver) -> None:
    """MoveEndedError unless the partition is led as the caller knows."""
    now = read.state
    if not read.is_led_by(lead.leader, lead.leader_epoch) or now.refused is not None:
        raise MoveEndedError(
            f"{read.topic_partition} is not handed over to broker {lead.to}: it is led by broker "
            f"{now.leader} in epoch {now.leader_epoch}{' and refused' if now.refused else ''}."
        )


def _to_mover(
    read: LeadNodes, lead: HandOver, since_us: int
) -> tuple[PartitionState, list[Operation]]:
    """Returns the state at the end of a move, as to its members, and the write that ends it."""
    move = read.payload.moves.get(read.topic_partition.partition)
    ended = f"{read.topic_partition} is not handed over to broker {lead.to}: "
    if move is None or move.error or move.since_us != since_us or lead.to not in move.to:
        raise MoveEndedError(f"{ended}its move was ended.")
    told = {} if lead.to == lead.leader else {lead.to: lead.log_id}
    members = arrived(read.state, move.to, told)
    if members is None:
        raise MoveEndedError(
            f"{ended}of brokers {_brokers(move.to)}, to which it moves, only "
            f"{_brokers(read.state.in_sync)} are in sync."
        )
    return members, [read.arrive(move.to)]


def _handed_over(now: PartitionState, after: PartitionState, lead: HandOver) -> dict[str, int]:
    """Returns the logs that had the lead or were in sync until the partition moved away from them,
    those of now the last. All that they have is in the history that goes on."""
    left = {each: log_id for each, log_id in now.replicas.items() if each not in after.in_sync}
    if lead.old_log_id and lead.leader not in after.in_sync:
        left[lead.leader] = lead.old_log_id
    new = {log_id: now.leader_epoch + 1 for log_id in left.values() if log_id}
    kept = {each: epoch for each, epoch in now.handed_over.items() if each not in new}
    return dict(sorted({**kept, **new}.items(), key=lambda each: each[1])[-_MAX_HANDED_OVER:])


def _is_with(lead: HandOver, now: PartitionState) -> bool:
    return now.leader == lead.to and now.leader_epoch > lead.leader_epoch


def _to(ids: Sequence[int]) -> str:
    return f"broker{'s' * (len(ids) > 1)} {_brokers(ids)}"


def _brokers(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))
