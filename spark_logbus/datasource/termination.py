"""Cleaning up when Spark terminates the process of a streaming source.

Without it the broker connections and the ZooKeeper session of an ended query would linger until
their timeouts.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

# Spark waits for nothing after SIGTERM; what has not been closed by then times out elsewhere.
_LIMIT_S = 3.0


def call_on_sigterm(cleanup: Callable[[], None]) -> bool:
    """Call ``cleanup`` at SIGTERM, then end the process. False if that cannot be arranged.

    The handler runs in the middle of whatever the main thread does, which may hold any lock. So
    the clean-up runs in a thread of its own, and the process ends after a bound in any case.
    Nothing is arranged where another handler is installed, or outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False

    def terminate(signum: int, _frame: FrameType | None) -> None:
        worker = threading.Thread(target=cleanup, name="logbus-clean-up", daemon=True)
        worker.start()
        worker.join(_LIMIT_S)
        os._exit(128 + signum)

    signal.signal(signal.SIGTERM, terminate)
    return True
