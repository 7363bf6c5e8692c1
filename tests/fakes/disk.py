"""A disk in memory that forgets what was not synced, and fails when told to.

It keeps two states: what the running process sees, and what is on the platters. ``sync`` and
``sync_directory`` carry the first over to the second; ``crash`` throws the first away, but for
what a ``Survival`` lets through. Every operation that changes something is counted and listed,
so that a test can cut the power at each of them in turn.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from spark_logbus.log.disk.filesystem import File, NotOpenedError

Buffer = bytes | bytearray | memoryview


class PowerCutError(BaseException):
    """The machine is off. Not an Exception: no handler may carry on after it."""


@dataclass(eq=False)
class _FileNode:
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: truncate

    def crash(self, survival: Survival) -> None:
        for position, data in self.pending:
            if data is not None:
                _apply(self.durable, position, survival.of_write(data))
            elif survival.of_truncation():
                _apply(self.durable, position, None)
        self.pending.clear()
        self.data = bytearray(self.durable)


@dataclass(eq=False)
class _DirectoryNode:
    entries: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    pending: list[Callable[[dict[str, _Node]], object]] = field(default_factory=list)

    def change(self, change: Callable[[dict[str, _Node]], object]) -> None:
        change(self.entries)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change(self.durable)
        self.pending.clear()

    def crash(self, survival: Survival) -> None:
        for number in survival.of_changes(len(self.pending)):
            self.pending[number](self.durable)
        self.pending.clear()
        self.entries = dict(self.durable)
        for node in self.entries.values():
            node.crash(survival)


_Node = _FileNode | _DirectoryNode


def _apply(target: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del target[position:]
        target.extend(bytes(position - len(target)))
        return
    if not data:
        return
    target.extend(bytes(max(0, position - len(target))))
    target[position : position + len(data)] = data


class Survival:
    """Choice of the unsynced changes that reach the disk before the power fails: none."""

    def of_write(self, _data: bytes) -> bytes:
        """Returns the part of a write that survives."""
        return b""

    def of_truncation(self) -> bool:
        return False

    def of_changes(self, _count: int) -> Iterable[int]:
        """Returns the numbers of a directory's pending changes that survive, in their order."""
        return ()


class AllSurvives(Survival):
    """Choice of all changes, as after kill -9: the page cache lives on."""

    def of_write(self, data: bytes) -> bytes:
        return data

    def of_truncation(self) -> bool:
        return True

    def of_changes(self, count: int) -> Iterable[int]:
        return range(count)


class RandomSurvival(Survival):
    """Each write by itself survives, is torn, or is lost, in any order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def of_write(self, data: bytes) -> bytes:
        fate = self._random.random()
        if fate < 0.4:
            return data
        return data[: self._random.randrange(len(data))] if fate < 0.7 and data else b""

    def of_truncation(self) -> bool:
        return self._random.random() < 0.5

    def of_changes(self, count: int) -> Iterable[int]:
        return range(self._random.randint(0, count))  # as by a journal, which keeps the order


class DisorderedSurvival(RandomSurvival):
    """Each change of a directory by itself survives or is lost; no standard promises an order."""

    def of_changes(self, count: int) -> Iterable[int]:
        return [number for number in range(count) if self._random.random() < 0.5]


NOTHING = Survival()


class SimulatedDisk:
    """A ``FileSystem``. Thread-safe as its protocol asks."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._root = _DirectoryNode()
        self._locked: set[Path] = set()
        self.generation = 0
        self.operations: list[tuple[str, Path]] = []
        self.cut_power_at: int | None = None  # the number of the operation that does not happen
        self.capacity: int | None = None  # bytes in files, all together
        self.refuse: Callable[[str, Path], int | None] = lambda _operation, _path: None

    # -- what tests do to it ------------------------------------------------------------

    def crash(self, survival: Survival = NOTHING) -> None:
        """Cut the power and put it back on; files that were open are of no use any more."""
        with self._mutex:
            self.generation += 1
            self.cut_power_at = None
            self._locked.clear()
            self._root.crash(survival)

    def kill(self) -> None:
        """End the process that has files open; the page cache lives on, synced or not."""
        with self._mutex:
            self.generation += 1
            self._locked.clear()

    def used(self) -> int:
        def of(node: _Node) -> int:
            if isinstance(node, _FileNode):
                return len(node.data)
            return sum(of(child) for child in node.entries.values())

        return of(self._root)

    def data(self, path: Path) -> bytearray:
        """A file's bytes, to look at or to damage (on the platters too: see ``overwrite``)."""
        return self._file(path).data

    def overwrite(self, path: Path, data: bytes) -> None:
        """Replace a file's content behind everyone's back, on the platters too."""
        node = self._file(path)
        node.data[:] = data
        node.durable[:] = data
        node.pending.clear()

    def flip(self, path: Path, position: int, *, mask: int = 0x10) -> None:
        data = bytearray(self.data(path))
        data[position] ^= mask
        self.overwrite(path, bytes(data))

    def durable_data(self, path: Path) -> bytes:
        return bytes(self._file(path).durable)

    def forget_pending(self, path: Path) -> None:
        """Drops pending writes, as Linux does after a failed fsync: the bytes are seen, but never
        reach the disk."""
        self._file(path).pending.clear()

    # -- FileSystem ---------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        with self._mutex:
            parent = self._directory(path.parent)
            if create:
                self.operate("create", path)
                if path.name in parent.entries:
                    raise FileExistsError(errno.EEXIST, "File exists", str(path))
                node = _FileNode()
                parent.change(lambda entries: entries.__setitem__(path.name, node))
            else:
                self._file(path)
                self.check("open for writing", path)
            return SimulatedFile(self, self._file(path), path)

    def open_read_only(self, path: Path) -> SimulatedFile:
        self.check("open", path)
        with self._mutex:
            return SimulatedFile(self, self._file(path), path)

    def lock(self, path: Path) -> SimulatedFile:
        with self._mutex:
            if path in self._locked:
                raise BlockingIOError(errno.EAGAIN, "locked")
            file = self.open(path, create=not self.exists(path))
            self._locked.add(path)
            file.on_drop = lambda: self._locked.discard(path)
            return file

    def exists(self, path: Path) -> bool:
        try:
            self._node(path)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: Path) -> bool:
        return isinstance(self._node(path), _DirectoryNode)

    def names(self, path: Path) -> list[str]:
        return sorted(self._directory(path).entries)

    def make_directory(self, path: Path) -> None:
        with self._mutex:
            self.operate("make_directory", path)
            node = _DirectoryNode()
            parent = self._directory(path.parent)
            parent.change(lambda entries: entries.__setitem__(path.name, node))

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, "no rename across directories is expected"
        with self._mutex:
            node = self._node(source)
            there = self._directory(target.parent).entries.get(target.name)
            if isinstance(there, _DirectoryNode) and there.entries:
                raise OSError(errno.ENOTEMPTY, "Directory not empty", str(target))
            self.operate("rename", source)

            def change(entries: dict[str, _Node]) -> None:
                entries.pop(source.name, None)
                entries[target.name] = node

            self._directory(source.parent).change(change)

    def remove(self, path: Path) -> None:
        with self._mutex:
            self._file(path)
            self.operate("remove", path)
            self._directory(path.parent).change(lambda entries: entries.pop(path.name, None))

    def remove_directory(self, path: Path) -> None:
        with self._mutex:
            if self._directory(path).entries:
                raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
            self.operate("remove_directory", path)
            self._directory(path.parent).change(lambda entries: entries.pop(path.name, None))

    def sync_directory(self, path: Path) -> None:
        try:
            self.check("open directory", path)
        except OSError as error:
            raise NotOpenedError(error.errno, error.strerror, str(path)) from error
        with self._mutex:
            self.operate("sync_directory", path)
            self._directory(path).sync()

    # -- shared with the files ----------------------------------------------------------

    def operate(self, operation: str, path: Path) -> None:
        """Account for an operation that changes something, and let it fail if it is to."""
        with self._mutex:
            if self.cut_power_at is not None and len(self.operations) >= self.cut_power_at:
                raise PowerCutError
            self.operations.append((operation, path))
        self.check(operation, path)

    def check(self, operation: str, path: Path) -> None:
        number = self.refuse(operation, path)
        if number is not None:
            raise OSError(number, errno.errorcode[number], str(path))

    def room(self) -> int | None:
        return None if self.capacity is None else max(0, self.capacity - self.used())

    def _node(self, path: Path) -> _Node:
        node: _Node = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _DirectoryNode) or part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
            node = node.entries[part]
        return node

    def _file(self, path: Path) -> _FileNode:
        node = self._node(path)
        assert isinstance(node, _FileNode)
        return node

    def _directory(self, path: Path) -> _DirectoryNode:
        node = self._node(path)
        assert isinstance(node, _DirectoryNode)
        return node


class SimulatedFile:
    """A ``File``; lives as long as a reference to it, also when its name is gone."""

    def __init__(self, disk: SimulatedDisk, node: _FileNode, path: Path) -> None:
        self._disk = disk
        self._node = node
        self._generation = disk.generation
        self.path = path
        self.on_drop: Callable[[], None] | None = None

    def fileno(self) -> int:
        raise NotImplementedError("a file in memory has no descriptor")

    def open_again(self) -> int:
        raise NotImplementedError("a file in memory has no descriptor")

    def size(self) -> int:
        return len(self._node.data)

    def pread(self, length: int, position: int) -> bytes:
        self._alive()
        self._disk.check("pread", self.path)
        return bytes(self._node.data[position : position + length])

    def pwrite(self, data: Buffer, position: int) -> None:
        self._alive()
        try:
            self._disk.operate("pwrite", self.path)
        except OSError:
            self._write(position, bytes(data)[: len(data) // 2])  # what a failed write leaves
            raise
        growth = position + len(data) - len(self._node.data)
        room = self._disk.room()
        if room is not None and growth > room:
            self._write(position, bytes(data)[: max(0, len(data) - growth + room)])
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        self._write(position, bytes(data))

    def copy_from(self, source: File, source_position: int, length: int, position: int) -> None:
        self.pwrite(source.pread(length, source_position), position)

    def truncate(self, size: int) -> None:
        self._alive()
        self._disk.operate("truncate", self.path)
        _apply(self._node.data, size, None)
        self._node.pending.append((size, None))

    def sync(self) -> None:
        self._alive()
        self._disk.operate("sync", self.path)
        # Only what is pending: a page that the kernel takes for written is not written again.
        for position, data in self._node.pending:
            _apply(self._node.durable, position, data)
        self._node.pending.clear()

    def _write(self, position: int, data: bytes) -> None:
        _apply(self._node.data, position, data)
        self._node.pending.append((position, data))

    def _alive(self) -> None:
        if self._generation != self._disk.generation:
            raise PowerCutError

    def __del__(self) -> None:
        if self.on_drop is not None and self._generation == self._disk.generation:
            self.on_drop()
