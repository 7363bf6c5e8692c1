"""End of what is replicated of a log: at all replicas in sync, or on the disk of a sole one.

That end moves as the rule of the high watermark does (see ``LogState``), but is held back by no
atomic write: what is appended between the records of one is replicated before it is seen.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import NamedTuple

from spark_logbus.errors import LogbusError, NotLeaderError
from spark_logbus.log.disk.filesystem import storage_errors
from spark_logbus.log.disk.flushed_file import OnFlushed
from spark_logbus.log.state import LogState
from spark_logbus.log.writer import LogWriter
from spark_logbus.timers import DueHeap

logger = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    end: int
    callback: OnFlushed
    truncations: int


class LogReplication:
    """The end of what is replicated of one log, and those who wait for it to move. Thread-safe."""

    def __init__(self, state: LogState, writer: LogWriter) -> None:
        self._state = state
        self._writer = writer
        self._lock = threading.Lock()  # for assignments only
        self._waiting: DueHeap[_Waiting] = DueHeap()
        self._is_known = False  # how much of what was on the disk at first is replicated
        self._assumed_end = 0  # what was taken for replicated then
        self._ended: LogbusError | None = None
        self._truncations = writer.truncations
        state.on_progress = self._notify

    @property
    def end(self) -> int:
        """End of what is replicated. No rule that was asked before the call answers after it."""
        return self._state.settled_replicated_end()

    @property
    def known_end(self) -> int:
        """End of what is known to be replicated of just these records, since leaders told so; 0 for
        a log of which nobody has told since it was opened."""
        end = self._state.settled_replicated_end()
        return end if self._is_known and end > self._assumed_end else 0

    def begin(self, replicated_end: int | None) -> None:
        """Have it known how much of a log is replicated that was opened, and that nobody has read:
        None where that is all on its disk. Who waits from now on is called back again.

        Only the first number counts: after that the log itself knows better. Raises StorageError.
        """
        with self._lock:
            is_first, self._is_known, self._ended = not self._is_known, True, None
        if is_first and replicated_end is not None:
            with storage_errors("read from", self._writer.directory):
                self._state.lower_high_watermark(replicated_end)
            self._assumed_end = self.end

    def end_waiting(self, error: LogbusError) -> None:
        """Give those who wait an ``error``, now and until ``begin``: the log is not led here any
        more."""
        with self._lock:
            self._ended = error
            failed = self._take(math.inf)
        for each in failed:
            _call_back(each, error)

    def when_replicated(
        self, end: int, callback: OnFlushed, *, truncations: int | None = None
    ) -> None:
        """Ask for a flush and call back once all before ``end`` is on disk here and replicated, or
        it is not known any more whether it will be; ``truncations`` are those of the append that
        ended there.

        The callback gets None or the error, must not block, and runs at once if the answer is
        known, else in the thread that learns it.
        """
        if truncations is None:
            truncations = self._writer.truncations
        waiting = _Waiting(end, callback, truncations)

        def flushed(error: LogbusError | None) -> None:
            if error is None:
                self._wait(waiting)
            else:
                callback(error)

        self._writer.when_flushed(end, flushed, truncations=truncations)

    def _wait(self, waiting: _Waiting) -> None:
        with self._lock:
            self._waiting.add(waiting.end, waiting)
        # After it was added, so that nothing moves unnoticed in between.
        self._notify(looks_at_all=waiting.truncations != self._writer.truncations)

    def _outcome(self, waiting: _Waiting) -> tuple[bool, LogbusError | None]:
        """Tells if there is nothing to wait for any more, and the reason if that is a failure."""
        if waiting.truncations != self._writer.truncations:
            where = self._writer.topic_partition
            return True, NotLeaderError(
                f"The record batch was written to {where} and may become visible: another broker "
                "has taken the lead since. Refresh the metadata and ask that one."
            )
        if self._state.replicated_end >= waiting.end:
            return True, None
        error = self._ended or self._writer.failure
        return error is not None, error

    def _notify(self, *, looks_at_all: bool = False) -> None:
        if not self._waiting:
            return
        with self._lock:
            truncations, failure = self._writer.truncations, self._ended or self._writer.failure
            if truncations != self._truncations or failure is not None:
                self._truncations, looks_at_all = truncations, True
            taken = self._take(math.inf if looks_at_all else self._state.replicated_end)
            outcomes = [(each, *self._outcome(each)) for each in taken]
            for each, is_over, _ in outcomes:
                if not is_over:
                    self._waiting.add(each.end, each)
        for each, is_over, error in outcomes:
            if is_over:
                _call_back(each, error)

    def _take(self, end: float) -> list[_Waiting]:
        taken = []
        while (entry := self._waiting.pop_due(end)) is not None:
            taken.append(entry[1])
        return taken


def _call_back(waiting: _Waiting, error: LogbusError | None) -> None:
    """Calls back with an error of its own; one that raises does not keep others waiting."""
    try:
        waiting.callback(None if error is None else error.again())
    except Exception:
        logger.exception("A callback for a replicated append failed.")
