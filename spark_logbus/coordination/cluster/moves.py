"""Moves of partitions to other brokers, as they stand in ZooKeeper.

A move stands in its topic's node, so everybody who watches topics learns of it, and it outlives all
processes. It ends in one of three ways, each a write on the condition that the move stands: the
leader hands over the lead to the new broker, in one transaction with the assignment and the end of
the move; somebody cancels it; or the new broker or the leader notes why it has failed. So a
cancelled move is never handed over, and one that was handed over is not cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    TopicNode,
    TopicRecord,
    record_of,
)
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
    TopicPayload,
    decode,
    encode,
)
from spark_logbus.errors import InvalidRequestError, UnknownTopicError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import LostReplies, Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import SetData

_MAX_ERROR = 500

_Change = Callable[[TopicPayload], TopicPayload]


class MoveEndedError(Exception):
    """The move that is to be handed over does not stand as it was known: it was cancelled or
    replaced, or the lead is not the caller's any more."""


class HandOver(NamedTuple):
    """The lead of a partition as its leader gives it away.

    ``log_id`` is of the new broker's log, which has everything before ``end`` on its disk.
    """

    topic_partition: TopicPartition
    topic_id: str
    leader: int
    leader_epoch: int
    to: int
    log_id: str
    end: int


class PartitionMoves:
    """Reads and changes moves. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)

    def begin(
        self, topic: str, moves: Mapping[int, MovePayload], *, topic_id: str | None = None
    ) -> TopicRecord:
        """Asks for moves of partitions of one topic; returns the topic after that.

        One to the broker that has the partition is left out. Raises UnknownTopicError, and
        InvalidRequestError for a partition that is on its way to another broker: then none begins.
        """

        def changed(payload: TopicPayload) -> TopicPayload:
            wanted = dict(payload.moves)
            for partition, move in moves.items():
                self._node_of(topic, payload).require(
                    LeadershipClaim(TopicPartition(topic, partition), topic_id)
                )
                now = wanted.get(partition)
                if payload.partitions[partition] == move.to:
                    if now is not None and now.error:
                        del wanted[partition]
                    continue
                if now is not None and not now.error and now.to != move.to:
                    raise InvalidRequestError(
                        f"{topic}-{partition} is on its way to broker {_brokers(now.to)}; cancel "
                        f"that move before it is sent to broker {_brokers(move.to)}."
                    )
                if now is not None and not now.error:
                    move = msgspec.structs.replace(move, since_us=now.since_us)
                wanted[partition] = move
            return msgspec.structs.replace(payload, moves=wanted)

        return self._change(f"move partitions of {topic}", topic, changed)

    def cancel(
        self, topic: str, partitions: Iterable[int], *, topic_id: str | None = None
    ) -> TopicRecord:
        """Ends moves, those that have failed too; returns the topic after that.

        A move whose lead was handed over is over, and its partition stays where it is. Raises
        UnknownTopicError.
        """
        ended = {*partitions}

        def changed(payload: TopicPayload) -> TopicPayload:
            for partition in ended:
                self._node_of(topic, payload).require(
                    LeadershipClaim(TopicPartition(topic, partition), topic_id)
                )
            kept = {each: move for each, move in payload.moves.items() if each not in ended}
            return msgspec.structs.replace(payload, moves=kept)

        return self._change(f"cancel moves of {topic}", topic, changed)

    def fail(
        self, topic_partition: TopicPartition, *, topic_id: str, move: MovePayload, error: str
    ) -> None:
        """Notes why a move has failed, if it stands as it was known. Raises UnknownTopicError."""

        def changed(payload: TopicPayload) -> TopicPayload:
            now = payload.moves.get(topic_partition.partition)
            if payload.id != topic_id or now != move:
                return payload
            failed = msgspec.structs.replace(move, error=error[:_MAX_ERROR] or "It has failed.")
            return msgspec.structs.replace(
                payload, moves={**payload.moves, topic_partition.partition: failed}
            )

        self._change(f"note that the move of {topic_partition} has failed",
                     topic_partition.topic, changed)  # fmt: skip

    def hand_over(self, lead: HandOver) -> PartitionState:
        """Gives the lead to the new broker, assigns the partition to it, and ends the move: all in
        one transaction. Returns the state of the partition after that.

        Raises MoveEndedError when the move was cancelled or the lead is not the caller's: nothing
        was written then, or another's word stands. UnknownTopicError. CoordinationError: nobody
        knows if it was done, and the caller takes no append before ``handed_over`` has said it.
        """
        where = lead.topic_partition
        topic_path, state_path = paths.topic(where.topic), paths.partition_state(where)
        lost = LostReplies[PartitionState]()

        def attempt(deadline: Deadline) -> PartitionState:
            topic, node, now = self._read(lead, deadline)
            if now in lost:
                return now
            topic_node, payload = topic.alive()
            move = payload.moves.get(where.partition)
            if (
                (now.leader, now.leader_epoch) != (lead.leader, lead.leader_epoch)
                or move is None
                or move.error
                or move.to != [lead.to]
            ):
                raise MoveEndedError(
                    f"{where} is not handed over to broker {lead.to}: its move was ended, or it is "
                    f"led by broker {now.leader} in epoch {now.leader_epoch}."
                )
            state = PartitionState(
                leader=lead.to,
                leader_epoch=now.leader_epoch + 1,
                in_sync=[lead.to],
                end=max(lead.end, now.end or 0),
                replicas={lead.to: lead.log_id},
            )
            moves = {each: kept for each, kept in payload.moves.items() if each != where.partition}
            assigned = {**payload.partitions, where.partition: [lead.to]}
            after = msgspec.structs.replace(payload, partitions=assigned, moves=moves)
            with lost.noting(state):
                self._nodes.transact(
                    f"hand over {where} to broker {lead.to}",
                    [
                        SetData(topic_path, encode(after), topic_node.version),
                        SetData(state_path, encode(state), node.version),
                    ],
                    deadline=deadline,
                )
            return state

        return self._nodes.repeat(f"hand over {where} to broker {lead.to}", attempt)

    def handed_over(self, lead: HandOver) -> bool:
        """Tells whether the lead is the caller's no more, after a ``hand_over`` whose outcome was
        not known. Raises CoordinationError, UnknownTopicError."""
        deadline = self._nodes.session.deadline()
        self._nodes.sync(deadline=deadline)
        _, _, now = self._read(lead, deadline)
        return (now.leader, now.leader_epoch) != (lead.leader, lead.leader_epoch)

    def _read(self, lead: HandOver, deadline: Deadline) -> tuple[TopicNode, Node, PartitionState]:
        where = lead.topic_partition
        topic_path, state_path = paths.topic(where.topic), paths.partition_state(where)
        nodes = self._nodes.get_many([topic_path, state_path], deadline=deadline)
        topic, node = TopicNode.read(where.topic, nodes[topic_path]), nodes[state_path]
        topic.require(LeadershipClaim(where, lead.topic_id))
        if node is None:
            raise UnknownTopicError(f"{where} has no state in ZooKeeper: nobody leads it.")
        return topic, node, decode(PartitionState, node.data, path=state_path)

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

    @staticmethod
    def _node_of(topic: str, payload: TopicPayload) -> TopicNode:
        return TopicNode(topic, Node(b"", 0, 0, (0, 0)), payload)


def _brokers(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))
