"""Micro-batches of a stream against those of a source that does nothing, and latency end to end."""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import unix_micros
from pyspark.sql.streaming.query import StreamingQuery
from rich.table import Table

from bench.baselines import Nothing
from bench.harness import cluster, console, spark_session
from spark_logbus.client import Admin, Cluster, Producer, ProducerConfig

TOPIC = "bench"
TARGET_MS = 20
WARM_UP = 15
POLL_S = 1.0  # each time, all reports so far are parsed, on the cores that the query needs too
PHASES = ("triggerExecution", "latestOffset", "queryPlanning", "addBatch", "walCommit")


@contextmanager
def input_of(client: Cluster, *, a_second: int, value_bytes: int) -> Iterator[None]:
    """Records at a steady pace, every 5 ms, for as long as the block lasts."""
    stopped = threading.Event()
    count = max(1, a_second // 200)
    values = pa.array([b"v" * value_bytes] * count, pa.binary())

    def send() -> None:
        with Producer(client, ProducerConfig(linger_ms=1)) as producer:
            due = time.perf_counter()
            for number in itertools.count():
                if stopped.wait(max(0.0, due - time.perf_counter())):
                    return
                due += 0.005
                now = pa.array([time.time_ns() // 1_000] * count, pa.timestamp("us", tz="UTC"))
                producer.send_arrow(
                    TOPIC,
                    pa.RecordBatch.from_arrays([values, now], names=["value", "timestamp"]),
                    partition=number % 2,
                )

    thread = threading.Thread(target=send, name="input")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def progress_of(query: StreamingQuery, *, batches: int, with_rows: bool | None) -> list[Any]:
    """So many progress reports after the warm-up; ``with_rows`` chooses among them."""
    seen: dict[str, Any] = {}
    while len(seen) < batches + WARM_UP:
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        for one in query.recentProgress:
            if with_rows is None or bool(one["numInputRows"]) == with_rows:
                seen[one["timestamp"]] = one
        time.sleep(POLL_S)
    return list(seen.values())[WARM_UP:]


def timed(
    frame: DataFrame, *, batches: int, with_rows: bool | None = None
) -> dict[str, list[float]]:
    """Milliseconds of each phase of the micro-batches into a sink that discards."""
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as directory:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", directory)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            found = progress_of(query, batches=batches, with_rows=with_rows)
        finally:
            query.stop()
    return {phase: [one["durationMs"].get(phase, 0) for one in found] for phase in PHASES}


def latencies(frame: DataFrame, *, seconds: float) -> np.ndarray[Any, Any]:
    """Milliseconds from the call of ``send`` until the sink has the record."""
    found: list[np.ndarray[Any, Any]] = []

    def sink(batch: DataFrame, _: int) -> None:
        sent = batch.select(unix_micros("timestamp").alias("at")).toArrow().column("at")
        found.append((time.time_ns() // 1_000 - sent.to_numpy()) / 1_000)

    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as directory:
        query = (
            frame.writeStream.foreachBatch(sink)
            .option("checkpointLocation", directory)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends and query.isActive:
                time.sleep(0.1)
        finally:
            query.stop()
    return np.concatenate(found[len(found) // 3 :])  # the first third is warm-up


def show(title: str, rounds: Sequence[dict[str, dict[str, list[float]]]]) -> None:
    """A row for each contender, and how much more logbus takes than it, as median of the rounds."""
    table = Table("", *PHASES, "logbus takes more", title=title)
    for name in rounds[0]:
        cells = [
            f"{statistics.median(ms for one in rounds for ms in one[name][phase]):.0f}"
            for phase in PHASES
        ]
        more = [
            statistics.median(one["logbus"]["triggerExecution"])
            - statistics.median(one[name]["triggerExecution"])
            for one in rounds
        ]
        shown = f"{statistics.median(more):+.0f} ({min(more):+.0f} to {max(more):+.0f})"
        table.add_row(name, *cells, "" if name == "logbus" else shown)
    console.print(table)


def compare(
    spark: SparkSession, logbus: Callable[[], DataFrame], client: Cluster, args: argparse.Namespace
) -> None:
    def nothing(*, idle: bool, rows: int = 0) -> DataFrame:
        reader = spark.readStream.format("nothing").option("idle", str(idle).lower())
        return reader.option("rows", rows).option("valueBytes", args.value_bytes).load()

    idle = [
        {
            "nothing": timed(nothing(idle=True), batches=args.batches, with_rows=False),
            "logbus": timed(logbus(), batches=args.batches, with_rows=False),
        }
        for _ in range(args.rounds)
    ]
    show("An idle trigger, ms", idle)
    busy = []
    for _ in range(args.rounds):
        base = timed(nothing(idle=False), batches=args.batches)
        with input_of(client, a_second=args.a_second, value_bytes=args.value_bytes):
            beside = timed(nothing(idle=False), batches=args.batches)
            own = timed(logbus(), batches=args.batches, with_rows=True)
            rows = round(args.a_second * statistics.median(own["triggerExecution"]) / 1_000)
            ready = timed(nothing(idle=False, rows=rows), batches=args.batches)
        busy.append(
            {
                "nothing": base,
                "nothing, beside the input": beside,
                "as many ready-made rows, beside the input": ready,
                "logbus": own,
            }
        )
    show(f"A micro-batch with {args.a_second:,} records a second, ms", busy)
    with input_of(client, a_second=args.a_second, value_bytes=args.value_bytes):
        ms = latencies(logbus(), seconds=args.seconds)
    p50, p99 = np.percentile(ms, [50, 99])
    console.print(
        f"From send to the sink, {len(ms):,} records: p50 {p50:,.0f} ms, p99 {p99:,.0f} ms.\n"
        f"Target: at most {TARGET_MS} ms more at the median.",
        highlight=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--a-second", type=int, default=50_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--batches", type=int, default=40, help="micro-batches that are timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the latency's measurement")
    arguments = parser.parse_args()
    with (
        cluster() as running,
        spark_session() as spark,
        Cluster.from_zookeeper(running.zookeeper) as client,
    ):
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
        spark.dataSource.register(Nothing)
        Admin(client).create_topic(TOPIC, partitions=2)

        def logbus() -> DataFrame:
            reader = spark.readStream.format("logbus").option("zookeeper", running.zookeeper)
            return reader.option("subscribe", TOPIC).load()

        compare(spark, logbus, client, arguments)


if __name__ == "__main__":
    main()
