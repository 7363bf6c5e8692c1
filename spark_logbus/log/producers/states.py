"""A log's knowledge of idempotent producers, by which a repeated append makes no second copy.

A producer numbers its records per partition: a record batch carries its id, its epoch and the
sequence of its first record. The log takes a record batch only if its sequence goes on where the
last one of that producer ended. One that it has taken already it does not take again: it says
which offset the first copy got. Anything else is a gap and is refused.

Of each producer the log keeps runs: record batches whose sequences and offsets both go on
without a break. An append is one run at most, however many record batches it holds; so a few
runs give the offset of everything that a producer may still be waiting for.

All of it follows from the log itself. A snapshot file, written at every roll and at an orderly
stop, saves a recovery from reading the headers of the whole log (see ``snapshots``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from spark_logbus.errors import (
    DuplicateSequenceError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownProducerError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.record import RecordBatchHeader
from spark_logbus.record import format as fmt
from spark_logbus.record.stage_id import StageIds, write_of

# A producer that has one append of a partition on its way needs one run; one that has more, as
# many. Five is what Kafka allows.
RUNS_KEPT: Final = 5
# Every Spark task is a producer, and soon silent for good. A partition that meets more of them
# forgets those that have been silent for longest; such a one starts over when it comes back (see
# UnknownProducerError).
MAX_PRODUCERS: Final = 1_000
# Of all partitions of a broker together; each takes about 0.5 KiB.
MAX_PRODUCERS_IN_ALL: Final = 100_000
# While a log is recovered, before it is known which of them must not be forgotten.
_MAX_RECOVERED: Final = 50_000


class SequenceRun(NamedTuple):
    """Records with sequences ``[first, next)`` have the offsets from ``base_offset`` on."""

    first: int
    next: int
    base_offset: int

    def before(self, end: int) -> SequenceRun:
        """Returns the part of it before offset ``end``, which lies behind its first record."""
        return self._replace(next=min(self.next, self.first + end - self.base_offset))


@dataclass(slots=True)
class ProducerState:
    """One producer, as of its last append. ``runs`` has 1 to ``RUNS_KEPT``, the newest last;
    ``first_offset`` is that of its first append in the epoch, as far as that is known."""

    epoch: int
    last_append_us: int
    runs: tuple[SequenceRun, ...]
    first_offset: int

    def extend(self, run: SequenceRun) -> None:
        last = self.runs[-1]
        if last.next == run.first and self.end_offset == run.base_offset:
            self.runs = (*self.runs[:-1], SequenceRun(last.first, run.next, last.base_offset))
        else:
            self.runs = (*self.runs[1 - RUNS_KEPT :], run)

    @property
    def next_sequence(self) -> int:
        return self.runs[-1].next

    @property
    def end_offset(self) -> int:
        last = self.runs[-1]
        return last.base_offset + last.next - last.first

    def offset_of(self, first: int, last: int) -> int | None:
        """The offset of sequence ``first`` if all up to ``last`` were appended in one run."""
        for run in reversed(self.runs):
            if run.first <= first and last < run.next:
                return run.base_offset + first - run.first
        return None


class ProducerCount:
    """Count of the producers that all logs of a broker know together. Thread-safe."""

    def __init__(self, limit: int = MAX_PRODUCERS_IN_ALL) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._count = 0

    def add(self, change: int) -> bool:
        """Add ``change``; True if there are too many now."""
        with self._lock:
            self._count += change
            return self._count > self._limit


class ProducerStateManager:
    """The producers of one log, by id, longest silent first. Not thread-safe: the writer locks."""

    def __init__(self, topic_partition: TopicPartition, count: ProducerCount | None = None) -> None:
        self.topic_partition = topic_partition
        self._count = count if count is not None else ProducerCount()
        self._by_id: dict[int, ProducerState] = {}
        self._limit = _MAX_RECOVERED
        self._protected: set[int] = set()  # numbers of writes
        #: What came before this offset may lack records at its end: they were given up.
        self.lost_before = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> Iterator[tuple[int, ProducerState]]:
        """Longest silent first."""
        return iter(self._by_id.items())

    def restore(self, producer_id: int, producer: ProducerState) -> None:
        """Take over one producer of a snapshot; call in the order of ``items``."""
        self._add(producer_id, producer)

    def truncate(self, end: int) -> set[int]:
        """Forget what was appended from offset ``end`` on, which is cut off; the ids of the
        producers of which nothing is left, whatever they appended before."""
        cut_off = set()
        for producer_id, producer in list(self._by_id.items()):
            producer.runs = tuple(run.before(end) for run in producer.runs if run.base_offset < end)
            if not producer.runs:
                cut_off.add(producer_id)
                self._forget(producer_id)
        return cut_off

    def restore_all(self, producers: Iterable[tuple[int, ProducerState]]) -> None:
        """Take over producers that are not known any more, in the places of their last appends."""
        for producer_id, producer in producers:
            self._add(producer_id, producer)
        by_silence = sorted(self._by_id.items(), key=lambda entry: entry[1].last_append_us)
        self._by_id = dict(by_silence)

    # -- appends --------------------------------------------------------------------------

    def duplicate_offsets(self, headers: Sequence[RecordBatchHeader]) -> list[int]:
        """Check an append; the offsets of the record batches at its head that are in the log.

        Changes nothing. Raises OutOfOrderSequenceError, ProducerFencedError,
        UnknownProducerError, DuplicateSequenceError or InvalidRequestError, and then nothing of
        the append may be taken.
        """
        self._limit = MAX_PRODUCERS
        found: list[int] = []
        pending: dict[int, tuple[int, int]] = {}  # epoch and next sequence with what comes before
        for number, header in enumerate(headers):
            if header.producer_id == fmt.NO_PRODUCER:
                continue
            self._check_fields(header)
            self._check_is_free(header)
            offset = self._check(header, pending)
            if offset is None:
                pending[header.producer_id] = (header.producer_epoch, header.last_sequence + 1)
            elif number != len(found):
                raise OutOfOrderSequenceError(
                    f"{self._batch(header)} was appended before, but stands after record batches "
                    "that were not; send what is repeated first, or by itself."
                )
            else:
                found.append(offset)
        return found

    def note(self, header: RecordBatchHeader, *, offset: int, append_time_us: int) -> None:
        """Note that a record batch was appended at ``offset``, or is found there by a recovery."""
        if header.producer_id == fmt.NO_PRODUCER:
            return
        self.extend(
            header.producer_id,
            epoch=header.producer_epoch,
            run=SequenceRun(header.base_sequence, header.last_sequence + 1, offset),
            append_time_us=append_time_us,
        )

    def extend(
        self, producer_id: int, *, epoch: int, run: SequenceRun, append_time_us: int
    ) -> None:
        producer = self._by_id.pop(producer_id, None)
        if producer is None:
            self._add(producer_id, ProducerState(epoch, append_time_us, (run,), run.base_offset))
            return
        if producer.epoch == epoch:
            producer.extend(run)
        else:
            producer.epoch, producer.runs = epoch, (run,)
            producer.first_offset = run.base_offset
        producer.last_append_us = append_time_us
        self._by_id[producer_id] = producer  # at the end: the last to append

    def _add(self, producer_id: int, producer: ProducerState) -> None:
        self._by_id[producer_id] = producer
        too_many_in_all = self._count.add(1)
        excess = max(len(self._by_id) - self._limit, int(too_many_in_all))
        if excess > 0:
            others = (known for known in self._by_id if write_of(known) not in self._protected)
            for forgotten in list(islice(others, min(excess, len(self._by_id) - 1))):
                if forgotten != producer_id:
                    self._forget(forgotten)

    def _forget(self, producer_id: int) -> None:
        del self._by_id[producer_id]
        self._count.add(-1)

    def forget_all(self) -> None:
        """Forget all producers, for the log is closed or deleted."""
        for producer_id in list(self._by_id):
            self._forget(producer_id)

    def forget_silent(self, *, since_us: int) -> None:
        """Forget the producers that have appended nothing since the time."""
        silent: list[int] = []
        for producer_id, producer in self._by_id.items():
            if producer.last_append_us >= since_us:
                break
            silent.append(producer_id)
        for producer_id in silent:
            if write_of(producer_id) not in self._protected:
                self._forget(producer_id)

    # -- attempts of atomic writes --------------------------------------------------------

    def appended_records(self, attempts: StageIds) -> dict[int, int]:
        """Counts of records of each attempt that the log has, whose producers number them from 0 on
        in one epoch; without those of which it has none."""
        return {each: self._by_id[each].next_sequence for each in attempts.among(self._by_id)}

    def records_of(self, producer_id: int) -> int:
        """Number of records that the log has of one attempt."""
        producer = self._by_id.get(producer_id)
        return 0 if producer is None else producer.next_sequence

    def first_offset(self, attempts: StageIds) -> int:
        """The lowest offset that any of them has; at least one must be known."""
        return min(self._by_id[each].first_offset for each in attempts.among(self._by_id))

    def end_offset(self, attempts: StageIds) -> int:
        """Offset behind the last record of them; at least one must be known."""
        return max(self._by_id[each].end_offset for each in attempts.among(self._by_id))

    def protect(self, write: int) -> None:
        """Forget no attempt of the write, however silent it is and however many others come."""
        self._protected.add(write)

    def unprotect(self, write: int) -> None:
        """Forget attempts of the write as those of others: nothing of it is to be appended."""
        self._protected.discard(write)

    def release(self, attempts: StageIds) -> None:
        """Forget the attempts of a write: none of them appends again."""
        self._protected.discard(attempts.write)
        for producer_id in attempts.among(self._by_id):
            self._forget(producer_id)

    # -- checks ---------------------------------------------------------------------------

    def _check_fields(self, header: RecordBatchHeader) -> None:
        if (
            header.producer_id < 0
            or header.producer_epoch < 0
            or header.base_sequence < 0
            or header.last_sequence > fmt.MAX_SEQUENCE
        ):
            raise InvalidRequestError(
                f"{self._batch(header)} cannot be: id, epoch and sequences of an idempotent "
                f"producer are numbers from 0, and sequences end at {fmt.MAX_SEQUENCE}."
            )

    def _check_is_free(self, header: RecordBatchHeader) -> None:
        """Refuse what looks as if it was published: then the write's own records would be taken for
        there already, and be lost."""
        if write_of(header.producer_id) in self._protected:
            raise InvalidRequestError(
                f"{self._batch(header)} has an id of the atomic write "
                f"{write_of(header.producer_id)}, which is under way and appends by itself; take "
                "another id."
            )

    def _check(self, header: RecordBatchHeader, pending: dict[int, tuple[int, int]]) -> int | None:
        """Returns the offset of a record batch that was appended before; None if it is to be
        appended."""
        known = self._by_id.get(header.producer_id)
        epoch, expected = pending.get(header.producer_id) or (
            (known.epoch, known.next_sequence) if known is not None else (-1, 0)
        )
        if header.producer_epoch < epoch:
            raise ProducerFencedError(
                f"{self._batch(header)} comes too late: epoch {epoch} of that producer has "
                "appended since, by another producer under the same id. Close this one and create "
                "another, which gets an id of its own."
            )
        if header.producer_epoch > epoch:
            if header.base_sequence == 0:
                return None
            if epoch < 0:
                raise UnknownProducerError(
                    f"{self._batch(header)} goes on from records that the partition does not know: "
                    "its producer has been silent for too long. Start over from sequence 0 in a "
                    "new epoch."
                )
            expected = 0
        elif header.base_sequence < expected:
            return self._offset_of(header, known)
        if header.base_sequence != expected:
            if known is not None and known.runs[-1].base_offset < self.lost_before:
                raise UnknownProducerError(
                    f"{self._batch(header)} goes on from records that were lost with a part of the "
                    "log that was given up. Start over from sequence 0 in a new epoch."
                )
            raise OutOfOrderSequenceError(
                f"{self._batch(header)} leaves a gap: expected sequence {expected}. Records before "
                "it were not appended, or are lost; send them first, or start over in a new epoch."
            )
        return None

    def _offset_of(self, header: RecordBatchHeader, known: ProducerState | None) -> int:
        offset = None
        if known is not None and known.epoch == header.producer_epoch:
            offset = known.offset_of(header.base_sequence, header.last_sequence)
        if offset is None:
            raise DuplicateSequenceError(
                f"{self._batch(header)} was appended before, at an offset that is not known any "
                "more; do not send it again."
            )
        return offset

    def _batch(self, header: RecordBatchHeader) -> str:
        return (
            f"A record batch for {self.topic_partition} of producer {header.producer_id}, epoch "
            f"{header.producer_epoch}, sequences {header.base_sequence} to {header.last_sequence},"
        )
