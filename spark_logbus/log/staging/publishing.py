"""Decided writes of one partition, on their way from what is staged into the log.

The decision about a write, which stands in ZooKeeper, has it published: the record batches of those
attempts of its tasks that count are copied to the end of the log, in the order of the tasks.
Publishing can be repeated: the log itself knows how much of each attempt it has, as it does of any
idempotent producer, until the write is settled, which means that nobody will publish it again. It
is cut into chunks so that other appends go on between them; the first record of the write holds the
high watermark back until it can pass the last one, so that all become visible at once: at other
replicas too, to which a leader tells its high watermark.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Final, NamedTuple

from spark_logbus.errors import (
    LogbusError,
    NotAuthorizedError,
    NotLeaderError,
    StagedDataLostError,
)
from spark_logbus.log.disk.filesystem import storage_error, storage_errors
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.log.segment.lookup import DamageFoundError
from spark_logbus.log.staging.staged_file import StagedFile
from spark_logbus.log.staging.staging import DecidedShare, PartitionStaging
from spark_logbus.log.state import LogState
from spark_logbus.log.writer import LogWriter

# Of a publishing between which other appends get their turn: some milliseconds.
CHUNK_BYTES: Final = 8 << 20


class Published(NamedTuple):
    """Place of a write in the log: all of it lies before ``end``, as long as the log is truncated
    no more than so often."""

    end: int
    truncations: int


class PartitionPublishing:
    """Publishes writes of one partition, one after the other. Thread-safe."""

    def __init__(self, state: LogState, writer: LogWriter, staging: PartitionStaging) -> None:
        self._state = state
        self._writer = writer
        self._staging = staging
        self._publishing = threading.Lock()

    def check(self, share: DecidedShare, promise: int, *, leader_epoch: int) -> None:
        """Raise StagedDataLostError unless all of the share is on disk here, staged or published,
        NotAuthorizedError for what another principal has staged.

        It is kept from expiring for another while, and after that until the broker has let the
        ``promise`` with that number go.
        """
        admit = partial(self._writer.fence.check, leader_epoch)
        admit()
        file = self._file_of(share)
        if share.owned is not None and not self._is_theirs(share):
            raise NotAuthorizedError(
                f"What the write {share.write} has staged for {self._writer.topic_partition} "
                "belongs to another principal, or is of another writer; who has begun it commits "
                "it."
            )
        if file is not None:  # before it is looked at: what is dropped later was promised to nobody
            now_us = self._writer.time.stamp_us()
            file.promise(share.write, promise, writer=share.writer, now_us=now_us, admit=admit)
        self._source(share)

    def require_published(self, share: DecidedShare) -> None:
        """Raise StagedDataLostError unless the log has all of the share."""
        if self._source(share) is not None:
            raise StagedDataLostError(
                f"The decision about a write does not say that {share.records} records are to be "
                f"published in {self._writer.topic_partition}, and they are not."
            )

    def _source(self, share: DecidedShare) -> StagedFile | None:
        """Returns the file from which records of the share are to be copied still; None if the log
        has them all. Raises StagedDataLostError."""
        file = self._file_of(share)
        appended = self._writer.between_appends(
            lambda producers, _: producers.appended_records(share.attempts)
        )
        on_disk = dict.fromkeys(appended, 0)
        if file is not None:
            on_disk |= {each: file.flushed_records(each) for each in self._staged(share, file)}
        there = sum(max(appended.get(each, 0), staged) for each, staged in on_disk.items())
        if there != share.records:
            raise StagedDataLostError(
                f"Of {share.records} records that a write has staged for "
                f"{self._writer.topic_partition}, {there} are there. They were discarded, expired "
                "(staging.retention.ms), or are lost; write them again."
            )
        return None if sum(appended.values()) == share.records else file

    def _file_of(self, share: DecidedShare) -> StagedFile | None:
        """Returns what the writer of the share has staged; nothing of another writer that took the
        same number, by chance or on purpose."""
        return self._staging.file_of(share.write) if self._is_theirs(share) else None

    def _is_theirs(self, share: DecidedShare) -> bool:
        return self._staging.is_by(share.write, share.writer, share.owned)

    def _is_free_for(self, share: DecidedShare) -> bool:
        """False if another principal has had a write with the same number decided, or has staged
        one: whoever knows the number may decide one, too, and spoils nothing."""
        known = self._staging.decided.get(share.write)
        if known is not None:
            return not known.is_of_another(share)
        return share.owned is None or self._is_theirs(share)

    @staticmethod
    def _staged(share: DecidedShare, file: StagedFile) -> list[int]:
        """The attempts that count and have staged something here, in the order of their tasks."""
        return share.attempts.among(file.shares)

    def expect(self, share: DecidedShare) -> None:
        """Remember how much of a decided write the log has, and show consumers all or nothing of
        it. For a log that is about to be served. Raises StorageError."""
        if not self._is_free_for(share):
            return
        self._staging.decided[share.write] = share

        def found(producers: ProducerStateManager, _: int) -> tuple[int, int | None] | None:
            producers.protect(share.write)
            appended = sum(producers.appended_records(share.attempts).values())
            if not appended:
                return None
            is_whole = appended >= share.records
            end = producers.end_offset(share.attempts) if is_whole else None
            return producers.first_offset(share.attempts), end

        place = self._writer.between_appends(found)
        if place is None:
            return
        first, end = place
        with suppress(DamageFoundError), storage_errors("read from", self._writer.directory):
            self._state.cap_high_watermark(share.write, first, end=end)

    def remember(self, share: DecidedShare) -> None:
        """Forget no attempt of a write that is decided, and published by the leader that the log
        follows. Whoever leads next has to know how much of it the log has."""
        if self._is_free_for(share):
            self._staging.decided[share.write] = share
            self._writer.between_appends(lambda producers, _: producers.protect(share.write))

    def publish(self, share: DecidedShare, *, leader_epoch: int) -> Published:
        """Append what of the share is not in the log yet; the end to flush, and to replicate to,
        before ``finish``. Consumers see it when the high watermark can pass that.

        Raises StagedDataLostError, StorageError, and what ``offline`` says.
        """
        with self._publishing:
            self._writer.fence.check(leader_epoch)
            if not self._is_free_for(share):
                raise StagedDataLostError(
                    f"What has the number {share.write} in {self._writer.topic_partition} belongs "
                    "to another principal: nothing of this write is there. Write it again."
                )
            self._staging.decided[share.write] = share
            self._writer.between_appends(lambda producers, _: producers.protect(share.write))
            try:
                source = self._source(share)
                if source is not None:
                    self._copy(share, source, leader_epoch)
            except OSError as error:
                raise storage_error("publish from", self._writer.directory, error) from error
            end = self._writer.tail.end_offset
            self._state.bound_cap(share.write, end)
            self._writer.notify()
            return Published(end, self._writer.truncations)  # which waits for the lock

    def fence(self, leader_epoch: int, error: LogbusError, *, within_s: float) -> bool:
        """Publish nothing more in that leader epoch; False if what is under way takes longer. With
        -1 that fails at its next chunk, and is waited for."""
        if within_s < 0:
            self._writer.set_fence(leader_epoch, error)
        if not self._publishing.acquire(timeout=within_s):
            return False
        try:
            self._writer.set_fence(leader_epoch, error)
        finally:
            self._publishing.release()
        return True

    def _copy(self, share: DecidedShare, file: StagedFile, leader_epoch: int) -> None:
        chunk_bytes = min(CHUNK_BYTES, self._writer.config.segment_bytes)
        runs = [
            (producer_id, staged)
            for producer_id in self._staged(share, file)
            if (staged := file.shares.get(producer_id)) is not None
        ]
        self._writer.between_appends(
            lambda _, end: self._state.cap_high_watermark(share.write, end)
        )
        for producer_id, _ in runs:
            for batches in file.batches(producer_id, chunk_bytes=chunk_bytes):
                self._writer.append_copied(batches, leader_epoch)

    def finish(self, write: int) -> None:
        """Drop what a write has staged all of which is replicated in the log: whoever leads it next
        has it.

        Raises NotLeaderError if the log was truncated since, and lacks some of it.
        """
        share = self._staging.decided.get(write)
        if share is None:
            self._staging.discard(write)
            return
        self._require_all(share)
        self._staging.discard_of(share)

    def _require_all(self, share: DecidedShare) -> None:
        appended = self._writer.between_appends(
            lambda producers, _: sum(producers.appended_records(share.attempts).values())
        )
        if appended < share.records:
            raise NotLeaderError(
                f"Of {share.records} published records of a write, {appended} are left in "
                f"{self._writer.topic_partition}: the log was truncated, as another broker took "
                "the lead. That one publishes the write; what is staged here is kept."
            )

    @property
    def paused(self) -> AbstractContextManager[bool]:
        """Lock that keeps publishing out, so that no chunk goes on from one that was cut off."""
        return self._publishing

    def forget(self, settled: Mapping[int, DecidedShare]) -> None:
        """Forget writes that are published everywhere, in a log that follows. ``settled`` has a
        share of each, in any partition."""
        for share in settled.values():
            self._take_out(share)

    def settle(self, settled: Mapping[int, DecidedShare]) -> None:
        """Forget writes that are published everywhere, so that nobody publishes them again, with
        what attempts that did not count have staged. Or those that are given up here, for they
        are lost: then consumers see what there is. ``settled`` has a share of each, in any
        partition."""
        for write, share in settled.items():
            if self._take_out(share):
                self._state.uncap_high_watermark(write)
                self._writer.notify()
            self._staging.discard_of(share)

    def _take_out(self, settled: DecidedShare) -> bool:
        """Forgets the part that a write has here; False if it has none."""
        share = self._staging.decided.get(settled.write)
        if share is None or share.is_of_another(settled):
            return False
        del self._staging.decided[settled.write]
        self._release(share)
        return True

    @property
    def hidden_from(self) -> int | None:
        """Offset at which the first write begins of which a part is missing; None for none."""
        return self._state.hidden_from

    def leave_to_leader(self) -> None:
        """Hide no part of a write any more, for a log that follows from now on: its high watermark
        is one of its leader's, which lies in no write."""
        with self._publishing:
            self._state.uncap_all()

    def _release(self, share: DecidedShare) -> None:
        self._writer.between_appends(lambda producers, _: producers.release(share.attempts))
