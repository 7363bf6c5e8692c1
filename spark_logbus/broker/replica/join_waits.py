"""Waits of the high watermark for followers that are not in sync yet.

Under a load that never pauses, a follower lacks what has come just now, however fast it is. So a
leader that is in sync alone would never find that it has all that is acknowledged. Therefore the
watermark waits for a follower that keeps up as if it were in sync. After about one round between
the two the follower has all that was acknowledged when the wait began, and nothing more is
acknowledged that it lacks. Then ZooKeeper is asked to take it in.

Producers wait for such a follower meanwhile. So a wait is short, and after one that was in vain
there is a pause, which grows from one to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_logbus.retry import Backoff, no_jitter

# Many rounds of a follower whose disk is not slow, and a request to ZooKeeper.
_LEAST_S: Final = 0.5
# A follower has what it lacks after one round. The second is for delays.
_ROUNDS: Final = 2
_PAUSE: Final = Backoff(first_ms=1_000, max_ms=60_000, jitter=no_jitter)


class _Wait(NamedTuple):
    log_id: str
    until: float


@dataclass(slots=True)
class _Pause:
    failures: int = 0
    until: float = -math.inf


class JoinWaits:
    """The waits for the followers of one partition, by broker. Not thread-safe; times are monotonic
    seconds. None is longer than half of ``lag_s``, after which a member counts as lagging.
    """

    def __init__(self, lag_s: float) -> None:
        self._most_s = lag_s / 2
        self._waits: dict[int, _Wait] = {}
        self._pauses: dict[int, _Pause] = {}

    @property
    def counted(self) -> Mapping[int, str]:
        """The brokers for which the watermark waits, each with the id of its log."""
        return {broker_id: wait.log_id for broker_id, wait in self._waits.items()}

    @property
    def next_end(self) -> float:
        """The time at which the first wait is over; infinity if there is none."""
        return min((each.until for each in list(self._waits.values())), default=math.inf)

    def begin(self, broker_id: int, log_id: str, *, round_s: float, now: float) -> bool:
        """Begins to wait for a follower that keeps up, which took ``round_s`` for its last round;
        returns False where that takes too long, or there is a pause."""
        pause = self._pauses.get(broker_id)
        if _ROUNDS * round_s > self._most_s or (pause is not None and now < pause.until):
            return False
        wait_s = min(max(_LEAST_S, _ROUNDS * round_s), self._most_s)
        self._waits[broker_id] = _Wait(log_id, now + wait_s)
        return True

    def end_those_before(self, now: float) -> bool:
        """Ends the waits that have lasted long enough; returns True if there were such."""
        over = [each for each, wait in self._waits.items() if wait.until <= now]
        for broker_id in over:
            self.fail(broker_id, now)
        return bool(over)

    def fail(self, broker_id: int, now: float) -> None:
        """Ends the wait for a broker, if there is one, which was in vain."""
        if self._waits.pop(broker_id, None) is not None:
            pause = self._pauses.setdefault(broker_id, _Pause())
            pause.failures += 1
            pause.until = now + _PAUSE.pause_s(pause.failures)

    def forget(self, broker_id: int) -> None:
        """Forgets a broker that is in sync, and the waits that were in vain before."""
        self._waits.pop(broker_id, None)
        self._pauses.pop(broker_id, None)
