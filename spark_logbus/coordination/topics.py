"""Topics: which there are, who leads their partitions.

A topic is one node with everything that is decided at its creation, so that creating it is
one transaction. Below it stands one state per partition, made when a broker first leads it.

Deleting cannot be one transaction (10,000 partitions do not fit), so it is decided by one
write that marks the topic's node as deleted. From then on nobody sees the topic; removing the
nodes is cleaning up, and whoever next creates or deletes that name finishes it.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.deadline import Deadline
from spark_logbus.coordination.operations import Check, Create, Delete, Operation, SetData, in_parts
from spark_logbus.coordination.payloads import (
    CorruptNodeError,
    StatePayload,
    TopicPayload,
    decode,
    encode,
)
from spark_logbus.coordination.session import Session
from spark_logbus.coordination.topic_records import (
    PartitionState,
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
from spark_logbus.coordination.tree import ConflictError, Node, Tree
from spark_logbus.coordination.watches import ChildrenView
from spark_logbus.errors import CoordinationError, TopicExistsError, UnknownTopicError
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)


class TopicRegistry:
    """Reads and changes topics. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._tree = Tree(session)

    # -- topics --------------------------------------------------------------------------

    def create(
        self, name: str, *, partitions: int, brokers: Sequence[int], config: Mapping[str, str]
    ) -> TopicRecord:
        """TopicExistsError, InvalidNameError, or ConfigError for the other arguments."""
        path = paths.topic(name)
        check_topic(name, partitions=partitions, brokers=brokers, config=config)
        payload = TopicPayload(
            id=uuid.uuid4().hex,
            partitions=spread(partitions=partitions, brokers=brokers, existing=self._readable()),
            config=dict(config),
        )
        self._tree.ensure(paths.TOPICS)

        def step(deadline: Deadline) -> None:
            node = self._tree.get(path, deadline=deadline)
            if node is not None:
                there = payload_of(name, node)
                if there.id == payload.id:
                    return  # made by an attempt of ours whose reply was lost
                if not there.deleted:
                    raise TopicExistsError(
                        f"The topic {name!r} exists already, with {len(there.partitions)} "
                        "partitions. Choose another name, or delete it first."
                    )
                self._remove_nodes(name, deadline)
            self._tree.transact(
                f"create the topic {name}",
                [Create(path, encode(payload)), Create(paths.partitions(name))],
                deadline=deadline,
            )

        self._tree.repeat(f"create the topic {name}", step)
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
        attempted: list[tuple[TopicRecord, TopicPayload]] = []

        def step(deadline: Deadline) -> tuple[TopicRecord, TopicRecord]:
            node, payload = self._alive(name, deadline)
            for before, made in attempted:
                if payload == made:  # by an attempt of ours whose reply was lost
                    return before, record_of(name, made)
            before = record_of(name, payload)
            after = change(before)
            check_alteration(before, after)
            changed = msgspec.structs.replace(
                payload, config=dict(after.config), partitions=dict(after.partitions)
            )
            if changed != payload:
                attempted.append((before, changed))
                self._tree.transact(
                    f"alter the topic {name}",
                    [SetData(paths.topic(name), encode(changed), node.version)],
                    deadline=deadline,
                )
            return before, after

        return self._tree.repeat(f"alter the topic {name}", step)

    def delete(self, name: str) -> None:
        """UnknownTopicError. When it returns, nobody sees the topic any more."""
        marked: set[str] = set()

        def step(deadline: Deadline) -> None:
            node = self._tree.get(paths.topic(name), deadline=deadline)
            payload = None if node is None else payload_of(name, node)
            gone = payload is None or payload.deleted or payload.id not in (marked or {payload.id})
            if gone and marked:
                return  # by an attempt of ours whose reply was lost
            if node is None or payload is None or payload.deleted:
                self._clean_up(name)
                raise unknown_topic(name)
            marked.add(payload.id)
            self._tree.transact(
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

        self._tree.repeat(f"delete the topic {name}", step)
        self._clean_up(name)

    def get(self, name: str) -> TopicRecord | None:
        node = self._tree.get(paths.topic(name))
        return None if node is None else decode_topic(name, node)

    def all(self) -> dict[str, TopicRecord]:
        names = self._tree.children(paths.TOPICS) or []
        nodes = self._tree.get_many(f"{paths.TOPICS}/{name}" for name in names)
        found = {}
        for name in names:
            node = nodes[f"{paths.TOPICS}/{name}"]
            record = None if node is None else decode_topic(name, node)
            if record is not None:
                found[name] = record
        return found

    def watch(self, f: Callable[[dict[str, TopicRecord]], None]) -> None:
        """Call ``f`` with all topics: now, on this thread; then, on the session's worker, when a
        topic came, went or was changed, and whenever the session was renewed. Changes in quick
        succession may come as one. ``f`` may make requests, but holds up other callbacks."""
        ChildrenView(self._tree, paths.TOPICS, decode=decode_topic, deliver=f).start()

    # -- leaders -------------------------------------------------------------------------

    def states(self, name: str) -> dict[int, PartitionState]:
        """Of the partitions that were led at least once; empty for an unknown topic."""
        if self.get(name) is None:
            return {}
        numbers = map(paths.number_of, self._tree.children(paths.partitions(name)) or [])
        by_path = {
            paths.partition_state(TopicPartition(name, number)): number
            for number in numbers
            if number is not None
        }
        nodes = self._tree.get_many(by_path)
        return {
            by_path[path]: state_of(decode(StatePayload, node.data, path=path))
            for path, node in nodes.items()
            if node is not None
        }

    def lead(self, tp: TopicPartition, *, broker_id: int) -> PartitionState:
        """Make ``broker_id`` the leader in a new leader epoch. UnknownTopicError.

        Conditional on the state it read and on the topic's node, so two brokers never get the
        same epoch and a deleted topic gets no leader.
        """
        path = paths.partition_state(tp)
        attempted: list[StatePayload] = []
        what = f"make broker {broker_id} the leader of {tp}"

        def step(deadline: Deadline) -> PartitionState:
            topic_node, payload = self._alive(tp.topic, deadline)
            if tp.partition not in payload.partitions:
                raise UnknownTopicError(
                    f"The topic {tp.topic!r} has {len(payload.partitions)} partitions and so no "
                    f"partition {tp.partition}."
                )
            node = self._tree.get(path, deadline=deadline)
            now = None if node is None else decode(StatePayload, node.data, path=path)
            if now is not None and now in attempted:
                return state_of(now)  # done by an attempt whose reply was lost
            new = StatePayload(
                leader=broker_id,
                leader_epoch=0 if now is None else now.leader_epoch + 1,
                in_sync=[broker_id],
            )
            write: Operation = Create(path, encode(new))
            if node is None:
                self._make_partition(tp, topic_node, deadline)
            else:
                write = SetData(path, encode(new), node.version)
            attempted.append(new)
            try:
                self._tree.transact(
                    what,
                    [Check(paths.topic(tp.topic), topic_node.version), write],
                    deadline=deadline,
                )
            except ConflictError:
                attempted.clear()  # certainly not done
                raise
            return state_of(new)

        return self._tree.repeat(what, step)

    def _make_partition(self, tp: TopicPartition, topic: Node, deadline: Deadline) -> None:
        if self._tree.get(paths.partition(tp), deadline=deadline) is None:
            self._tree.transact(
                f"create the node of {tp}",
                [Check(paths.topic(tp.topic), topic.version), Create(paths.partition(tp))],
                deadline=deadline,
            )

    # -- help ----------------------------------------------------------------------------

    def _readable(self) -> list[TopicRecord]:
        """All topics whose nodes are in order: one damaged node must not stop the others."""
        names = self._tree.children(paths.TOPICS) or []
        nodes = self._tree.get_many(f"{paths.TOPICS}/{name}" for name in names)
        found = []
        for name in names:
            node = nodes[f"{paths.TOPICS}/{name}"]
            with contextlib.suppress(CorruptNodeError):
                record = None if node is None else decode_topic(name, node)
                found.extend([] if record is None else [record])
        return found

    def _alive(self, name: str, deadline: Deadline) -> tuple[Node, TopicPayload]:
        node = self._tree.get(paths.topic(name), deadline=deadline)
        if node is None:
            raise unknown_topic(name)
        payload = payload_of(name, node)
        if payload.deleted:
            raise unknown_topic(name)
        return node, payload

    def _clean_up(self, name: str) -> None:
        try:
            self._tree.repeat(
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
        node = self._tree.get(path, deadline=deadline)
        if node is None or not payload_of(name, node).deleted:
            return
        below = self._tree.descendants(path, deadline=deadline)
        operations: list[Operation] = [Delete(each) for each in reversed(below)]
        operations.append(Delete(path, node.version))
        for part in in_parts(operations):
            self._tree.transact(f"remove the nodes of {name}", part, deadline=deadline)
