"""A segment at a glance: what its headers say; for tools, read-only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_logbus.log import names
from spark_logbus.log.filesystem import FileSystem
from spark_logbus.log.inspect.index_check import IndexComparison
from spark_logbus.log.inspect.listing import problem_at
from spark_logbus.log.segment.index_file import read_index
from spark_logbus.record import read_headers


@dataclass(frozen=True, slots=True)
class SegmentOverview:
    """What the headers of a segment say. ``size_bytes`` is the file's size."""

    base_offset: int
    end_offset: int
    record_batches: int
    records: int
    size_bytes: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    index: str
    problem: str | None


def overview(
    files: FileSystem, path: Path, *, base_offset: int, following: int | None
) -> SegmentOverview:
    """Read the headers of one segment; the next one starts at ``following``. Raises OSError."""
    file = files.open_read_only(path)
    size = file.size()
    index_file = read_index(files, path.with_name(names.index(base_offset)))
    comparison = IndexComparison(index_file, base_offset=base_offset)
    end, end_position, count, records = base_offset, 0, 0, 0
    oldest: int | None = None
    newest: int | None = None
    for position, header in read_headers(file.pread, size):
        if header.base_offset != end:
            break
        comparison.see(header, position)
        end, end_position = header.next_offset, position + header.size
        count, records = count + 1, records + header.record_count
        first, last = header.base_timestamp_us, header.max_timestamp_us
        oldest = first if oldest is None else min(oldest, first)
        newest = last if newest is None else max(newest, last)
    problem = None
    if end_position < size:
        why = problem_at(file, end_position, limit=size, expected_offset=end)
        problem = f"no record batch at position {end_position}: {why}"
    elif following is not None and following != end:
        problem = f"the next segment begins at offset {following}, expected {end}"
    if index_file is None and following is None:
        index = "in memory"
    elif end_position < size:
        index = "not compared"
    else:
        index = comparison.unusable(size_bytes=size) or comparison.wrong() or "ok"
    return SegmentOverview(
        base_offset,
        end,
        count,
        records,
        size,
        oldest,
        newest,
        index,
        problem,
    )
