"""What one client process is asked to do, and what it answers. Sent as JSON, both ways."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

VALUES = 1_000  # different ones, handed over again and again
SUMMED_BYTES = 8
CHECKSUMS = 1 << 8 * SUMMED_BYTES

LIBRDKAFKA_READS: Final[Mapping[str, Any]] = {"check.crcs": True, "fetch.queue.backoff.ms": 10}
"""Its consumer checks checksums, as the others do. By default it asks for nothing for a second once
64 MiB or 100,000 messages of a partition are there, which are read in less. With queues of 1 GiB,
which are never full, it is slower than so."""


def tail(value: bytes) -> int:
    """Returns what a value adds to a checksum: its last bytes as a number."""
    return int.from_bytes(value[-SUMMED_BYTES:], "big")


@dataclass(frozen=True)
class Work:
    name: str
    """A function of the client's module."""
    system: str = "logbus"
    """Whose client: logbus or librdkafka."""
    address: str = ""
    """ZooKeeper's connect string, or Kafka's bootstrap servers."""
    topic: str = ""
    records: int = 0
    value_bytes: int = 200
    batch_bytes: int = 1 << 20
    batch_records: int | None = None
    """At most so many in a record batch; None: what ``batch_bytes`` hold."""
    linger_ms: int = 50
    flushed: bool = False
    acks: str = ""
    """Name that the client has for it; empty: when the leader has it, on disk if ``flushed``."""
    warm_up: int = 10_000
    """Records that are sent before the clock starts."""
    checksummed: bool = False
    """Consumers add up the ``tail`` of each value; else they count bytes."""

    def values(self, count: int) -> Iterator[bytes]:
        different = [b"%0*d" % (self.value_bytes, number) for number in range(VALUES)]
        return islice(cycle(different), count)

    def checksum(self, count: int) -> int:
        """The sum of ``tail`` over so many values, whatever their order."""
        different = [tail(value) for value in self.values(VALUES)]
        whole, rest = divmod(count, VALUES)
        return (whole * sum(different) + sum(different[:rest])) % CHECKSUMS


@dataclass(frozen=True)
class Done:
    records: int
    """Of the time that was taken."""
    warm_up: int
    """Records before that."""
    seconds: float
    cpu_seconds: float | None = None
    """Of the client's process."""
    waits_s: Sequence[float] = ()
    """From handing over one record to its acknowledgement, where each is waited for."""
    checksum: int | None = None
    """Of all that was read, also before that time, by those that make one."""

    def metrics(self) -> dict[str, float]:
        shown = {"µs a record": 1e6 * self.seconds / self.records}
        if self.cpu_seconds is not None:
            shown["CPU µs a record"] = 1e6 * self.cpu_seconds / self.records
        if self.waits_s:
            shown["p50, µs"] = 1e6 * statistics.median(self.waits_s)
            shown["p99, µs"] = 1e6 * statistics.quantiles(self.waits_s, n=100)[98]
        return shown


def checked(work: Work, total: int) -> int | None:
    """The checksum if ``total`` is one, for who knows what it must be; else it is the bytes of all
    values, and SystemExit is raised if they are not those that were sent."""
    if work.checksummed:
        return total % CHECKSUMS
    expected = work.records * work.value_bytes
    if total != expected:
        raise SystemExit(f"Expected {expected:,} bytes of values, read {total:,}.")
    return None
