"""Operations of a transaction, and the size of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

# ZooKeeper cuts the connection at a request above jute.maxbuffer (1 MiB less one by default).
MAX_TRANSACTION_BYTES = 900_000
_OVERHEAD_BYTES = 64  # headers, lengths, the access list


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = field(default=b"", repr=False)  # keys, at times
    ephemeral: bool = False
    #: For the session's user of ZooKeeper alone, if it has one, in an open cluster too.
    private: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes = field(repr=False)
    version: int = -1  # -1: whatever it is


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


Operation = Create | SetData | Delete | Check


def size_of(operations: Iterable[Operation]) -> int:
    """Bytes of a transaction, rounded up."""
    size = 0
    for operation in operations:
        size += _OVERHEAD_BYTES + len(operation.path)
        if isinstance(operation, (Create, SetData)):
            size += len(operation.data)
    return size


def in_parts(
    operations: Iterable[Operation], *, each_with: Sequence[Operation] = ()
) -> Iterator[list[Operation]]:
    """Cut a list of operations into transactions that ZooKeeper takes, in order, each of them
    beginning with ``each_with``."""
    fixed = size_of(each_with)
    part: list[Operation] = []
    size = fixed
    for operation in operations:
        more = size_of([operation])
        if part and size + more > MAX_TRANSACTION_BYTES:
            yield [*each_with, *part]
            part, size = [], fixed
        part.append(operation)
        size += more
    if part:
        yield [*each_with, *part]
