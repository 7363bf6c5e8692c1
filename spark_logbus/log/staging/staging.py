"""What is staged for one partition: a file for each atomic write that is under way.

A write stages, and then its decision has it published (see ``publishing``), or discarded. What
nobody goes on with expires.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from spark_logbus.errors import (
    InvalidRequestError,
    LimitExceededError,
    NotAuthorizedError,
    WriteFencedError,
)
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import storage_error
from spark_logbus.log.disk.flushed_file import OnFlushed
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.staging.staged_file import StagedFile, create_staged_file, not_so_far
from spark_logbus.log.validate import ValidatedBatch, validate_append
from spark_logbus.log.view import LogSlice
from spark_logbus.log.writer import LogWriter
from spark_logbus.log.writer_runs import StagedBy
from spark_logbus.model import TopicPartition
from spark_logbus.record import RecordBatchHeader, split
from spark_logbus.record.stage_id import StageIds, write_of

logger = logging.getLogger(__name__)

# A disk that was full so lately keeps what is staged no longer than this after the last of it: most
# of that is of jobs that died, and appends of all others come first.
_FULL_FOR_S: Final = 60.0
_FULL_RETENTION_MS: Final = 600_000
# Of one partition, at the same time: each has a file open. What dead jobs left counts too.
MAX_WRITES: Final = 500
# Beyond so many, most are of writers that died: what is staged goes as on a disk that was full.
_MANY_WRITES: Final = MAX_WRITES // 2
# A writer writes one version after the other: these have failed, and could not be discarded.
MAX_WRITES_OF_A_WRITER: Final = 50
# A file that no write has used for so long is removed; on a full disk at once.
_KEEP_FREE_S: Final = 60.0


NOBODY: Final = StagedBy()


class StagedTotals(NamedTuple):
    """Counts of what lies staged in one partition."""

    writes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StagedAppend:
    """Place of what was staged: after so many records of its attempt, before ``end`` of the file of
    the write."""

    write: int
    base_sequence: int
    staged_at_us: int
    file: StagedFile
    end: int

    def when_flushed(self, callback: OnFlushed) -> None:
        self.file.when_flushed(self.end, callback)


class StagedPosition(NamedTuple):
    """Place up to which a write has come in one replica. Files with the same ``digest`` at the same
    size are the same."""

    write: int
    size_bytes: int
    flushed_bytes: int
    digest: int


@dataclass(frozen=True, slots=True)
class StagedCopied:
    """Place of what was copied from a leader's staged file, before ``end`` of the follower's."""

    write: int
    end: int
    file: StagedFile

    def when_flushed(self, callback: OnFlushed) -> None:
        self.file.when_flushed(self.end, callback)


@dataclass(frozen=True, slots=True)
class DecidedShare:
    """The part of a decided write that is to be published in one partition: what the attempts
    have staged, in their order, ``records`` of them."""

    attempts: StageIds
    records: int
    writer: str = ""
    owned: int | None = None  # as of ``StagedBy``

    @property
    def write(self) -> int:
        return self.attempts.write

    def is_of_another(self, other: DecidedShare) -> bool:
        """True if it belongs to another principal: then both came to the same number."""
        return None not in (self.owned, other.owned) and self.owned != other.owned


class PartitionStaging:
    """Files of what is staged for one partition. Thread-safe."""

    def __init__(
        self,
        writer: LogWriter,
        *,
        environment: LogEnvironment,
        files: Collection[StagedFile] = (),
    ) -> None:
        self._writer = writer
        self._environment = environment
        self._changing = threading.Lock()  # of the set of files
        self._files = {file.write: file for file in files if file.write is not None}
        self._free = [file for file in files if file.write is None]
        #: Writes that are published or to be, and not settled: for ``PartitionPublishing``.
        self.decided: dict[int, DecidedShare] = {}
        for write in self._files:
            self._protect(write)

    def _protect(self, write: int) -> None:
        """Has the log forget no attempt of a write as long as that has something staged here: it
        may be on its way into the log, as a leader has decided that may be gone soon."""
        self._writer.between_appends(lambda producers, _: producers.protect(write))

    def _unprotect(self, write: int) -> None:
        if write not in self.decided:
            self._writer.between_appends(lambda producers, _: producers.unprotect(write))

    # -- staging ------------------------------------------------------------------------

    def stage(self, data: memoryview, *, leader_epoch: int, by: StagedBy = NOBODY) -> StagedAppend:
        """Stage the record batches in ``data``, which is stamped in place: all or none.

        They are of one attempt of one task, and checked as those of an append are. What the
        attempt has staged before is not staged again. Raises what ``append_as_leader`` raises, and
        WriteFencedError when the write has ended, or a later run of the writer ``by`` which it is
        staged has begun, LimitExceededError when too many writes have staged something,
        NotAuthorizedError for a write that another principal has begun.
        """
        config, topic_partition = self._writer.config, self._writer.topic_partition
        batches = validate_append(
            topic_partition,
            data,
            max_record_batch_bytes=config.max_record_batch_bytes,
            needs_keys=config.compacts,
            schemas=config.schemas,
        )
        producer_id = batches[0].header.producer_id
        if producer_id < 0:
            raise InvalidRequestError(
                f"Record batches staged for {topic_partition} need the producer id of an "
                "attempt of a task."
            )
        self._writer.raise_if_failed()
        admit = partial(self._writer.fence.check, leader_epoch)
        while True:
            file = self._file_for(write_of(producer_id), by)
            now_us = self._environment.time.stamp_us()
            epoch = leader_epoch if file.mark is None else file.mark
            end = file.append(batches, data, now_us=now_us, epoch=epoch, admit=admit)
            if end is not None:  # else the write was discarded meanwhile
                self._writer.tell_written()
                write = write_of(producer_id)
                return StagedAppend(write, batches[0].header.base_sequence, now_us, file, end)

    def wait_for_appends(self) -> None:
        """Wait until what is staged or prepared now is through."""
        with self._changing:
            files = list(self._files.values())
        for file in files:
            file.wait_for_append()

    def _file_for(self, write: int, by: StagedBy = NOBODY) -> StagedFile:
        with self._changing:
            if self._environment.closed_writes.is_closed(write, by.mark):
                raise WriteFencedError(
                    f"The write {write} is over: it was committed without this attempt of a task, "
                    "or aborted, or a later run of its writer has begun. Nothing is staged for it "
                    "any more."
                )
            file, decided = self._files.get(write), self.decided.get(write)
            theirs = file is None or file.is_by(by.writer, by.owned)
            theirs = theirs and (decided is None or decided.owned in (None, by.owned))
            if by.owned is not None and not theirs:
                raise NotAuthorizedError(
                    f"The write {write} for {self._writer.topic_partition} was begun by another "
                    "principal, to which it belongs, or by another writer; take another number."
                )
            if file is None:
                mark = by.mark
                # A writer that has no runs begins one with each write.
                run = 0
                if mark is not None and by.writer:
                    run = self._environment.writer_runs.order(mark, by.run or str(write))
                before = self._before(write, mark, run, by)
                file = self._free.pop() if self._free else self._create()
                file.serve(write, self._environment.time.stamp_us(), mark=mark, run=run)
                self._files[write] = file
                self._protect(write)
                for other in before:
                    other.superseded = True
            return file

    def _before(self, write: int, mark: int | None, run: int, by: StagedBy) -> list[StagedFile]:
        """The files of earlier runs of the writer. Raises WriteFencedError for a write of a run
        that was succeeded, LimitExceededError for one more than a writer, or all, may have."""
        where = self._writer.topic_partition
        theirs: list[StagedFile] = []
        if mark is not None and by.writer:
            theirs = [file for file in self._files.values() if file.mark == mark]
        if any(file.run > run for file in theirs):
            raise WriteFencedError(
                f"The write {write} for {where} is of a run of {by.writer} after which another has "
                "begun. Only the last run of a query, or of an application's transaction, writes."
            )
        before = [file for file in theirs if file.run < run]
        if len(theirs) - len(before) >= MAX_WRITES_OF_A_WRITER:
            raise LimitExceededError(
                f"{MAX_WRITES_OF_A_WRITER} writes of one run of {by.writer} have staged records "
                f"for {where} already; try again when some of them have ended, or what they left "
                "has expired (staging.retention.ms)."
            )
        if len(self._files) >= MAX_WRITES:
            raise LimitExceededError(
                f"{MAX_WRITES} writes have staged records for {where} already; try again when some "
                "of them have ended. What nobody goes on with is dropped ten minutes after the "
                f"last of it, as long as there are more than {_MANY_WRITES}."
            )
        return before

    def _create(self) -> StagedFile:
        files = (*self._files.values(), *self._free)
        taken = {names.parse_staged(file.path.name) for file in files}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        path = self._writer.directory / names.staged(number)
        try:
            if self._environment.files.exists(path):  # of a write that could not be recovered
                self._environment.files.remove(path)
            return create_staged_file(
                self._writer.topic_partition, path, environment=self._environment
            )
        except OSError as error:
            raise storage_error("stage records in", self._writer.directory, error) from error

    # -- replicas -----------------------------------------------------------------------

    def replica_state(self) -> list[StagedPosition]:
        """Places up to which the open writes have come here, for another replica."""
        with self._changing:
            found = [self._position(write, file) for write, file in self._files.items()]
        return [each for each in found if each.size_bytes]

    def position_of(self, write: int) -> StagedPosition | None:
        with self._changing:
            file = self._files.get(write)
            return None if file is None else self._position(write, file)

    @staticmethod
    def _position(write: int, file: StagedFile) -> StagedPosition:
        size_bytes, digest = file.digests.last
        return StagedPosition(write, size_bytes, min(file.flushed_end, size_bytes), digest)

    def agrees(self, write: int, position: int, digest: int) -> bool:
        """True if what the write has staged here begins with what a replica has up to ``position``,
        by its digest. False too if the write has nothing here: it is over, perhaps."""
        file = self._files.get(write)
        return file is not None and file.digests.at(position) == digest

    def points(self, write: int) -> list[tuple[int, int]]:
        """Positions with digests of what the write has staged here, the last first, by which a
        replica with something else finds what both have."""
        file = self._files.get(write)
        return [] if file is None else file.digests.points()

    def read_as_replica(self, write: int, position: int, *, max_bytes: int) -> LogSlice | None:
        """Record batches of the write from ``position`` on, up to what is written; at most
        ``max_bytes``, but one at least. None when there is nothing (more).

        The file may come to serve another write while a slice is read: who receives it checks that,
        as ``append_as_follower`` does. Raises InvalidRequestError where no record batch begins.
        """
        with self._changing:
            file = self._files.get(write)
            if file is None or position >= file.digests.last[0]:
                return None
            if file.digests.at(position) is None:
                raise InvalidRequestError(
                    f"No record batch of the write {write} for {self._writer.topic_partition} "
                    f"begins at position {position} of what is staged."
                )
            end = file.digests.end_within(position, max_bytes)
            return LogSlice(file.file, position, end - position, file.digests.last[0] - end)

    def append_as_follower(self, write: int, position: int, data: memoryview) -> StagedCopied:
        """Go on with a write's file as the leader has it, exactly at ``position``: all or none.

        What is here already is passed over if it is the same. A file made so is as one that was
        staged before a restart. The leader's limits are not applied. Raises CorruptRecordBatchError
        for what ``data`` is, InvalidRequestError for what is not of that write or does not go on
        there, OutOfOrderSequenceError, StorageError.
        """
        batches = [ValidatedBatch(*each) for each in split(data, allow_tail=False)]
        self._check_copied(write, [header for header, _ in batches])
        self._writer.raise_if_failed()
        epoch = batches[0].header.leader_epoch
        while True:
            with self._changing:
                file = self._files.get(write)
                if file is None:
                    if position:
                        raise not_so_far(self._writer.topic_partition, position, size=0)
                    file = self._free.pop() if self._free else self._create()
                    mark = epoch if epoch < 0 else None
                    file.serve(write, self._environment.time.stamp_us(), mark=mark)
                    self._files[write] = file
                    self._protect(write)
            end = file.append_as_follower(write, batches, data, position)
            if end is not None:  # else the write was dropped meanwhile
                return StagedCopied(write, end, file)

    def _check_copied(self, write: int, headers: list[RecordBatchHeader]) -> None:
        where = self._writer.topic_partition
        if not headers:
            raise InvalidRequestError(
                f"What is to be staged for {where} holds no record batch; send at least one."
            )
        mark = headers[0].leader_epoch
        for header in headers:
            if header.producer_id < 0 or write_of(header.producer_id) != write:
                raise InvalidRequestError(
                    f"A record batch of producer {header.producer_id} is not of the write {write} "
                    f"that is to be staged for {where}: the file that it came from serves another."
                )
            # Where the writer is not known, the epoch of whoever led then stands there.
            is_marked_alike = header.leader_epoch == mark if mark < 0 else header.leader_epoch >= 0
            if header.base_offset != 0 or not is_marked_alike:
                raise InvalidRequestError(
                    f"A record batch of the write {write} for {where} is not as staged: it has "
                    f"offset {header.base_offset} and mark {header.leader_epoch}, expected 0 and "
                    f"{mark if mark < 0 else 'none of a writer'}."
                )

    def flush_as_follower(self) -> None:
        """Flush all of it now; the outcome shows in ``replica_state``."""
        for file in list(self._files.values()):
            file.flush()

    def cut_back_as_follower(self, write: int, points: Sequence[tuple[int, int]]) -> None:
        """Keep of what the write has staged here only what the leader has too, by its ``points``;
        drop it where that is nothing. Raises StorageError."""
        file = self._files.get(write)
        if file is not None and not file.cut_back(write, points):
            self.drop_as_follower(write)

    def renew_as_follower(self) -> None:
        """Go on in new files where a flush has failed, with what was on the disk before that. The
        rest can be copied again. Raises StorageError, after which it may be tried again."""
        if all(file.failure is None for file in list(self._files.values())):
            return
        with self._changing:
            for write, failed in list(self._files.items()):
                if failed.failure is not None:
                    self._files[write] = self._renewed(failed)
                    self._remove(failed)

    def _renewed(self, failed: StagedFile) -> StagedFile:
        file = self._create()
        try:
            file.copy_flushed(failed)
        except OSError as error:
            self._remove(file)
            doing = f"renew {failed.path.name}, of which a flush has failed, in"
            raise storage_error(doing, self._writer.directory, error) from error
        return file

    def drop_as_follower(self, write: int) -> bool:
        """Drop what the write has staged here, which may be copied again; False for nothing."""
        return self.discard(write)

    # -- what is staged -----------------------------------------------------------------

    def file_of(self, write: int) -> StagedFile | None:
        return self._files.get(write)

    def size_bytes(self, write: int) -> int:
        """Bytes that the write has staged here."""
        file = self._files.get(write)
        return 0 if file is None else file.size_bytes

    def holds(self, write: int, producer_id: int | None = None) -> bool:
        """True if the write, or an attempt of its, has something staged here."""
        file = self._files.get(write)
        return file is not None and (producer_id is None or producer_id in file.shares)

    def is_promised(self, write: int, promise: int) -> bool:
        """True if what the write has staged here was prepared under the promise or a later one."""
        file = self._files.get(write)
        return file is not None and file.is_promised(promise)

    def is_by(self, write: int, writer: str, owned: int | None) -> bool:
        """False if somebody else than the writer has staged what the write has here."""
        file = self._files.get(write)
        return file is None or file.is_by(writer, owned)

    def writer_of(self, write: int) -> str:
        """Writer whose write has staged something here; empty where that is not known."""
        file = self._files.get(write)
        return "" if file is None else file.writer

    # -- dropping -----------------------------------------------------------------------

    def discard(self, write: int, condition: Callable[[StagedFile], bool] = lambda _: True) -> bool:
        """Drop what the write has staged here; False if there is nothing, or if the ``condition``
        does not hold when no append is under way."""
        with self._changing:
            file = self._files.get(write)
            if file is None:
                return False
            try:
                if not file.clear(partial(condition, file)):
                    return False
                reusable = file.failure is None
            except OSError as error:
                logger.warning("%s", storage_error("empty", file.path, error))
                reusable = False
            del self._files[write]
            self._unprotect(write)
            if reusable:
                self._free.append(file)
            else:
                self._remove(file)
            return True

    def discard_of(self, share: DecidedShare) -> None:
        """Drop what the write of the share has staged here, if it is of the same writer."""
        self.discard(share.write, lambda file: file.is_by(share.writer, share.owned))

    def discard_undecided(self, write: int, promise: int | None, *, leader_epoch: int) -> None:
        """Drop what the write has staged here, unless it was prepared under the ``promise`` or a
        later one: these stand. Nothing is dropped when the lead in that epoch is given away."""
        self.discard(write, partial(self._is_free, promise, leader_epoch))

    def discard_attempt(self, producer_id: int, promise: int | None, *, leader_epoch: int) -> None:
        """Drop what an attempt has staged here, as ``discard_undecided`` does what a write has; the
        space is free when the write is over."""
        file = self._files.get(write_of(producer_id))
        if file is not None:
            is_free = partial(self._is_free, promise, leader_epoch)
            file.drop(producer_id, partial(is_free, file))
            self.discard(write_of(producer_id), lambda file: not file.shares and is_free(file))

    def _is_free(self, promise: int | None, leader_epoch: int, file: StagedFile) -> bool:
        """True if the one who leads in that epoch may drop what is not promised."""
        return self._writer.fence.admits(leader_epoch) and not file.is_promised(promise)

    def _remove(self, file: StagedFile) -> None:
        file.write = None
        try:
            self._environment.files.remove(file.path)
        except OSError as error:
            logger.warning("%s", storage_error("remove", file.path, error))

    def has_expired_promises(self, now_us: int, promise: int) -> bool:
        """True if something is to expire that was prepared under the ``promise``, which stands."""
        oldest_us = self._expired_before_us(now_us)
        files = list(self._files.values())
        return any(file.is_promised(promise) and _is_over(file, oldest_us) for file in files)

    def _expired_before_us(self, now_us: int) -> int:
        retention_ms = self._writer.config.staging_retention_ms
        if self._disk_was_full() or len(self._files) > _MANY_WRITES:
            retention_ms = min(retention_ms, _FULL_RETENTION_MS)
        return now_us - retention_ms * 1000

    def _disk_was_full(self) -> bool:
        since = self._environment.clock.monotonic() - _FULL_FOR_S
        return self._environment.stats.refused.disk_was_full(since=since)

    def expire(
        self,
        now_us: int,
        *,
        keep: Callable[[int, str], bool],
        promise: int | None = None,
        leader_epoch: int,
    ) -> None:
        """Drop what was staged longer ago than it is kept, or by a run of a writer that was
        succeeded by another, and files that are free for long.

        ``keep`` says of a write and its writer whether it is decided and not published, as of
        just now: without that nobody knows what may be dropped. ``promise`` stood before that was
        looked up, None if none did: what was prepared under it or a later one stays. So does all
        when the lead in ``leader_epoch`` is given away: it is for the next leader to say.
        """
        if not self._files and not self._free:
            return
        oldest_us = self._expired_before_us(now_us)
        keep_free_s = 0.0 if self._disk_was_full() else _KEEP_FREE_S
        now = self._environment.clock.monotonic()

        def is_over(file: StagedFile) -> bool:
            return _is_over(file, oldest_us) and self._is_free(promise, leader_epoch, file)

        for write, file in list(self._files.items()):
            if write in self.decided or keep(write, file.writer):
                continue
            size_bytes, superseded, mark = file.size_bytes, file.superseded, file.mark
            if self.discard(write, is_over):
                if superseded:
                    self._environment.closed_writes.add(write, mark)
                logger.warning(
                    "%d bytes that a write staged for %s and never committed are dropped%s.",
                    size_bytes, self._writer.topic_partition,
                    ": a later run of its writer has begun" if superseded else "",
                )  # fmt: skip
                self._environment.stats.staged_expired.add(1)
        with self._changing:
            for file in [file for file in self._free if file.free_since <= now - keep_free_s]:
                self._free.remove(file)
                self._remove(file)

    @property
    def totals(self) -> StagedTotals:
        files = list(self._files.values())
        return StagedTotals(len(files), sum(file.size_bytes for file in files))

    def close_files(self) -> None:
        """Close the files of a log that is stopped or gone."""
        with self._changing:
            self._files.clear()
            self._free.clear()


def _is_over(file: StagedFile, oldest_us: int) -> bool:
    return file.superseded or file.newest_us < oldest_us


def recover_staged(
    topic_partition: TopicPartition, directory: Path, environment: LogEnvironment
) -> list[StagedFile]:
    """The staged files in the directory of a log, one of a write at most. Raises OSError."""
    found = [
        StagedFile.recover(topic_partition, directory / name, environment=environment)
        for name in environment.files.names(directory)
        if names.parse_staged(name) is not None
    ]
    longest: dict[int, StagedFile] = {}
    for file in sorted(found, key=lambda file: file.size_bytes):
        if file.write is not None:
            if file.write in longest:  # the power went when one was renewed after a failed flush
                longest[file.write].clear()
            longest[file.write] = file
    return found
