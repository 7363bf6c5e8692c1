"""The states of a ZooKeeper session, and their reports to listeners."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable

from spark_logbus.clock import Clock
from spark_logbus.zookeeper.worker import Job, Worker

logger = logging.getLogger(__name__)


class SessionState(enum.Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection; the session may still be alive
    LOST = "lost"  # ZooKeeper said that the session expired; a new one is on its way
    CLOSED = "closed"  # not started, or closed by us


class StateReporter:
    """Reports every state to listeners, in order, on a thread of its own. Thread-safe.

    Apart from the worker that refreshes watched views: that one may wait for ZooKeeper, which
    is just when listeners have to hear of the suspension.
    """

    def __init__(self, client_name: str, servers: str, *, clock: Clock) -> None:
        self._client_name = client_name
        self._servers = servers
        self._worker = Worker(f"logbus-zookeeper-states-{client_name}", clock=clock)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[SessionState], None]] = []

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        """Stop after the reports that are due; does not wait for them."""
        self._worker.submit(self._worker.stop)

    def add(self, f: Callable[[SessionState], None]) -> None:
        with self._lock:
            self._listeners.append(f)

    def report(self, state: SessionState, *, session_id: int) -> None:
        self._worker.submit(lambda: self._notify(state, session_id))

    def later(self, job: Job, *, delay_ms: int) -> None:
        self._worker.submit(job, delay_ms=delay_ms)

    def _notify(self, state: SessionState, session_id: int) -> None:
        well = state in (SessionState.CONNECTED, SessionState.CLOSED)
        logger.log(
            logging.INFO if well else logging.WARNING,
            "The ZooKeeper session 0x%x of %s with %s is %s.",
            session_id,
            self._client_name,
            self._servers,
            state.value,
        )
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener(state)
            except Exception:
                logger.exception("A listener for the state of the ZooKeeper session failed.")
