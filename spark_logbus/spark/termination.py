"""Cleaning up when Spark terminates the process of a streaming source.

Without it the broker connections and the ZooKeeper session of an ended query would linger until
their timeouts.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from spark_logbus.signals import call_at

# Spark waits for nothing after SIGTERM; what has not been closed by then times out elsewhere.
_LIMIT_S = 3.0


class CleanUp:
    """Closes something once: when Spark says so, or at SIGTERM.

    Spark often does both at a time. When it stops a query in the middle of a call, the connection
    breaks, the source is told to stop, and while it closes its ZooKeeper session SIGTERM comes; or
    the other way round. A process that ended then would leave the session, and the claims on its
    group, for others to wait for.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._begun = threading.Lock()  # for good
        self._done = threading.Event()

    def __call__(self) -> None:
        """Close. Where another thread has begun that, wait for it, so that whoever calls may end
        the process: 3 seconds at most."""
        if not self._begun.acquire(blocking=False):
            self._done.wait(_LIMIT_S)
            return
        try:
            self._close()
        finally:
            self._done.set()

    def at_sigterm(self) -> bool:
        """Close at SIGTERM, then end the process. False if that cannot be arranged.

        A thread does it: the main thread may hold any lock when the signal comes, or wait for what
        never comes. The process ends after a bound in any case. Nothing is arranged where another
        handler or another wakeup descriptor is installed, or outside of the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        return call_at([signal.SIGTERM], self._end)

    def _end(self) -> None:
        if self._begun.locked() and not self._done.is_set():
            # The main thread cleans up, and then ends by itself: its connection is broken.
            threading.Event().wait(_LIMIT_S)
        else:
            worker = threading.Thread(target=self, name="logbus-clean-up", daemon=True)
            worker.start()
            worker.join(_LIMIT_S)
        os._exit(128 + signal.SIGTERM)
