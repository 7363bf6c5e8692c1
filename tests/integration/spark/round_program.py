"""What a user does with a topic, in a Spark session of any kind; tells what came of it as JSON.

Reads a topic in batch, streams it into files with a listener for its lag, and writes it into
another topic.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from spark_logbus.spark.lag.listener import LagListener
from tests.servers.spark import MODES


def session(where: str) -> SparkSession:
    if where.startswith("sc://"):
        return SparkSession.builder.remote(where).getOrCreate()
    builder = SparkSession.builder.master(where).appName("logbus-round")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def jvm_of_this_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The process that started the daemon that forked this worker: the executor."""
    daemon = os.getppid()
    jvm = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"jvm": [jvm] * batch.num_rows})


def wait_for_lag(
    registry: CollectorRegistry, labels: dict[str, str], wanted: float | None
) -> float | None:
    """Waits until the listener has been told of such a lag, or of the query's end if it is None."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        value = registry.get_sample_value("logbus_query_bytes_behind", labels)
        if value == wanted:
            return value
        threading.Event().wait(0.05)
    raise TimeoutError(f"The listener has not been told of a lag of {wanted} bytes, but {value}.")


def main(where: str, zookeeper: str, topic: str, target: str, directory: str, mode: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    spark = session(where)
    reader = spark.read.format("logbus").options(zookeeper=zookeeper, subscribe=topic)
    # So few records would be read by one task; these are to meet all executors.
    frame = reader.option("minPartitions", "4").load()
    told: dict[str, object] = {"batch": frame.count()}
    told["jvms"] = len(
        {row.jvm for row in frame.mapInArrow(jvm_of_this_worker, "jvm long").collect()}
    )

    registry = CollectorRegistry()
    listener = LagListener(registry=registry)
    spark.streams.addListener(listener)
    stream = (
        spark.readStream.format("logbus")
        .options(zookeeper=zookeeper, subscribe=topic, group="round")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="150", **MODES[mode])
        .load()
    )
    query = (
        stream.selectExpr("cast(value as string) AS value")
        .writeStream.format("parquet")
        .queryName("round")
        .option("path", f"{directory}/out")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .start()
    )
    labels = {"query": "round", "id": str(query.id), "source": "0"}
    told["bytesBehind"] = wait_for_lag(registry, labels, 0)
    query.processAllAvailable()
    query.stop()
    # Through Connect, an event that comes while the listener is removed stops both for good.
    wait_for_lag(registry, labels, None)
    spark.streams.removeListener(listener)
    told["streamed"] = sorted(row.value for row in spark.read.parquet(f"{directory}/out").collect())

    writer = frame.selectExpr("key", "value").write.format("logbus")
    writer.options(zookeeper=zookeeper, topic=target).mode("append").save()
    spark.stop()
    Path(directory, "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
