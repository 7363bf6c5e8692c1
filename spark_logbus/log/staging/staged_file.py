"""The file of what one atomic write has staged for one partition.

It holds record batches as a segment does, but they have no offsets yet: their base offset is 0.
So a copy of one that a crash leaves half-stamped at the end of a log never looks like a record
batch of that log. In the place of the leader epoch stands a mark of the writer, if the client says
whose write it is, and of its principal, if that is known (see ``writer_runs``). They lie in the
order in which they came, those of concurrent tasks mixed; each says by its producer id which
attempt of a task staged it (see ``record.stage_id``).

Appends are flushed by group commit, as a log's. A recovery keeps what is whole, and puts it on
disk. When the write is over, the file serves the next one, which writes over it from the start:
that takes less time than giving its space back and taking it again. What is left of an earlier
write after the end of a later one is of another write, by its headers, and counts for nothing.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    StorageError,
    WriteFencedError,
)
from spark_logbus.log.disk.filesystem import File, remove_if_possible, storage_error
from spark_logbus.log.disk.flushed_file import FlushedFile
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.segment.scan import verified_headers
from spark_logbus.log.staged_batches import StagedBatches
from spark_logbus.log.staging.digests import StagedDigests
from spark_logbus.log.validate import ValidatedBatch
from spark_logbus.log.writer_runs import writer_mark
from spark_logbus.model import TopicPartition
from spark_logbus.record import HEADER_SIZE, RecordBatchHeader, parse_header, stamp
from spark_logbus.record.stage_id import write_of
from spark_logbus.record.walk import header_places

logger = logging.getLogger(__name__)

RECOVERED: Final = 0  # promises of this process count from 1


@dataclass(slots=True)
class StagedShare:
    """Records that one attempt has staged for the partition, and where they are in the file."""

    records: int = 0
    size_bytes: int = 0
    staged_at_us: int = 0  # the last of it
    extents: list[tuple[int, int]] = field(default_factory=list)  # of the file, [start, end)

    def add(self, header: RecordBatchHeader, position: int, staged_at_us: int) -> None:
        end = position + header.size
        if self.extents and self.extents[-1][1] == position:
            self.extents[-1] = (self.extents[-1][0], end)
        else:
            self.extents.append((position, end))
        self.records += header.record_count
        self.size_bytes += header.size
        self.staged_at_us = max(self.staged_at_us, staged_at_us)

    def take_back(self, header: RecordBatchHeader, position: int) -> None:
        """Takes back the last record batch, which begins at ``position``."""
        start, _ = self.extents.pop()
        if start < position:
            self.extents.append((start, position))
        self.records -= header.record_count
        self.size_bytes -= header.size


class StagedFile(FlushedFile):
    """File of one write. Thread-safe: appends one at a time, beside flushes; what ``shares`` holds
    only grows until ``clear``, but for a follower's."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        file: File,
        *,
        environment: LogEnvironment,
    ) -> None:
        super().__init__(
            topic_partition,
            file.path.parent,
            flushed_end=0,
            flusher=environment.flusher,
            clock=environment.clock,
            stats=environment.stats,
        )
        self.path = file.path
        self.file = file
        self.write: int | None = None  # the write that it serves; None: free for the next one
        self.shares: dict[int, StagedShare] = {}  # by producer id
        self._dropped: set[int] = set()  # producer ids of which something lies here, and no share
        self.free_since = environment.clock.monotonic()
        # The number of the promise under which it was prepared; RECOVERED: of an earlier process.
        self.promised: int | None = None
        self.writer = ""  # whose write it is, as far as that is known
        self.mark: int | None = None  # of the writer, see ``writer_runs``
        self.run = 0  # the place of its run among the writer's; 0: before all that are known
        self.superseded = False  # by a later run of the writer
        self.digests = StagedDigests()
        self._serving_since_us = 0
        self._end = 0  # of what is written

    @classmethod
    def recover(
        cls, topic_partition: TopicPartition, path: Path, *, environment: LogEnvironment
    ) -> StagedFile:
        """Opens the file as a crash or an orderly stop left it, cuts off what is torn or of an
        earlier write, and brings the rest to the disk.

        Raises OSError.
        """
        staged = cls(topic_partition, environment.files.open(path), environment=environment)
        staged._read_back()
        return staged

    def _read_back(self) -> None:
        """Takes over what the file holds. Raises OSError."""
        size = self.file.size()
        for position, header in verified_headers(self.file, size):
            share = self.shares.get(header.producer_id) or StagedShare()
            same_write = self.write in (None, write_of(header.producer_id))
            if not same_write or header.base_sequence != share.records:
                break
            self.write = write_of(header.producer_id)
            self.mark = header.leader_epoch if header.leader_epoch < 0 else None
            self.shares[header.producer_id] = share
            share.add(header, position, header.append_time_us)
            self.digests.add(header, mark=header.leader_epoch, staged_at_us=header.append_time_us)
            self._end = position + header.size
        if self.write is not None:
            self.promised = RECOVERED
        if self._end < size:
            self.file.truncate(self._end)
        if size:
            self.file.sync()
        self.flushed_end = self._end

    @property
    def size_bytes(self) -> int:
        return self._end

    def flushed_records(self, producer_id: int) -> int:
        """The attempt's records, if all of them are on disk; else 0."""
        share = self.shares.get(producer_id)
        return (
            share.records if share is not None and share.extents[-1][1] <= self.flushed_end else 0
        )

    @property
    def newest_us(self) -> int:
        """Time when the last of it was staged, or the file was taken for it."""
        staged_us = [share.staged_at_us for share in list(self.shares.values())]
        return max([self._serving_since_us, *staged_us])

    def serve(self, write: int, now_us: int, *, mark: int | None = None, run: int = 0) -> None:
        """Serve a write of that run of a writer from now on; only when the file is free."""
        self._serving_since_us = now_us
        self.mark, self.run, self.superseded = mark, run, False
        self.write = write

    def promise(
        self,
        write: int,
        promise: int,
        *,
        writer: str,
        now_us: int,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        """Note that all of it was promised to be kept, if it serves that write still. Raises what
        ``admit`` does, after which nothing is promised."""
        with self._writing:
            admit()
            if self.write == write:
                self.promised = promise
                self.writer = writer or self.writer
                for share in self.shares.values():
                    share.staged_at_us = max(share.staged_at_us, now_us)

    def is_by(self, writer: str, owned: int | None = None) -> bool:
        """False if somebody else than the writer has staged what is here. Clients of earlier
        releases do not say who has, or who decides. With the mark ``owned``, what belongs to nobody
        is the writer's too: it was staged when brokers asked nobody who they are."""
        if self.mark is None or self.mark == owned:
            return True
        return self.mark == writer_mark(writer) if writer or owned is not None else True

    def is_promised(self, since: int | None) -> bool:
        """True if it was prepared under that promise or a later one; None: under any."""
        return self.promised is not None and (since is None or self.promised >= since)

    # -- staging ------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[ValidatedBatch],
        data: memoryview,
        *,
        now_us: int,
        epoch: int,
        admit: Callable[[], None] = lambda: None,
    ) -> int | None:
        """Append an attempt's record batches, but those that it has appended before.

        Returns what ``when_flushed`` is to wait for; None if the file serves that write no longer.
        Raises OutOfOrderSequenceError, InvalidRequestError, StorageError, and what ``admit`` does.
        """
        producer_id = batches[0].header.producer_id
        with self._writing:
            admit()
            if self.write != write_of(producer_id):
                return None
            self.raise_if_failed()
            if producer_id in self._dropped:  # a recovery would find its records twice, and cut
                raise WriteFencedError(
                    f"What an attempt of a task of the write {self.write} had staged for "
                    f"{self.topic_partition} was discarded: nothing is staged for it any more."
                )
            share = self.shares.get(producer_id) or StagedShare()
            old = self._already_here(batches, share.records)
            new = batches[old:]
            if not new:
                return self._end
            rest = data[sum(len(batch) for _, batch in batches[:old]) :]
            for _, batch in new:
                stamp(batch, base_offset=0, leader_epoch=epoch, append_time_us=now_us)
            position = self._end
            try:
                self.file.pwrite(rest, position)
            except OSError as error:
                raise self._withdrawn(position, error, len(rest)) from error
            for header, _ in new:
                share.add(header, position, now_us)
                self.digests.add(header, mark=epoch, staged_at_us=now_us)
                position += header.size
            self.shares[producer_id] = share
            self._end = position
            return position

    def _already_here(self, batches: Sequence[ValidatedBatch], held: int) -> int:
        """The number of record batches at the head that were appended before."""
        old, expected = 0, held
        for number, (header, _) in enumerate(batches):
            first, end = header.base_sequence, header.base_sequence + header.record_count
            if number == old and end <= held:
                old += 1
                continue
            if header.producer_id != batches[0].header.producer_id or header.producer_epoch != 0:
                raise InvalidRequestError(
                    f"Record batches staged for {self.topic_partition} have to be of one attempt "
                    "of a task, in its epoch 0."
                )
            if first != expected:
                raise OutOfOrderSequenceError(
                    f"What an attempt stages for {self.topic_partition} does not go on: expected "
                    f"its record {expected}, got {first}. What it staged before was discarded, or "
                    "is lost; repeat the task."
                )
            expected = end
        return old

    def append_as_follower(
        self, write: int, batches: Sequence[ValidatedBatch], data: memoryview, position: int
    ) -> int | None:
        """Append record batches as the leader has them at ``position``, but those that are here.

        Returns the end; None if the file serves that write no longer. Raises InvalidRequestError
        for what does not go on there, OutOfOrderSequenceError, StorageError.
        """
        with self._writing:
            if self.write != write:
                return None
            self.raise_if_failed()
            new = batches[self._same_here(batches, data, position) :]
            rest = data[len(data) - sum(len(batch) for _, batch in new) :]
            self._check_sequences(new)
            at = self._end
            try:
                self.file.pwrite(rest, at)
            except OSError as error:
                raise self._withdrawn(at, error, len(rest)) from error
            for header, _ in new:
                share = self.shares.setdefault(header.producer_id, StagedShare())
                share.add(header, at, header.append_time_us)
                self.digests.add(
                    header, mark=header.leader_epoch, staged_at_us=header.append_time_us
                )
                at += header.size
            self.promised = RECOVERED if self.promised is None else self.promised
            self._end = at
            return at

    def cut_back(self, write: int, points: Sequence[tuple[int, int]]) -> bool:
        """Keep only what the leader has too: up to the highest of its ``points``, positions with
        digests, at which the file has the same; False if there is none, and nothing is cut off.

        On disk when it returns. Raises StorageError.
        """
        with self._writing, self._flushing:
            if self.write != write:
                return True
            same = [end for end, digest in points if digest == self.digests.at(end)]
            end = max(same, default=0)
            if not end:
                return False
            try:
                cut_off = [
                    (position, parse_header(page, at))
                    for page, at, position in header_places(self.file.pread, end, self._end)
                ]
                self.file.truncate(end)
            except OSError as error:
                raise storage_error("cut back", self.path, error) from error
            except CorruptRecordBatchError:
                return False
            for position, header in reversed(cut_off):
                share = self.shares.get(header.producer_id)
                if share is not None:
                    share.take_back(header, position)
            self.shares = {each: share for each, share in self.shares.items() if share.extents}
            self.digests = self.digests.cut(end)
            self._end, self.flushed_end = end, min(end, self.flushed_end)
            self._sync_to(end)
            return True

    def copy_flushed(self, failed: StagedFile) -> None:
        """Take over what another file, of which a flush has failed, has on the disk; for one that
        serves no write yet. Raises OSError."""
        self.file.copy_from(failed.file, 0, failed.flushed_end, 0)
        self._read_back()
        self._serving_since_us = failed._serving_since_us
        self.promised, self.writer, self.run = failed.promised, failed.writer, failed.run
        self.write, self.mark, self.superseded = failed.write, failed.mark, failed.superseded

    def _same_here(self, batches: Sequence[ValidatedBatch], data: memoryview, position: int) -> int:
        """The number of record batches at the head that the file has at ``position``."""
        where, size = self.topic_partition, self._end
        if position > size:
            raise not_so_far(where, position, size=size)
        number, end = 0, position
        while number < len(batches) and end < size:
            end += batches[number].header.size
            number += 1
        if end > size or self.file.pread(end - position, position) != data[: end - position]:
            raise InvalidRequestError(
                f"What is staged for {where} here differs from what is to be at positions "
                f"{position} up to {end}; drop it and begin anew."
            )
        return number

    def _check_sequences(self, batches: Sequence[ValidatedBatch]) -> None:
        held: dict[int, int] = {}
        for header, _ in batches:
            share = self.shares.get(header.producer_id)
            expected = held.get(header.producer_id, share.records if share is not None else 0)
            if header.base_sequence != expected or header.producer_epoch != 0:
                raise OutOfOrderSequenceError(
                    f"What an attempt has staged for {self.topic_partition} does not go on: "
                    f"expected its record {expected} in epoch 0, got {header.base_sequence} in "
                    f"{header.producer_epoch}."
                )
            held[header.producer_id] = expected + header.record_count

    def _withdrawn(self, position: int, error: OSError, size_bytes: int) -> StorageError:
        failure = storage_error(f"stage records of {self.topic_partition} in", self.path, error)
        if not self._take_back(self.file, position, error, size_bytes):
            self.fail(failure.again())
        return failure

    def _sync_tail(self) -> None:
        end = self._end
        if end > self.flushed_end:
            self._sync_to(end)

    def _sync_to(self, end: int) -> None:
        try:
            self._sync(self.file, end)
        except OSError as error:
            failure = storage_error("flush", self.path, error)
            self.fail(failure)
            logger.error("%s What was staged there since the last flush is lost.", failure)

    # -- the end of a write -------------------------------------------------------------

    def batches(self, producer_id: int, *, chunk_bytes: int) -> Iterator[StagedBatches]:
        """Yields what the attempt has staged, in its order, in runs of about ``chunk_bytes``.

        Raises OSError, CorruptRecordBatchError.
        """
        share = self.shares.get(producer_id)
        for start, end in () if share is None else tuple(share.extents):
            headers: list[RecordBatchHeader] = []
            begin = stop = start
            for page, at, position in header_places(self.file.pread, start, end):
                header = parse_header(page, at)
                if headers and position + header.size - begin > chunk_bytes:
                    yield StagedBatches(producer_id, self.file, begin, headers)
                    headers, begin = [], position
                headers.append(header)
                stop = position + header.size
            if stop < end:  # before the last run is out: it could be all that is published
                raise OSError(errno.EIO, "The file ends early", str(self.path))
            if headers:
                yield StagedBatches(producer_id, self.file, begin, headers)

    def wait_for_append(self) -> None:
        """Wait until what is appended or promised now is through."""
        with self._writing:
            pass

    def drop(self, producer_id: int, condition: Callable[[], bool] = lambda: True) -> None:
        """Forget what an attempt has staged, if the ``condition`` holds."""
        with self._writing:
            if condition() and self.shares.pop(producer_id, None) is not None:
                self._dropped.add(producer_id)

    def clear(self, condition: Callable[[], bool] = lambda: True) -> bool:
        """Forget all of it, and be free for another write, if the ``condition`` holds.

        No append comes between the condition and that. Raises OSError; it is not free then.
        """
        with self._writing, self._flushing:
            if not condition():
                return False
            self.shares, self._dropped = {}, set()
            self.promised, self.writer = None, ""
            self.file.pwrite(bytes(HEADER_SIZE), 0)  # or the next start would find it staged
            self._end = self.flushed_end = 0
            self.digests = StagedDigests()
            self.free_since = self._clock.monotonic()
            self.write = None
            return True


def not_so_far(topic_partition: TopicPartition, position: int, *, size: int) -> InvalidRequestError:
    """The error for what is to go on behind the end of a follower's file."""
    return InvalidRequestError(
        f"What is staged for {topic_partition} here has {size} bytes, and what is to follow is at "
        f"position {position}; go on at {size}."
    )


def create_staged_file(
    topic_partition: TopicPartition, path: Path, *, environment: LogEnvironment
) -> StagedFile:
    """A new, empty file, its name on disk. Raises OSError."""
    files = environment.files
    file = files.open(path, create=True)
    try:
        files.sync_directory(path.parent)
    except OSError:
        remove_if_possible(files, path)
        raise
    return StagedFile(topic_partition, file, environment=environment)
