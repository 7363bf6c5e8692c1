"""Numbers the record batches of one partition, so that the broker recognises a repeated append.

A producer takes a random id for each partition and counts the records that it appends there from
0. The broker takes a record batch only where the count goes on, and answers a repeated one with
the offset of its first copy. The count goes on behind what is on its way; what fails is sent again
before anything else is, so what is not acknowledged yet always stands in order.

After a failure a record batch is either *in doubt*: it may have been appended, and keeps its
number until the broker has answered. Or it has certainly not been appended, and is numbered anew.
When one that is in doubt is given up, it is not known where those after it go on. The ones in
doubt are then sent by themselves: either the broker has them, or it sees a gap; both settle it.
After a gap the count starts over in a new epoch.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, Protocol

from spark_logbus.errors import (
    InvalidRequestError,
    LimitExceededError,
    LogbusError,
    NotLeaderError,
    OutOfOrderSequenceError,
    StorageError,
    UnknownProducerError,
)
from spark_logbus.record import stamp_producer
from spark_logbus.record.format import MAX_PRODUCER_EPOCH, MAX_SEQUENCE

# Answers that come before anything is written.
_NOT_APPENDED: Final = (InvalidRequestError, NotLeaderError, LimitExceededError)


def _certainly_not_appended(error: LogbusError) -> bool:
    # A disk that refuses a write takes nothing of it: what was written is removed again. Where
    # that failed, or a flush, the partition goes offline, which is an error of another class.
    return isinstance(error, _NOT_APPENDED) or type(error) is StorageError


class Numbered(Protocol):
    """A record batch, encoded, as far as it is numbered."""

    data: memoryview | None
    record_count: int
    sequence: int  # of its first record; the one it was last sent with
    in_doubt: bool  # whether it may have been appended under that number


class Sequences:
    """The count of one partition. For the sender's thread only."""

    __slots__ = ("_epoch", "_next", "_producer_id", "_sent", "_unknown")

    def __init__(self, producer_id: int | None = None) -> None:
        """``producer_id`` is random unless it is given."""
        self._producer_id = secrets.randbits(63) if producer_id is None else producer_id
        self._epoch = 0
        self._next = 0  # after all that is acknowledged
        self._sent = 0  # after all that is on its way
        self._unknown: int | None = None  # of the last one in doubt that was given up

    @property
    def unknown(self) -> bool:
        """True if it is not known where the count goes on; see the module's docstring."""
        return self._unknown is not None

    def go_on(self, record_count: int) -> bool:
        """True if so many records can be numbered behind those that are on their way."""
        return not self.unknown and self._sent + record_count - 1 <= MAX_SEQUENCE

    def number(self, batches: Sequence[Numbered], *, behind: bool = False) -> None:
        """Write id, epoch and sequence into what is to be sent now: the front of the queue.

        ``behind`` if something is on its way: then they ``go_on``."""
        if self.unknown and not batches[0].in_doubt:
            self._start_over()
        sequence = self._sent if behind else self._next
        for batch in batches:
            if not batch.in_doubt:
                if sequence + batch.record_count - 1 > MAX_SEQUENCE:
                    self._start_over()
                    sequence = 0
                assert batch.data is not None, "only what is encoded can be numbered"
                stamp_producer(
                    batch.data,
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                    base_sequence=sequence,
                )
                batch.sequence = sequence
            sequence = max(sequence, batch.sequence + batch.record_count)
        self._sent = sequence

    def acknowledged(self, batches: Sequence[Numbered]) -> None:
        """The broker has all of them, and so also what was before them."""
        self._next = max(self._next, batches[-1].sequence + batches[-1].record_count)
        if self._unknown is not None and self._unknown < self._next:
            self._unknown = None

    def refused(self, batches: Sequence[Numbered], error: LogbusError) -> bool:
        """A request for them failed; True if only their numbers were to blame.

        Then they are to be sent again, and get new ones.
        """
        if isinstance(error, OutOfOrderSequenceError):
            # Not even the first of them is there. It may be that earlier ones were lost, by a
            # broker that had acknowledged them before they were flushed.
            for batch in batches:
                batch.in_doubt = False
        if isinstance(error, OutOfOrderSequenceError | UnknownProducerError):
            if batches[0].sequence == 0 or any(batch.in_doubt for batch in batches):
                return False
            self._start_over()
            return True
        if not _certainly_not_appended(error):
            for batch in batches:
                batch.in_doubt = True
        return False

    def given_up(self, batch: Numbered) -> None:
        """Notes that nobody waits for a record batch any more, whatever became of it."""
        if batch.in_doubt:
            self._unknown = max(batch.sequence, self._unknown or 0)

    def _start_over(self) -> None:
        self._epoch += 1
        if self._epoch > MAX_PRODUCER_EPOCH:
            self._producer_id, self._epoch = secrets.randbits(63), 0
        self._next = 0
        self._unknown = None
