"""Pauses of followers that have left the in-sync set because they lacked what is staged.

A disk that refuses staged files may take the log all the while, and lacks nothing when no write is
open. A follower with such a disk that joined then would hold up the next write, and be dropped
again, and so each write. So it stays out for a while, and longer each time, unless it comes to
have some of what it lacked: then its disk takes staged files again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from spark_logbus.broker.replica.staging_waits import StagedSize
from spark_logbus.retry import Backoff, no_jitter

_PAUSE: Final = Backoff(first_ms=10_000, max_ms=120_000, jitter=no_jitter)
# So long after a pause another failure is one more in a row: writes may come minutes apart.
_IN_A_ROW_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class _Pause:
    lacked: Collection[StagedSize]
    failures: int
    until: float


class StagingPauses:
    """Pauses of the followers of one partition, by the id of their log: another log is on another
    disk, perhaps. Begun by one thread; times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def begin(self, log_id: str, lacked: Collection[StagedSize], now: float) -> None:
        """Begins the pause of a follower that has left as it lacked so much."""
        before = self._pauses.get(log_id)
        failures = 1
        if before is not None and now < before.until + _IN_A_ROW_S:
            failures += before.failures
        self._pauses[log_id] = _Pause(lacked, failures, now + _PAUSE.pause_s(failures))

    def has(self, log_id: str, has: Callable[[StagedSize], bool], now: float) -> bool:
        """True if a follower is to stay out; ``has`` tells if it has so much by now."""
        pause = self._pauses.get(log_id)
        if pause is None:
            return False
        if any(map(has, pause.lacked)):
            self._pauses.pop(log_id, None)
            return False
        return now < pause.until
