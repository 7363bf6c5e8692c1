"""Committed offsets of consumer groups.

A commit reads the nodes it is about to write and writes on the condition that they are
unchanged, all in one transaction with a check of the group's rewind epoch. So a commit
never half-happens, never overwrites what it has not seen, and never slips past a rewind. Queries
and members add a check of their ownership (see ``topic_owners`` and ``partition_owners``), so that
none slips past a successor either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.groups.owners import GroupOwner, OwnerNodes, group_owner
from spark_logbus.coordination.groups.topic_owners import Ownership
from spark_logbus.coordination.payloads import OffsetPayload, RewindEpochPayload, decode, encode
from spark_logbus.errors import GroupRewoundError, InvalidRequestError
from spark_logbus.model import NEVER_REWOUND, RewindMark, TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import (
    ConflictError,
    LostReplies,
    Node,
    Nodes,
    name_of,
    own_names,
)
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Create, Delete, Operation, SetData, in_parts

NO_TOPIC_IDS: Mapping[str, str] = MappingProxyType({})
_SHOWN = 5  # members named in a refusal


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """``offset`` is the next to read. ``topic_id`` distinguishes the topic from a later one of the
    same name; ``rewind_epoch`` counts the group's rewinds at the time of the commit."""

    offset: int
    committed_at_us: int
    actor: str
    topic_id: str | None
    rewind_epoch: int = 0

    def is_of(self, topic_id: str | None) -> bool:
        """True if it counts for the topic of that id. An offset of a topic that was deleted says
        nothing about a later one of its name; where no id was recorded it is taken to count."""
        return self.topic_id is None or self.topic_id == topic_id


class GroupOffsets:
    """Reads and commits the offsets of consumer groups. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._clock = session.clock

    def committed(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Offsets that the group committed, of ``topic_partitions`` or (None) of all; those
        without a commit are left out.

        Sees every commit that ended before the call. Of one that runs meanwhile it may see
        some partitions only, but of a rewind always all or nothing.
        """
        only = None if topic_partitions is None else list(topic_partitions)
        fence = paths.rewinds(group)

        def attempt(deadline: Deadline) -> dict[TopicPartition, CommittedOffset]:
            self._nodes.sync(deadline=deadline)
            wanted = self._known(group, deadline) if only is None else only
            by_path = {
                paths.offset(group, topic_partition): topic_partition for topic_partition in wanted
            }
            nodes = self._nodes.get_many([fence, *by_path], deadline=deadline)
            if nodes.pop(fence) != self._nodes.get(fence, deadline=deadline):
                raise ConflictError(f"The group {group!r} was rewound meanwhile.")
            return {
                by_path[path]: _committed(decode(OffsetPayload, node.data, path=path))
                for path, node in nodes.items()
                if node is not None and node.data
            }

        return self._nodes.repeat(f"read the offsets of the group {group}", attempt)

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        actor: str,
        topic_ids: Mapping[str, str] = NO_TOPIC_IDS,
        allow_backward: bool = True,
        expected_mark: RewindMark | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        """Commit ``offsets`` (the next to read), all or none; a repetition changes nothing.

        With ``allow_backward=False`` an already larger committed offset is left alone, unless
        it was of an earlier topic of the same name (``topic_ids`` differ). With
        ``expected_mark``, GroupRewoundError when the group was rewound since, be it to the same
        epoch in a group that was made anew (the token differs); with ``ownership``, ClaimLostError
        when another query or consumer has claimed what is committed, or GroupHeldError when any has
        and the ``ownership`` is ``NoOwnership``. More partitions than one ZooKeeper transaction
        holds (some thousands) go in several, each whole and each checked.
        """
        check_offsets(group, offsets)
        now_us = self._clock.now_us()
        wanted = {
            paths.offset(group, topic_partition): OffsetPayload(
                offset=offset,
                committed_at_us=now_us,
                actor=actor,
                topic_id=topic_ids.get(topic_partition.topic),
            )
            for topic_partition, offset in offsets.items()
        }
        topics = {topic_partition.topic for topic_partition in offsets}
        done: set[str] = set()
        lost = LostReplies[dict[str, bytes]]()
        description = f"commit offsets of the group {group}"
        fence = paths.rewinds(group)

        def attempt(deadline: Deadline) -> None:
            missing = [path for path in wanted if path not in done]
            checks = [] if ownership is None else ownership.checks(offsets, deadline=deadline)
            nodes = read_group(self._nodes, group, topics, missing, deadline=deadline)
            check, epoch = _fence(group, nodes[fence], expected_mark)
            for tried in lost:
                if any(nodes[path].data == data for path, data in tried.items() if path in nodes):
                    done.update(tried)  # one of a transaction's writes is there, so all were made
            lost.clear()
            writes: list[Operation] = []
            for path in missing:
                payload = msgspec.structs.replace(wanted[path], rewind_epoch=epoch)
                node = nodes.get(path)
                if path not in done and not _stays(path, node, payload, allow_backward):
                    writes.append(_write_of(path, node, encode(payload)))
            for part in in_parts(writes, each_with=[check, *checks]):
                data = _data_of(part)
                with lost.noting(data):
                    self._nodes.transact(description, part, deadline=deadline)
                done.update(data)

        if wanted:
            self._nodes.repeat(description, attempt)

    def groups(self) -> list[str]:
        """All groups that ever committed, were rewound or had an owner, by name."""
        return own_names(self._nodes, paths.CONSUMERS, "group")

    def owners(self, group: str) -> dict[str, GroupOwner]:
        """The running queries that read for the group, by topic."""
        queries = OwnerNodes(self._nodes, group).queries()
        return {topic: group_owner(owner) for topic, owner in queries.items()}

    def delete(self, group: str) -> None:
        """Forget the group: offsets, rewinds and all. Does nothing for an unknown group;
        InvalidRequestError while it has live members, or a query or consumer reads for it."""
        description = f"delete the group {group}"

        def attempt(deadline: Deadline) -> None:
            nodes = self._with_descendants(paths.group(group), deadline)
            self._refuse_in_use(group, None, "deleting the group", deadline)
            self._remove(description, nodes, deadline)

        self._nodes.repeat(description, attempt)

    def forget(self, group: str, topics: Iterable[str]) -> list[str]:
        """Forget what the group committed for ``topics``, which need not be there any more; those
        for which that was something. Its rewinds stay on the record. InvalidRequestError, and
        nothing is forgotten, while the group has live members, or a query or consumer reads one of
        the topics for it."""
        by_path = {paths.topic_offsets(group, topic): topic for topic in topics}
        names = ", ".join(by_path.values())
        description = f"forget the offsets of the group {group} for {names}"
        found: set[str] = set()  # also by an attempt whose reply was lost

        def attempt(deadline: Deadline) -> None:
            nodes: list[str] = []
            for path, topic in by_path.items():
                below = self._with_descendants(path, deadline)
                nodes += below
                found.update([topic] if below else [])
            self._refuse_in_use(
                group, set(by_path.values()), f"its offsets for {names} are forgotten", deadline
            )
            self._remove(description, nodes, deadline)

        if by_path:
            self._nodes.repeat(description, attempt)
        return [topic for topic in by_path.values() if topic in found]

    def _refuse_in_use(
        self, group: str, only: Collection[str] | None, before: str, deadline: Deadline
    ) -> None:
        """InvalidRequestError while anybody uses the group, or ``only`` these topics of it.

        To be called when the nodes that are to go have been listed. Whoever came before that is
        seen here; who comes later makes nodes below them, so that they cannot be removed.
        """
        self._nodes.sync(deadline=deadline)
        members = self._nodes.children(paths.members(group), deadline=deadline)
        if members:
            noun = "member" if len(members) == 1 else "members"
            more = f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else ""
            raise InvalidRequestError(
                f"The group {group!r} has {len(members)} live {noun} "
                f"({', '.join(members[:_SHOWN])}{more}); stop them before {before}. One that was "
                "killed counts until its ZooKeeper session expires."
            )
        nodes = OwnerNodes(self._nodes, group)
        owners = nodes.queries(deadline=deadline)
        for each, owner in nodes.consumers(deadline=deadline).items():
            owners.setdefault(each.topic, owner)
        for topic, owner in sorted(owners.items()):
            if only is None or topic in only:
                raise InvalidRequestError(
                    f"The group {group!r} is in use for topic {topic} ({group_owner(owner)}); "
                    f"stop that {'consumer' if owner.consumer else 'query'} before {before}. One "
                    "that was killed counts until its ZooKeeper session expires."
                )

    def _with_descendants(self, path: str, deadline: Deadline) -> list[str]:
        """The node and all below it, each after its parent; none when it is not there."""
        if self._nodes.get(path, deadline=deadline) is None:
            return []
        return [path, *self._nodes.descendants(path, deadline=deadline)]

    def _remove(self, description: str, nodes: list[str], deadline: Deadline) -> None:
        """Delete the nodes, of which each stands after its parent."""
        deletes: list[Operation] = [Delete(each) for each in reversed(nodes)]
        for part in in_parts(deletes):
            self._nodes.transact(description, part, deadline=deadline)

    def _known(self, group: str, deadline: Deadline) -> list[TopicPartition]:
        offsets_path = paths.offsets(group)
        topics = own_names(self._nodes, offsets_path, "topic", deadline=deadline)
        listed = self._nodes.children_many(
            [f"{offsets_path}/{topic}" for topic in topics], deadline=deadline
        )
        return [
            TopicPartition(name_of(path), number)
            for path, names in listed.items()
            for number in map(paths.number_of, names or ())
            if number is not None
        ]


def check_offsets(group: str, offsets: Mapping[TopicPartition, int]) -> None:
    for topic_partition, offset in offsets.items():
        if offset < 0:
            raise InvalidRequestError(
                f"The group {group!r} cannot be put at offset {offset} of {topic_partition}; use "
                "0 or more."
            )


def read_group(
    nodes: Nodes,
    group: str,
    topics: Iterable[str],
    offset_paths: Iterable[str],
    *,
    deadline: Deadline,
) -> dict[str, Node]:
    """The nodes that a commit or a rewind builds on, and those of ``offset_paths`` that there
    are. The one of ``paths.rewinds`` and those above the offsets are made when missing."""
    needed = [paths.rewinds(group), *(paths.topic_offsets(group, topic) for topic in topics)]
    found = nodes.get_many([*needed, *offset_paths], deadline=deadline)
    missing = [path for path in needed if found[path] is None]
    for path in missing:
        nodes.ensure(path, deadline=deadline)
    if missing:
        raise ConflictError(f"The group {group!r} gets its first offsets.")  # read again
    return {path: node for path, node in found.items() if node is not None}


def _fence(group: str, node: Node, expected: RewindMark | None) -> tuple[Operation, int]:
    """The check that fails if the group is rewound before the commit is done."""
    path = paths.rewinds(group)
    mark = mark_of(node, path=path)
    if expected is not None and not mark.may_be(expected):
        raise GroupRewoundError(
            f"The group {group!r} was rewound: this commit is of rewind epoch {expected}, "
            f"the group is at {mark}. Start again from its committed offsets."
        )
    return Check(path, node.version), mark.epoch


def mark_of(node: Node, *, path: str) -> RewindMark:
    if not node.data:
        return NEVER_REWOUND  # the node was made for a commit
    payload = decode(RewindEpochPayload, node.data, path=path)
    return RewindMark(payload.rewind_epoch, payload.token)


def _write_of(path: str, node: Node | None, data: bytes) -> Operation:
    """The write that replaces exactly what was read."""
    return Create(path, data) if node is None else SetData(path, data, node.version)


def _stays(path: str, node: Node | None, new: OffsetPayload, allow_backward: bool) -> bool:
    """True if the node is to be left as it is."""
    if allow_backward or node is None or not node.data:
        return False
    now = decode(OffsetPayload, node.data, path=path)
    other_topic = None not in (now.topic_id, new.topic_id) and now.topic_id != new.topic_id
    return now.offset > new.offset and not other_topic


def _data_of(operations: Iterable[Operation]) -> dict[str, bytes]:
    return {
        operation.path: operation.data
        for operation in operations
        if isinstance(operation, (Create, SetData))
    }


def _committed(payload: OffsetPayload) -> CommittedOffset:
    return CommittedOffset(
        offset=payload.offset,
        committed_at_us=payload.committed_at_us,
        actor=payload.actor,
        topic_id=payload.topic_id,
        rewind_epoch=payload.rewind_epoch,
    )
