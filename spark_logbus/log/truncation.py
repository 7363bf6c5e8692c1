"""Cuts off the end of a log that is served, for a follower whose log has diverged.

Theory of operation. What a reader may hold stays as it is: consumers map segment files up to the
high watermark, and what was given to replicas is on its way by ``sendfile`` still. So a file is
cut in place only behind both; then nobody can meet a page that is gone, or bytes of a later append
in the middle of older ones, which would pass for a log that never was. In all other cases what is
kept is copied to a new file, which takes the place of the old one by a rename; who holds the old
one keeps it. Segments behind the cut are deleted as by retention.

A crash may come at any step, so they go in this order, each on disk before the next::

    1  copy       <base>.log.tmp, if the file is not to be cut in place; recovery removes it
    2  hints      index and snapshots of producers that hold what goes, history of compactions
    3  checkpoint its recovery point, or the next start would take the log for an older copy
    -  view       from here on nobody sees what goes
    4  segments   those behind the cut, the last one first, so that no gap is ever left
    5  the cut    rename, or truncate
    6  notes      the ranges of lost offsets behind the cut, then the leader epochs that begin
                  there, then the end of purged tombstones; recovery does these too, as nothing
                  was appended since

Up to 3 the log is as before, and a disk that refuses has done nothing. After it the log ends at
some earlier place each time, at a record batch; and is cut to the end by the same call again. When
that fails in the running process the log goes offline, for the files are not what the view says.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from spark_logbus.errors import (
    BelowWatermarkError,
    CorruptRecordBatchError,
    OffsetOutOfRangeError,
    StorageError,
)
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log.append_info import Tail
from spark_logbus.log.compaction.log_compaction import LogCompaction
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import (
    File,
    FileSystem,
    remove_if_possible,
    storage_error,
    storage_errors,
)
from spark_logbus.log.epochs import LeaderEpochs
from spark_logbus.log.producers.snapshots import (
    remove_producers,
    save_producers,
    truncate_producers,
)
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.log.segment.index import Summary
from spark_logbus.log.segment.index_file import index_path
from spark_logbus.log.segment.lookup import BatchPosition, DamageFoundError, Lookup
from spark_logbus.log.segment.metadata import SegmentMetadata
from spark_logbus.log.segment.segment import (
    ActiveSegment,
    SealedSegment,
    Segment,
    delete_segment,
)
from spark_logbus.log.staging.publishing import PartitionPublishing
from spark_logbus.log.state import LogState
from spark_logbus.log.view import LogView
from spark_logbus.log.writer import LogWriter

logger = logging.getLogger(__name__)


class _Cut(NamedTuple):
    """Place of a cut: in the segment of that number, at the beginning of a record batch; and what
    there is to know of the segment up to there."""

    view: LogView
    number: int
    at: BatchPosition
    metadata: SegmentMetadata

    @property
    def segment(self) -> Segment:
        return self.view.segments[self.number]

    @property
    def removed(self) -> tuple[Segment, ...]:
        return self.view.segments[self.number + 1 :]


class LogTruncation:
    """Truncation of one log. Thread-safe: one at a time, and no append, roll, publishing, retention
    or swap of a compaction meanwhile; reads go on."""

    def __init__(
        self,
        state: LogState,
        writer: LogWriter,
        epochs: LeaderEpochs,
        compaction: LogCompaction,
        publishing: PartitionPublishing,
        *,
        directory: Path,
        files: FileSystem,
        reshaping: threading.Lock,
    ) -> None:
        self._state = state
        self._writer = writer
        self._epochs = epochs
        self._compaction = compaction
        self._publishing = publishing
        self._directory = directory
        self._files = files
        self._reshaping = reshaping

    def truncate_to(self, offset: int, *, below_watermark: bool) -> int:
        """Does what ``PartitionLog.truncate_to`` says. Calls listeners, and those who wait for a
        flush, in this thread."""
        with (
            self._publishing.paused,
            self._reshaping,
            self._writer.paused() as producers,
        ):
            tail = self._writer.tail
            if offset >= tail.end_offset:
                self._epochs.cut(tail.end_offset)  # one may have begun of which nothing was written
                return tail.end_offset
            self._check_start(offset)
            cut = self._find(offset)
            self._check_start(cut.at.offset)
            self._check(cut, below_watermark=below_watermark)
            self._truncate(cut, tail, producers)
        self._writer.notify()
        return cut.at.offset

    # -- what is to be cut --------------------------------------------------------------

    def _check_start(self, offset: int) -> None:
        start = self._state.view.log_start_offset
        if offset < start:
            raise OffsetOutOfRangeError(
                f"The log of {self._state.topic_partition} cannot be truncated to offset {offset}: "
                f"it starts at {start}. Have it start over at that offset."
            )

    def _check(self, cut: _Cut, *, below_watermark: bool) -> None:
        where, end, view = self._state.topic_partition, cut.at.offset, cut.view
        if end < view.high_watermark and not below_watermark:
            raise BelowWatermarkError(
                f"The log of {where} is not truncated to offset {end}: its high watermark is "
                f"{view.high_watermark}, and consumers may have seen what lies before that. Only "
                "an unclean election makes that necessary, and has to say so (below_watermark)."
            )
        blocked_before = self._compaction.blocked_before
        is_swap = names.parse_segment(cut.segment.path.name) is None
        if is_swap or (blocked_before is not None and end < blocked_before):
            raise StorageError(
                f"The log of {where} is not truncated to offset {end}: the disk did not let a "
                f"compaction of what lies before {blocked_before} come to its end. Mend the disk "
                "and restart the broker, which completes it; then try again."
            )

    def _find(self, offset: int) -> _Cut:
        """Place of the record batch that holds ``offset``: the last one at which to cut. What is
        damaged goes with what follows it. Raises StorageError, CorruptRecordBatchError."""
        view = self._state.view
        number = bisect_right(view.base_offsets, offset) - 1
        segment = view.segments[number]
        summary = segment.summary
        with storage_errors("truncate", segment.path):
            for _ in range(2):
                try:
                    lookup = segment.lookup()
                    at = _place(lookup, summary, offset)
                    interval = self._writer.config.index_interval_bytes
                    return _Cut(view, number, at, _metadata_before(lookup, summary, at, interval))
                except DamageFoundError:
                    segment.inspect(summary.size_bytes, summary.end_offset)
        raise CorruptRecordBatchError(
            f"The log of {self._state.topic_partition} cannot be truncated to offset {offset}: "
            f"{segment.path} is damaged there in a way that keeps changing; run logbus dump."
        )

    # -- the steps ----------------------------------------------------------------------

    def _truncate(self, cut: _Cut, tail: Tail, producers: ProducerStateManager) -> None:
        end = cut.at.offset
        in_place = end >= cut.view.high_watermark
        new = self._new_active(cut, in_place=in_place)
        try:
            self._remove_hints(cut)
            if not self._go_back(cut, new, in_place=in_place):
                in_place, new = False, self._new_active(cut, in_place=False)
                self._go_back(cut, new, in_place=False)
        except StorageError:
            remove_if_possible(self._files, _copy_path(cut))
            raise
        logger.warning(
            "The log of %s was truncated from offset %d to %d.",
            self._state.topic_partition, tail.end_offset, end,
            extra={
                "topic": self._state.topic_partition.topic,
                "partition": self._state.topic_partition.partition,
            },
        )  # fmt: skip
        try:
            self._change_files(cut, new, in_place=in_place)
            truncate_producers(self._files, self._directory, producers, self._flushed_view())
        except (OSError, StorageError) as error:
            if isinstance(error, OSError):
                error = storage_error("truncate", new.path, error)
            raise self._writer.go_offline(f"{error}") from error
        lost = self._state.view.lost
        producers.lost_before = lost[-1].end if lost else 0
        save_producers(
            self._files,
            self._directory,
            producers,
            offset=end,
            sync=True,
            keep_from=new.base_offset,
        )

        def sync() -> None:
            new.file.sync()
            self._files.sync_directory(self._directory)

        self._writer.finish_truncation(sync)
        self._epochs.cut(end)
        self._compaction.notes.was_cut(end)

    def _new_active(self, cut: _Cut, *, in_place: bool) -> ActiveSegment:
        """The segment that is cut, as the active one, before that is done to its file; or a copy
        of what is kept, under a name that recovery removes."""
        old, at = cut.segment, cut.at
        with storage_errors("truncate", old.path):
            lookup = old.lookup()
            if in_place:
                file = lookup.file if isinstance(old, ActiveSegment) else self._files.open(old.path)
            else:
                file = self._copy(lookup.file, at.position, _copy_path(cut))
        damaged = tuple(each for each in lookup.damaged if each.end <= at.offset)
        return ActiveSegment(
            self._directory / names.segment(old.base_offset), file, cut.metadata, damaged
        )

    def _copy(self, source: File, length: int, path: Path) -> File:
        if self._files.exists(path):
            self._files.remove(path)
        try:
            file = self._files.open(path, create=True)
            if length:
                file.copy_from(source, 0, length, 0)
            file.sync()
        except OSError:
            remove_if_possible(self._files, path)
            raise
        return file

    def _remove_hints(self, cut: _Cut) -> None:
        """Remove, on disk, what would tell a later recovery of records that are cut off; without
        it, recovery reads what is there. So nothing is lost if it comes to no more than this."""
        end, index = cut.at.offset, index_path(cut.segment.path)
        with storage_errors("prepare the truncation of the log in", self._directory):
            removed = remove_producers(self._files, self._directory, lambda each: each > end)
            if self._files.exists(index):
                self._files.remove(index)
                removed = True
            if removed:
                self._writer.flush_or_fail(
                    self._directory, lambda: self._files.sync_directory(self._directory)
                )
        self._compaction.truncate(end)

    def _go_back(self, cut: _Cut, new: ActiveSegment, *, in_place: bool) -> bool:
        return self._writer.go_back(
            Tail(new, cut.at.offset, cut.at.position),
            lambda change_tail: self._state.truncate(
                cut.view.sealed[: cut.number],
                new,
                cut.at,
                in_place=in_place,
                change_tail=change_tail,
            ),
        )

    def _change_files(self, cut: _Cut, new: ActiveSegment, *, in_place: bool) -> None:
        """Bring the files to what the view says. Raises OSError, StorageError."""
        for segment in reversed(cut.removed):
            _let_go(segment)
            delete_segment(self._files, segment.path)
            self._files.sync_directory(self._directory)
        _let_go(cut.segment)
        if self._files.exists(index_path(new.path)):  # built anew by a reader meanwhile
            self._files.remove(index_path(new.path))
        if in_place:
            new.file.truncate(cut.at.position)
        else:
            self._files.rename(_copy_path(cut), new.path)
        if self._state.view.lost != cut.view.lost:
            self._files.sync_directory(self._directory)
            checkpoints.write_lost_offsets(self._files, self._directory, self._state.view.lost)

    def _flushed_view(self) -> LogView:
        """The view as if all of it were visible, for what looks at all of it."""
        view = self._state.view
        return LogView.flushed(
            view.sealed, view.active, log_start_offset=view.log_start_offset, lost=view.lost
        )


def _copy_path(cut: _Cut) -> Path:
    return cut.segment.path.with_name(names.temporary(names.segment(cut.segment.base_offset)))


def _let_go(segment: Segment) -> None:
    """Leave the file to those who hold it; a look-up through an old view is tried again."""
    if isinstance(segment, SealedSegment):
        segment.replace()
    else:
        segment.retire()


def _place(lookup: Lookup, summary: Summary, offset: int) -> BatchPosition:
    """The last place at or before ``offset`` behind which nothing of the segment is damaged.

    Raises DamageFoundError, OSError.
    """
    for damage in lookup.damaged:
        if damage.start <= offset <= damage.end:
            return BatchPosition(damage.start, damage.start_position)
    if offset >= summary.end_offset:  # in a range that is lost, behind the segment
        return BatchPosition(summary.end_offset, summary.size_bytes)
    return lookup.locate(offset, summary.size_bytes)


def _metadata_before(
    lookup: Lookup, summary: Summary, at: BatchPosition, index_interval_bytes: int
) -> SegmentMetadata:
    """Metadata of the part of a segment before ``at``. Raises OSError, DamageFoundError."""
    base_offset = summary.base_offset
    if at.position == 0:
        return SegmentMetadata(base_offset=base_offset, index_interval_bytes=index_interval_bytes)
    index, max_timestamp_us = lookup.index.before(at.position)
    last_append_us = summary.first_append_us
    for step in lookup.walk(BatchPosition(*index.entry(len(index) - 1)), at.position):
        max_timestamp_us = max(max_timestamp_us, step.max_timestamp_us)
        last_append_us = step.append_time_us
    found = Summary(
        base_offset, at.offset, at.position, max_timestamp_us, summary.first_append_us,
        last_append_us,
    )  # fmt: skip
    return SegmentMetadata.resume(found, index, index_interval_bytes=index_interval_bytes)
