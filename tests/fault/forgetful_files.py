"""Files of a broker process that can lose power: all it does to its disk is written down.

``JournalingFiles`` works on real files, so that the broker is the real one, and notes every
change in a journal before it is made. When the process has been killed, ``PowerLoss`` plays the
journal on a simulated disk, which knows what a ``sync`` had made durable and what not, lets that
crash, and puts what is left on it into the data directory for the next start.
"""

from __future__ import annotations

import os
import shutil
import struct
import threading
from collections.abc import Iterator
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Final

from spark_logbus.log import OS_FILES, File
from spark_logbus.log.disk import names
from tests.fakes.disk import SimulatedDisk, SimulatedFile, Survival

Buffer = bytes | bytearray | memoryview

# operation, handle of a file, position or size, length of the path, length of the data
_ENTRY: Final = struct.Struct("<BQqHI")


class Operation(IntEnum):
    CREATE = 0
    OPEN = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC = 4
    MAKE_DIRECTORY = 5
    RENAME = 6  # the data is the new path
    REMOVE = 7
    REMOVE_DIRECTORY = 8
    SYNC_DIRECTORY = 9


class _Journal:
    """Thread-safe. An entry that the end of the process cut off stands for nothing done."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def note(
        self,
        operation: Operation,
        *,
        path: str = "",
        handle: int = 0,
        position: int = 0,
        data: Buffer = b"",
    ) -> None:
        name = path.encode()
        head = _ENTRY.pack(operation, handle, position, len(name), len(data))
        with self._lock:
            entry = b"".join((head, name, data))
            assert os.write(self._fd, entry) == len(entry), "the disk of the tests is full"


class _JournalingFile:
    """A ``File`` whose changes are noted. Thread-safe as its protocol asks."""

    def __init__(self, file: File, handle: int, journal: _Journal) -> None:
        self._file = file
        self._handle = handle
        self._journal = journal

    @property
    def path(self) -> Path:
        return self._file.path

    def fileno(self) -> int:
        return self._file.fileno()

    def open_again(self) -> int:
        return self._file.open_again()

    def size(self) -> int:
        return self._file.size()

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread(length, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._journal.note(Operation.WRITE, handle=self._handle, position=position, data=data)
        self._file.pwrite(data, position)

    def copy_from(self, source: File, source_position: int, length: int, position: int) -> None:
        self.pwrite(source.pread(length, source_position), position)

    def truncate(self, size: int) -> None:
        self._journal.note(Operation.TRUNCATE, handle=self._handle, position=size)
        self._file.truncate(size)

    def sync(self) -> None:
        # There is nothing to wait for: the journal decides what is durable.
        self._journal.note(Operation.SYNC, handle=self._handle)


class JournalingFiles:
    """A ``FileSystem`` for everything below ``root``. Thread-safe."""

    def __init__(self, root: Path, journal: Path) -> None:
        self._root = root
        self._journal = _Journal(journal)
        self._handles = count(1)
        # What fails changes nothing and is not noted, as where two threads remove one file.
        self._naming = threading.Lock()

    def open(self, path: Path, *, create: bool = False) -> File:
        operation = Operation.CREATE if create else Operation.OPEN
        handle = next(self._handles)
        self._journal.note(operation, path=self._name(path), handle=handle)
        return _JournalingFile(OS_FILES.open(path, create=create), handle, self._journal)

    def open_read_only(self, path: Path) -> File:
        return OS_FILES.open_read_only(path)

    def lock(self, path: Path) -> File:
        return OS_FILES.lock(path)

    def exists(self, path: Path) -> bool:
        return OS_FILES.exists(path)

    def is_directory(self, path: Path) -> bool:
        return OS_FILES.is_directory(path)

    def names(self, path: Path) -> list[str]:
        return OS_FILES.names(path)

    def make_directory(self, path: Path) -> None:
        self._journal.note(Operation.MAKE_DIRECTORY, path=self._name(path))
        OS_FILES.make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        with self._naming:
            if OS_FILES.exists(source):
                self._journal.note(
                    Operation.RENAME, path=self._name(source), data=self._name(target).encode()
                )
            OS_FILES.rename(source, target)

    def remove(self, path: Path) -> None:
        with self._naming:
            if OS_FILES.exists(path):
                self._journal.note(Operation.REMOVE, path=self._name(path))
            OS_FILES.remove(path)

    def remove_directory(self, path: Path) -> None:
        self._journal.note(Operation.REMOVE_DIRECTORY, path=self._name(path))
        OS_FILES.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._journal.note(Operation.SYNC_DIRECTORY, path=self._name(path))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


class PowerLoss:
    """Cuts the power of a killed broker's disk. Use between its end and its next start."""

    _ROOT: Final = Path("/data")

    def __init__(self, data_dir: Path, journal: Path) -> None:
        self._data_dir = data_dir
        self._journal = journal
        self._disk = SimulatedDisk()
        self._disk.make_directory(self._ROOT)
        self._disk.sync_directory(Path("/"))
        data_dir.mkdir(parents=True)

    def strike(self, survival: Survival) -> None:
        self._replay()
        self._disk.crash(survival)
        for path in self._data_dir.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name in (names.CHECKPOINT, names.CLEAN_SHUTDOWN):
                path.unlink()  # the others are not the log's
        self._restore(self._ROOT, self._data_dir)

    def _replay(self) -> None:
        disk, open_files = self._disk, dict[int, SimulatedFile]()
        for operation, path, handle, position, data in self._entries():
            match operation:
                case Operation.CREATE | Operation.OPEN:
                    open_files[handle] = disk.open(path, create=operation is Operation.CREATE)
                case Operation.WRITE:
                    open_files[handle].pwrite(data, position)
                case Operation.TRUNCATE:
                    open_files[handle].truncate(position)
                case Operation.SYNC:
                    open_files[handle].sync()
                case Operation.MAKE_DIRECTORY:
                    disk.make_directory(path)
                case Operation.RENAME:
                    disk.rename(path, self._ROOT / data.decode())
                case Operation.REMOVE:
                    disk.remove(path)
                case Operation.REMOVE_DIRECTORY:
                    disk.remove_directory(path)
                case Operation.SYNC_DIRECTORY:
                    disk.sync_directory(path)
        self._journal.unlink()

    def _entries(self) -> Iterator[tuple[Operation, Path, int, int, bytes]]:
        journal = self._journal.read_bytes()
        at = 0
        while at + _ENTRY.size <= len(journal):
            number, handle, position, name_length, data_length = _ENTRY.unpack_from(journal, at)
            name_at = at + _ENTRY.size
            data_at = name_at + name_length
            at = data_at + data_length
            if at <= len(journal):
                path = self._ROOT / journal[name_at:data_at].decode()
                yield Operation(number), path, handle, position, journal[data_at:at]

    def _restore(self, source: Path, target: Path) -> None:
        for name in self._disk.names(source):
            if self._disk.is_directory(source / name):
                (target / name).mkdir()
                self._restore(source / name, target / name)
            else:
                (target / name).write_bytes(self._disk.data(source / name))
