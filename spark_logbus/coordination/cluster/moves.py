"""Moves of partitions to other brokers, as they stand in ZooKeeper.

A move stands in its topic's node, so everybody who watches topics learns of it, and it outlives all
processes. It ends in one of three ways, each a write on the condition that the move stands: the
leader hands over the lead to the new broker, in one transaction with the assignment and the end of
the move; somebody cancels it; or the new broker or the leader notes why it has failed. So a
cancelled move is never handed over, and one that was handed over is not cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

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

MAX_MOVES: Final = 1_000  # of one topic, as each change of one writes them all
_MAX_ERROR_BYTES: Final = 300

_READ = Node(b"", 0, 0, (0, 0))
_Change = Callable[[TopicPayload], TopicPayload]


class MoveEndedError(Exception):
    """The move that is to be handed over does not stand as it was known: it was cancelled or
    replaced, or the lead is not the caller's any more."""


class HandOver(NamedTuple):
    """The lead of a partition as its leader gives it away.

    ``log_id`` is of the new broker's log, which has everything before ``end`` on its disk.
    ``since_us`` says in which move it has told so.
    """

    topic_partition: TopicPartition
    topic_id: str
    leader: int
    leader_epoch: int
    to: int
    log_id: str
    end: int
    since_us: int


class PartitionMoves:
    """Reads and changes moves. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)

    def begin(
        self, topic: str, moves: Mapping[int, MovePayload], *, topic_id: str | None = None
    ) -> TopicRecord:
        """Asks for moves of partitions of one topic; returns the topic after that.

        A move to the broker that has the partition is left out. One that stands goes on, with the
        new throttle; one that has failed begins anew. Raises UnknownTopicError, and
        InvalidRequestError for a partition that is on its way to another broker, and for more moves
        than a topic may have: then none begins.
        """

        def changed(payload: TopicPayload) -> TopicPayload:
            wanted = dict(payload.moves)
            for partition, move in moves.items():
                _require(payload, TopicPartition(topic, partition), topic_id)
                now = wanted.pop(partition, None)
                if now is not None and not now.error:
                    if now.to != move.to:
                        raise InvalidRequestError(
                            f"{topic}-{partition} is on its way to broker {_brokers(now.to)}; "
                            f"cancel that move before it is sent to broker {_brokers(move.to)}."
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
            return msgspec.structs.replace(payload, moves=wanted)

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
            return msgspec.structs.replace(
                payload, moves={**payload.moves, topic_partition.partition: failed}
            )

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
        """Gives the lead to the new broker, assigns the partition to it, and ends the move: all in
        one transaction. Returns the state of the partition after that.

        Raises MoveEndedError when the move was cancelled or the lead is not the caller's: nothing
        was written then, or another's word stands. UnknownTopicError. CoordinationError: nobody
        knows if it was done, and the caller takes no append before ``settle`` has said it.
        """
        where = lead.topic_partition
        topic_path, state_path = paths.topic(where.topic), paths.partition_state(where)
        lost = LostReplies[PartitionState]()

        def attempt(deadline: Deadline) -> PartitionState:
            topic, node, now, is_watched = self._read(lead, deadline)
            if now in lost or (lost and _is_with(lead, now)):
                return now  # handed over by an attempt of ours, and the new broker may lead by now
            topic_node, payload = topic.alive()
            move = payload.moves.get(where.partition)
            if (
                (now.leader, now.leader_epoch) != (lead.leader, lead.leader_epoch)
                or now.refused is not None
                or move is None
                or move.error
                or (move.to, move.since_us) != ([lead.to], lead.since_us)
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
                given_up=now.given_up,
            )
            moves = {each: kept for each, kept in payload.moves.items() if each != where.partition}
            assigned = {**payload.partitions, where.partition: [lead.to]}
            after = msgspec.structs.replace(payload, partitions=assigned, moves=moves)
            writes = [
                SetData(topic_path, encode(after), topic_node.version),
                SetData(state_path, encode(state), node.version),
            ]
            if is_watched:
                writes.append(SetData(paths.partitions(where.topic), b""))
            with lost.noting(state):
                self._nodes.transact(
                    f"hand over {where} to broker {lead.to}", writes, deadline=deadline
                )
            return state

        return self._nodes.repeat(f"hand over {where} to broker {lead.to}", attempt)

    def handed_over(self, lead: HandOver) -> bool:
        """Tells whether the lead is the caller's no more, as far as it is known now. Raises
        CoordinationError, UnknownTopicError."""
        deadline = self._nodes.session.deadline()
        self._nodes.sync(deadline=deadline)
        _, _, now, _ = self._read(lead, deadline)
        return (now.leader, now.leader_epoch) != (lead.leader, lead.leader_epoch)

    def settle(self, lead: HandOver) -> bool:
        """Tells whether the lead is the caller's no more, after a ``hand_over`` whose outcome was
        not known; that stays so. Raises CoordinationError, UnknownTopicError.

        To read that it was not done is not enough: the request may be on its way still. So what
        stands is written once more, which the request, made for the version before, cannot follow.
        """
        where = lead.topic_partition

        def attempt(deadline: Deadline) -> bool:
            _, node, now, _ = self._read(lead, deadline)
            if (now.leader, now.leader_epoch) != (lead.leader, lead.leader_epoch):
                return True
            write = SetData(paths.partition_state(where), node.data, node.version)
            self._nodes.transact(f"settle who leads {where}", [write], deadline=deadline)
            return False

        return self._nodes.repeat(f"settle who leads {where}", attempt)

    def _read(
        self, lead: HandOver, deadline: Deadline
    ) -> tuple[TopicNode, Node, PartitionState, bool]:
        """Reads the topic, the node of the partition's state and what is in it, and whether the
        node above can tell of its change (see ``partition_states``)."""
        where = lead.topic_partition
        topic_path, state_path = paths.topic(where.topic), paths.partition_state(where)
        above_path = paths.partitions(where.topic)
        nodes = self._nodes.get_many([topic_path, above_path, state_path], deadline=deadline)
        topic, node = TopicNode.read(where.topic, nodes[topic_path]), nodes[state_path]
        topic.require(LeadershipClaim(where, lead.topic_id))
        if node is None:
            raise UnknownTopicError(f"{where} has no state in ZooKeeper: nobody leads it.")
        above = nodes[above_path]
        is_watched = above is not None and not above.refused
        return topic, node, decode(PartitionState, node.data, path=state_path), is_watched

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


def _is_with(lead: HandOver, now: PartitionState) -> bool:
    return now.leader == lead.to and now.leader_epoch > lead.leader_epoch


def _brokers(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))
