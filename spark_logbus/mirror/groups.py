"""A group's position in the source, carried over to the copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.topic_owners import NoOwnership
from spark_logbus.coordination.mirrors import Mirrors, MirrorState
from spark_logbus.errors import InvalidRequestError
from spark_logbus.mirror.points import translated
from spark_logbus.mirror.source.source import MirrorSource
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.zookeeper import Session


@dataclass(frozen=True, slots=True)
class TranslatedPosition:
    """A partition of a group: ``committed`` in the source becomes ``new`` in the target. Unless it
    is ``exact``, records may be read again there; ``ahead`` is by how many offsets the group is
    ahead of the copy."""

    source: TopicPartition
    target: TopicPartition
    committed: int
    new: int
    exact: bool
    ahead: int


def positions(
    state: MirrorState, committed: Mapping[TopicPartition, int]
) -> list[TranslatedPosition]:
    """The positions of the partitions that the mirror has, in order. Pure."""
    found = []
    for at, offset in sorted(committed.items()):
        topic = state.topics.get(at.topic)
        if topic is None or at.partition not in topic.points:
            continue
        to = translated(topic.points[at.partition], offset)
        target = TopicPartition(topic.target, at.partition)
        found.append(TranslatedPosition(at, target, offset, to.target, to.exact, to.ahead))
    return found


def translate_group(
    name: str, group: str, *, source: MirrorSource, session: Session, execute: bool = False
) -> list[TranslatedPosition]:
    """Where a group of the source is to go on in the target, by the mirror of that name; committed
    there for the same group only with ``execute``.

    ``session`` is one with the ZooKeeper of the target. Raises InvalidRequestError where there is
    nothing to translate, and GroupHeldError, and nothing is committed, while a query or consumer
    reads for the group in the target.
    """
    check_name("group", group)
    state = Mirrors(session).read(name)
    if state.source is None:
        known = ", ".join(Mirrors(session).names()) or "none"
        raise InvalidRequestError(
            f"The target has no mirror {name!r}; it has: {known}. Check --name, and --zookeeper."
        )
    ids = {topic: entry.topic_id for topic, entry in state.topics.items()}
    found = positions(state, source.committed(group, ids))
    if not found:
        raise InvalidRequestError(
            f"The group {group!r} has committed nothing in the source for the topics of the mirror "
            f"{name!r} ({', '.join(sorted(state.topics)) or 'none'}). Check the group's name."
        )
    if execute:
        GroupOffsets(session).commit(
            group,
            {each.target: each.new for each in found},
            actor=f"mirror {name}",
            topic_ids={entry.target: entry.target_id for entry in state.topics.values()},
            ownership=NoOwnership(session, group),
        )
    return found
