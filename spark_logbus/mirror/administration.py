"""Tasks of operators beside a mirror's rounds: forget a topic, carry a group's position over."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.topic_owners import NoOwnership
from spark_logbus.coordination.locks import Lock
from spark_logbus.coordination.mirrors import Mirrors, MirrorState
from spark_logbus.errors import InvalidRequestError
from spark_logbus.mirror.points import translated
from spark_logbus.mirror.source.source import MirrorSource
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.zookeeper import Session


def mirror_lock(session: Session, name: str, *, doing: str) -> Lock:
    """Makes the lock that a process holds while it runs a mirror or changes its state."""
    holder = f"{doing} on {platform.node()} (process {os.getpid()})"
    return Lock(session, f"mirror {name}", holder=holder)


def forget_topic(name: str, topic: str, *, session: Session) -> None:
    """Makes a mirror know nothing of a topic any more, so that it begins anew there. LockHeldError
    while the mirror runs, InvalidRequestError if it knows nothing of the topic."""
    mirrors = Mirrors(session)
    with mirror_lock(session, name, doing=f"a command that forgets {topic}"):
        before = mirrors.read(name)
        if topic not in before.topics:
            known = ", ".join(sorted(before.topics)) or "none"
            raise InvalidRequestError(
                f"The mirror {name!r} has copied nothing of the topic {topic!r}; its topics are: "
                f"{known}."
            )
        topics = {each: entry for each, entry in before.topics.items() if each != topic}
        mirrors.write(name, before, replace(before, topics=topics))


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
    """Translates the positions in partitions that the mirror has, in order. Pure."""
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
    """Returns where a group of the source is to go on in the target, by the mirror of that name;
    commits that there for the same group with ``execute`` only.

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
