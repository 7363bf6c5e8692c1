"""Small text files that are either whole or not there.

A title, lines, and a CRC-32C of all that stands before it. A reader gets its lines or none: a
damaged file is reported and taken for a missing one. So nothing whose loss would lose records may
stand in such a file alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from crc32c import crc32c

from spark_logbus.log.disk.filesystem import FileSystem, read_whole, storage_errors

logger = logging.getLogger(__name__)

_LIMIT_BYTES: Final = 256 << 20


def checksummed_file(title: str, lines: Iterable[str]) -> bytes:
    """The content of such a file."""
    body = "".join(f"{line}\n" for line in (title, *lines)).encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def parse_checksummed_file(data: bytes, title: str) -> list[str] | None:
    """The lines after the title; None when the content is damaged or of another kind."""
    body_end = data[:-1].rfind(b"\n") + 1
    body, last = data[:body_end], data[body_end:]
    if last != f"crc32c {crc32c(body):08x}\n".encode() or not body.startswith(
        f"{title}\n".encode()
    ):
        return None
    return body.decode().splitlines()[1:]


def read_checksummed_file(files: FileSystem, path: Path, title: str) -> list[str] | None:
    """The lines of the file; None, and a warning, when it is damaged; None when it is not there.

    Raises StorageError.
    """
    with storage_errors("read", path):
        if not files.exists(path):
            return None
        data = read_whole(files, path, limit_bytes=_LIMIT_BYTES)
    lines = parse_checksummed_file(data, title)
    if lines is None:
        logger.warning("%s is damaged and is ignored; it will be written anew.", path)
    return lines
