"""Topics in ZooKeeper.

A topic is one node with everything that is decided at its creation, so that creating it is
one transaction. Below it stands one state per partition (see ``partition_states``).

Deleting cannot be one transaction (10,000 partitions do not fit), so it is decided by one
write that marks the topic's node as deleted. From then on nobody sees the topic; removing the
nodes is cleaning up, and whoever next creates or deletes that name finishes it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.spreading import spread
from spark_logbus.coordination.cluster.topic_records import (
    TopicNode,
    TopicRecord,
    check_alteration,
    check_size,
    check_topic,
    decode_topic,
    payload_of,
    record_of,
    unknown_topic,
)
from spark_logbus.coordination.payloads import TopicPayload, encode
from spark_logbus.errors import (
    CoordinationError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import LostReplies, Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Delete, Operation, SetData, in_parts
from spark_logbus.zookeeper.unreadable import CorruptNodeError
from spark_logbus.zookeeper.watches import ChildrenView

logger = logging.getLogger(__name__)


class TopicRegistry:
    """Reads and changes topics. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._unreadable = session.unreadable

    def create(
        self,
        name: str,
        *,
        partitions: int,
        brokers: Collection[int],
        config: Mapping[str, str],
        replicas: int = 1,
        racks: Mapping[int, str | None] = MappingProxyType({}),
    ) -> TopicRecord:
        """Makes a topic on the brokers, which stand in ``racks``. TopicExistsError,
        InvalidNameError, or ConfigError for the other arguments."""
        path = paths.topic(name)
        check_topic(name, partitions=partitions, replicas=replicas, brokers=brokers, config=config)
        payload = TopicPayload(
            id=uuid.uuid4().hex,
            partitions=spread(
                partitions=partitions,
                replicas=replicas,
                brokers=brokers,
                racks=racks,
                existing=self.all().values(),
            ),
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
            check_size(name, payload, changed)
            if changed != payload:
                write = SetData(paths.topic(name), encode(changed), node.version)
                with lost.noting((before, changed)):
                    self._nodes.transact(f"alter the topic {name}", [write], deadline=deadline)
            return before, after

        return self._nodes.repeat(f"alter the topic {name}", attempt)

    def delete(self, name: str, *, topic_id: str | None = None) -> None:
        """Deletes the topic, or the one with that id. UnknownTopicError. When it returns, nobody
        sees the topic any more."""
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
            if topic_id is not None and payload.id != topic_id:
                raise UnknownTopicError(
                    f"The topic {name!r} with the id {topic_id} was deleted already. Another one "
                    f"has that name now, with the id {payload.id}, and stays."
                )
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
        """Returns the topics of ``names`` that exist. Raises CorruptNodeError for one whose node is
        not in order: nobody can say if there is such a topic."""
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

    def _alive(self, name: str, deadline: Deadline) -> tuple[Node, TopicPayload]:
        return TopicNode.read(name, self._nodes.get(paths.topic(name), deadline=deadline)).alive()

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
