"""A bound on memory that many connections share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Budget:
    """So many bytes, given out in the order in which they were asked for. Thread-safe.

    Whoever has to wait holds nothing, and whoever holds something waits for nothing else, so no
    two can wait for each other. A later, smaller wish does not overtake an earlier, larger one.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = threading.Lock()
        self._used = 0
        self._waiting: deque[Reservation] = deque()

    @property
    def used(self) -> int:
        return self._used

    @property
    def exhausted(self) -> bool:
        return self._used >= self._total

    def reserve(self, size: int, granted: Callable[[], None]) -> Reservation:
        """``size`` bytes (at most the total): at once, or else ``granted`` is called later, from
        any thread; it must not block."""
        made = Reservation(self, size, granted)
        with self._lock:
            if self._waiting or self._used + size > self._total:
                self._waiting.append(made)
            else:
                self._grant(made)
        return made

    def charge(self, size: int) -> Reservation:
        """Count ``size`` bytes that are in use already, even beyond the total."""
        made = Reservation(self, size, lambda: None)
        with self._lock:
            self._grant(made)
        return made

    def _grant(self, reservation: Reservation) -> None:
        reservation.granted = True
        self._used += reservation.size

    def release(self, reservation: Reservation) -> None:
        """Give back what was got, or wait no longer. For ``Reservation`` only."""
        woken = []
        with self._lock:
            if reservation.over:
                return
            reservation.over = True
            if reservation.granted:
                self._used -= reservation.size
            else:
                self._waiting.remove(reservation)
            while self._waiting and self._used + self._waiting[0].size <= self._total:
                woken.append(self._waiting.popleft())
                self._grant(woken[-1])
        for each in woken:
            each.notify()


class Reservation:
    """A part of a budget, or a place in the queue for it. Thread-safe."""

    __slots__ = ("_budget", "granted", "notify", "over", "size")

    def __init__(self, budget: Budget, size: int, notify: Callable[[], None]) -> None:
        self._budget = budget
        self.size = size
        self.notify = notify
        self.granted = False
        self.over = False

    def release(self) -> None:
        """May be called more than once."""
        self._budget.release(self)


class Memory:
    """What a broker's connections share, each of ``total`` bytes. Thread-safe.

    ``incoming`` is asked before a large frame is received. ``waiting`` counts requests that wait
    for their answer and answers that wait for their reader: when it is used up, each connection
    gets one at a time. They are apart so that clients that do not read cannot keep producers out.
    """

    def __init__(self, total: int) -> None:
        self.incoming = Budget(total)
        self.waiting = Budget(total)
