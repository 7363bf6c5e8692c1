"""Metadata of a segment: counted while it is appended to, or while its file is scanned."""

from __future__ import annotations

from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.log.disk.filesystem import File
from spark_logbus.log.segment.index import NO_TIMESTAMP, Index, Summary
from spark_logbus.log.segment.scan import OnProgress, SegmentScan, ignore_progress
from spark_logbus.record import RecordBatchHeader

NOTHING_APPENDED: Final = NO_TIMESTAMP


class SegmentMetadata:
    """The running summary and the index of one segment. One thread notes; see ``Index``."""

    __slots__ = (
        "_interval", "_next_entry_at", "base_offset", "end_offset", "first_append_us", "index",
        "last_append_us", "max_timestamp_us", "size_bytes",
    )  # fmt: skip

    def __init__(self, *, base_offset: int, index_interval_bytes: int) -> None:
        self._interval = index_interval_bytes
        self._next_entry_at = index_interval_bytes
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0  # where the last valid record batch ends, not the file's size
        self.max_timestamp_us = NO_TIMESTAMP
        self.first_append_us = NOTHING_APPENDED
        self.last_append_us = NOTHING_APPENDED
        # Every segment has this entry, also one whose first record batch is damaged, so that
        # a look-up always finds one to start from.
        self.index = Index()
        self.index.add(offset=base_offset, position=0, max_timestamp_before_us=NO_TIMESTAMP)

    @classmethod
    def resume(
        cls, summary: Summary, index: Index, *, index_interval_bytes: int
    ) -> SegmentMetadata:
        """Take over what an index file holds, to go on from there."""
        metadata = cls(base_offset=summary.base_offset, index_interval_bytes=index_interval_bytes)
        metadata.end_offset = summary.end_offset
        metadata.size_bytes = summary.size_bytes
        metadata.max_timestamp_us = summary.max_timestamp_us
        metadata.first_append_us = summary.first_append_us
        metadata.last_append_us = summary.last_append_us
        metadata.index = index
        metadata._next_entry_at = index.entry(len(index) - 1)[1] + index_interval_bytes
        return metadata

    def note(
        self, header: RecordBatchHeader, *, offset: int, position: int, append_time_us: int
    ) -> None:
        """Account for the record batch that now ends the segment.

        Every record batch of a log passes here once, when it is appended or recovered.
        """
        if position >= self._next_entry_at:
            self.index.add(
                offset=offset, position=position, max_timestamp_before_us=self.max_timestamp_us
            )
            self._next_entry_at = position + self._interval
        if header.max_timestamp_us > self.max_timestamp_us:
            self.max_timestamp_us = header.max_timestamp_us
        if self.first_append_us == NOTHING_APPENDED:
            self.first_append_us = append_time_us
        self.last_append_us = append_time_us
        self.end_offset = offset + header.last_offset_delta + 1
        self.size_bytes = position + header.size

    def summary(self) -> Summary:
        return Summary(
            self.base_offset, self.end_offset, self.size_bytes,
            self.max_timestamp_us, self.first_append_us, self.last_append_us,
        )  # fmt: skip


def scan_metadata(
    file: File,
    *,
    base_offset: int,
    index_interval_bytes: int,
    limit: int | None = None,
    end_offset: int | None = None,
    on_progress: OnProgress = ignore_progress,
) -> tuple[SegmentMetadata, SegmentScan]:
    """Scan a segment file (see ``SegmentScan``) and account for every valid record batch in it."""
    metadata = SegmentMetadata(base_offset=base_offset, index_interval_bytes=index_interval_bytes)
    scan = SegmentScan(
        file, base_offset=base_offset, limit=limit, end_offset=end_offset, on_progress=on_progress
    )
    for position, header in scan:
        metadata.note(
            header,
            offset=header.base_offset,
            position=position,
            append_time_us=header.append_time_us,
        )
    return metadata, scan


class RollTimer:
    """Time since the first append to a segment.

    A segment that was found at the start has its first append's wall time only. That is believed
    once, here, and within ``[0, limit_ms]``.
    """

    def __init__(self, clock: Clock, *, first_append_us: int, limit_ms: int) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        if first_append_us != NOTHING_APPENDED:
            age_us = min(max(clock.now_us() - first_append_us, 0), limit_ms * 1000)
            self._began -= age_us / 1_000_000

    def begin(self) -> None:
        """The first append is now."""
        self._began = self._clock.monotonic()

    def reached_at(self, limit_ms: int) -> float:
        """Returns the monotonic time at which so much has passed."""
        return self._began + limit_ms / 1000

    def reaches(self, limit_ms: int) -> bool:
        return self._clock.monotonic() >= self.reached_at(limit_ms)
