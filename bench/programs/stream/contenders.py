"""What is measured in turn: logbus, Kafka, and sources that do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from pyspark.sql import DataFrame, SparkSession

from bench.kit.result import LOGBUS
from bench.kit.shapes import Shape
from bench.programs.stream.sender import Target
from bench.servers.kafka import Kafka
from bench.servers.logbus import Logbus
from bench.servers.systems import System
from bench.servers.tuning import TUNED_SOURCE

KAFKA = "Kafka"
TUNED = f"{KAFKA}, tuned"


class Contender(Protocol):
    """A log with a Spark source, or a source alone."""

    @property
    def name(self) -> str: ...

    @property
    def system(self) -> System | None:
        """Log whose topic is read; None needs no topic."""

    def target(self, topic: str, *, partitions: int, shape: Shape) -> Target | None:
        """Names where its records are sent; None: it needs no input."""

    def stream(self, topic: str) -> DataFrame:
        """All records of the topic, from its beginning."""

    def batch(self, topic: str) -> DataFrame: ...


@dataclass(frozen=True)
class LogbusSource:
    """``format("logbus")`` with ``options``; a topic in a cluster of one broker."""

    spark: SparkSession
    system: Logbus
    flushed: bool
    options: Mapping[str, str]
    """Of streams."""
    group: str | None = None
    name: str = LOGBUS

    def target(self, topic: str, *, partitions: int, shape: Shape) -> Target | None:
        return Target.of(
            LOGBUS, self.system.address, topic, partitions, shape=shape, flushed=self.flushed
        )

    def with_group(self, group: str) -> Self:
        return replace(self, group=group)

    def stream(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("logbus").option("zookeeper", self.system.address)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        if self.group is not None:
            reader = reader.option("group", self.group)
        return reader.options(**self.options).load()

    def batch(self, topic: str) -> DataFrame:
        reader = self.spark.read.format("logbus").option("zookeeper", self.system.address)
        return reader.option("subscribe", topic).load()


@dataclass(frozen=True)
class KafkaSource:
    """``format("kafka")`` with ``options``; a topic of one broker."""

    spark: SparkSession
    system: Kafka
    flushed: bool
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = KAFKA

    def target(self, topic: str, *, partitions: int, shape: Shape) -> Target | None:
        return Target.of(
            "kafka", self.system.address, topic, partitions, shape=shape, flushed=self.flushed
        )

    def tuned(self) -> Self:
        return replace(self, options=TUNED_SOURCE, name=TUNED)

    def stream(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", self.system.address)
        return reader.option("startingOffsets", "earliest").options(**self.options).load()

    def batch(self, topic: str) -> DataFrame:
        reader = self.spark.read.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", self.system.address)
        return reader.options(**self.options).load()


@dataclass(frozen=True)
class NothingSource:
    """A Python source without a log: a task in each micro-batch, with ready-made rows or none."""

    spark: SparkSession
    name: str = "nothing"
    idle: bool = False
    """One micro-batch, then none."""
    rows: int = 0
    value_bytes: int = 0
    beside: LogbusSource | None = None
    """Whose input is sent meanwhile, though nothing reads it."""

    @property
    def system(self) -> System | None:
        return None if self.beside is None else self.beside.system

    def target(self, topic: str, *, partitions: int, shape: Shape) -> Target | None:
        if self.beside is None:
            return None
        return self.beside.target(topic, partitions=partitions, shape=shape)

    def stream(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("nothing").option("idle", str(self.idle).lower())
        return reader.option("rows", self.rows).option("valueBytes", self.value_bytes).load()

    def batch(self, topic: str) -> DataFrame:
        raise NotImplementedError("It is no source of batch reads.")
