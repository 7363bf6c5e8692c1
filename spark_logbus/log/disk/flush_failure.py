"""Remembers over the end of the process that a flush of a log has failed.

After a failed ``fsync`` the kernel takes pages for written that are not, and the next one passes
over them. The process that got the error takes the log offline; but one that comes after it must
not believe what it reads from the page cache, and writes it again. It learns of the failure from
a file in the log's directory. That need not be on disk: with the power, the page cache goes too.

A failure that nobody has got yet (pages are also written between flushes) needs no file: Linux
reports it to the first ``fsync`` after the file was opened anew.
"""

from __future__ import annotations

import logging
from pathlib import Path

from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import FileSystem, storage_error

logger = logging.getLogger(__name__)


def remember(files: FileSystem, directory: Path) -> None:
    """Call it before anything else is done about a failed flush."""
    path = directory / names.FLUSH_FAILED
    try:
        if not files.exists(path):
            files.open(path, create=True)
    except OSError as error:
        logger.critical(
            "%s Restart the machine, not only the broker: the operating system may hold records "
            "that it takes for written and that are not.",
            storage_error("note a failed flush in", path, error),
        )


def is_remembered(files: FileSystem, directory: Path) -> bool:
    return files.exists(directory / names.FLUSH_FAILED)


def forget(files: FileSystem, directory: Path) -> None:
    """Call it once all has been written again and flushed. Raises OSError."""
    if is_remembered(files, directory):
        files.remove(directory / names.FLUSH_FAILED)
