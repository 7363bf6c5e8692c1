"""Writes the records that stay of one group of segments as one new segment.

Offsets are dense from one record batch to the next, as everywhere in a log. So a record batch
stands for its own offsets, removed ones included, and another one for those of record batches that
are gone: the one after, if it is written anew anyway; else the one before. Where neither can (it
is one that has to stay as it is, or there is none), a filler does.

A record batch of which nothing was removed keeps its bytes, unless it is small and has small
neighbours: those are joined, since each record batch costs a reader about as much as a hundred
records do.

A record batch has the leader epoch of the last one for whose offsets it stands, removed or not: a
follower goes by headers, and must not take a log for one that ends in an earlier epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_logbus.compactor.pieces import BatchPart, joined, placeholder
from spark_logbus.record import RecordBatchHeader

JOIN_BYTES: Final = 1 << 20  # what the producer fills its record batches to, by default
SMALL_BYTES: Final = JOIN_BYTES // 2


class Rewriter:
    """Writes the new segment of one group, from ``base_offset`` on; ``write`` gets the bytes. Not
    thread-safe."""

    def __init__(self, base_offset: int, *, write: Callable[[memoryview], None]) -> None:
        self._next_offset = base_offset  # all before it is written
        self._write = write
        self._run: list[BatchPart] = []  # to become one record batch
        self._run_bytes = 0
        self._newest: RecordBatchHeader | None = None
        self.changed = False

    def removed(self, header: RecordBatchHeader) -> None:
        """Take note that nothing stays of this record batch."""
        self._newest = header
        self.changed = True

    def add(self, piece: BatchPart) -> None:
        """Take the next piece, in order."""
        if self._run and self._takes(piece):
            self._run.append(piece)
            self._run_bytes += piece.size
        else:
            if self._run:
                self._write_run(self._end_before(piece))
            begin = piece.header.base_offset
            if piece.arrow_batch is None and self._next_offset < begin:
                self._fill(begin)
            self._run, self._run_bytes = [piece], piece.size
        self._newest = piece.header

    def finish(self, end_offset: int) -> None:
        """Write the rest; nothing follows up to ``end_offset``."""
        if self._run:
            self._write_run(end_offset)
        if self._next_offset < end_offset:
            self._fill(end_offset)

    def _takes(self, piece: BatchPart) -> bool:
        last = self._run[-1]
        return (
            last.size < SMALL_BYTES
            and piece.size < SMALL_BYTES
            and self._run_bytes + piece.size <= JOIN_BYTES
            and last.joins(piece)
        )

    def _end_before(self, piece: BatchPart) -> int:
        """The end of the run when ``piece`` comes after it."""
        if piece.record_batch is None:  # it is written anew: it can begin where the run ends
            return self._run[-1].header.next_offset
        return piece.header.base_offset

    def _write_run(self, end_offset: int) -> None:
        run, self._run = self._run, []
        only = run[0]
        if len(run) == 1 and only.record_batch is not None:
            fits = only.header.base_offset == self._next_offset
            if only.arrow_batch is None or (fits and only.header.next_offset == end_offset):
                self._emit(only.record_batch, only.header.next_offset)
                if self._next_offset < end_offset:
                    self._fill(end_offset)
                return
        self.changed = True
        newest = run[-1].header
        if newest.next_offset < end_offset:
            assert self._newest is not None, "what stands between was taken note of"
            newest = self._newest
        for record_batch in joined(
            run,
            base_offset=self._next_offset,
            end_offset=end_offset,
            leader_epoch=newest.leader_epoch,
        ):
            self._write(record_batch)
        self._next_offset = end_offset

    def _fill(self, end_offset: int) -> None:
        assert self._newest is not None, "a group holds at least one record batch"
        self.changed = True
        self._emit(
            placeholder(self._newest, base_offset=self._next_offset, end_offset=end_offset),
            end_offset,
        )

    def _emit(self, record_batch: memoryview, next_offset: int) -> None:
        self._write(record_batch)
        self._next_offset = next_offset
