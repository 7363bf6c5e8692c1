"""Batch read of a topic into Spark, against a source that yields ready-made Arrow batches."""

from __future__ import annotations

import argparse

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.baselines import ALL_COLUMNS, ReadyMade
from bench.harness import Contender, cluster, console, print_ratios, spark_session, timed_in_turn
from spark_logbus.client import Admin, Bootstrap, Cluster, Producer

TARGET = 0.85

PIECE = 50_000

# Ready-made arrow batches of 50 MB are read at little more than half the speed of those of 16 MB.
CEILING_BYTES = 10_000_000

# What share of the records each partition of each topic holds, by name of the layout.
LAYOUTS: dict[str, list[list[float]]] = {
    "even": [[0.5, 0.5]],
    "hot": [[0.9, *[0.1 / 9] * 9]],
    "small": [[1 / 64]] * 64,
}


def fill(
    client: Cluster, *, layout: str, prefix: str, records: int, value_bytes: int, piece: int
) -> int:
    """Topics of about ``records`` values; the number that it came to.

    ``piece`` of them are one arrow batch that the producer is given, and cuts into record batches
    of at most 4 MiB.
    """
    written = 0
    with Producer(client) as producer:
        for number, shares in enumerate(LAYOUTS[layout]):
            topic = f"{prefix}{number}"
            Admin(client).create_topic(topic, partitions=len(shares))
            for partition, part in enumerate(shares):
                left = round(records * part)
                written += left
                while left > 0:
                    count = min(left, piece)
                    values = pa.array([b"v" * value_bytes] * count, pa.binary())
                    arrow_batch = pa.RecordBatch.from_arrays([values], names=["value"])
                    producer.send_arrow(topic, arrow_batch, partition=partition)
                    left -= count
        producer.flush()
    return written


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def compare(
    spark: SparkSession,
    zookeeper: str,
    *,
    pattern: str,
    title: str,
    records: int,
    value_bytes: int,
    rounds: int,
) -> None:
    for columns, schema in (("all columns", None), ("value only", "value binary")):

        def ready_made(schema: str = schema or ALL_COLUMNS) -> None:
            drain(
                spark.read.format("ready_made")
                .schema(schema)
                .option("rows", records)
                .option("partitions", 2)
                .option("valueBytes", value_bytes)
                .option("batchRows", min(PIECE, max(1, CEILING_BYTES // value_bytes)))
                .load()
            )

        def logbus(schema: str | None = schema) -> None:
            reader = spark.read.format("logbus").option("zookeeper", zookeeper)
            reader = reader.option("subscribePattern", pattern)
            drain((reader.schema(schema) if schema else reader).load())

        took = timed_in_turn(
            [Contender("ready-made Arrow", ready_made), Contender("logbus", logbus)], rounds=rounds
        )
        print_ratios(
            f"Batch read, {records:,} records of {value_bytes} bytes, {title}, {columns}",
            took,
            baseline="ready-made Arrow",
            records=records,
            target=TARGET,
        )


TITLES = {
    "even": "two partitions",
    "hot": "90 % in one of ten partitions",
    "small": "64 topics",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="even")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--piece", type=int, default=PIECE, help="records of an arrow batch given to the producer"
    )
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    arguments = parser.parse_args()
    with cluster(tcp_only=arguments.tcp) as running, spark_session() as spark:
        spark.dataSource.register(ReadyMade)
        with (
            console.status("Filling the topics ..."),
            Cluster.connect(Bootstrap.from_zookeeper(running.zookeeper)) as client,
        ):
            records = fill(
                client,
                layout=arguments.layout,
                prefix="bench-",
                records=arguments.records,
                value_bytes=arguments.value_bytes,
                piece=arguments.piece,
            )
        reader = spark.read.format("logbus").option("zookeeper", running.zookeeper)
        count = reader.option("subscribePattern", "bench-.*").load().count()
        if count != records:
            raise SystemExit(f"Expected {records} records in the topics, got {count}.")
        compare(
            spark,
            running.zookeeper,
            pattern="bench-.*",
            title=TITLES[arguments.layout],
            records=records,
            value_bytes=arguments.value_bytes,
            rounds=arguments.rounds,
        )


if __name__ == "__main__":
    main()
