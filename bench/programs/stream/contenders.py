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
from bench.servers.tuning import TUNED_SOURCE
from spark_logbus.client import Admin, Cluster

KAFKA = "Kafka"
TUNED = f"{KAFKA}, tuned"


class Contender(Protocol):
    """A log with a Spark source, or a source alone."""

    @property
    def name(self) -> str: ...

    def create_topic(self, topic: str, *, partitions: int) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def target(self, topic: str, *, partitions: int, shape: Shape) -> Target | None:
        """Where its records are sent; none needs no input."""

    def stream(self, topic: str) -> DataFrame:
        """All records of the topic, from its beginning."""

    def batch(self, topic: str) -> DataFrame: ...


@dataclass(frozen=True)
class LogbusSource:
    """``format("logbus")`` with ``options``; a topic in a cluster of one broker."""

    spark: SparkSession
    zookeeper: str
    client: Cluster
    flushed: bool
    options: Mapping[str, str]
    """Of streams."""
    group: str | None = None
    name: str = LOGBUS

    def create_topic(self, topic: str, *, partitions: int) -> None:
        Admin(self.client).create_topic(topic, partitions=partitions)

    def delete_topic(self, topic: str) -> None:
        Admin(self.client).delete_topic(topic)

    def target(self, topic: str, *, partitions: int, shape: Shape) -> Target | None:
        return Target(LOGBUS, self.zookeeper, topic, partitions, shape, self.flushed)

    def with_group(self, group: str) -> Self:
        return replace(self, group=group)

    def stream(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("logbus").option("zookeeper", self.zookeeper)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        if self.group is not None:
            reader = reader.option("group", self.group)
        return reader.options(**self.options).load()

    def batch(self, topic: str) -> DataFrame:
        reader = self.spark.read.format("logbus").option("zookeeper", self.zookeeper)
        return reader.option("subscribe", topic).load()


@dataclass(frozen=True)
class KafkaSource:
    """``format("kafka")`` with ``options``; a topic of one broker."""

    spark: SparkSession
    server: Kafka
    flushed: bool
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = KAFKA

    def create_topic(self, topic: str, *, partitions: int) -> None:
        self.server.create_topic(topic, partitions=partitions)

    def delete_topic(self, topic: str) -> None:
        self.server.delete_topic(topic)

    def target(self, topic: str, *, partitions: int, shape: Shape) -> Target | None:
        return Target("kafka", self.server.bootstrap, topic, partitions, shape, self.flushed)

    def tuned(self) -> Self:
        return replace(self, options=TUNED_SOURCE, name=TUNED)

    def stream(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", self.server.bootstrap)
        return reader.option("startingOffsets", "earliest").options(**self.options).load()

    def batch(self, topic: str) -> DataFrame:
        reader = self.spark.read.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", self.server.bootstrap)
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

    def create_topic(self, topic: str, *, partitions: int) -> None:
        if self.beside is not None:
            self.beside.create_topic(topic, partitions=partitions)

    def delete_topic(self, topic: str) -> None:
        if self.beside is not None:
            self.beside.delete_topic(topic)

    def target(self, topic: str, *, partitions: int, shape: Shape) -> Target | None:
        if self.beside is None:
            return None
        return self.beside.target(topic, partitions=partitions, shape=shape)

    def stream(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("nothing").option("idle", str(self.idle).lower())
        return reader.option("rows", self.rows).option("valueBytes", self.value_bytes).load()

    def batch(self, topic: str) -> DataFrame:
        raise NotImplementedError("It is no source of batch reads.")
