"""The records of a producer that failed, until somebody has heard of it.

A failure is heard of when somebody asks the record's future for its result or its error, or has
given that future or the producer a callback. ``flush`` and ``close`` raise the others: a program
that ignores its futures does not lose records without a word.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_logbus.errors import DeliveryFailedError, LogbusError

logger = logging.getLogger(__name__)

# For the first reason, of failures that may still be asked about. More are counted only.
_REASONS_KEPT: Final = 256
# A program that asks its futures does so soon. One that never does hears of it in its log.
_SAY_AFTER_S: Final = 5.0
_SAY_AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class FailedRecords:
    """Records of one record batch that were not acknowledged, and the error.

    After a RequestTimeoutError or BrokerUnavailableError they may be in the log all the same."""

    topic: str
    partition: int
    record_count: int
    error: LogbusError


OnFailure: TypeAlias = Callable[[FailedRecords], object]


class UnheardFailure:
    """The failure of one record batch, of which somebody may hear record by record."""

    __slots__ = ("_failures", "_heard", "_left", "_round", "error")

    def __init__(self, failures: Failures, records: int, error: LogbusError, number: int) -> None:
        self._failures = failures
        self._left = records
        self._heard: set[int] | None = None
        self._round = number
        self.error = error

    def hear(self, record: int | None) -> None:
        """Notes that somebody has heard of that record, by whatever number, or with None of all."""
        with self._failures.lock:
            if not self._left:
                return
            if record is None:
                count = self._left
            else:
                self._heard = self._heard or set()
                if record in self._heard:
                    return
                self._heard.add(record)
                count = 1
            self._left -= count
            if not self._left:
                self._heard = None
            self._failures.heard(self, count, self._round, all_of_it=not self._left)


class Failures:
    """The failures of one producer that nobody has heard of. Thread-safe."""

    def __init__(self, on_failure: OnFailure | None = None) -> None:
        self._on_failure = on_failure
        self.lock = threading.RLock()  # a signal's handler may ask for a future meanwhile
        self._records = 0
        self._round = 0  # those of earlier ones were raised
        self._reasons: dict[UnheardFailure, None] = {}
        self._last_reason: LogbusError | None = None
        self._since: float | None = None
        self._say_at = 0.0

    def add(self, records: int, error: LogbusError) -> UnheardFailure:
        with self.lock:
            failure = UnheardFailure(self, records, error, self._round)
            self._records += records
            if len(self._reasons) < _REASONS_KEPT:
                self._reasons[failure] = None
            else:
                self._last_reason = error
            return failure

    def heard(self, failure: UnheardFailure, records: int, number: int, *, all_of_it: bool) -> None:
        """Counts records that somebody has heard of. Called by a failure, under the lock."""
        if number != self._round:
            return
        self._records -= records
        if all_of_it:
            self._reasons.pop(failure, None)

    def tell(self, topic: str, partition: int, records: int, error: LogbusError) -> bool:
        """Call ``on_failure``; false if there is none, or it failed."""
        if self._on_failure is None:
            return False
        try:
            self._on_failure(FailedRecords(topic, partition, records, error.again()))
        except BaseException:  # SystemExit, too, which would end the sender without a word
            # A caller's fault, which must not stop the sender. Its records count as unheard of.
            logger.exception("on_failure failed for %d records of topic %s.", records, topic)
            return False
        return True

    def take(self) -> DeliveryFailedError | None:
        """The error for all failures that nobody has heard of; from now on somebody has."""
        with self.lock:
            records, reason = self._records, self._first_reason()
            self._records = 0
            self._round += 1
            self._reasons.clear()
            self._last_reason = None
            self._since = None
        if not records:
            return None
        assert reason is not None
        failed = DeliveryFailedError(
            f"{_plural(records)} that {'was' if records == 1 else 'were'} handed over failed, and "
            f"nobody has asked for {'its' if records == 1 else 'their'} fate. The first failure: "
            f"{reason} To deal with failures one by one, ask the futures of the records, or give "
            "the producer on_failure.",
            record_count=records,
        )
        failed.__cause__ = reason.again()
        return failed

    def raise_unheard(self) -> None:
        failed = self.take()
        if failed is not None:
            raise failed

    def say(self, now: float) -> None:
        """Log what nobody asks about, now and then: a service may never flush."""
        if not self._records:
            self._since = None
            return
        with self.lock:
            if self._since is None:
                self._since = now
            if now < max(self._since + _SAY_AFTER_S, self._say_at):
                return
            self._say_at = now + _SAY_AGAIN_S
            records, reason = self._records, self._first_reason()
        logger.warning(
            "%s of this producer failed, and nobody has asked for their fate so far. The first "
            "failure: %s",
            _plural(records),
            reason,
        )

    def _first_reason(self) -> LogbusError | None:
        return next(iter(self._reasons)).error if self._reasons else self._last_reason


def _plural(records: int) -> str:
    return f"{records:,} record{'' if records == 1 else 's'}"
