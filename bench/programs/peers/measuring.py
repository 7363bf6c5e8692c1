"""The experiments: each contender sends to a fresh topic, the disk is looked at, all of it is read,
and what was read is compared with what was sent."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from bench.kit.comparing import Comparing
from bench.kit.harness import console
from bench.kit.memory import claim_memory
from bench.kit.result import LOGBUS, Metrics, Rounds
from bench.kit.rounds import in_turn
from bench.programs.clients.work import CHECKSUMS, Done, Work
from bench.programs.peers.contenders import Contender, Row, Task
from bench.programs.peers.java_clients import SilentServerError
from bench.programs.peers.servers import Server

SENT, READ = "µs a record sent", "µs a record read"
SENT_CPU, READ_CPU = "CPU µs a record sent, client", "CPU µs a record read, client"
ON_DISK = "bytes a record on disk"
RECORDS = "records"
VALUE_BYTES = "bytes a value"
BESIDE_VALUE = "bytes a record on disk beside its value"
PRODUCER, CONSUMER, DISK = "producer", "consumer", "disk"
KILLED, STOPPED = "leader killed", "leader stopped"
ARROW: Final = f"{LOGBUS}, Arrow"


def with_overhead(metrics: Metrics) -> Metrics:
    """Returns the metrics of a round, with the overhead where the disk has all of the values."""
    overhead = metrics.get(ON_DISK, 0.0) - metrics.get(VALUE_BYTES, 0.0)
    return {**metrics, BESIDE_VALUE: overhead} if overhead > 0 else metrics


COMPARED: Final = Comparing(
    {SENT: PRODUCER, READ: CONSUMER, BESIDE_VALUE: DISK, KILLED: KILLED, STOPPED: STOPPED},
    own=f"{LOGBUS}|{ARROW}",
    derived=with_overhead,
)

_CLAIMED_BYTES: Final = 2 << 30  # page cache and buffers of a run with few records
_OF_WARM_UP: Final = 20  # the round that does not count has so many times fewer records
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Bench:
    """Servers and sizes that all experiments share."""

    servers: Mapping[str, Server]
    """Systems that are at hand, by name."""
    rounds: int
    records: int
    value_bytes: int
    tell: Callable[[str], None]
    """Keeps a condition of the run."""
    silent: set[str] = field(default_factory=set)
    """Servers that hold records which nobody gets."""

    def at_hand(self, row: Row) -> list[Contender]:
        """Returns the contenders whose servers run."""
        return [each for each in row.contenders if each.server in self.servers]


@dataclass(frozen=True)
class Experiment:
    """Contenders whose messages are sent alike, measured in turn."""

    name: str
    row: Row
    unit: str = SENT

    @property
    def title(self) -> str:
        return self.row.title

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        def one(contender: Contender, counts: bool) -> Metrics:
            if contender.server in bench.silent:
                return {}
            records = bench.records if counts else bench.records // _OF_WARM_UP
            server = bench.servers[contender.server]
            began = time.monotonic()
            try:
                metrics = measured(contender, server, records, bench.value_bytes)
            except SilentServerError as error:
                bench.tell(f"{self.name}, {contender.name}: {error} Further rounds are without it.")
                bench.silent.add(contender.server)
                return {}
            console.print(
                f"  {contender.name}: {1e6 / metrics[SENT]:,.0f} records/s sent, "
                f"{1e6 / metrics[READ]:,.0f} read, in {time.monotonic() - began:.0f} s"
                + ("" if counts else ", which does not count"),
                markup=False, highlight=False,
            )  # fmt: skip
            return metrics

        took = in_turn(bench.at_hand(self.row), one, rounds=bench.rounds)
        yield "", {name: rounds for name, rounds in took.items() if any(rounds)}


def measured(contender: Contender, server: Server, records: int, value_bytes: int) -> Metrics:
    """Sends and reads once; raises SystemExit where what is read is not what was sent."""
    topic = f"paper-{next(_numbers)}"
    task = Task(server.address, topic, contender.records(records), value_bytes, server.java)
    claim_memory(_CLAIMED_BYTES)
    if server.topics is not None:
        server.topics.create_topic(topic, flushed=contender.flushed)
    before = server.stored_bytes(topic)
    sent = contender.client.send(task)
    stored = server.stored_bytes(topic) - before
    read = contender.client.read(task)
    if server.topics is not None:
        server.topics.delete_topic(topic)
    require_same(contender.name, task, read)
    return {
        RECORDS: sent.records,
        SENT: _us_a_record(sent),
        SENT_CPU: 1e6 * (sent.cpu_seconds or 0) / sent.records,
        READ: _us_a_record(read),
        READ_CPU: 1e6 * (read.cpu_seconds or 0) / read.records,
        ON_DISK: stored / (task.records + task.warm_up),
        VALUE_BYTES: value_bytes,
    }


def _us_a_record(done: Done) -> float:
    return 1e6 * done.seconds / done.records


def require_same(name: str, task: Task, read: Done) -> None:
    """Raises SystemExit unless all was read that was sent, as often as it was sent."""
    value = Work("", value_bytes=task.value_bytes)
    expected = task.records + task.warm_up
    checksum = (value.checksum(task.records) + value.checksum(task.warm_up)) % CHECKSUMS
    count = read.records + read.warm_up
    if (count, read.checksum) != (expected, checksum):
        raise SystemExit(
            f"{name}: expected {expected:,} records with the checksum {checksum}, read {count:,} "
            f"with {read.checksum}."
        )
