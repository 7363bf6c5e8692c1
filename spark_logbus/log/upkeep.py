"""Decides which logs the twice-a-second pass over all of them may leave alone.

A broker has thousands of logs, in most of which nothing happens. What a pass does to a log follows
from what ``UpkeepState`` has of it, and from the time. So a log that a pass has left as it was is
passed over until that changes, its segment has its age, or a hundredth of the shortest time has
passed after which records or producers go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from spark_logbus.errors import LogbusError
from spark_logbus.log.append_info import Tail
from spark_logbus.log.config import LogConfig
from spark_logbus.log.view import LogView

_MOST_REST_US: Final = 60_000_000
_PARTS: Final = 100


class UpkeepState(NamedTuple):
    """State of a log that has nothing to flush at a set time, and nothing to delete."""

    rolls_at: float
    """Monotonic time at which the active segment has its age."""
    view: LogView
    tail: Tail
    config: LogConfig
    deletion_paused: bool
    follows: bool


class MaintainedLog(Protocol):
    """Log as the passes see it."""

    def upkeep_state(self) -> UpkeepState | None: ...
    def flush_and_roll_if_due(self) -> None: ...
    def expire(self, now_us: int) -> bool: ...


class _Rest(NamedTuple):
    state: UpkeepState
    since_us: int
    until_us: int


class Upkeep:
    """Flushes, rolls and expires in passes over all logs. For one thread at a time."""

    def __init__(self) -> None:
        self._rests: dict[MaintainedLog, _Rest] = {}

    def look_after(
        self,
        logs: Iterable[MaintainedLog],
        *,
        now_us: int,
        now_s: float,
        failed: Callable[[LogbusError], None],
    ) -> bool:
        """One pass; True if the start of a log has moved. Errors cost their own log only.

        ``now_us`` is the time of day, ``now_s`` the monotonic one.
        """
        before, self._rests = self._rests, {}
        moved = False
        for log in logs:
            rest, state = before.get(log), log.upkeep_state()
            if (
                rest is None
                or rest.state != state
                or now_s >= rest.state.rolls_at
                or not rest.since_us <= now_us < rest.until_us
            ):
                try:
                    log.flush_and_roll_if_due()
                    moved |= log.expire(now_us)
                except LogbusError as error:
                    failed(error)
                    continue
                state = log.upkeep_state()
                if state is None:
                    continue
                rest = _Rest(state, now_us, now_us + _rest_us(state.config))
            self._rests[log] = rest
        return moved


def _rest_us(config: LogConfig) -> int:
    limits_ms = [config.producer_expiration_ms]
    if config.deletes and config.retention_ms is not None:
        limits_ms.append(config.retention_ms)
    return min(_MOST_REST_US, min(limits_ms) * 1_000 // _PARTS)
