"""The rows: batch reads and batch writes, each of one shape of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench.kit.comparing import Compared, Comparing
from bench.kit.harness import console, drain
from bench.kit.program import Row
from bench.kit.result import LOGBUS, Metrics, Rounds
from bench.kit.rounds import CPU, SECONDS, in_turn, timed
from bench.kit.same import Rows, Same
from bench.kit.shapes import PARTITIONS, Shape
from bench.programs.spark.logs import Contender, KafkaLog, Log, LogbusLog
from bench.servers.systems import fresh_topic, stored
from bench.servers.tuning import TUNED_SINK, TUNED_SOURCE
from spark_logbus.model import Compression

AT_LEAST_ONCE: Final = "logbus, at least once"
EXACTLY_ONCE: Final = "logbus, exactly once"
KAFKA: Final = "Kafka"
KAFKA_TUNED: Final = "Kafka, tuned"
OWN: Final = (LOGBUS, AT_LEAST_ONCE, EXACTLY_ONCE)

ALL_COLUMNS: Final = "all columns"
VALUE_ONLY: Final = "value only"
WRITTEN: Final = "page cache"
FLUSHED: Final = "flushed"

COMPARED: Final = Comparing(
    {SECONDS: "", CPU: "CPU"},
    own="|".join(OWN),
    goals={  # of the records that most people have
        Compared("read-200", ALL_COLUMNS, LOGBUS, KAFKA): 4.0,
        Compared("read-200", ALL_COLUMNS, LOGBUS, KAFKA_TUNED): 2.2,
        Compared("read-200", VALUE_ONLY, LOGBUS, KAFKA): 5.0,
        Compared("read-200", VALUE_ONLY, LOGBUS, KAFKA_TUNED): 3.0,
        Compared("write-200", WRITTEN, AT_LEAST_ONCE, KAFKA): 2.2,
        Compared("write-200", WRITTEN, AT_LEAST_ONCE, KAFKA_TUNED): 1.5,
    },
)

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
    """Logs, session and sizes that all rows share."""

    spark: SparkSession
    logbus: LogbusLog
    kafka: KafkaLog | None
    rounds: int
    records: int

    @property
    def logs(self) -> list[Log]:
        return [self.logbus] if self.kafka is None else [self.kafka, self.logbus]


@dataclass(frozen=True)
class ReadRow:
    """Batch reads of records of one shape: all columns, and the values only."""

    shape: Shape
    unit: str = SECONDS

    @property
    def title(self) -> str:
        return f"read, {self.shape}"

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        with ExitStack() as stack:
            topics = {
                id(log): stack.enter_context(_filled(log, self.shape, bench)) for log in bench.logs
            }
            contenders = [Contender(LOGBUS, bench.logbus, {})]
            if bench.kafka is not None:
                contenders = [
                    Contender(KAFKA, bench.kafka, {}),
                    Contender(KAFKA_TUNED, bench.kafka, TUNED_SOURCE),
                    *contenders,
                ]
            for what, whole in ((ALL_COLUMNS, True), (VALUE_ONLY, False)):
                same = Same()

                def read(
                    contender: Contender, _: bool, *, whole: bool = whole, same: Same = same
                ) -> Metrics:
                    def load() -> DataFrame:
                        topic = topics[id(contender.log)]
                        log = contender.log
                        return log.read(bench.spark, topic, contender.options, whole=whole)

                    metrics = timed(lambda: drain(load()), bench.records)
                    rows = Rows.of(load())
                    same.require(contender.name, rows)
                    Same(bench.records).require(contender.name, rows.count)
                    return metrics

                yield f", {what}", in_turn(contenders, read, rounds=bench.rounds)


@dataclass(frozen=True)
class WriteRow:
    """Batch writes of records of one shape, each into a fresh topic, which is then read and
    deleted."""

    shape: Shape
    unit: str = SECONDS

    @property
    def title(self) -> str:
        return f"write, {self.shape}"

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        rows = self.shape.rows(bench.spark, bench.records)
        expected = Rows.of(rows)
        for what, flushed in ((WRITTEN, False), (FLUSHED, True)):
            same = Same(expected)

            def write(
                contender: Contender, _: bool, *, flushed: bool = flushed, same: Same = same
            ) -> Metrics:
                log = contender.log
                with fresh_topic(log.system, partitions=PARTITIONS, flushed=flushed) as topic:
                    metrics = timed(
                        lambda: log.write(rows, topic, self.shape, contender.options),
                        bench.records,
                    )
                    found = log.read(bench.spark, topic, {}, whole=True)
                    same.require(contender.name, Rows.of(found.select(*rows.columns)))
                return metrics

            contenders = _sinks(bench, flushed=flushed)
            yield f", {what}", in_turn(contenders, write, rounds=bench.rounds)


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
    system = log.system
    with (
        fresh_topic(system, partitions=PARTITIONS) as topic,
        console.status("Filling topics ..."),
    ):
        log.fill(topic, shape, bench.records)
        found = stored(system, topic, partitions=PARTITIONS)
        console.print(
            f"{type(log).__name__.removesuffix('Log')}: {shape}: "
            f"{bench.records / found.record_batches:,.0f} records a record batch, "
            f"{found.size_bytes / bench.records:.0f} bytes a record on disk.",
            highlight=False,
        )
        yield topic


ROWS: Final[Mapping[str, Row[Bench]]] = {
    **{f"read-{name}": ReadRow(shape) for name, shape in {**SHAPES, **SMALL}.items()},
    **{f"write-{name}": WriteRow(shape) for name, shape in SHAPES.items()},
}
