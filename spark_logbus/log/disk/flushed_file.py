"""The end of a file that is appended to, and how far it is on disk.

Theory of operation. One thread at a time writes at the end. Who wants to know when that is on disk
leaves a callback (``when_flushed``), and a flush is asked for, once until it begins. The flusher's
thread then syncs all that is written by now, and calls back all who waited for no more than that:
so appends that come while a flush is under way share the next one.

A flush that failed is not tried again: the kernel drops pages that it could not write, and the
next ``fsync`` would succeed without them. The file fails instead, for good, and so do all who wait.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from spark_logbus.clock import Clock
from spark_logbus.errors import LogbusError
from spark_logbus.log.disk.filesystem import File
from spark_logbus.log.disk.flusher import FlushScheduler
from spark_logbus.log.disk.stats import LogStats
from spark_logbus.model import TopicPartition
from spark_logbus.timers import DueHeap

logger = logging.getLogger(__name__)

OnFlushed = Callable[[LogbusError | None], None]


class FlushedFile(ABC):
    """Base of what appends to a file, or to the last of several. Thread-safe.

    Ends are numbers that rise with what is written: offsets, or positions. ``_writing`` is the
    lock of who writes; ``_flushing`` lets one ``fsync`` run at a time, because Linux reports a
    failed one to one caller only. ``_writing`` is taken first.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: Path,
        *,
        flushed_end: int,
        flusher: FlushScheduler,
        clock: Clock,
        stats: LogStats,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        #: All before it is on disk.
        self.flushed_end = flushed_end
        #: The reason why nothing more is appended; None while it is.
        self.failure: LogbusError | None = None
        self._flusher = flusher
        self._clock = clock
        self._stats = stats
        self._writing = threading.Lock()
        self._flushing = threading.Lock()
        self._lock = threading.Lock()  # for assignments only
        self._waiting: DueHeap[OnFlushed] = DueHeap()
        #: How often an end was taken back: who waits for one says which count it goes by.
        self.truncations = 0
        self._truncated: LogbusError | None = None
        self._cut_off: list[OnFlushed] = []  # to be told so by the next ``notify``
        self._flush_requested = False
        self._flush_due: float | None = None  # by the monotonic clock

    @abstractmethod
    def _sync_tail(self) -> None:
        """Bring to the disk what is written by now. ``_flushing`` is held.

        Raises LogbusError after ``fail``.
        """

    def _sync(self, file: File, end: int) -> None:
        """Sync ``file``, in which all before ``end`` is written. Raises OSError."""
        began = self._clock.monotonic()
        file.sync()
        self._stats.flushes.observe(self._clock.monotonic() - began)
        self.flushed_end = end

    # -- failures -----------------------------------------------------------------------

    def raise_if_failed(self) -> None:
        if self.failure is not None:
            raise self.failure.again()

    def fail(self, error: LogbusError) -> bool:
        """Refuse appends with ``error`` from now on; False if something else does already.

        ``notify`` passes it on to those who wait.
        """
        with self._lock:
            if self.failure is not None:
                return False
            self.failure = error
            return True

    def _take_back(self, file: File, position: int, error: OSError, size_bytes: int) -> bool:
        """Remove what was written from ``position`` on of an append of ``size_bytes`` that failed
        with ``error``; False if that cannot be done."""
        self._note_refused(error, size_bytes)
        try:
            file.truncate(position)
        except OSError:
            return False
        return True

    def _note_refused(self, error: OSError, size_bytes: int) -> None:
        self._stats.refused.note(
            self.topic_partition,
            self.directory,
            error,
            size_bytes=size_bytes,
            now=self._clock.monotonic(),
        )

    # -- flushes ------------------------------------------------------------------------

    def when_flushed(
        self, end: int, callback: OnFlushed, *, truncations: int | None = None
    ) -> None:
        """Ask for a flush; call back when all before ``end`` is on disk, or cannot be.

        With ``truncations``, as they were when it was written, what was cut off since is not taken
        for what was written in its place.
        """
        with self._lock:
            is_cut_off = truncations is not None and truncations != self.truncations
            is_flushed = self.flushed_end >= end and not is_cut_off
            error = self._truncated if is_cut_off else None if is_flushed else self.failure
            waits = not is_flushed and error is None
            if waits:
                self._waiting.add(end, callback)
        if waits:
            self.request_flush()
        else:
            _call_back([callback], error)

    def request_flush(self) -> None:
        """Flush as soon as the flusher can."""
        if not self._flush_requested:
            self._flush_requested = True
            self._flusher.request(self)

    def _flush_within(self, seconds: float) -> None:
        """Flush after so long, unless an earlier flush comes."""
        if self._flush_due is None:
            self._flush_due = self._clock.monotonic() + seconds
            self._flusher.request_at(self._flush_due, self)

    def flush(self) -> None:
        """Flush what is written, then notify those who wait. For the flusher's thread.

        A failure reaches those who wait; it is not raised.
        """
        # Before the end is read: an append that comes in between then asks once too often, and
        # never once too little.
        self._flush_requested = False
        self._flush_due = None
        with self._flushing:
            if self.failure is None:
                try:
                    self._sync_tail()
                except LogbusError as error:
                    logger.debug("A flush failed: %s", error)
        self.notify()

    def flush_if_due(self) -> float | None:
        """Flush if the time for that has come; else the monotonic time when it will have."""
        due = self._flush_due
        if due is None or self._clock.monotonic() < due:
            return due
        self.flush()
        return None

    @property
    def flushes_later(self) -> bool:
        """True while a flush is to come at a set time."""
        return self._flush_due is not None

    def notify(self) -> None:
        """Call back all whose end is on disk or cannot get there."""
        with self._lock:
            flushed = self._take_waiting(self.flushed_end)
            failure, truncated = self.failure, self._truncated
            failed = self._take_waiting(math.inf) if failure is not None else []
            cut_off, self._cut_off = self._cut_off, []
        _call_back(flushed, None)
        _call_back(cut_off, truncated)
        _call_back(failed, failure)

    def _take_back_to(self, end: int, error: LogbusError) -> None:
        """Note that what was written from ``end`` on is cut off: who waits for it gets ``error``
        by the next ``notify``."""
        with self._lock:
            kept = []
            while (entry := self._waiting.pop_due(end)) is not None:
                kept.append(entry)
            self._cut_off += self._take_waiting(math.inf)
            self._waiting = DueHeap(kept)
            self.truncations += 1
            self._truncated = error

    def _take_waiting(self, end: float) -> list[OnFlushed]:
        taken = []
        while (entry := self._waiting.pop_due(end)) is not None:
            taken.append(entry[1])
        return taken


def _call_back(callbacks: list[OnFlushed], error: LogbusError | None) -> None:
    """Calls all, each with an error of its own; one that raises does not keep others waiting."""
    for callback in callbacks:
        try:
            callback(None if error is None else error.again())
        except Exception:
            logger.exception("A callback for a flushed append failed.")
