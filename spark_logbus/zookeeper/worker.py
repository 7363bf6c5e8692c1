"""A thread that runs short jobs one after the other, some of them later.

kazoo delivers state changes and watch events on its own threads, and a ZooKeeper request made
from there waits for an answer that the same thread would have to read. So a session owns
workers, and kazoo's threads only hand jobs over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_logbus.clock import Clock
from spark_logbus.timers import DueHeap

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class Worker:
    """Runs jobs in the order of their due time. Thread-safe; jobs never run concurrently."""

    def __init__(self, name: str, *, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._jobs: DueHeap[Job] = DueHeap()
        self._wake = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, *, delay_ms: int = 0) -> None:
        """Hands a job over without blocking; does nothing once the worker is stopped."""
        with self._wake:
            if self._stopped:
                return
            due = self._clock.monotonic() + delay_ms / 1000
            self._jobs.add(due, job)
            self._wake.notify()

    def stop(self) -> None:
        """Let the running job end and drop the rest; callable from a job itself."""
        with self._wake:
            self._stopped = True
            self._jobs.clear()
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _next(self) -> Job | None:
        with self._wake:
            while not self._stopped:
                now = self._clock.monotonic()
                if (due := self._jobs.pop_due(now)) is not None:
                    return due[1]
                self._wake.wait(self._jobs.first_due - now if self._jobs else None)
            return None

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:
                # A callback of the application; whatever it raises, the next change still counts.
                logger.exception("A callback for a change in ZooKeeper failed.")
