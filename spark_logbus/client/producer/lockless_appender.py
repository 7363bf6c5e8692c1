"""Lets one thread put plain values into an open record batch without a lock.

To take and to give back a lock costs as much as all else that ``Producer.send`` does for a record
of a value. So the thread that fills a record batch gets a ``LocklessAppender``: room that is
reserved for it, and a list that it alone appends to. Whoever needs the record batch, to seal it or
to put something else into it, closes the appender under the accumulator's lock, and takes what is
in the list then.

That no record is lost or is there twice follows from the order of three steps each, which an
interpreter with a global lock runs as they stand here:

- the owner takes room, appends a record in one step, and then looks if it is still open;
- who closes it marks it closed, then counts what is there, and then looks how much room is left.

An appender that the owner finds open was not counted yet. One that it finds closed was counted
before or after; by the count, which the lock guards, the owner sees which, and sends the record
once more if it came too late. As a record is appended in one step, no signal comes between its
value and time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from spark_logbus.client.producer.acknowledgements import Acknowledgement

#: Without a global lock steps of two threads need not be seen in their order.
APPENDERS_ARE_SAFE: Final = getattr(sys, "_is_gil_enabled", lambda: True)()

#: Key by which the owner finds its appender: a topic, for records that name no partition, or both.
AppenderKey: TypeAlias = str | tuple[str, int]


class LocklessAppender:
    """Collects plain values for one open record batch. Used by its owner's thread, and under the
    accumulator's lock; see the module."""

    __slots__ = (
        "acknowledgement", "is_open", "key", "owner", "records", "room", "skipped", "taken",
    )  # fmt: skip

    def __init__(
        self,
        acknowledgement: Acknowledgement,
        key: AppenderKey,
        *,
        owner: int,
        room: int,
        number: int,
    ) -> None:
        """``owner`` is the identity of a thread; ``number`` is that of the next record within the
        record batch."""
        self.acknowledgement = acknowledgement
        self.key = key
        self.owner = owner
        #: Bytes that it may still take.
        self.room = room
        self.is_open = True
        #: A value and its time in ns, in turn; as long as if all of the record batch's were here.
        self.records: list[bytes | int | None] = [None] * (2 * number)
        self.skipped = len(self.records)
        #: The length of ``records`` up to which they were taken, once it is closed.
        self.taken = -1

    @property
    def record_count(self) -> int:
        """Number of records that are there."""
        return (len(self.records) - self.skipped) // 2

    def close(self) -> tuple[list[bytes], list[int]]:
        """Returns the values that are there, and their times in ns. Called under the lock; returns
        the same each time, as a signal may end the first call."""
        self.is_open = False
        if self.taken < 0:
            self.taken = len(self.records)
        values, times_ns = (
            self.records[first : self.taken : 2] for first in (self.skipped, self.skipped + 1)
        )
        return values, times_ns  # type: ignore[return-value]
