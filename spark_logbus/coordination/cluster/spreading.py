"""Placement of a topic's partitions on brokers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from spark_logbus.coordination.cluster.topic_records import TopicRecord

_NO_RACKS: Final[Mapping[int, str | None]] = MappingProxyType({})


def spread(
    *,
    partitions: int,
    brokers: Iterable[int],
    existing: Iterable[TopicRecord],
    replicas: int = 1,
    racks: Mapping[int, str | None] = _NO_RACKS,
) -> dict[int, list[int]]:
    """Returns for each partition as many of the brokers as it has replicas, its preferred leader
    first. ``racks`` says where brokers stand; one of which nothing is known stands for itself.

    Leaders take turns, from the broker that leads the fewest on: a fixed start would give every
    topic of one partition to the same broker. Each follower is a broker whose rack has the fewest
    replicas of the partition, and among those the one with the fewest of the topic. So racks come
    before an even load, as what they are for is to fail.
    """
    ring = sorted(set(brokers))
    assert 1 <= replicas <= len(ring), "a broker has at most one replica of a partition"
    leads: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for record in existing:
        for assigned in record.partitions.values():
            leads[assigned[0]] += 1
            held.update(assigned)
    start = min(range(len(ring)), key=lambda at: (leads[ring[at]], at))
    chosen = {p: [ring[(start + p) % len(ring)]] for p in range(partitions)}
    of_topic = Counter(leader for (leader,) in chosen.values())
    rack_of: dict[int, Hashable] = {each: racks.get(each) or (each,) for each in ring}
    for p, members in chosen.items():
        used = Counter(rack_of[each] for each in members)
        # Followers of one leader are others at its next turn: if it fails, all take a share.
        first = start + p + 1 + p // len(ring)
        order = [ring[(first + step) % len(ring)] for step in range(len(ring))]
        for _ in range(replicas - 1):
            follower = min(
                (each for each in order if each not in members),
                key=lambda each: (used[rack_of[each]], of_topic[each], held[each]),
            )
            members.append(follower)
            used[rack_of[follower]] += 1
            of_topic[follower] += 1
        members[1:] = sorted(members[1:], key=order.index)  # the first to take over
    return chosen


def enlarge(
    record: TopicRecord,
    *,
    partitions: int,
    brokers: Iterable[int],
    others: Iterable[TopicRecord],
    racks: Mapping[int, str | None] = _NO_RACKS,
) -> TopicRecord:
    """Returns the topic with partitions added up to that number, spread as those of a new topic
    are, with as many replicas as the topic has."""
    have = len(record.partitions)
    if partitions <= have:
        return record
    added = spread(
        partitions=partitions - have,
        replicas=record.replicas,
        brokers=brokers,
        racks=racks,
        existing=others,
    )
    more = {have + number: assigned for number, assigned in added.items()}
    return replace(record, partitions={**record.partitions, **more})
