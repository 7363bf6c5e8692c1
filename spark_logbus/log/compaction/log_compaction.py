"""Compaction of one log, as far as it concerns the log: the plan, and taking in the result.

The work between, which reads record batches, is done by another process (see
``spark_logbus.compactor``): it reads sealed segments and writes new files beside them. So nothing
here blocks appends or reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_logbus.log.checkpoint import CleanedUpTo
from spark_logbus.log.compaction import swap as swaps
from spark_logbus.log.compaction.notes import CompactionNotes, PurgedLog
from spark_logbus.log.compaction.plan import SegmentSelection, delete_horizon, group, select
from spark_logbus.log.config import LogConfig
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import FileSystem, storage_error, storage_errors
from spark_logbus.log.segment.index_file import index_path
from spark_logbus.log.segment.lookup import Lookup
from spark_logbus.log.segment.segment import OpenSegments, SealedSegment
from spark_logbus.log.state import LogState
from spark_logbus.log.view import LogView
from spark_logbus.log.writer import LogWriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Consecutive segments that become one, to be written to ``cleaned`` and indexed; ``config``
    is the one under which that was planned. Tombstones before ``delete_horizon`` may be gone."""

    segments: tuple[SealedSegment, ...]
    cleaned: Path
    cleaned_index: Path
    config: LogConfig
    delete_horizon: int

    @property
    def base_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.segments[-1].summary.end_offset


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The work of one compaction of a log.

    Records from ``first_dirty_offset`` on are new since the last one. Tombstones before
    ``delete_horizon`` may go.
    """

    groups: tuple[CompactionGroup, ...]
    selection: SegmentSelection
    first_dirty_offset: int
    delete_horizon: int
    config: LogConfig
    truncations: int = 0  # of the log, when it was planned


class LogCompaction:
    """Plans compactions of one log, and takes in their results. Thread-safe; plans and swaps of one
    log are for one thread at a time.

    ``reshaping`` is the log's lock around every change of its set of sealed segments and their
    files, but for a roll, which only adds one.
    """

    def __init__(
        self,
        state: LogState,
        writer: LogWriter,
        notes: CompactionNotes,
        directory: Path,
        *,
        files: FileSystem,
        pool: OpenSegments,
        reshaping: threading.Lock,
        deletion_paused: Callable[[], bool],
    ) -> None:
        self._state = state
        #: What other replicas have to know of it.
        self.notes = notes
        self._directory = directory
        self._files = files
        self._pool = pool
        self._reshaping = reshaping
        self._writer = writer
        self._deletion_paused = deletion_paused
        self._damage_reported = False
        #: End of what a swap that is neither done nor taken back is to replace; None without one.
        self.blocked_before: int | None = None
        self._truncations = 0  # changed under reshaping

    def goes_on_as(self, leader: PurgedLog) -> bool:
        """True if the log lacks nothing when it goes on with what the leader has from its end on;
        noted on disk. False: it may have what tombstones deleted that the leader has no more, and
        is to start over. For a follower, before it appends. Raises StorageError.
        """
        tail, notes = self._writer.tail, self.notes
        end, is_empty = tail.end_offset, not tail.position and not self._state.view.sealed
        if notes.clean_end > (clean_end := max(end, leader.clean_end)):
            # The copying began with another leader, whose log was clean up to a later place.
            notes.cut(clean_end)
            notes.was_cut(clean_end)
        if end >= leader.clean_end:
            return True
        if is_empty:
            begun = CleanedUpTo(leader.clean_end, self._writer.time.stamp_us())
            notes.begin_copy(begun, leader.purged_end)
        elif end < leader.purged_end:
            if notes.clean_end < leader.purged_end:
                return False
            notes.purge(leader.purged_end)
        return True

    # -- planning -----------------------------------------------------------------------

    def select_segments(self, now_us: int) -> SegmentSelection | None:
        """Work that a compaction would find; None when the log is not to be compacted.

        Raises StorageError.
        """
        return self._select(self._state.view, self._writer.config, now_us)

    def plan(self, now_us: int) -> CompactionPlan | None:
        """The work that is due now; None when there is too little, or none. Raises StorageError."""
        config, view = self._writer.config, self._state.view
        found = self._select(view, config, now_us)
        if found is None or found.dirty_bytes == 0:
            return None
        if found.dirty_ratio < config.min_cleanable_dirty_ratio and not found.overdue:
            return None
        segments = view.visible_sealed[: found.count]
        summaries = [segment.summary for segment in segments]
        with storage_errors("prepare a compaction in", self._directory):
            swaps.remove_cleaned(self._files, self._directory)
        horizon = delete_horizon(
            self.notes.history, now_us=now_us, delete_retention_ms=config.delete_retention_ms
        )
        groups = tuple(
            self._group(segments[run.start : run.stop], config, horizon)
            for run in group(summaries, segment_bytes=config.segment_bytes)
        )
        return CompactionPlan(
            groups,
            found,
            self.notes.first_dirty_offset,
            horizon,
            config,
            self._truncations,
        )

    def _select(self, view: LogView, config: LogConfig, now_us: int) -> SegmentSelection | None:
        if not config.compacts or self._deletion_paused():
            return None
        if self.blocked_before is not None or self._writer.failure is not None:
            return None
        if not view.sealed or self._is_damaged(view):
            return None
        return select(
            [segment.summary for segment in view.visible_sealed],
            first_dirty_offset=self.notes.first_dirty_offset,
            now_us=now_us,
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
        )

    def _group(
        self, segments: tuple[SealedSegment, ...], config: LogConfig, horizon: int
    ) -> CompactionGroup:
        path = self._directory / names.segment(segments[0].base_offset)
        index = index_path(path)
        return CompactionGroup(
            segments,
            path.with_name(names.cleaned(path.name)),
            index.with_name(names.cleaned(index.name)),
            config,
            horizon,
        )

    def _is_damaged(self, view: LogView) -> bool:
        damaged = any(
            segment.damaged or segment.summary.end_offset != end
            for segment, end in zip(view.sealed, view.sealed_ends, strict=True)
        )
        if damaged and not self._damage_reported:
            logger.warning(
                "%s is damaged and therefore not compacted any more; its records stay as they "
                "are. Restore the damaged segment from a copy, or let it go with the topic's "
                "retention.",
                self._state.topic_partition,
            )
        self._damage_reported = damaged
        return damaged

    # -- taking in the result -----------------------------------------------------------

    def swap(self, compacted: CompactionGroup) -> bool:
        """Replace the group's segments by the new one that stands ready, for good.

        False when it does not fit any more (retention, a deletion or another configuration came
        first), or is not what it should be; its files are then removed. Raises StorageError when
        the disk refuses; the log is served on, from the old segments or the new one.
        """
        with self._reshaping:
            if self.blocked_before is not None or self._writer.failure is not None:
                return False
            if compacted.base_offset < compacted.delete_horizon:
                self.notes.purge(min(compacted.delete_horizon, compacted.end_offset))
            new = self._taken_in(compacted)
            if new is None:
                return False
            swap = new.path
            try:
                swaps.commit(
                    self._files,
                    cleaned=compacted.cleaned,
                    cleaned_index=compacted.cleaned_index,
                    swap=swap,
                )
            except OSError as error:
                new.retire()
                self._withdraw(swap, compacted)
                raise storage_error("replace compacted segments by", swap, error) from error
            self._state.replace(compacted.segments, new)
            for old in compacted.segments:
                old.replace()
            try:
                swaps.finish(self._files, new, [old.path for old in compacted.segments])
            except OSError as error:
                self._block(swap, compacted, "finished")
                raise storage_error("replace compacted segments by", swap, error) from error
            return True

    def _taken_in(self, compacted: CompactionGroup) -> SealedSegment | None:
        """The new segment under its name for the swap, synced; None if it does not fit."""
        base, end = compacted.base_offset, compacted.end_offset
        path = self._directory / names.swap(base, end)
        with storage_errors("take in the compacted segment", compacted.cleaned):
            if self.fits([compacted]):
                file = self._files.open(compacted.cleaned)
                found = swaps.load_cleaned(
                    self._files, compacted.cleaned_index, file, base_offset=base, end_offset=end
                )
                if found is not None:
                    file.sync()
                    summary, index = found
                    return SealedSegment(
                        path,
                        summary,
                        files=self._files,
                        pool=self._pool,
                        index_interval_bytes=self._writer.config.index_interval_bytes,
                        lookup=Lookup(file, index),
                    )
                logger.error(
                    "Compaction wrote %s, which does not hold the offsets %d to %d with an index "
                    "that belongs to it; it is discarded.", compacted.cleaned, base, end,
                )  # fmt: skip
            swaps.remove_cleaned(self._files, self._directory)
        return None

    def _withdraw(self, swap: Path, compacted: CompactionGroup) -> None:
        try:
            swaps.withdraw(self._files, swap)
        except OSError:
            self._block(swap, compacted, "taken back")

    def _block(self, swap: Path, compacted: CompactionGroup, what: str) -> None:
        """Allow no further compaction of this log between this swap and its completion by recovery:
        what that then brings back would be older than what a later one had removed."""
        self.blocked_before = compacted.end_offset
        logger.error(
            "The replacement of segments by %s could not be %s; %s is served on and is not "
            "compacted any more until the broker is restarted, which completes it.",
            swap, what, self._state.topic_partition,
        )  # fmt: skip

    def fits(self, groups: Sequence[CompactionGroup]) -> bool:
        """True if the log still has all segments of the groups, and is to take in new ones."""
        sealed = set(self._state.view.sealed)
        return self._writer.failure is None and all(
            sealed.issuperset(each.segments) and self._still_asked_for(each.config)
            for each in groups
        )

    def _still_asked_for(self, planned: LogConfig) -> bool:
        """True if the configuration of today removes all that the one of the plan did."""
        now = self._writer.config
        return (
            not self._deletion_paused()
            and now.compacts
            and now.min_compaction_lag_ms <= planned.min_compaction_lag_ms
            and now.delete_retention_ms <= planned.delete_retention_ms
        )

    def finished(self, plan: CompactionPlan, *, end_offset: int, now_us: int) -> None:
        """Record that all before ``end_offset`` is clean now. Raises StorageError."""
        with self._reshaping:
            if self._writer.failure is not None or plan.truncations != self._truncations:
                return
            self.notes.cleaned(
                CleanedUpTo(end_offset, now_us),
                delete_retention_ms=plan.config.delete_retention_ms,
            )

    def truncate(self, end: int) -> None:
        """Note that the log is cut at ``end``: nothing behind that is clean. ``reshaping`` is held.
        Raises StorageError."""
        self._truncations += 1
        self.notes.cut(end)

    def discard(self) -> None:
        """Remove the leftovers of a compaction that did not come to its end."""
        with self._reshaping:
            if self._writer.failure is None:
                with storage_errors("tidy up after a compaction in", self._directory):
                    swaps.remove_cleaned(self._files, self._directory)
