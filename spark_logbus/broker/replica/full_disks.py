"""Chooses the leads that are to go to other brokers, as the disk here is full for good.

A disk that refuses what is appended may have room again in a moment, by retention say. One that
goes on refusing keeps the partition from being written to, though other replicas may have room. A
lead that went to one without room would come back: so what was given away, or could not be, is not
tried again at once, and less and less often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff

_AFTER_S: Final = 5.0
_AGAIN: Final = Backoff(first_ms=10_000, max_ms=120_000)


@dataclass
class _Full:
    """Partition whose disk refuses what is appended: when to give it away, ``tries`` so far."""

    not_before: float
    tries: int = 0


class FullDisks:
    """Keeps which partitions are to be given away, and when. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._full: dict[TopicPartition, _Full] = {}

    def due(self, all_led: Mapping[TopicPartition, LeaderPartition]) -> dict[TopicPartition, int]:
        """Returns the partitions to give away now, of all that are led here, each with how often
        that was tried before. Those that another broker leads by now keep their turns."""
        now = self._clock.monotonic()
        found: dict[TopicPartition, int] = {}
        for where, led in all_led.items():
            full = self._full.get(where)
            if led.log.refusing is None:
                if full is not None:
                    del self._full[where]
            elif full is None:
                self._full[where] = _Full(now + _AFTER_S)
            elif now >= full.not_before:
                found[where] = full.tries
                full.tries += 1
                full.not_before = now + _AGAIN.pause_s(full.tries)
        return found
