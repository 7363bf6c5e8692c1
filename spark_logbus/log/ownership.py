"""Ownership of a directory, checked before anything in it is written or removed.

A path in a configuration may be a mistake: somebody's home, another program's data. So a data
directory has to be logbus's already, or empty, and of the directories in it only those are
removed that logbus made. Names that begin with a dot, and ``lost+found``, are a file system's or
a tool's, and count as nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from spark_logbus.errors import ConfigError, DataDirectoryLockedError, StorageError
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import (
    File,
    FileSystem,
    storage_error,
    storage_errors,
)

_LOST_AND_FOUND: Final = "lost+found"
_SHOWN: Final = 5


def check_is_ours_or_empty(files: FileSystem, path: Path, *, known_files: Collection[str]) -> None:
    """Refuse a directory that holds files and is not logbus's; ``known_files`` are a broker's own.

    Raises ConfigError, and StorageError when it cannot be looked at. Nothing is changed.
    """
    with storage_errors("look into the data directory", path):
        if not files.exists(path):
            return
        listed = [
            name
            for name in files.names(path)
            if not name.startswith(".") and name != _LOST_AND_FOUND
        ]
    if any(name in known_files for name in listed):
        return
    begun = {names.temporary(name) for name in (names.CHECKPOINT, *known_files)}
    begun.update(f"{name}.new" for name in known_files)  # as release 0.1.0 began them
    foreign = [name for name in listed if name not in begun]
    if foreign and not any(_is_ours(files, path / name) for name in foreign):
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        raise ConfigError(
            f"The directory {path} is not empty and not a data directory of logbus's: it holds "
            f"{', '.join(foreign[:_SHOWN])}{more}. Nothing in it was touched; name a directory "
            "of the broker's own as data_dir, an empty one or one that is still to be made."
        )


def _is_ours(files: FileSystem, path: Path) -> bool:
    try:
        if files.is_directory(path):
            return _has_metadata(files, path)
        return path.name == names.CHECKPOINT and checkpoints.is_checkpoint(files, path)
    except (OSError, StorageError):
        return False  # not for us to read


def is_made_by_us(files: FileSystem, directory: Path) -> bool:
    """True if a directory that was to be a log, or was one, may be removed with all in it.

    It has to have such a name, and to hold the mark of a partition or nothing but what logs hold.
    Raises OSError, StorageError.
    """
    if not names.is_removable_directory(directory.name):
        return False
    return _has_metadata(files, directory) or all(
        names.is_of_a_log(name) for name in files.names(directory)
    )


def _has_metadata(files: FileSystem, directory: Path) -> bool:
    mark = directory / names.PARTITION_METADATA
    if not files.exists(mark) or files.is_directory(mark):
        return False
    return checkpoints.read_partition_metadata(files, directory) is not None


def lock(files: FileSystem, directory: Path) -> File:
    """Take a data directory for this process, as long as the file returned is open. Raises
    DataDirectoryLockedError, StorageError."""
    path = directory / names.LOCK
    try:
        return files.lock(path)
    except BlockingIOError as error:
        raise DataDirectoryLockedError(
            f"The data directory {directory} is in use by another process; stop that, or give this "
            "broker a directory of its own."
        ) from error
    except OSError as error:
        raise storage_error("lock", path, error) from error
