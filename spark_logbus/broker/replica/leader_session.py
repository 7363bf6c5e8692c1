"""Session of a follower with one leader, as the follower keeps it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.model import TopicPartition
from spark_logbus.wire.connection import BrokerConnection

# Each log is looked at once in about ten times this.
_SWEEP_EVERY_S: Final = 0.5
_SWEEPS: Final = 10


@dataclass
class LeaderSession:
    """A session with the leader, on one connection. The thread of the fetcher has it to itself.

    ``asked`` are the partitions as they were named last, with the ends that were told as safe in
    ``told``; ``due`` are to be named next.
    """

    connection: BrokerConnection
    began_at: float
    sequence: int = 0
    asked: dict[TopicPartition, FollowedLog] = field(default_factory=dict)
    told: dict[TopicPartition, int] = field(default_factory=dict)
    due: dict[TopicPartition, FollowedLog] = field(default_factory=dict)
    _sweep: list[TopicPartition] = field(default_factory=list)
    _sweep_due_at: float = -math.inf

    def name(self, followed: FollowedLog, safe_end: int) -> None:
        """Notes that a request names a log, and what it tells."""
        where = followed.topic_partition
        self.asked[where], self.told[where] = followed, safe_end

    def take_out(self, where: TopicPartition) -> bool:
        """Takes out what is followed from here no more; returns False if it was not named."""
        if (before := self.due.get(where)) is not None and before.ended:
            del self.due[where]
        self.told.pop(where, None)
        return self.asked.pop(where, None) is not None

    def take_untold(self, now: float) -> list[FollowedLog]:
        """Has those named of which more is on the disk than the leader was told, though nothing
        came of them since: a flush was late, or was asked for by another flush policy. Returns such
        as are to be flushed yet. Looks at some at a time."""
        to_flush = []
        for where in self._some(now):
            followed = self.asked.get(where)
            if followed is None or followed.ended or where in self.due:
                continue
            if followed.is_to_be_flushed:
                to_flush.append(followed)
            elif followed.safe_end > self.told[where]:
                self.due[where] = followed
        return to_flush

    def _some(self, now: float) -> list[TopicPartition]:
        if now < self._sweep_due_at:
            return []
        self._sweep_due_at = now + _SWEEP_EVERY_S
        if not self._sweep:
            self._sweep = list(self.asked)
        count = 1 + len(self.asked) // _SWEEPS
        some, self._sweep = self._sweep[:count], self._sweep[count:]
        return some
