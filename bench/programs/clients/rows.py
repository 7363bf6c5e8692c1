"""What a row measures: who does what, with which settings, and the ratio that is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from bench.kit.comparing import Compared, Comparing
from bench.kit.memory import claim_memory
from bench.kit.program import Row
from bench.kit.result import LOGBUS, Metrics, Rounds
from bench.kit.rounds import Contender, in_turn
from bench.programs.clients.logbus_client import RECORD_OVERHEAD_BYTES
from bench.programs.clients.work import Work
from bench.programs.clients.worker import run
from bench.servers.kafka import Kafka
from bench.servers.kafka_tools import KafkaTools
from bench.servers.logbus import Logbus
from bench.servers.systems import System, fresh_topic, stored

LIBRDKAFKA, JAVA = "librdkafka", "Kafka's Java"
TIME = "µs a record"
_CLAIMED_BYTES: Final = 2 << 30  # page cache and buffers of the largest row
IN_BATCH, BATCH_BYTES = "records a record batch", "bytes a record batch"
SIZES: Final = [
    f"record batch of {records}{part}" for records in (1, 50) for part in ("", ", without values")
]

# Larger fetches, and a minimum of bytes for each, make it no faster here.
JAVA_TUNED: Mapping[str, str] = {
    "max.partition.fetch.bytes": str(2 << 20),
    "max.poll.records": "10000",
}


@dataclass(frozen=True)
class Bench:
    """Servers and sizes that all rows share."""

    logbus: Logbus
    kafka: Kafka | None
    tools: KafkaTools | None
    rounds: int
    records: int | None
    """Of each measurement; None: each row's own number."""
    value_bytes: int
    partitions: int
    filled: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """Topics that are read, by whose they are, their records and the size of record batches."""


@dataclass(frozen=True)
class SendRow:
    """Records to fresh topics."""

    title: str
    records: int
    settings: Work
    """Of both; ``name`` is logbus's function."""
    peer: str = "send"
    """librdkafka's function."""
    unit: str = TIME

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        work = replace(
            self.settings, records=bench.records or self.records, value_bytes=bench.value_bytes
        )
        contenders = [Contender(LOGBUS, partial(_send, bench, bench.logbus, work))]
        if bench.kafka is not None:
            theirs = replace(work, system=LIBRDKAFKA, name=self.peer)
            contenders.insert(0, Contender(LIBRDKAFKA, partial(_send, bench, bench.kafka, theirs)))
        yield "", _in_turn(bench, contenders)


@dataclass(frozen=True)
class ReadRow:
    """All records of a topic, by one consumer."""

    title: str
    records: int
    peers: Sequence[str]
    """Whose consumers are measured beside it."""
    name: str
    """logbus's function."""
    batch_bytes: int
    unit: str = TIME

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        records, size = bench.records or self.records, self.batch_bytes
        work = Work(self.name, records=records, value_bytes=bench.value_bytes)
        contenders = [Contender(LOGBUS, partial(_read, bench, bench.logbus, work, size))]
        if bench.kafka is not None and LIBRDKAFKA in self.peers:
            theirs = replace(work, system=LIBRDKAFKA, name="consume")
            measure = partial(_read, bench, bench.kafka, theirs, size)
            contenders.insert(0, Contender(LIBRDKAFKA, measure))
        if bench.kafka is not None and bench.tools is not None and JAVA in self.peers:
            measure = partial(_read_by_java, bench, bench.kafka, bench.tools, work, size)
            contenders.insert(0, Contender(JAVA, measure))
        yield "", _in_turn(bench, contenders)


def _in_turn(bench: Bench, contenders: Sequence[Contender]) -> Rounds:
    def measured(contender: Contender, _: bool) -> Metrics:
        claim_memory(_CLAIMED_BYTES)
        return contender.measure()

    return in_turn(contenders, measured, rounds=bench.rounds)


def _send(bench: Bench, system: System, work: Work) -> Metrics:
    """Sends to a fresh topic; raises SystemExit unless it then has as many records."""
    with fresh_topic(system, partitions=bench.partitions, flushed=work.flushed) as topic:
        done = run(replace(work, address=system.address, topic=topic))
        expected = done.warm_up + done.records
        _require_records(bench, system, topic, expected)
        found = stored(system, topic, partitions=bench.partitions)
    return {
        **done.metrics(),
        IN_BATCH: expected / found.record_batches,
        BATCH_BYTES: found.size_bytes / found.record_batches,
    }


def _require_records(bench: Bench, system: System, topic: str, expected: int) -> None:
    count = sum(system.ends(topic, partitions=bench.partitions))
    if count != expected:
        raise SystemExit(f"Expected {expected:,} records in {topic}, got {count:,}.")


def _read(bench: Bench, system: System, work: Work, batch_bytes: int) -> Metrics:
    topic = _filled(bench, system, work.system, work.records, batch_bytes)
    return run(replace(work, address=system.address, topic=topic)).metrics()


def _read_by_java(
    bench: Bench, kafka: Kafka, tools: KafkaTools, work: Work, batch_bytes: int
) -> Metrics:
    topic = _filled(bench, kafka, LIBRDKAFKA, work.records, batch_bytes)
    read = tools.consume(kafka.address, topic, records=work.records, settings=JAVA_TUNED)
    if read.records != work.records:
        raise SystemExit(f"Expected {work.records:,} records by {JAVA}, read {read.records:,}.")
    return {TIME: 1e6 * read.seconds / read.records}


def _filled(bench: Bench, system: System, client: str, records: int, batch_bytes: int) -> str:
    """A topic with so many records, made once for all rows that read the same."""
    key = client, records, batch_bytes
    if key not in bench.filled:
        topic = f"read-{records}-{batch_bytes}"
        system.create_topic(topic, partitions=bench.partitions)
        work = Work(
            "send",
            client,
            system.address,
            topic,
            records,
            bench.value_bytes,
            batch_bytes,
            warm_up=0,
        )
        if client == LOGBUS:  # the same record batches, in less time
            in_batch = batch_bytes // (bench.value_bytes + RECORD_OVERHEAD_BYTES)
            work = replace(work, name="send_arrow", batch_records=in_batch)
        run(work)
        _require_records(bench, system, topic, records)
        bench.filled[key] = topic
    return bench.filled[key]


@dataclass(frozen=True)
class DiskRow:
    """Bytes of record batches in the segment files."""

    title: str = "record batches on disk"

    unit: str = "bytes"

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        systems: dict[str, System] = {LOGBUS: bench.logbus}
        if bench.kafka is not None:
            systems = {LIBRDKAFKA: bench.kafka, **systems}
        yield (
            "",
            {client: [self._sizes(bench, system, client)] for client, system in systems.items()},
        )

    @staticmethod
    def _sizes(bench: Bench, system: System, client: str) -> Metrics:
        value_bytes = bench.value_bytes
        work = Work("send", client, value_bytes=value_bytes, linger_ms=0, warm_up=0)
        one = replace(work, name="send_each", records=200, batch_records=1)
        fifty = replace(work, records=5_000, batch_records=50, linger_ms=50)
        sizes: Metrics = {}
        for each in (one, fifty):
            size = _send(bench, system, each)[BATCH_BYTES]
            what = f"record batch of {each.batch_records}"
            sizes[what] = size
            sizes[f"{what}, without values"] = size - (each.batch_records or 0) * value_bytes
        return sizes


_ONE = Work("send_each", linger_ms=0, warm_up=100)
_SIXTEEN_KIB, _ONE_MIB = 16 << 10, 1 << 20

ROWS: Final[Mapping[str, Row[Bench]]] = {
    "send": SendRow("send", 1_000_000, Work("send")),
    "send-50": SendRow("send, 50 records a record batch", 300_000, Work("send", batch_records=50)),
    "send-many": SendRow("send_many", 2_000_000, Work("send_many")),
    "send-arrow-50": SendRow("send_arrow, 50 records a record batch", 300_000,
                             Work("send_arrow", batch_records=50)),
    "one-written": SendRow("send, wait for each, written", 3_000, _ONE, peer="send_each"),
    "one-flushed": SendRow("send, wait for each, flushed", 1_000, replace(_ONE, flushed=True),
                           peer="send_each"),
    "iterate": ReadRow("for record in consumer", 6_000_000, (JAVA, LIBRDKAFKA), "iterate",
                       _ONE_MIB),
    "poll-arrow-16k": ReadRow("poll_arrow, record batches of 16 KiB", 6_000_000, (JAVA,),
                              "poll_arrow", _SIXTEEN_KIB),
    "poll-arrow": ReadRow("poll_arrow, record batches of 1 MiB", 6_000_000, (JAVA,),
                          "poll_arrow", _ONE_MIB),
    "disk": DiskRow(),
}  # fmt: skip

COMPARED: Final = Comparing(
    {
        TIME: "", "CPU µs a record": "CPU", "p50, µs": "wait, p50", "p99, µs": "wait, p99",
        **{size: size for size in SIZES},
    },
    goals={
        Compared(row, "", LOGBUS, peer): goal
        for row, peer, goal in (
            ("send", LIBRDKAFKA, 1.0), ("send-50", LIBRDKAFKA, 1.0), ("send-many", LIBRDKAFKA, 3.0),
            ("send-arrow-50", LIBRDKAFKA, 1.5), ("one-written", LIBRDKAFKA, 0.7),
            ("one-flushed", LIBRDKAFKA, 1.0), ("iterate", JAVA, 1.0), ("iterate", LIBRDKAFKA, 1.8),
            ("poll-arrow-16k", JAVA, 4.0), ("poll-arrow", JAVA, 7.0),
        )
    },
)  # fmt: skip


def rate(us_a_record: float) -> str:
    """Returns records a second as text."""
    return f"{1e6 / us_a_record:,.0f}"
