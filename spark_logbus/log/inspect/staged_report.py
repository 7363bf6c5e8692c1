"""Looks into a file of staged record batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import FileSystem
from spark_logbus.log.segment.scan import verified_headers
from spark_logbus.record.stage_id import write_of


@dataclass(frozen=True, slots=True)
class StagedReport:
    """Findings about a file of staged record batches.

    ``write`` is None for a file that is not used; ``records`` are by producer id, which tells the
    attempts of its tasks apart; ``newest_us`` is when the last was staged. After its
    ``size_bytes`` come ``other_bytes``, torn or of earlier writes.
    """

    write: int | None
    records: Mapping[int, int]
    size_bytes: int
    other_bytes: int
    newest_us: int


def is_staged(name: str) -> bool:
    return names.parse_staged(name) is not None


def inspect_staged(files: FileSystem, path: Path) -> StagedReport:
    """Read all of the file and check it. Raises OSError."""
    file = files.open_read_only(path)
    size = file.size()
    records: Counter[int] = Counter()
    end = newest_us = 0
    write: int | None = None
    for position, header in verified_headers(file, size):
        if write not in (None, write_of(header.producer_id)):
            break
        write = write_of(header.producer_id)
        records[header.producer_id] += header.record_count
        newest_us = max(newest_us, header.append_time_us)
        end = position + header.size
    return StagedReport(write, records, end, size - end, newest_us)
