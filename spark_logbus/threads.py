"""A thread of its own for work that comes again: at intervals, or when it is woken."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

_JOIN_S = 30.0


class Periodic:
    """A daemon thread that calls ``work`` again and again. Thread-safe; ``start`` it at most once.

    ``work`` returns the seconds to pause before it is called again, None for ``pause_s``, infinity
    for a pause that lasts until the thread is woken. It is called first when ``first_pause_s`` have
    passed, ``pause_s`` if that is not given. What it raises is logged as ``failure``, and it is
    called again after ``pause_s``. ``at_end`` is called last, on the same thread, when the thread
    is to end. Who stops it waits ``join_s`` at most.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float | None],
        *,
        pause_s: float,
        failure: str,
        first_pause_s: float | None = None,
        at_end: Callable[[], None] | None = None,
        join_s: float = _JOIN_S,
    ) -> None:
        #: Set when the thread is to end, for work that takes long.
        self.stopping = threading.Event()
        self._work = work
        self._pause_s = pause_s
        self._first_pause_s = pause_s if first_pause_s is None else first_pause_s
        self._failure = failure
        self._at_end = at_end
        self._join_s = join_s
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Have ``work`` called soon, and once more if it is under way. Never blocks."""
        self._woken.set()

    def end(self) -> None:
        """Have the thread end as soon as ``work`` returns, without waiting for it."""
        self.stopping.set()
        self._woken.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread to end, if it was started; ``join_s`` at most, or ``timeout_s``."""
        if self._thread.is_alive():
            self._thread.join(self._join_s if timeout_s is None else timeout_s)

    def stop(self) -> None:
        """End the thread and wait for it, for at most ``join_s``."""
        self.end()
        self.join()

    def _run(self) -> None:
        pause_s: float | None = self._first_pause_s
        while True:
            pause_s = self._pause_s if pause_s is None else pause_s
            self._woken.wait(None if pause_s == math.inf else pause_s)
            self._woken.clear()  # before the look at ``stopping``, which ``end`` sets first
            if self.stopping.is_set():
                break
            pause_s = self._call(self._work)
        if self._at_end is not None:
            self._call(self._at_end)

    def _call(self, action: Callable[[], float | None]) -> float | None:
        try:
            return action()
        except Exception:
            logger.exception("%s", self._failure)
            return None
