"""Waits until what is staged is on the disks of all replicas in sync.

A staged record batch that the leader alone has is gone with the leader, and its write with it. So
it is acknowledged as what is appended to be replicated is. A wait has the time since when it
stands: a member that lacks what is waited for too long is to leave, though its log be whole, as
where its disk has no room for staged files. How much of a write was acknowledged is kept until the
write is over: who joins has to have it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_logbus.clock import Clock
from spark_logbus.errors import LogbusError
from spark_logbus.log import StagedPosition

OnStaged = Callable[[LogbusError | None], None]


class StagedSize(NamedTuple):
    """The first bytes of what a write has staged."""

    write: int
    size_bytes: int


@dataclass(slots=True)
class _Waiting:
    since: float
    callbacks: list[OnStaged] = field(default_factory=list)


class StagingWaits:
    """Waits for what is staged of one partition in one leader epoch. Thread-safe; callbacks must
    not block. ``is_there`` tells if so many bytes of a write are on the disks of all replicas in
    sync, or the write is over, as ``is_over`` tells: both are called with a lock held. ``staged``
    is what was flushed here before, all of which may be acknowledged.
    """

    def __init__(
        self,
        is_there: Callable[[int, int], bool],
        *,
        is_over: Callable[[int], bool],
        clock: Clock,
        staged: Iterable[StagedPosition] = (),
    ) -> None:
        self._is_there = is_there
        self._is_over = is_over
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[StagedSize, _Waiting] = {}
        self._acknowledged = {each.write: each.flushed_bytes for each in staged}
        self._ended: LogbusError | None = None

    def wait(self, write: int, size_bytes: int, callback: OnStaged) -> None:
        """Call back when so much of the write is there."""
        with self._lock:
            self._wait_of(write, size_bytes).callbacks.append(callback)
        # After it was added, so that nothing is told unnoticed in between.
        self.look()

    def note(self, write: int, size_bytes: int) -> None:
        """Note that so much of the write is waited for by one who looks itself."""
        with self._lock:
            self._wait_of(write, size_bytes)
        self.look()

    def _wait_of(self, write: int, size_bytes: int) -> _Waiting:
        """The wait for so much, from now on if there is none. ``_lock`` is held."""
        return self._waiting.setdefault(
            StagedSize(write, size_bytes), _Waiting(self._clock.monotonic())
        )

    def look(self) -> None:
        """Call back those whose condition holds by now."""
        if not self._waiting:
            return
        done: list[OnStaged] = []
        with self._lock:  # all the while: what is told meanwhile is looked at after this
            ended, left = self._ended, dict[StagedSize, _Waiting]()
            for size, waiting in self._waiting.items():
                if ended is None and not self._is_there(*size):
                    left[size] = waiting
                    continue
                if ended is None:
                    self._acknowledge(size)
                done += waiting.callbacks
            self._waiting = left
        for callback in done:
            callback(None if ended is None else ended.again())

    def _acknowledge(self, size: StagedSize) -> None:
        """``_lock`` is held."""
        before = self._acknowledged.get(size.write)
        if before is None:  # then others may be over
            for write in [each for each in self._acknowledged if self._is_over(each)]:
                del self._acknowledged[write]
        self._acknowledged[size.write] = max(before or 0, size.size_bytes)

    def acknowledged(self) -> Mapping[int, int]:
        """Returns how much was acknowledged of each write, and of some that are over. Whoever is
        counted before the call is waited for by all that is acknowledged after it."""
        with self._lock:
            return dict(self._acknowledged)

    def older_than(self, seconds: float) -> list[StagedSize]:
        """Returns what is waited for longer than that."""
        if not self._waiting:
            return []
        before = self._clock.monotonic() - seconds
        with self._lock:
            return [size for size, waiting in self._waiting.items() if waiting.since < before]

    def forgive(self) -> None:
        """Count no time before as a delay: this broker did nothing in it."""
        with self._lock:
            for waiting in self._waiting.values():
                waiting.since = self._clock.monotonic()

    def end(self, error: LogbusError) -> None:
        """Call back all with an ``error``, now and from now on."""
        self._ended = error
        self.look()
