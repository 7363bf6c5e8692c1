"""Reads of the flights in turn, checked to bring the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from bench.kit.harness import drain
from bench.kit.result import Rounds
from bench.kit.rounds import works_in_turn
from bench.kit.same import Rows, Same
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
    """Directory in which measures write files of their own."""
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
        reader = self.spark.read.format("ready_made").schema(like.schema)
        return reader.option("rows", self.flights.rows).load(str(self.ceiling))

    def _reader(self) -> DataFrameReader:
        return self.spark.read.format("logbus").option("zookeeper", self.topics.system.address)

    def compare(
        self, name: str, frames: Frames, *, work: Callable[[DataFrame], object] = drain
    ) -> Rounds:
        """Reads the flights in each way to their end, or does the work with them, in turn."""
        same = Same()
        for contender, frame in frames.items():
            same.require(f"{name}: {contender}", Rows.of(frame, FIELDS))
        works = {contender: partial(work, frame) for contender, frame in frames.items()}
        return works_in_turn(works, records=self.flights.rows, rounds=self.rounds)
