"""All file operations of this package, behind two protocols, so that tests can own the disk.

The methods raise ``OSError`` as the operating system does. ``storage_error`` turns one into the
``StorageError`` that callers of the package see; whoever knows what was being done calls it.

After a crash a caller may rely on POSIX's minimum: bytes of a file last once ``sync``
returned, names in a directory once ``sync_directory`` returned, and ``rename`` replaces its
target in one step. Everything else may be lost, in any order.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from spark_logbus.errors import StorageError
from spark_logbus.log.disk import names

Buffer = bytes | bytearray | memoryview

_O_COMMON = os.O_CLOEXEC


class NotOpenedError(OSError):
    """A directory that was to be synced could not be opened: no ``fsync`` was tried, so none
    failed, and what it was to make last can be tried again."""


class File(Protocol):
    """An open file. Thread-safe as far as positions do not overlap; there is no cursor.

    It closes itself when the last reference goes. There is no way to close it earlier: a reader
    in the middle of ``sendfile`` must never see its descriptor number reused.
    """

    @property
    def path(self) -> Path: ...

    def fileno(self) -> int: ...

    def open_again(self) -> int:
        """A new descriptor of this very file, even if it was deleted, that can only read. The
        caller closes it."""
        ...

    def size(self) -> int: ...

    def pread(self, length: int, position: int) -> bytes:
        """Reads ``length`` bytes at ``position``; fewer only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of ``data``, or raise; after an error any prefix of it may be there."""
        ...

    def copy_from(self, source: File, source_position: int, length: int, position: int) -> None:
        """Write ``length`` bytes of ``source``, which has them, as ``pwrite`` does; the kernel
        copies them if it can."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once all bytes and the size are on disk (``fdatasync``)."""
        ...


class FileSystem(Protocol):
    """Names and directories. Thread-safe."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with ``create`` it must not exist before."""
        ...

    def open_read_only(self, path: Path) -> File: ...

    def lock(self, path: Path) -> File:
        """Create and lock a file until it is dropped; BlockingIOError when another has it."""
        ...

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def names(self, path: Path) -> list[str]:
        """Names in the directory, sorted."""
        ...

    def make_directory(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None:
        """Return once all names in it are on disk. NotOpenedError when it did not come to that,
        for want of a descriptor, say."""
        ...


class OSFile:
    """A ``File`` of the operating system."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    def fileno(self) -> int:
        return self._fd

    def open_again(self) -> int:
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | _O_COMMON)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        done = len(data)
        # Linux reads at most 2 GiB at once, and network file systems may return less.
        while done < length and (data := os.pread(self._fd, length - done, position + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def pwrite(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._fd, data, position)
        length = len(data)
        # A short write is how a full disk announces itself: the next one says ENOSPC.
        while written < length:
            written += os.pwrite(self._fd, memoryview(data)[written:], position + written)

    def copy_from(self, source: File, source_position: int, length: int, position: int) -> None:
        done = 0
        while done < length:
            copied = _copy_range(
                source.fileno(), self._fd, length - done, source_position + done, position + done
            )
            if not copied:
                raise OSError(errno.EIO, "The file that is copied from ends early", source.path)
            done += copied

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        _fdatasync(self._fd)

    def __del__(self) -> None:
        os.close(self._fd)


class OSFileSystem:
    """The ``FileSystem`` of the operating system. Stateless."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | _O_COMMON | (os.O_CREAT | os.O_EXCL if create else 0)
        return OSFile(os.open(path, flags, 0o644), path)

    def open_read_only(self, path: Path) -> File:
        return OSFile(os.open(path, os.O_RDONLY | _O_COMMON), path)

    def lock(self, path: Path) -> File:
        file = OSFile(os.open(path, os.O_RDWR | os.O_CREAT | _O_COMMON, 0o644), path)
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def names(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: Path) -> None:
        os.mkdir(path)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _O_COMMON)
        except OSError as error:
            raise NotOpenedError(error.errno, error.strerror, str(path)) from error
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


OS_FILES: FileSystem = OSFileSystem()

_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync

# Where the kernel does not copy between these two files, through a buffer of so much.
_COPY_BUFFER_BYTES = 1 << 20
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def _copy_range(source: int, target: int, length: int, source_at: int, target_at: int) -> int:
    """Copy up to ``length`` bytes between descriptors; the number of them, 0 at the end."""
    if hasattr(os, "copy_file_range"):  # Linux only
        try:
            return os.copy_file_range(source, target, length, source_at, target_at)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
    data = os.pread(source, min(length, _COPY_BUFFER_BYTES), source_at)
    return os.pwrite(target, data, target_at) if data else 0


#: Numbers of errors that say that the disk, or the user's part of it, is full.
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_WANTS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_REMEDIES = {
    errno.ENOSPC: "free space on that disk; appends resume by themselves",
    errno.EDQUOT: "raise the quota or free space; appends resume by themselves",
    errno.EROFS: "the file system is read-only: check the disk, then remount it for writing",
    errno.EACCES: "let the broker's user read and write there",
    errno.EPERM: "let the broker's user read and write there",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files",
    errno.ENOMEM: "free memory on that machine",
    errno.EIO: "check the disk and the kernel's log; move the data if it is failing",
    errno.ENOENT: "something outside of logbus moved or deleted it; restart the broker",
}


def storage_error(doing: str, path: Path, error: OSError) -> StorageError:
    """Makes of ``error`` what the package reports: what was being done, where, why, the remedy."""
    reason = error.strerror or str(error)
    return StorageError(f"Could not {doing} {path}: {reason}; {remedy_for(error)}.")


def remedy_for(error: OSError) -> str:
    """The remedy for an operator, as a part of a sentence."""
    return _REMEDIES.get(error.errno or 0, "check the disk and the permissions")


def is_for_want_of_descriptors(error: BaseException) -> bool:
    """True if the process or machine had no descriptor, or memory, to spare: it may have later."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    return isinstance(cause, OSError) and cause.errno in _WANTS


@contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Translate any ``OSError`` inside; for paths where a context manager's cost is nothing."""
    try:
        yield
    except OSError as error:
        raise storage_error(doing, path, error) from error


def write_atomically(files: FileSystem, path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` on disk: after a crash the old or the new content is there.

    After a failure too, and no half of a file beside it, if the disk removes that.
    """
    temporary = path.with_name(names.temporary(path.name))
    if files.exists(temporary):
        files.remove(temporary)
    try:
        file = files.open(temporary, create=True)
        file.pwrite(data, 0)
        file.sync()
        files.rename(temporary, path)
    except OSError:
        remove_if_possible(files, temporary)
        raise
    files.sync_directory(path.parent)


def remove_if_possible(files: FileSystem, path: Path) -> None:
    """Remove what a failed write left; if that fails too, whoever comes next finds it."""
    with suppress(OSError):
        if files.exists(path):
            files.remove(path)


def read_whole(files: FileSystem, path: Path, *, limit_bytes: int) -> bytes:
    """Reads all of a small file, or its first ``limit_bytes``."""
    file = files.open_read_only(path)
    return file.pread(min(file.size(), limit_bytes), 0)


def make_directories(files: FileSystem, path: Path) -> None:
    """Make ``path`` and what is missing above it, on disk too."""
    if not files.exists(path):
        make_directories(files, path.parent)
        files.make_directory(path)
        files.sync_directory(path.parent)


def remove_tree(files: FileSystem, path: Path) -> None:
    """Remove a directory of this package: files, no deeper directories."""
    for name in files.names(path):
        files.remove(path / name)
    files.remove_directory(path)


def free_bytes(directory: Path) -> int:
    """Bytes that are free on the file system of a directory, for users without privileges. Raises
    StorageError."""
    with storage_errors("look for free space in", directory):
        disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize
