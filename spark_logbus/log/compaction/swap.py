"""Puts one compacted segment in the place of those it was made from; safe at any crash.

::

    sync     <base>.log.cleaned          its bytes are on disk
    rename   to <base>-<end>.swap        and sync the directory: from here on the new set counts
    delete   all segments in the range   and sync the directory
    rename   to <base>.log               and sync the directory

A crash before the first sync of the directory leaves the old set, and at most a ``.cleaned`` file
that nobody needs. After it, the ``.swap`` file says what is still to be done, and recovery does
it. The deletions are on disk before the last rename, so the new segment never stands beside one
that it replaces.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import File, FileSystem
from spark_logbus.log.segment.index import MAX_ENTRIES, Index, Summary
from spark_logbus.log.segment.index_file import index_path, read_index, write_index
from spark_logbus.log.segment.metadata import scan_metadata
from spark_logbus.log.segment.segment import SealedSegment, delete_segment


def index_cleaned(
    files: FileSystem,
    segment: Path,
    index: Path,
    *,
    base_offset: int,
    end_offset: int,
    index_interval_bytes: int,
) -> Summary | None:
    """Scan a new segment and write its index; None if it is not whole from base to end.

    For the process that wrote it: it checks its own work, and the broker need not. Raises OSError.
    """
    file = files.open_read_only(segment)
    # A rewritten segment may be a little larger than those it was made from.
    interval = max(index_interval_bytes, file.size() // (MAX_ENTRIES - 1))
    metadata, result = scan_metadata(file, base_offset=base_offset, index_interval_bytes=interval)
    if result.damaged or metadata.size_bytes != file.size() or metadata.end_offset != end_offset:
        return None
    if files.exists(index):
        files.remove(index)
    return write_index(files, index, metadata)


def load_cleaned(
    files: FileSystem, index: Path, file: File, *, base_offset: int, end_offset: int
) -> tuple[Summary, Index] | None:
    """Content of the index of the new segment ``file``; None if it belongs to another.

    Raises OSError.
    """
    found = read_index(files, index)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(index))
    if found.summary is None or found.index is None:
        return None
    size_bytes = file.size()
    if not found.summary.is_of(
        base_offset=base_offset, end_offset=end_offset, size_bytes=size_bytes
    ):
        return None
    return found.summary, found.index


def commit(files: FileSystem, *, cleaned: Path, cleaned_index: Path, swap: Path) -> None:
    """Decide for the new segment, whose bytes are on disk. Raises OSError."""
    files.rename(cleaned_index, index_path(swap))
    files.rename(cleaned, swap)
    files.sync_directory(swap.parent)


def withdraw(files: FileSystem, swap: Path) -> None:
    """Take back what ``commit`` could not bring to the disk. Raises OSError."""
    for path in (swap, index_path(swap)):
        if files.exists(path):
            files.remove(path)
    files.sync_directory(swap.parent)


def finish(files: FileSystem, new: SealedSegment, replaced: list[Path]) -> None:
    """Delete what ``new`` replaces, and give it its name. Raises OSError."""
    directory = new.path.parent
    for path in replaced:
        delete_segment(files, path)
    files.sync_directory(directory)
    new.move_to(directory / names.segment(new.base_offset))
    files.sync_directory(directory)


def complete(files: FileSystem, directory: Path) -> None:
    """Finish the swaps that a crash cut short. Raises OSError."""
    listed = files.names(directory)
    for name in listed:
        offsets = names.parse_swap(name)
        if offsets is None:
            continue
        base_offset, end_offset = offsets
        for other in listed:
            base = names.parse_segment(other)
            if base is None:
                base = names.parse_index(other)
            if base is not None and base_offset <= base < end_offset:
                delete_segment(files, directory / names.segment(base))
        files.sync_directory(directory)
        swap, target = directory / name, directory / names.segment(base_offset)
        if files.exists(index_path(swap)):
            files.rename(index_path(swap), index_path(target))
        files.rename(swap, target)
        files.sync_directory(directory)


def remove_cleaned(files: FileSystem, directory: Path) -> None:
    """Remove the leftovers of an earlier compaction. Raises OSError."""
    for name in files.names(directory):
        if name.endswith(names.CLEANED_SUFFIX):
            files.remove(directory / name)
