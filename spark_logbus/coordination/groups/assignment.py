"""Which member of a consumer group reads which partitions. Pure.

All members of a group compute this from the same lists. *Range*, the Kafka paper's, gives each
member of a topic a run of its partitions, so partitions of the same number in several topics come
together. *Sticky* moves as few partitions as an even spread allows, over all topics at once.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Final

from spark_logbus.model import TopicPartition

Assignment = Mapping[TopicPartition, str]
"""Partition -> member. Partitions of topics that no member wants are not in it."""

NOTHING_ASSIGNED: Final[Assignment] = {}


class Assignor(enum.StrEnum):
    """A rule by which partitions are shared."""

    RANGE = "range"
    STICKY = "sticky"


def assign(
    assignor: Assignor,
    members: Mapping[str, Collection[str]],
    partitions: Mapping[str, Iterable[int]],
    *,
    previous: Assignment = NOTHING_ASSIGNED,
) -> dict[TopicPartition, str]:
    """Give each partition to one of the members that want its topic.

    ``members`` maps to the topics that each wants, ``partitions`` topics to their partitions.
    ``previous`` is the assignment before, of which sticky keeps what it can. The result depends on
    these values only, not on their order, and with the result as ``previous`` it is the same.
    """
    wanting = {
        topic: sorted(member for member, topics in members.items() if topic in topics)
        for topic in sorted(partitions)
    }
    if assignor is Assignor.RANGE:
        return _range(wanting, partitions)
    return _sticky(wanting, partitions, previous)


def _range(
    wanting: Mapping[str, list[str]], partitions: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, str]:
    assigned = {}
    for topic, members in wanting.items():
        numbers = sorted(partitions[topic])
        for place, number in enumerate(numbers):
            if members:
                # The first ``len(numbers) % len(members)`` members get one more than the others.
                each, more = divmod(len(numbers), len(members))
                long = more * (each + 1)
                at = place // (each + 1) if place < long else more + (place - long) // each
                assigned[TopicPartition(topic, number)] = members[at]
    return assigned


def _sticky(
    wanting: Mapping[str, list[str]],
    partitions: Mapping[str, Iterable[int]],
    previous: Assignment,
) -> dict[TopicPartition, str]:
    spread = _Spread(wanting)
    homeless = []
    for topic, members in wanting.items():
        wants: Set[str] = frozenset(members)
        for number in sorted(partitions[topic]):
            topic_partition = TopicPartition(topic, number)
            before = previous.get(topic_partition)
            if before is not None and before in wants:
                spread.give(topic_partition, before)
            elif members:
                homeless.append(topic_partition)
    # Those that few members want first: the others can go where these leave room.
    for topic_partition in sorted(homeless, key=lambda each: (len(wanting[each.topic]), each)):
        spread.give(topic_partition, spread.least_loaded(topic_partition.topic))
    spread.even_out()
    return spread.assigned()


class _Spread:
    """Partitions with members, moved until no move makes their numbers more even."""

    def __init__(self, wanting: Mapping[str, list[str]]) -> None:
        self._wanting = wanting
        self._assigned: dict[str, dict[str, set[int]]] = {}  # member -> topic -> partitions
        self._load: dict[str, int] = {
            member: 0 for members in wanting.values() for member in members
        }

    def give(self, topic_partition: TopicPartition, member: str) -> None:
        topics = self._assigned.setdefault(member, {})
        topics.setdefault(topic_partition.topic, set()).add(topic_partition.partition)
        self._load[member] += 1

    def least_loaded(self, topic: str) -> str:
        return min(self._wanting[topic], key=lambda member: (self._load[member], member))

    def even_out(self) -> None:
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        """Move a partition from the member with the most to one with at least two fewer."""
        poorest = {topic: self.least_loaded(topic) for topic, some in self._wanting.items() if some}
        for member in sorted(self._assigned, key=lambda each: (-self._load[each], each)):
            topics = [topic for topic, numbers in self._assigned[member].items() if numbers]
            if not topics:
                continue
            topic = min(topics, key=lambda each: (self._load[poorest[each]], each))
            receiver = poorest[topic]
            if self._load[receiver] + 1 < self._load[member]:
                number = max(self._assigned[member][topic])
                self._assigned[member][topic].remove(number)
                self._load[member] -= 1
                self.give(TopicPartition(topic, number), receiver)
                return True
        return False

    def assigned(self) -> dict[TopicPartition, str]:
        return {
            TopicPartition(topic, number): member
            for member, topics in self._assigned.items()
            for topic, numbers in topics.items()
            for number in numbers
        }
