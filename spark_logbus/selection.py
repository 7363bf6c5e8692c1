"""A reader's choice of partitions: by topic, by partition or by pattern (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from spark_logbus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Topics:
    """All partitions of the named topics, also ones that are added later."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partitions:
    """Exactly these partitions."""

    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """All partitions of all topics whose whole name matches, also ones created later."""

    pattern: str


Selection = Topics | Partitions | Pattern


def named_topics(selection: Selection) -> tuple[str, ...] | None:
    """The topics that must exist, sorted; None when that depends on what the cluster has."""
    match selection:
        case Topics(names):
            return tuple(sorted(set(names)))
        case Partitions(topic_partitions):
            return tuple(sorted({topic_partition.topic for topic_partition in topic_partitions}))
        case Pattern():
            return None


def matching_topics(selection: Selection, existing: Iterable[str]) -> list[str]:
    """Returns the ``existing`` topics that are asked for, sorted."""
    names = named_topics(selection)
    if names is not None:
        return sorted(set(names).intersection(existing))
    assert isinstance(selection, Pattern)
    regex = re.compile(selection.pattern)
    return sorted(topic for topic in existing if regex.fullmatch(topic))


def includes(selection: Selection, topic_partition: TopicPartition) -> bool:
    """True if ``topic_partition``, of a topic that was asked for, is itself asked for."""
    return not isinstance(selection, Partitions) or topic_partition in selection.topic_partitions
