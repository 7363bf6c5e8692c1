"""The nouns that all packages share, as small frozen values."""

from __future__ import annotations

import enum
import re
import uuid
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spark_logbus.errors import InvalidNameError

MAX_NAME_LENGTH = 249  # so that "<topic>-<partition>" plus suffixes stays a legal file name
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LOCAL_SOCKET = re.compile(r"logbus-(\d{1,10})-[0-9a-f]{32}", re.ASCII)


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it can name a ``kind`` (topic, group, subject), else raise.

    The rule is Kafka's: 1 to 249 letters, digits, dots, underscores and hyphens, and
    neither ``.`` nor ``..``, because names become directories and ZooKeeper nodes.
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"The name of a {kind} is text, got {type(name).__name__} {name!r}.")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"The {kind} name starting with {name[:40]!r} has {len(name)} characters; "
            f"use at most {MAX_NAME_LENGTH}."
        )
    if name in (".", "..") or not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{name!r} cannot name a {kind}; use letters, digits, '.', '_' and '-' "
            "(and neither '.' nor '..' alone)."
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The records ``[start, end)`` of one partition."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.topic_partition}[{self.start}, {self.end})"


class LostOffsets(NamedTuple):
    """The offsets ``[start, end)`` of one partition whose records were lost with the end of a log,
    which goes on behind them."""

    start: int
    end: int


ONE_PIECE: Final = 1 << 62
"""More bytes than any range has: who cuts it into pieces of that size learns its size alone."""


@dataclass(frozen=True, slots=True, order=True)
class BrokerAddress:
    """The address at which a broker listens.

    ``local_socket`` names its UNIX socket in Linux's abstract namespace. The name is random, so
    only who shares the broker's network namespace can connect to it: it needs no asking whether
    a broker is on this machine. ``rack`` says where it stands, in the operator's words. At
    ``tls_port`` connections are encrypted, at ``port`` they are not. At ``gateway_port`` it takes
    sessions with ZooKeeper.
    """

    broker_id: int
    host: str
    port: int
    local_socket: str | None = field(default=None, compare=False)
    rack: str | None = field(default=None, compare=False)
    tls_port: int | None = field(default=None, compare=False)
    gateway_port: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        if self.broker_id < 0:  # not known before it has answered
            return f"the broker at {self.host}:{self.port}"
        return f"broker {self.broker_id} at {self.host}:{self.port}"

    @property
    def local_uid(self) -> int | None:
        """The user that listens at the UNIX socket, as its name says; None: it does not."""
        found = _LOCAL_SOCKET.fullmatch(self.local_socket or "")
        return None if found is None else int(found[1])


def new_local_socket(uid: int) -> str:
    """Returns the name of a UNIX socket at which that user listens."""
    return f"logbus-{uid}-{uuid.uuid4().hex}"


Header = tuple[str, bytes | None]
"""One of a record's headers: its key and its value."""


class Acks(enum.Enum):
    """The durability that a producer asks for before an append is acknowledged."""

    NONE = "none"  # the request was sent
    WRITTEN = "written"  # in the operating system's page cache: survives the process, not the power
    FLUSHED = "flushed"  # on the leader's disk; the other replicas get it as soon as they can
    REPLICATED = "replicated"  # on the disks of all replicas that are in sync


class Compression(enum.IntEnum):
    """Arrow IPC buffer compression of a payload; the numbers stand in the attributes."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class TimestampType(enum.IntEnum):
    """The setter of a record's timestamp, numbered as in Spark's ``timestampType`` column."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class Earliest:
    """The log start offset."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The high watermark."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    offset: int


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record whose timestamp (µs since the epoch) is at or after ``timestamp_us``."""

    timestamp_us: int


@dataclass(frozen=True, slots=True)
class LastRecords:
    """Position so many records before the high watermark, as far back as the log goes."""

    count: int


@dataclass(frozen=True, slots=True)
class LastDuration:
    """The first record of the last ``duration_us`` microseconds."""

    duration_us: int


OffsetSpec = Earliest | Latest | AtOffset | AtTimestamp | LastRecords | LastDuration
"""A position in a log, as a user names it; the brokers say which offset it is."""


@dataclass(frozen=True, slots=True)
class RewindMark:
    """A group's last rewind: its epoch (1 for the first), and its token, which no other rewind has.
    The token is empty where it is not known: an earlier release gave none."""

    epoch: int = 0
    token: str = ""

    def may_be(self, other: RewindMark) -> bool:
        """True if both are the same rewind, as far as is known."""
        known = self.token and other.token
        return self.epoch == other.epoch and (not known or self.token == other.token)

    def __str__(self) -> str:
        return f"{self.epoch} ({self.token[:8]})" if self.token else str(self.epoch)


NEVER_REWOUND: Final = RewindMark()


class OnUndecodable(enum.Enum):
    """Fate of a record whose value is none of the reader's schema."""

    #: The read fails.
    FAIL = "fail"
    #: The record is left out.
    DROP = "drop"
    #: Its value is null, and a column ``undecodable`` has its bytes and the reason.
    KEEP = "keep"
