"""Reads of the flights in turn, checked to bring the same; and sizes beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from bench.harness import Contender, Round, console, print_ratios, timed_in_turn
from bench.peers.kafka import Kafka
from bench.raw import RawResults
from bench.result import Result
from bench.typed.ceiling import ready_made
from bench.typed.flights import FIELDS, Flights
from bench.typed.rows import row_of
from bench.typed.topics import Topics

Frames = Mapping[str, DataFrame]
"""What each contender reads; the others are measured by the first."""


@dataclass(frozen=True)
class Bench:
    """What all measures share."""

    spark: SparkSession
    topics: Topics
    flights: Flights
    directory: Path
    """For files of the measures' own."""
    ceiling: Path
    """The file of ready-made arrow batches."""
    rounds: int
    raw: RawResults
    kafka: Kafka | None
    has_from_avro: bool

    def read(self, form: str, fields: Sequence[str] | None = None) -> DataFrame:
        """A topic with a schema, of its fields those, or all and the records' own columns."""
        reader = self._reader().option("flatten", "true")
        if fields is not None:
            reader = reader.option("columns", ",".join(fields))
        return reader.load(self.topics.topic(form))

    def values(self, form: str) -> DataFrame:
        """The values of a topic without one."""
        return self._reader().schema("value binary").load(self.topics.topic(form))

    def ready_made(self, like: DataFrame) -> DataFrame:
        """Ready-made arrow batches with the columns of that read."""
        return ready_made(self.spark, self.ceiling, like.schema, rows=self.flights.rows)

    def _reader(self) -> DataFrameReader:
        return self.spark.read.format("logbus").option("zookeeper", self.topics.running.zookeeper)

    def compare(
        self,
        name: str,
        title: str,
        frames: Frames,
        *,
        target: float | None = None,
        work: Callable[[DataFrame], object] | None = None,
    ) -> None:
        """Read the flights in each way to their end, or do the work with them."""
        checked = {contender: _checked(frame) for contender, frame in frames.items()}
        require_same(name, checked)
        contenders = [
            Contender(contender, _bound(work or drain, frame))
            for contender, frame in frames.items()
        ]
        took = timed_in_turn(contenders, rounds=self.rounds)
        self.show(name, title, took, target=target)

    def show(
        self,
        name: str,
        title: str,
        took: dict[str, list[Round]],
        *,
        target: float | None = None,
    ) -> None:
        rows = self.flights.rows
        print_ratios(
            f"{name}: {title}; {rows:,} records, {self.rounds} rounds",
            took,
            baseline=next(iter(took)),
            records=rows,
            target=target,
        )
        metrics = {
            contender: [{"seconds": one.seconds, "CPU s": one.cpu_seconds} for one in rounds]
            for contender, rounds in took.items()
        }
        self.raw.add(Result(row_of(name, title), title, "s", metrics, ("seconds",)))

    def show_bytes(self, name: str, title: str, sizes: Mapping[str, int], *, rows: int) -> None:
        """Sizes beside the first."""
        table = Table("", "bytes", "a record", "of the first", title=f"{name}: {title}")
        for column in table.columns[1:]:
            column.justify = "right"
        first = next(iter(sizes.values()))
        for what, size in sizes.items():
            table.add_row(what, f"{size:,}", f"{size / rows:.2f}", f"{size / first:.3f}")
        console.print(table)
        metrics = {what: [{"bytes": float(size)}] for what, size in sizes.items()}
        self.raw.add(Result(row_of(name, title), title, "bytes", metrics, ("bytes",)))


def _bound(work: Callable[[DataFrame], object], frame: DataFrame) -> Callable[[], object]:
    return lambda: work(frame)


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _checked(frame: DataFrame) -> tuple[int, int]:
    """The number of rows, and a checksum of their flights in whatever order."""
    fields = [name for name in FIELDS if name in frame.columns]
    # As sums of 40 bits, which no number of rows here lets overflow.
    hashed = F.shiftrightunsigned(F.xxhash64(*fields), 24)
    row = frame.agg(F.count("*").alias("rows"), F.sum(hashed).alias("checksum")).first()
    assert row is not None
    return row["rows"], row["checksum"]


def require_same(name: str, found: Mapping[str, object]) -> None:
    first = next(iter(found.values()))
    for contender, one in found.items():
        if one != first:
            raise SystemExit(f"{name}: {contender} reads {one}, {next(iter(found))} {first}.")
