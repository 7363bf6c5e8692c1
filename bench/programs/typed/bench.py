"""Reads of the flights in turn, checked to bring the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from bench.kit.harness import drain
from bench.kit.result import Rounds
from bench.kit.rounds import works_in_turn
from bench.programs.typed.ceiling import ready_made
from bench.programs.typed.flights import FIELDS, Flights
from bench.programs.typed.topics import Topics
from bench.servers.kafka import Kafka

Frames = Mapping[str, DataFrame]
"""Rows that each contender reads."""


@dataclass(frozen=True)
class Bench:
    """Topics, session and sizes that all measures share."""

    spark: SparkSession
    topics: Topics
    flights: Flights
    directory: Path
    """Where measures write files of their own."""
    ceiling: Path
    """The file of ready-made arrow batches."""
    rounds: int
    kafka: Kafka | None
    has_from_avro: bool

    def read(self, form: str, fields: Sequence[str] | None = None) -> DataFrame:
        """Reads a topic with a schema: the given fields, or all and the records' own columns."""
        reader = self._reader().option("flatten", "true")
        if fields is not None:
            reader = reader.option("columns", ",".join(fields))
        return reader.load(self.topics.topic(form))

    def values(self, form: str) -> DataFrame:
        """Reads the values of a topic without a schema."""
        return self._reader().schema("value binary").load(self.topics.topic(form))

    def ready_made(self, like: DataFrame) -> DataFrame:
        """Reads ready-made arrow batches with the columns of another read."""
        return ready_made(self.spark, self.ceiling, like.schema, rows=self.flights.rows)

    def _reader(self) -> DataFrameReader:
        return self.spark.read.format("logbus").option("zookeeper", self.topics.running.zookeeper)

    def compare(
        self, name: str, frames: Frames, *, work: Callable[[DataFrame], object] = drain
    ) -> Rounds:
        """Reads the flights in each way to their end, or does the work with them, in turn."""
        checked = {contender: _checked(frame) for contender, frame in frames.items()}
        require_same(name, checked)
        works = {contender: partial(work, frame) for contender, frame in frames.items()}
        return works_in_turn(works, records=self.flights.rows, rounds=self.rounds)


def _checked(frame: DataFrame) -> tuple[int, int]:
    """Returns the number of rows, and a checksum of their flights in whatever order."""
    fields = [name for name in FIELDS if name in frame.columns]
    # As sums of 40 bits, which no number of rows here lets overflow.
    hashed = F.shiftrightunsigned(F.xxhash64(*fields), 24)
    row = frame.agg(F.count("*").alias("rows"), F.sum(hashed).alias("checksum")).first()
    assert row is not None
    return row["rows"], row["checksum"]


def require_same(name: str, found: Mapping[str, object]) -> None:
    """Raises SystemExit unless all contenders found the same."""
    first = next(iter(found.values()))
    for contender, one in found.items():
        if one != first:
            raise SystemExit(f"{name}: {contender} reads {one}, {next(iter(found))} {first}.")
