"""Rewinds of consumer groups: committed offsets set back, on the record.

Every rewind begins a new rewind epoch. The new epoch, its reason and the offsets it sets are one
transaction, so whoever sees the epoch also sees the offsets, and a commit that expects the epoch
before is refused (see ``offsets``).

Epochs are counted anew when a group is deleted and rewound again. So a rewind also has a token of
its own: two rewinds are the same if epoch and token are.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from spark_logbus.coordination import paths
from spark_logbus.coordination.groups.offsets import (
    NO_TOPIC_IDS,
    check_offsets,
    mark_of,
    read_group,
)
from spark_logbus.coordination.payloads import (
    OffsetPayload,
    RewindEpochPayload,
    RewindPayload,
    decode,
    encode,
)
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import NEVER_REWOUND, RewindMark, TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import LostReplies, Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Delete, Operation, SetData

MAX_HISTORY = 1_000  # rewinds kept for each group; older ones are forgotten


@dataclass(frozen=True, slots=True)
class Rewind:
    """``positions`` are the committed offsets that the rewind set; ``description`` says in words
    where to. It and the ``reason`` are empty where they were not given."""

    epoch: int
    positions: dict[TopicPartition, int]
    reason: str
    when_us: int
    actor: str
    description: str = ""
    token: str = ""

    @property
    def mark(self) -> RewindMark:
        return RewindMark(self.epoch, self.token)


class GroupRewinds:
    """Records rewinds of consumer groups and lists them. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._clock = session.clock

    def epoch(self, group: str) -> int:
        """The number of the group's rewinds; 0 for an unknown group, too."""
        return self.mark(group).epoch

    def mark(self, group: str) -> RewindMark:
        """The group's last rewind."""
        deadline = self._nodes.session.deadline()
        path = paths.rewinds(group)
        self._nodes.sync(deadline=deadline)
        node = self._nodes.get(path, deadline=deadline)
        return NEVER_REWOUND if node is None else mark_of(node, path=path)

    def record(
        self,
        group: str,
        positions: Mapping[TopicPartition, int],
        *,
        reason: str,
        actor: str,
        description: str = "",
        topic_ids: Mapping[str, str] = NO_TOPIC_IDS,
    ) -> Rewind:
        """Begin a new rewind epoch and commit ``positions`` for the group, in one transaction.

        ``topic_ids`` are of the topics that the positions were looked up in; without them the
        positions are taken to be of the topics that were committed before.

        InvalidRequestError for no positions, for a negative one, and for more than fit into
        one transaction (some thousands): rewind fewer partitions at a time then.
        """
        check_offsets(group, positions)
        if not positions:
            raise InvalidRequestError(
                f"A rewind of the group {group!r} needs at least one partition and its offset."
            )
        payload = RewindPayload(
            positions=_nested(positions),
            reason=reason,
            when_us=self._clock.now_us(),
            actor=actor,
            description=description,
            token=uuid.uuid4().hex,
        )
        by_path = {
            paths.offset(group, topic_partition): (offset, topic_ids.get(topic_partition.topic))
            for topic_partition, offset in positions.items()
        }
        lost = LostReplies[int]()
        action = f"rewind the group {group}"

        def attempt(deadline: Deadline) -> int:
            nodes = read_group(
                self._nodes,
                group,
                {topic_partition.topic for topic_partition in positions},
                by_path,
                deadline=deadline,
            )
            fence = nodes[paths.rewinds(group)]
            for done in lost:
                if self._holds(group, done, payload, deadline):
                    return done
            new = mark_of(fence, path=paths.rewinds(group)).epoch + 1
            begun = RewindEpochPayload(rewind_epoch=new, token=payload.token)
            operations: list[Operation] = [
                SetData(paths.rewinds(group), encode(begun), fence.version),
                Create(paths.rewind(group, new), encode(payload)),
                *_offset_writes(by_path, nodes, payload, epoch=new),
                *self._forgotten(group, new, deadline),
            ]
            with lost.noting(new):
                self._nodes.transact(action, operations, deadline=deadline)
            return new

        return _rewind(self._nodes.repeat(action, attempt), payload)

    def history(self, group: str) -> list[Rewind]:
        """The last rewinds (at most 1,000), oldest first."""
        deadline = self._nodes.session.deadline()
        self._nodes.sync(deadline=deadline)
        names = self._nodes.children(paths.rewinds(group), deadline=deadline) or []
        numbers = [number for number in map(paths.number_of, names) if number is not None]
        nodes = self._nodes.get_many(
            [paths.rewind(group, number) for number in numbers], deadline=deadline
        )
        found = []
        for number in sorted(numbers):
            path = paths.rewind(group, number)
            node = nodes[path]
            if node is not None:
                found.append(_rewind(number, decode(RewindPayload, node.data, path=path)))
        return found

    def _holds(self, group: str, epoch: int, payload: RewindPayload, deadline: Deadline) -> bool:
        node = self._nodes.get(paths.rewind(group, epoch), deadline=deadline)
        return node is not None and node.data == encode(payload)

    def _forgotten(self, group: str, new: int, deadline: Deadline) -> list[Operation]:
        if new <= MAX_HISTORY:
            return []
        path = paths.rewind(group, new - MAX_HISTORY)
        return [] if self._nodes.get(path, deadline=deadline) is None else [Delete(path)]


def _offset_writes(
    positions: Mapping[str, tuple[int, str | None]],
    nodes: Mapping[str, Node],
    rewind: RewindPayload,
    *,
    epoch: int,
) -> list[Operation]:
    writes: list[Operation] = []
    for path, (offset, topic_id) in positions.items():
        node = nodes.get(path)
        if topic_id is None and node is not None and node.data:
            topic_id = decode(OffsetPayload, node.data, path=path).topic_id
        data = encode(
            OffsetPayload(
                offset=offset,
                committed_at_us=rewind.when_us,
                actor=rewind.actor,
                topic_id=topic_id,
                rewind_epoch=epoch,
            )
        )
        # Whatever version: a rewind wins over commits that run at the same time.
        writes.append(Create(path, data) if node is None else SetData(path, data))
    return writes


def _nested(positions: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    nested: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for topic_partition, offset in sorted(positions.items()):
        nested[topic_partition.topic][topic_partition.partition] = offset
    return dict(nested)


def _rewind(epoch: int, payload: RewindPayload) -> Rewind:
    return Rewind(
        epoch=epoch,
        positions={
            TopicPartition(topic, partition): offset
            for topic, by_partition in payload.positions.items()
            for partition, offset in by_partition.items()
        },
        reason=payload.reason,
        when_us=payload.when_us,
        actor=payload.actor,
        description=payload.description,
        token=payload.token,
    )
