"""The rows: batch reads and batch writes, each of one shape of records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.clients.systems import System, fresh_topic
from bench.cpu import cpu_seconds
from bench.harness import console
from bench.peers.tuning import TUNED_SINK, TUNED_SOURCE
from bench.result import LOGBUS, Metrics, Result
from bench.rounds import in_turn
from bench.shapes import Shape
from bench.spark.logs import Contender, KafkaLog, Log, LogbusLog
from spark_logbus.model import Compression

AT_LEAST_ONCE: Final = "logbus, at least once"
EXACTLY_ONCE: Final = "logbus, exactly once"
KAFKA: Final = "Kafka"
KAFKA_TUNED: Final = "Kafka, tuned"
OWN: Final = (LOGBUS, AT_LEAST_ONCE, EXACTLY_ONCE)

SECONDS: Final = "seconds"
CPU: Final = "CPU s"
RECORDS: Final = "records"

ALL_COLUMNS: Final = "all columns"
VALUE_ONLY: Final = "value only"
WRITTEN: Final = "page cache"
FLUSHED: Final = "flushed"

SHAPES: Final[Mapping[str, Shape]] = {
    "200": Shape(),
    "100": Shape(value_bytes=100),
    "1000": Shape(value_bytes=1_000),
    "keyed": Shape(keyed=True),
    "lz4": Shape(compression=Compression.LZ4),
    "zstd": Shape(compression=Compression.ZSTD),
    "keyed-zstd": Shape(keyed=True, compression=Compression.ZSTD),
}
# What a sink makes of its rows is for it to say, so that these are only read.
SMALL: Final[Mapping[str, Shape]] = {
    "small": Shape(batch_records=50),
    "small-keyed": Shape(batch_records=50, keyed=True),
    "small-zstd": Shape(batch_records=50, compression=Compression.ZSTD),
    "tiny": Shape(batch_records=10),
}


@dataclass(frozen=True)
class Bench:
    """What all rows share."""

    spark: SparkSession
    logbus: LogbusLog
    kafka: KafkaLog | None
    rounds: int
    records: int

    @property
    def logs(self) -> list[Log]:
        return [self.logbus] if self.kafka is None else [self.kafka, self.logbus]


@dataclass(frozen=True)
class Rows:
    """How many rows were read, and a checksum of their keys and values in whatever order."""

    count: int
    checksum: int

    @classmethod
    def of(cls, frame: DataFrame) -> Rows:
        # As sums of 40 bits, which no number of rows here lets overflow.
        names = [name for name in ("key", "value") if name in frame.columns]
        hashed = F.shiftrightunsigned(F.xxhash64(*names), 24)
        row = frame.agg(F.count("*").alias("count"), F.sum(hashed).alias("checksum")).first()
        assert row is not None
        return cls(row["count"], row["checksum"] or 0)


class Same:
    """Compares the rows of all contenders of all rounds with the first ones."""

    def __init__(self, records: int, first: tuple[str, Rows] | None = None) -> None:
        self._records = records
        self._first = first

    def require(self, contender: str, found: Rows) -> None:
        if found.count != self._records:
            raise SystemExit(f"{contender}: expected {self._records} rows, got {found.count}.")
        if self._first is None:
            self._first = contender, found
        name, first = self._first
        if found != first:
            raise SystemExit(f"{contender} has {found}, {name} {first}.")


def read(shape: Shape, bench: Bench, row: str) -> Iterator[Result]:
    with ExitStack() as stack:
        topics = {id(log): stack.enter_context(_filled(log, shape, bench)) for log in bench.logs}
        contenders = [Contender(LOGBUS, bench.logbus, {})]
        if bench.kafka is not None:
            contenders = [
                Contender(KAFKA, bench.kafka, {}),
                Contender(KAFKA_TUNED, bench.kafka, TUNED_SOURCE),
                *contenders,
            ]
        for what, whole in ((ALL_COLUMNS, True), (VALUE_ONLY, False)):
            same = Same(bench.records)

            def measure(
                contender: Contender, _: bool, *, whole: bool = whole, same: Same = same
            ) -> Metrics:
                def load() -> DataFrame:
                    topic = topics[id(contender.log)]
                    return contender.log.read(bench.spark, topic, contender.options, whole=whole)

                metrics = _measured(lambda: _drain(load()), bench.records)
                same.require(contender.name, Rows.of(load()))
                return metrics

            yield _result(row, what, shape, contenders, measure, bench.rounds)


def write(shape: Shape, bench: Bench, row: str) -> Iterator[Result]:
    """Into a fresh topic each time, which is then read and deleted."""
    rows = shape.rows(bench.spark, bench.records)
    expected = Rows.of(rows)
    for what, flushed in ((WRITTEN, False), (FLUSHED, True)):
        same = Same(bench.records, ("what is written", expected))

        def measure(
            contender: Contender, _: bool, *, flushed: bool = flushed, same: Same = same
        ) -> Metrics:
            log = contender.log
            with fresh_topic(log.system, flushed=flushed) as topic:
                metrics = _measured(
                    lambda: log.write(rows, topic, shape, contender.options), bench.records
                )
                stored = log.read(bench.spark, topic, {}, whole=True)
                same.require(contender.name, Rows.of(stored.select(*rows.columns)))
            return metrics

        contenders = _sinks(bench, flushed=flushed)
        yield _result(row, what, shape, contenders, measure, bench.rounds)


def _sinks(bench: Bench, *, flushed: bool) -> list[Contender]:
    """Kafka with its defaults is left out where each of its small appends is flushed: that takes
    minutes. What is exactly once is always flushed."""
    acks = FLUSHED if flushed else "written"
    once = {"delivery": "at-least-once", "acks": acks}
    found = [Contender(AT_LEAST_ONCE, bench.logbus, once)]
    if flushed:
        found.append(Contender(EXACTLY_ONCE, bench.logbus, {"delivery": "exactly-once"}))
    if bench.kafka is not None:
        found.append(Contender(KAFKA_TUNED, bench.kafka, TUNED_SINK))
        if not flushed:
            found.append(Contender(KAFKA, bench.kafka, {}))
    return found


@contextmanager
def _filled(log: Log, shape: Shape, bench: Bench) -> Iterator[str]:
    system: System = log.system
    with fresh_topic(system) as topic, console.status("Filling topics ..."):
        log.fill(topic, shape, bench.records)
        stored = system.stored(topic)
        console.print(
            f"{type(log).__name__.removesuffix('Log')}: {shape}: "
            f"{bench.records / stored.record_batches:,.0f} records a record batch, "
            f"{stored.size_bytes / bench.records:.0f} bytes a record on disk.",
            highlight=False,
        )
        yield topic


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _measured(work: Callable[[], None], records: int) -> Metrics:
    started, cpu_started = time.perf_counter(), cpu_seconds()
    work()
    return {
        SECONDS: time.perf_counter() - started,
        CPU: cpu_seconds() - cpu_started,
        RECORDS: records,
    }


def _result(
    row: str,
    what: str,
    shape: Shape,
    contenders: Sequence[Contender],
    measure: Callable[[Contender, bool], Metrics],
    rounds: int,
) -> Result:
    took = in_turn(contenders, measure, rounds=rounds)
    own = next(name for name in took if name in OWN)
    return Result(row, f"{what}; {shape}", SECONDS, took, (SECONDS, CPU), own=own)


Row = Callable[[Bench, str], Iterator[Result]]

ROWS: Final[Mapping[str, Row]] = {
    **{f"read-{name}": partial(read, shape) for name, shape in {**SHAPES, **SMALL}.items()},
    **{f"write-{name}": partial(write, shape) for name, shape in SHAPES.items()},
}
