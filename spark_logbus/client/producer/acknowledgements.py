"""The acknowledgements that a producer's callers wait for.

A future per record would cost more than the record. So all records of a record batch share one
``Acknowledgement``, and each ``RecordFuture`` is only a number within it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from spark_logbus.client.producer.failures import Failures, UnheardFailure
from spark_logbus.errors import LogbusError
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The place of a record. ``offset`` is None when unknown: with acks none, or when the broker
    recognised a repetition of an append whose place it no longer remembers."""

    topic: str
    partition: int
    offset: int | None
    timestamp_us: int


class AppendedRange(msgspec.Struct, frozen=True, gc=False):
    """The place of ``record_count`` records: from ``base_offset`` on; None when unknown."""

    topic: str
    partition: int
    base_offset: int | None
    record_count: int
    append_time_us: int | None


# One for all of them: what is done under it takes no time, and a lock for each record batch costs
# as much as the rest of what is made for one. A signal's handler may ask for another one meanwhile.
_settling = threading.RLock()


def _renew_lock() -> None:
    global _settling
    _settling = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Acknowledgement:
    """The fate of one record batch, set once. Thread-safe."""

    __slots__ = ("_callbacks", "_done", "_range", "_unheard", "error", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.error: LogbusError | None = None
        self._range: AppendedRange | None = None
        self._callbacks: list[Callable[[], None]] | None = None
        self._done: threading.Event | None = None
        self._unheard: UnheardFailure | None = None

    @property
    def done(self) -> bool:
        return self._range is not None or self.error is not None

    def succeed(self, appended: AppendedRange) -> None:
        self._settle(appended, None)

    def fail(
        self, error: LogbusError, *, records: int = 0, failures: Failures | None = None
    ) -> None:
        """``failures`` are told that so many records failed, until somebody hears of it."""
        told = failures is not None and failures.tell(
            self.topic_partition.topic, self.topic_partition.partition, records, error
        )
        self._settle(None, error, 0 if told else records, failures)

    def fail_in_child(self, error: LogbusError) -> None:
        """Fails it in a forked process, whose parent goes on with the record batch. Callers'
        callbacks are not called: the parent calls them. Takes no lock, as whoever has it may have
        no thread here."""
        if not self.done:
            self.error = error
            self._done = None
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks or ():
                future = getattr(callback, "__self__", None)
                if isinstance(future, RangeFuture):
                    future.fail_in_child(error)

    def _settle(
        self,
        appended: AppendedRange | None,
        error: LogbusError | None,
        records: int = 0,
        failures: Failures | None = None,
    ) -> None:
        with _settling:
            if self._range is not None or self.error is not None:
                return
            if error is not None and failures is not None and records:
                # Before the error, which others look for without the lock, and may hear of then.
                self._unheard = failures.add(records, error)
            self._range = appended
            self.error = error
            callbacks, self._callbacks = self._callbacks, None
            done = self._done
        if done is not None:
            done.set()
        for callback in callbacks or ():
            _run(callback)

    def settled(self, timeout: float | None) -> bool:
        """Wait for at most ``timeout`` seconds; whether it is done."""
        if self.done:
            return True
        fresh = threading.Event()  # only where one is needed: most records are never asked about
        with _settling:
            if self._done is None and not self.done:
                self._done = fresh
            done = self._done
        return done is None or done.wait(timeout) or self.done

    def hear(self, record: int | None = None) -> None:
        """Notes that somebody has heard of the failure, if it failed: of one record, or of all."""
        unheard = self._unheard
        if unheard is not None:
            unheard.hear(record)

    def wait(self, timeout: float | None, record: int | None = None) -> AppendedRange:
        """The range, waited for. Raises what failed, which somebody has heard of then, for that
        record or for all, or TimeoutError after ``timeout`` s."""
        self._require_settled(timeout)
        if self.error is not None:
            self.hear(record)
            raise self.error.again()
        assert self._range is not None
        return self._range

    def failure(self, timeout: float | None) -> LogbusError | None:
        """Waits for the end, and returns what failed, if it did; made anew for each who asks, who
        may raise it. Raises TimeoutError after ``timeout`` s."""
        self._require_settled(timeout)
        return None if self.error is None else self.error.again()

    def _require_settled(self, timeout: float | None) -> None:
        if not self.settled(timeout):
            raise TimeoutError(f"Not acknowledged within {timeout} s; it still may be.")

    def when_done(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once it is done: in the sender's thread, or here if it is already."""
        first = [callback]
        with _settling:
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = first
                else:
                    self._callbacks.append(callback)
                return
        _run(callback)


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except BaseException:
        # A caller's fault, which must not stop the sender; SystemExit would without a word.
        logger.exception("A callback of a record failed, which changes nothing for the record.")


class RecordFuture(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The fate of one record; behaves like a ``concurrent.futures.Future`` that cannot be
    cancelled. Thread-safe.

    One is made for each record that is sent: a struct costs a third of an object, and the garbage
    collector passes it by. Only callbacks refer to it, until they have run. What can be worked out
    when somebody asks is not worked out before.
    """

    _acknowledgement: Acknowledgement
    _end: int
    """Twice the number of records in the record batch up to this one (see
    ``LocklessAppender.records``)."""
    _timestamp_ns: int

    def done(self) -> bool:
        return self._acknowledgement.done

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def running(self) -> bool:
        return not self.done()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The record's place. Raises the error it failed with; TimeoutError past ``timeout``."""
        appended = self._acknowledgement.wait(timeout, self._end)
        base = appended.base_offset
        offset = None if base is None else base + self._end // 2 - 1
        timestamp_us = self._timestamp_ns // 1000
        return RecordMetadata(appended.topic, appended.partition, offset, timestamp_us)

    def exception(self, timeout: float | None = None) -> LogbusError | None:
        """The error that ``result`` raises, or None. Raises TimeoutError past ``timeout``."""
        failed = self._acknowledgement.failure(timeout)
        if failed is not None:
            self._acknowledgement.hear(self._end)
        return failed

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """``callback(self)`` once done; in the sender's thread, which it must not hold up."""

        def call() -> None:
            self._acknowledgement.hear(self._end)
            callback(self)

        self._acknowledgement.when_done(call)

    def when_done(self, callback: Callable[[RecordFuture], object]) -> None:
        """``add_done_callback`` for one that does not look at the outcome."""
        self._acknowledgement.when_done(lambda: (callback(self), None)[1])


class RangeFuture(Future[AppendedRange]):
    """A standard future of a whole record batch's fate."""

    def __init__(self, acknowledgement: Acknowledgement) -> None:
        super().__init__()
        self._acknowledgement = acknowledgement
        self._has_callback = False
        self.set_running_or_notify_cancel()
        acknowledgement.when_done(self._settle)

    def fail_in_child(self, error: LogbusError) -> None:
        """See ``Acknowledgement``."""
        self._condition = threading.Condition()
        self._done_callbacks: list[Callable[[Future[AppendedRange]], object]] = []
        self.set_exception(error.again())

    def _settle(self) -> None:
        failure = self._acknowledgement.failure(0)
        if failure is None:
            self.set_result(self._acknowledgement.wait(0))
            return
        if self._has_callback:
            self._acknowledgement.hear()
        self.set_exception(failure)

    def result(self, timeout: float | None = None) -> AppendedRange:
        try:
            return super().result(timeout)
        except LogbusError:
            self._acknowledgement.hear()
            del self  # the error remembers this frame, which must not keep the error
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        failed = super().exception(timeout)
        if failed is not None:
            self._acknowledgement.hear()
        return failed

    def add_done_callback(self, fn: Callable[[Future[AppendedRange]], object]) -> None:
        self._has_callback = True
        self._acknowledgement.hear()  # if it is done already
        super().add_done_callback(fn)

    def when_done(self, callback: Callable[[Future[AppendedRange]], object]) -> None:
        """``add_done_callback`` for one that does not look at the outcome."""
        super().add_done_callback(callback)
