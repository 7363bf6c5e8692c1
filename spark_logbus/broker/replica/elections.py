"""Chooses when this broker tries to be elected leader of partitions whose leaders are gone.

Nobody decides who leads: whoever is in sync may write itself into the partition's state, and
ZooKeeper takes the first. So that not all do that at once, each waits for a while for those that
are to come before it, in the order of the assignment. A broker that hangs holds up the others by
that while, not for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.metrics import Counter, Histogram
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff

#: For each broker that is to be elected rather than this one: it has noticed and written by then.
WAIT_S: Final = 0.5
# Of a broker that leads thousands a second's worth is taken at a time, so that ZooKeeper and what
# else is to be done here get their turns; and brokers that come and go cost no more than that.
_A_SECOND: Final = 1_000
# Another was elected, or the leader is back: the news of it is under way.
_AGAIN: Final = Backoff(first_ms=1_000, max_ms=30_000)


class ElectionStats:
    """Counts of elections that this broker has won, of tries that came to nothing, and of
    ``unclean`` elections, for which it was not in sync; and how long partitions were without a
    leader, from when this broker knew of it, in seconds."""

    def __init__(self) -> None:
        self.won, self.lost, self.times = Counter(), Counter(), Histogram()
        self.unclean = Counter()


@dataclass
class _Leaderless:
    """Partition without a leader: since when, and when to try next; ``tries`` so far."""

    since: float
    due_at: float
    tries: int = 0


class Elections:
    """Tells which partitions are due. Used by one thread; ``stats`` may be read by others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leaderless: dict[TopicPartition, _Leaderless] = {}
        self._window_ends_at = -math.inf
        self._left_in_window = 0
        self.stats = ElectionStats()

    def due(self, ranks: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Returns the partitions to try for now. ``ranks`` are of all that have lost their leaders:
        how many brokers are to be elected rather than this one."""
        now = self._clock.monotonic()
        if now >= self._window_ends_at:
            self._window_ends_at, self._left_in_window = now + 1.0, _A_SECOND
        for topic_partition in self._leaderless.keys() - ranks.keys():
            del self._leaderless[topic_partition]
        found: list[TopicPartition] = []
        for topic_partition, rank in ranks.items():
            entry = self._leaderless.get(topic_partition)
            if entry is None:
                entry = _Leaderless(now, math.inf)
                self._leaderless[topic_partition] = entry
            if not entry.tries:
                entry.due_at = entry.since + rank * WAIT_S
            if entry.due_at <= now and len(found) < self._left_in_window:
                found.append(topic_partition)
        for topic_partition in found:
            entry = self._leaderless[topic_partition]
            entry.tries += 1
            entry.due_at = now + _AGAIN.pause_s(entry.tries)
        self._left_in_window -= len(found)
        return found

    def pause_s(self) -> float:
        """Returns the seconds until something is due; infinite if nothing will be."""
        now = self._clock.monotonic()
        next_at = min((each.due_at for each in self._leaderless.values()), default=math.inf)
        if next_at <= now:
            next_at = self._window_ends_at
        return max(0.0, next_at - now)

    def won(self, topic_partition: TopicPartition) -> None:
        """Notes that this broker leads the partition now."""
        self.stats.won.add()
        entry = self._leaderless.pop(topic_partition, None)
        if entry is not None:
            self.stats.times.observe(self._clock.monotonic() - entry.since)
