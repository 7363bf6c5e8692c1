"""Whether an index file says the truth about its segment; for tools, read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from spark_logbus.log import names
from spark_logbus.log.filesystem import FileSystem
from spark_logbus.log.segment.index_file import IndexFile
from spark_logbus.log.segment.metadata import SegmentMetadata
from spark_logbus.record import RecordBatchHeader, read_headers

_NO_ENTRIES: Final = 1 << 62  # an index interval that no segment reaches


class IndexComparison:
    """Compares an index with the record batches of its segment as they go by. For one thread."""

    def __init__(self, index_file: IndexFile | None, *, base_offset: int) -> None:
        self._file = index_file
        self.contents = SegmentMetadata(base_offset=base_offset, index_interval_bytes=_NO_ENTRIES)
        index = index_file.index if index_file is not None else None
        self._entries = index.entries() if index is not None else iter(())
        self._next = next(self._entries, None)
        self._problem: str | None = None

    def see(self, header: RecordBatchHeader, position: int) -> None:
        while self._next is not None and self._next[1] <= position:
            self._compare(self._next, header, position)
            self._next = next(self._entries, None)
        self.contents.note(
            header,
            offset=header.base_offset,
            position=position,
            append_time_us=header.append_time_us,
        )

    def _compare(
        self, entry: tuple[int, int, int], header: RecordBatchHeader, position: int
    ) -> None:
        there = (header.base_offset, position, self.contents.max_timestamp_us)
        if entry != there and self._problem is None:
            self._problem = (
                f"its entry for offset {entry[0]} at position {entry[1]} is wrong: offset "
                f"{header.base_offset} is at position {position}"
            )

    def unusable(self, *, size_bytes: int) -> str | None:
        """Why the broker will rebuild the index of this segment, ``size_bytes`` long."""
        if self._file is None:
            return "it is missing"
        summary = self._file.summary
        if self._file.problem is not None or summary is None:
            return self._file.problem
        if summary.size_bytes != size_bytes:
            return f"it is stale: of a segment of {summary.size_bytes} bytes, not {size_bytes}"
        return None

    def wrong(self) -> str | None:
        """What an index that the broker trusts says wrongly, now that all has been seen."""
        if self._file is None or self._file.summary is None or self._problem is not None:
            return self._problem
        if self._next is not None and self._next[1]:
            return f"its entry for position {self._next[1]} lies behind the last record batch"
        if self._file.summary != self.contents.summary():
            return "its summary disagrees with the record batches of the segment"
        return None


def compare_index(files: FileSystem, segment: Path, index_file: IndexFile) -> str | None:
    """What is wrong with the index, by the headers of ``segment``. Raises OSError."""
    base_offset = names.parse_segment(segment.name)
    if base_offset is None:
        return f"it is named {segment.stem}, which is no base offset"
    file = files.open_read_only(segment)
    size = file.size()
    comparison = IndexComparison(index_file, base_offset=base_offset)
    for position, header in read_headers(file.pread, size):
        comparison.see(header, position)
    return comparison.unusable(size_bytes=size) or comparison.wrong()
