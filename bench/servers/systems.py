"""The two logs as programs see them: topics that are made, read, counted and deleted."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

_numbers = itertools.count(1)


class System(Protocol):
    """logbus or Kafka, of one broker; see ``bench.servers.logbus`` and ``bench.servers.kafka``."""

    @property
    def address(self) -> str:
        """Address that clients are given."""

    @property
    def data(self) -> Path:
        """Folder with a folder ``<topic>-<number>`` for each partition."""

    @property
    def batch_prefix(self) -> struct.Struct:
        """Beginning of a stored record batch: an offset, and the count of bytes that follow."""

    def create_topic(self, topic: str, *, partitions: int = 1, flushed: bool = False) -> None:
        """Creates a topic. With ``flushed``, what is acknowledged is on the disk; without, both
        logs leave flushes to the operating system."""

    def delete_topic(self, topic: str) -> None: ...

    def ends(self, topic: str, *, partitions: int) -> list[int]:
        """Returns up to where consumers see each partition."""


class Restarted(Protocol):
    """Process of a broker."""

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def start(self) -> None:
        """Returns when it serves again."""


class ReplicatedSystem(System, Protocol):
    """logbus or Kafka, of several brokers."""

    @property
    def replicas(self) -> int:
        """Copies of each partition."""

    @property
    def all_data(self) -> Sequence[Path]:
        """Folders of the brokers, each as ``data``."""

    def server(self, broker_id: int) -> Restarted: ...

    def leader(self, topic: str) -> int:
        """Returns the id of the broker that leads the only partition."""

    def in_sync(self, topic: str) -> int:
        """Counts the replicas of the only partition that have all that is acknowledged."""

    def sender(self, topic: str) -> AbstractContextManager[Callable[[], None]]:
        """Yields a function that sends a record, and returns when all in sync have it."""


class Stored(NamedTuple):
    """Contents of a topic's segment files."""

    record_batches: int
    size_bytes: int


@contextmanager
def fresh_topic(system: System, *, partitions: int, flushed: bool = False) -> Iterator[str]:
    """Creates a topic, and deletes it afterwards."""
    name = f"bench-{next(_numbers)}"
    system.create_topic(name, partitions=partitions, flushed=flushed)
    try:
        yield name
    finally:
        system.delete_topic(name)


def stored(system: System, topic: str, *, partitions: int) -> Stored:
    """Counts the record batches of a topic, and their bytes."""
    record_batches = size_bytes = 0
    prefix = system.batch_prefix
    for number in range(partitions):
        for segment in (system.data / f"{topic}-{number}").glob("*.log"):
            size = segment.stat().st_size
            size_bytes += size
            with segment.open("rb") as file:
                position = 0
                while position < size:
                    file.seek(position)
                    _, length = prefix.unpack(file.read(prefix.size))
                    position += prefix.size + length
                    record_batches += 1
    return Stored(record_batches, size_bytes)
