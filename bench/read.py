"""Batch read of a topic into Spark, against a source that yields ready-made Arrow batches."""

from __future__ import annotations

import argparse

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.baselines import ALL_COLUMNS, ReadyMade
from bench.harness import Contender, cluster, console, in_turn, print_ratios, spark_session
from spark_logbus.client import Admin, Bootstrap, Cluster, Producer

TARGET = 0.80


def fill(
    zookeeper: str, *, records: int, value_bytes: int, partitions: int, piece: int = 50_000
) -> None:
    """A topic of ``records`` values, spread evenly; ``piece`` of them are one arrow batch that the
    producer is given, and cuts into record batches of at most 4 MiB."""
    with Cluster.connect(Bootstrap.from_zookeeper(zookeeper)) as client:
        Admin(client).create_topic("bench", partitions=partitions)
        values = pa.array([b"v" * value_bytes] * piece, pa.binary())
        arrow_batch = pa.RecordBatch.from_arrays([values], names=["value"])
        with Producer(client) as producer:
            for number in range(records // piece):
                producer.send_arrow("bench", arrow_batch, partition=number % partitions)
            producer.flush()


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def compare(spark: SparkSession, zookeeper: str, arguments: argparse.Namespace) -> float:
    lowest = float("inf")
    for title, schema in (("all columns", None), ("value only", "value binary")):

        def ready_made(schema: str = schema or ALL_COLUMNS) -> None:
            drain(
                spark.read.format("ready_made")
                .schema(schema)
                .option("rows", arguments.records)
                .option("partitions", arguments.partitions)
                .option("valueBytes", arguments.value_bytes)
                .load()
            )

        def logbus(schema: str | None = schema) -> None:
            reader = spark.read.format("logbus").option("zookeeper", zookeeper)
            reader = reader.option("subscribe", "bench")
            drain((reader.schema(schema) if schema else reader).load())

        seconds = in_turn(
            [Contender("ready-made Arrow", ready_made), Contender("logbus", logbus)],
            rounds=arguments.rounds,
        )
        ratio = print_ratios(
            f"Batch read, {arguments.records:,} records of {arguments.value_bytes} bytes, {title}",
            seconds,
            baseline="ready-made Arrow",
            records=arguments.records,
            target=TARGET,
        )
        lowest = min(lowest, ratio)
    return lowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--piece", type=int, default=50_000, help="records of an arrow batch given to the producer"
    )
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    arguments = parser.parse_args()
    with cluster(tcp_only=arguments.tcp) as running, spark_session() as spark:
        spark.dataSource.register(ReadyMade)
        with console.status("Filling the topic ..."):
            fill(
                running.zookeeper,
                records=arguments.records,
                value_bytes=arguments.value_bytes,
                partitions=arguments.partitions,
                piece=arguments.piece,
            )
        count = (
            spark.read.format("logbus")
            .option("zookeeper", running.zookeeper)
            .option("subscribe", "bench")
            .load()
            .count()
        )
        if count != arguments.records:
            raise SystemExit(f"Expected {arguments.records} records in the topic, got {count}.")
        compare(spark, running.zookeeper, arguments)


if __name__ == "__main__":
    main()
