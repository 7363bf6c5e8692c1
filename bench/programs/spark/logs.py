"""logbus and Kafka, each with a client that fills its topics and a connector for Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from bench.kit.shapes import PARTITIONS, Shape
from bench.servers.kafka import Kafka
from bench.servers.kafka_producer import KafkaProducer
from bench.servers.logbus import Logbus
from bench.servers.systems import System
from spark_logbus.client import Producer, ProducerConfig
from spark_logbus.model import Acks

Options = Mapping[str, str]


class Log(Protocol):
    @property
    def system(self) -> System: ...

    def fill(self, topic: str, shape: Shape, records: int) -> None:
        """Send so many records with the client's defaults, but for what the shape says."""

    def read(self, spark: SparkSession, topic: str, options: Options, *, whole: bool) -> DataFrame:
        """All records, all their columns or the value."""

    def write(self, rows: DataFrame, topic: str, shape: Shape, options: Options) -> None: ...


@dataclass(frozen=True)
class LogbusLog:
    system: Logbus

    def fill(self, topic: str, shape: Shape, records: int) -> None:
        linger_ms = ProducerConfig().linger_ms if shape.batch_records is None else 0
        config = ProducerConfig(
            acks=Acks.WRITTEN, compression=shape.compression, linger_ms=linger_ms
        )
        with Producer(self.system.client, config) as producer:
            for number, piece in enumerate(shape.pieces(records)):
                producer.send_arrow(topic, piece, partition=number % PARTITIONS)
            producer.flush()

    def read(self, spark: SparkSession, topic: str, options: Options, *, whole: bool) -> DataFrame:
        reader = spark.read.format("logbus").option("zookeeper", self.system.address)
        reader = reader.options(**options)
        return (reader if whole else reader.schema("value binary")).load(topic)

    def write(self, rows: DataFrame, topic: str, shape: Shape, options: Options) -> None:
        writer = rows.write.format("logbus").mode("append").options(**options)
        writer = writer.option("compression", shape.compression.name.lower())
        writer.option("zookeeper", self.system.address).save(topic)


@dataclass(frozen=True)
class KafkaLog:
    system: Kafka

    def fill(self, topic: str, shape: Shape, records: int) -> None:
        of_shape = {"compression_type": shape.compression.name.lower()}
        if shape.batch_records is not None:
            of_shape["batch_num_messages"] = str(shape.batch_records)
        producer = KafkaProducer(self.system.address, **of_shape)
        for number, piece in enumerate(shape.pieces(records)):
            producer.send(topic, shape.rows_of(piece), partition=number % PARTITIONS)
        producer.flush()

    def read(self, spark: SparkSession, topic: str, options: Options, *, whole: bool) -> DataFrame:
        reader = spark.read.format("kafka").option("subscribe", topic).options(**options)
        rows = reader.option("kafka.bootstrap.servers", self.system.address).load()
        return rows if whole else rows.select("value")

    def write(self, rows: DataFrame, topic: str, shape: Shape, options: Options) -> None:
        writer = rows.write.format("kafka").option("topic", topic).options(**options)
        writer = writer.option("kafka.compression.type", shape.compression.name.lower())
        writer.option("kafka.bootstrap.servers", self.system.address).save()


@dataclass(frozen=True)
class Contender:
    name: str
    log: Log
    options: Options
    """Of the connector."""
