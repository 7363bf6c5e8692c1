"""Loads of brokers while a plan of moves is made, and single steps that level them. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
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


class Levels:
    """Loads of brokers while a plan is made, and what may be moved between them."""

    def __init__(self, takers: Iterable[int], loads: Mapping[int, BrokerLoad]) -> None:
        self._ids = sorted(takers)
        self._sizes = {each: loads[each].size_bytes for each in self._ids}
        self._counts = {each: loads[each].partitions for each in self._ids}
        self._movable: dict[int, list[_Sized]] = {each: [] for each in self._ids}
        self.placed: dict[TopicPartition, int] = {}

    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def emptiest(self) -> int:
        return min(self._ids, key=lambda each: (self._sizes[each], self._counts[each], each))

    def least_led(self) -> int:
        return min(self._ids, key=lambda each: (self._counts[each], self._sizes[each], each))

    def add(self, broker_id: int, size_bytes: int) -> None:
        self._sizes[broker_id] += size_bytes
        self._counts[broker_id] += 1

    def may_move(self, broker_id: int, size_bytes: int, topic_partition: TopicPartition) -> None:
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
        self.placed[topic_partition] = taker

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
            found = self._nearest(giver, ideal, most=gap * _FITS)
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
            if most - fewest < 2 or not self._movable[giver]:
                continue
            size_bytes, topic_partition = self._movable[giver][0]
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

    def _nearest(self, broker_id: int, ideal: float, *, most: float) -> _Sized | None:
        """Returns the partition of the broker whose size is nearest to ``ideal``, has a size, and
        at most ``most``. None where those of such a size are too few to make a difference."""
        movable = self._movable[broker_id]
        end = bisect_left(movable, (most,))
        fitting = movable[bisect_left(movable, (1,)) : end]
        if sum(size for size, _ in fitting) < ideal * _WORTH:
            return None
        at = bisect_left(fitting, (ideal,))
        near = [fitting[bisect_left(fitting, (fitting[i][0],))] for i in (at - 1, at)
                if 0 <= i < len(fitting)]  # fmt: skip
        return min(near, key=lambda each: (abs(each[0] - ideal), each), default=None)
