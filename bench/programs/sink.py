"""Micro-batches written from one topic to another: the time that exactly once adds to each."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from rich.table import Table

from bench.kit.harness import cluster, console, spark_session
from spark_logbus.client import Admin, Bootstrap, Cluster, Producer

WAYS = ("at-least-once", "exactly-once")
TARGET_MS = 15.0
# Spark's own first micro-batches take longer.
_WARM_UP = 10
_PHASES = ("triggerExecution", "addBatch", "walCommit", "commitOffsets")


class _Durations(StreamingQueryListener):
    """Milliseconds of each phase of each micro-batch that had rows."""

    def __init__(self) -> None:
        self.taken: list[Mapping[str, int]] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if event.progress.numInputRows:
            self.taken.append(dict(event.progress.durationMs))

    def onQueryIdle(self, event: object) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000, help="of each micro-batch")
    parser.add_argument("--micro-batches", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    count = arguments.micro_batches + _WARM_UP
    with (
        cluster() as running,
        spark_session() as spark,
        tempfile.TemporaryDirectory(prefix="logbus-bench-") as directory,
    ):
        with Cluster.connect(Bootstrap.from_zookeeper(running.zookeeper)) as client:
            admin = Admin(client)
            for topic in ("input", "output"):
                admin.create_topic(topic, partitions=arguments.partitions)
            _fill(client, arguments.records * count)
        listener = _Durations()
        spark.streams.addListener(listener)
        rounds: dict[str, list[list[Mapping[str, int]]]] = {way: [] for way in WAYS}
        for number in range(arguments.rounds):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                listener.taken = []
                _write(spark, running.zookeeper, arguments.records, way, Path(directory))
                rounds[way].append(listener.taken[_WARM_UP:])
    _print(rounds, records=arguments.records)


def _fill(client: Cluster, records: int) -> None:
    with Producer(client) as producer:
        for start in range(0, records, 5_000):
            values = [b"%0200d" % number for number in range(start, start + 5_000)]
            producer.send_arrow("input", pa.table({"value": pa.array(values, pa.binary())}))


def _write(spark: SparkSession, zookeeper: str, records: int, way: str, directory: Path) -> None:
    source = spark.readStream.format("logbus").option("zookeeper", zookeeper)
    rows = source.option("subscribe", "input").option("startingOffsets", "earliest")
    sink = rows.option("maxOffsetsPerTrigger", str(records)).load().select("value").writeStream
    sink = sink.format("logbus").option("zookeeper", zookeeper).option("topic", "output")
    sink = sink.option("checkpointLocation", str(directory / uuid.uuid4().hex))
    query = sink.option("delivery", way).trigger(availableNow=True).start()
    query.awaitTermination()


def _print(rounds: Mapping[str, list[list[Mapping[str, int]]]], *, records: int) -> None:
    table = Table("ms", *WAYS, "added", title=f"Micro-batches of {records:,} records of 200 bytes")
    for column in table.columns[1:]:
        column.justify = "right"
    for phase in _PHASES:
        for name, percent in (("p50", 50), ("p99", 99)):
            each = {
                way: [_percentile([one[phase] for one in taken], percent) for taken in of_way]
                for way, of_way in rounds.items()
            }
            added = [after - before for before, after in zip(*each.values(), strict=True)]
            table.add_row(
                f"{phase} {name}",
                *(f"{statistics.median(values):.0f}" for values in each.values()),
                f"{statistics.median(added):.0f} ({min(added):.0f} to {max(added):.0f})",
            )
    console.print(table)
    console.print(f"Target: {TARGET_MS:.0f} ms added to triggerExecution.", highlight=False)


def _percentile(values: list[int], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    main()
