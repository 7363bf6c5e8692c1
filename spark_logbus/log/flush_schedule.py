"""When a log's next flush begins: at once, after so many records, or after some time.

A log asks the flusher at most once until a flush begins, however many appends wait for it.
"""

from __future__ import annotations

from spark_logbus.clock import Clock
from spark_logbus.log.config import FlushPolicy, LogConfig
from spark_logbus.log.flusher import Flushable, FlushScheduler


class FlushSchedule:
    """The flushes that one log has asked for. Thread-safe."""

    def __init__(self, log: Flushable, *, flusher: FlushScheduler, clock: Clock) -> None:
        self._log = log
        self._flusher = flusher
        self._clock = clock
        self._requested = False
        self.due: float | None = None  # by the monotonic clock

    def request(self) -> None:
        """Flush as soon as the flusher can."""
        if not self._requested:
            self._requested = True
            self._flusher.request(self._log)

    def after_append(self, config: LogConfig, *, unflushed: int) -> None:
        """Plan the flush of ``unflushed`` records as a topic's configuration wants it."""
        if config.flush_policy is FlushPolicy.OS:
            return  # the operating system flushes
        if config.flushes_at_once or (
            config.flush_records is not None and unflushed >= config.flush_records
        ):
            self.request()
        elif config.flush_ms is not None and self.due is None:
            self.due = self._clock.monotonic() + config.flush_ms / 1000
            self._flusher.request_at(self.due, self._log)

    def begin(self) -> None:
        """A flush is about to look at the log's end.

        Said before it looks: an append that comes in between asks once too often, and never
        once too little.
        """
        self._requested = False
        self.due = None
