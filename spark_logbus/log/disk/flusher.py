"""Group commit: one thread flushes the logs of a data directory, one flush at a time per log.

A log asks at most once until its flush begins, however many appends wait for it
(``FlushedFile``). Appends that come while a flush is under way share the next one, so the disk
sets the pace, and the load per flush grows with the load.
"""

from __future__ import annotations

import logging
import threading
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from spark_logbus.clock import Clock
from spark_logbus.timers import DueHeap

logger = logging.getLogger(__name__)

# The longest sleep of the thread. A timer may lie further off than a system can count to.
_LONGEST_WAIT_S: Final = 3600.0


class Flushable(Protocol):
    def flush(self) -> None:
        """Flush and notify those who wait; must not raise what the flusher could act on."""
        ...

    def flush_if_due(self) -> float | None:
        """Flush if the interval has passed; else the monotonic time when it will have."""
        ...


class FlushScheduler(Protocol):
    """Decides when and where flushes run."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def request(self, log: Flushable) -> None: ...

    def request_at(self, due: float, log: Flushable) -> None: ...


_Request = tuple[float | None, Flushable] | None  # when (None: now), what; None: stop


class Flusher:
    """The flusher thread. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests: SimpleQueue[_Request] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._timers: DueHeap[Flushable] = DueHeap()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="logbus-flusher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Serve what was requested until now, then end the thread."""
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def request(self, log: Flushable) -> None:
        """Flush ``log`` as soon as the flush under way has ended."""
        self._requests.put((None, log))

    def request_at(self, due: float, log: Flushable) -> None:
        """Call ``flush_if_due`` of ``log`` when the clock's monotonic time reaches ``due``."""
        self._requests.put((due, log))

    def _run(self) -> None:
        while True:
            try:
                request = self._requests.get(timeout=self._wait_s())
            except Empty:
                self._serve_timers()
                continue
            if request is None:
                return
            due, log = request
            if due is not None:
                self._timers.add(due, log)
                continue
            try:
                log.flush()
            except Exception:
                logger.exception("A flush failed in a way that was not foreseen.")

    def _wait_s(self) -> float | None:
        if not self._timers:
            return None
        return min(max(0.0, self._timers.first_due - self._clock.monotonic()), _LONGEST_WAIT_S)

    def _serve_timers(self) -> None:
        now = self._clock.monotonic()
        while (entry := self._timers.pop_due(now)) is not None:
            _, log = entry
            try:
                due = log.flush_if_due()
            except Exception:
                logger.exception("A flush failed in a way that was not foreseen.")
                continue
            if due is not None:
                self._timers.add(due, log)
