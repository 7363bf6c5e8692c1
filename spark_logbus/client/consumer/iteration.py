"""The record batch that a consumer hands out record by record."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.client.fetch.records import ConsumerRecord, records_of


class Iteration:
    """One arrow batch under iteration, or none. Not thread-safe.

    Whoever takes a record from ``rows`` notes it in ``last``: that is all that a record costs here,
    and the position is computed when somebody asks for it. ``rows`` is another object after
    ``begin``, ``begin_again`` and ``end``, by which a loop over it sees that it is to stop.
    """

    def __init__(self) -> None:
        self.rows: Iterator[ConsumerRecord] = iter(())
        self.last: ConsumerRecord | None = None
        #: ``last`` once it is known to be dealt with, or once ``Reading`` keeps account of it.
        self.settled: ConsumerRecord | None = None
        self.batch: FetchedBatch | None = None
        #: The position once all of the batch was handed out.
        self.end_offset = 0
        #: Records of the batches before this one that were handed out.
        self.finished = 0

    def begin(self, batch: FetchedBatch, *, end: int) -> None:
        self.rows = records_of(batch)
        self.batch, self.last, self.settled, self.end_offset = batch, None, None, end

    def begin_again(self) -> None:
        """Go back to behind ``last``: what was taken from ``rows`` since reached nobody."""
        rest = self.rest()
        self.rows = iter(()) if rest is None else records_of(rest)

    @property
    def handed_out(self) -> int:
        """The number of records that were handed out so far. For any thread: near the end of a
        batch it may be off by the records of one."""
        batch, last = self.batch, self.last
        if batch is None or last is None:
            return self.finished
        done = last.offset + 1 - batch.base_offset
        if batch.has_gaps:
            done = int(np.searchsorted(np.asarray(batch.offsets()), last.offset, "right"))
        return self.finished + max(0, min(done, int(batch.arrow_batch.num_rows)))

    def end(self) -> None:
        self.finished = self.handed_out
        self.batch = self.last = self.settled = None
        self.rows = iter(())

    @property
    def unsettled(self) -> int | None:
        """The offset of the record that was handed out last, if it may still be worked on."""
        last = self.last
        return None if last is None or last is self.settled else last.offset

    @property
    def next_offset(self) -> int | None:
        """The offset after the last record that was handed out; None before the first."""
        return None if self.last is None else self.last.offset + 1

    def rest(self) -> FetchedBatch | None:
        """What was not handed out; None if nothing is left."""
        batch, next_offset = self.batch, self.next_offset
        if batch is None or next_offset is None:
            return batch
        offsets = batch.offsets().to_pylist()
        done = sum(offset < next_offset for offset in offsets)
        if done == len(offsets):
            return None
        return batch.part(done, len(offsets) - done)
