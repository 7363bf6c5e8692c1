"""Reads and writes the index file beside a segment (see ``docs/formats/index.md``)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from spark_logbus.log.disk.filesystem import (
    FileSystem,
    read_whole,
    remove_if_possible,
    storage_error,
)
from spark_logbus.log.segment.index import (
    ENTRY_SIZE,
    HEADER_SIZE,
    MAX_ENTRIES,
    Index,
    Summary,
    decode_summary,
)
from spark_logbus.log.segment.metadata import SegmentMetadata
from spark_logbus.log.segment.scan import DamagedRange

logger = logging.getLogger(__name__)

# One byte more than the largest: a file that is too long is read as too long.
_LIMIT_BYTES: Final = HEADER_SIZE + MAX_ENTRIES * ENTRY_SIZE + 1


class IndexFile:
    """Content of an index file. ``problem`` says why ``summary`` or ``index`` is None."""

    def __init__(self, data: bytes) -> None:
        self.summary = decode_summary(data)
        self.index: Index | None = None
        self.problem: str | None = None
        if self.summary is None:
            self.problem = "its header is damaged or cut off"
            return
        self.index = Index.decode(data, self.summary)
        if self.index is None:
            self.problem = "its entries are damaged or cut off"


def index_path(segment_path: Path) -> Path:
    return segment_path.with_suffix(".index")


def read_index(files: FileSystem, path: Path) -> IndexFile | None:
    """Reads an index file; None when there is none. Raises other OSErrors."""
    try:
        return IndexFile(read_whole(files, path, limit_bytes=_LIMIT_BYTES))
    except FileNotFoundError:
        return None


def read_summary(files: FileSystem, path: Path) -> Summary | None:
    """The summary alone; None when the file or its header is missing or damaged.

    Raises other OSErrors.
    """
    try:
        return decode_summary(read_whole(files, path, limit_bytes=HEADER_SIZE))
    except FileNotFoundError:
        return None


def write_index(files: FileSystem, path: Path, metadata: SegmentMetadata) -> Summary:
    """Write an index file that does not exist yet; not synced. Raises OSError."""
    summary = metadata.summary()
    files.open(path, create=True).pwrite(metadata.index.encode(summary), 0)
    return summary


def save_index(
    files: FileSystem,
    segment_path: Path,
    metadata: SegmentMetadata,
    damaged: tuple[DamagedRange, ...] = (),
) -> None:
    """Replace the index file. A failure costs a scan at the next start, nothing else.

    A damaged segment gets none, so that each start scans it and knows of the damage. That it has
    none must last, or a crash would bring back the index of when the segment was whole.
    """
    path = index_path(segment_path)
    try:
        if files.exists(path):
            files.remove(path)
            if damaged:
                files.sync_directory(path.parent)
        if not damaged:
            write_index(files, path, metadata)
    except OSError as error:
        remove_if_possible(files, path)
        logger.warning(
            "%s The index will be rebuilt from its segment when that is opened next.",
            storage_error("write the index", path, error),
        )
