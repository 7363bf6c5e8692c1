"""Loads of brokers while a plan of moves is made, and single steps that level them. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from spark_logbus.model import TopicPartition

_LEVEL: Final = 0.10  # what brokers may be above or below the mean
_FEW_BYTES: Final = 1 << 20  # not worth to be leveled
# Of the partitions that fill a broker, those are moved whose size is at most that part of the
# difference between two brokers: one that is larger only changes which of the two is full.
_FITS: Final = 0.75
_WORTH: Final = 0.25  # of what a broker has too much: less is not worth many moves


class BrokerLoad(NamedTuple):
    partitions: int
    size_bytes: int


_Sized = tuple[int, TopicPartition]
_Step = tuple[TopicPartition, int, int, int]  # with its size, from a broker to another


def distinct_racks(brokers: Iterable[int], racks: Mapping[int, str | None]) -> int:
    """Counts the racks of brokers; one of which nothing is known stands for itself."""
    return len({racks.get(each) or each for each in brokers})


class Levels:
    """Loads of brokers while a plan is made, and what may be moved between them: a replica only to
    a broker that has none of its partition, and so that they are in as many racks as before."""

    def __init__(
        self,
        takers: Iterable[int],
        loads: Mapping[int, BrokerLoad],
        racks: Mapping[int, str | None] = MappingProxyType({}),
    ) -> None:
        self._ids = sorted(takers)
        self._sizes = {each: loads[each].size_bytes for each in self._ids}
        self._counts = {each: loads[each].partitions for each in self._ids}
        self._movable: dict[int, list[_Sized]] = {each: [] for each in self._ids}
        self._racks = racks
        self._replicas: dict[TopicPartition, tuple[int, ...]] = {}
        #: The replicas of partitions that have moved.
        self.placed: dict[TopicPartition, tuple[int, ...]] = {}

    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def emptiest(self, among: Iterable[int]) -> int:
        return min(among, key=lambda each: (self._sizes[each], self._counts[each], each))

    def least_led(self, among: Iterable[int]) -> int:
        return min(among, key=lambda each: (self._counts[each], self._sizes[each], each))

    def load(self, broker_id: int) -> tuple[int, int, int]:
        return self._sizes[broker_id], self._counts[broker_id], broker_id

    def add(self, broker_id: int, size_bytes: int, *, count: int = 1) -> None:
        self._sizes[broker_id] += size_bytes
        self._counts[broker_id] += count

    def may_move(
        self, topic_partition: TopicPartition, size_bytes: int, replicas: tuple[int, ...]
    ) -> None:
        self._replicas[topic_partition] = replicas
        for broker_id in replicas:
            if broker_id in self._movable:
                insort(self._movable[broker_id], (size_bytes, topic_partition))

    def move(
        self, topic_partition: TopicPartition, size_bytes: int, giver: int, taker: int
    ) -> None:
        entry = (size_bytes, topic_partition)
        movable = self._movable[giver]
        del movable[bisect_left(movable, entry)]
        insort(self._movable[taker], entry)
        self._sizes[giver] -= size_bytes
        self._counts[giver] -= 1
        self.add(taker, size_bytes)
        self._replicas[topic_partition] = self.placed[topic_partition] = tuple(
            taker if each == giver else each for each in self._replicas[topic_partition]
        )

    def _fits(self, topic_partition: TopicPartition, giver: int, taker: int) -> bool:
        replicas = self._replicas[topic_partition]
        if len(replicas) == 1:
            return True
        after = [taker if each == giver else each for each in replicas]
        return taker not in replicas and distinct_racks(after, self._racks) >= distinct_racks(
            replicas, self._racks
        )

    def step_to_level_bytes(self) -> _Step | None:
        """Returns a move that brings two brokers nearer to the mean, None if all are near it or no
        partition does that."""
        if not self._ids:
            return None
        mean = self.size_bytes() / len(self._ids)
        slack = self._slack()
        for giver, taker in self._pairs(self._sizes):
            has, lacks = self._sizes[giver] - mean, mean - self._sizes[taker]
            if has <= slack and lacks <= slack:
                continue
            ideal, gap = min(has, lacks), has + lacks
            if ideal <= 0:
                ideal = gap / 2
            found = self._nearest(giver, taker, ideal, most=gap * _FITS)
            if found is not None:
                size_bytes, topic_partition = found
                return topic_partition, size_bytes, giver, taker
        return None

    def step_to_level_partitions(self) -> _Step | None:
        """Returns a move of a small partition to a broker with fewer, None if their numbers are
        near the mean or each partition would make a broker too full or too empty."""
        if not self._ids:
            return None
        mean = sum(self._counts.values()) / len(self._ids)
        mean_bytes, slack = self.size_bytes() / len(self._ids), self._slack()
        for giver, taker in self._pairs(self._counts):
            most, fewest = self._counts[giver], self._counts[taker]
            if most <= mean * (1 + _LEVEL) and fewest >= mean * (1 - _LEVEL):
                continue
            movable = (each for each in self._movable[giver] if self._fits(each[1], giver, taker))
            if most - fewest < 2 or (smallest := next(movable, None)) is None:
                continue
            size_bytes, topic_partition = smallest
            fits = (
                self._sizes[taker] + size_bytes <= mean_bytes + slack
                and self._sizes[giver] - size_bytes >= mean_bytes - slack
            )
            if size_bytes == 0 or fits:
                return topic_partition, size_bytes, giver, taker
        return None

    def _slack(self) -> float:
        return max(self.size_bytes() / len(self._ids) * _LEVEL, _FEW_BYTES)

    def _pairs(self, levels: Mapping[int, int]) -> Iterable[tuple[int, int]]:
        """Pairs of a broker with more and one with less, the most different ones first."""
        for giver in sorted(self._ids, key=lambda each: (-levels[each], each)):
            for taker in sorted(self._ids, key=lambda each: (levels[each], each)):
                if levels[taker] < levels[giver]:
                    yield giver, taker

    def _nearest(self, giver: int, taker: int, ideal: float, *, most: float) -> _Sized | None:
        """Returns the partition of the giver whose size is nearest to ``ideal``, has a size, and
        at most ``most``. None where those of such a size are too few to make a difference."""
        movable = self._movable[giver]
        sized = movable[bisect_left(movable, (1,)) : bisect_left(movable, (most,))]
        fitting = [each for each in sized if self._fits(each[1], giver, taker)]
        if sum(size for size, _ in fitting) < ideal * _WORTH:
            return None
        at = bisect_left(fitting, (ideal,))
        near = [fitting[bisect_left(fitting, (fitting[i][0],))] for i in (at - 1, at)
                if 0 <= i < len(fitting)]  # fmt: skip
        return min(near, key=lambda each: (abs(each[0] - ideal), each), default=None)
