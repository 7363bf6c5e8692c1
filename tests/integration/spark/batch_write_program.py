"""Batch writes in a driver of their own.

``two``: one write into each of two topics, at the same time, to be killed. ``attempts``: one write
whose tasks fail at first, and are done twice, by speculation.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.helpers import wait_until
from tests.servers.driver_session import patient

ROWS = 30_000
TASKS = 3
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1s",
}


def write(frame: DataFrame, zookeeper: str, topic: str) -> None:
    # Makes the session the active one of this thread: only there Spark looks for Python sinks.
    frame.sparkSession.createDataFrame([], frame.schema)
    writer = frame.write.format("logbus").options(zookeeper=zookeeper, topic=topic)
    writer.mode("append").save()


def main(what: str, master: str, zookeeper: str, directory: str, *topics: str) -> None:
    builder = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = patient(builder.getOrCreate())
    # 200 bytes a value: each task stages some record batches before its last rows.
    frame = spark.range(0, ROWS, 1, TASKS).selectExpr("lpad(cast(id as string), 200, '0') AS value")
    if what == "attempts":
        overtaken = Path(directory, "overtaken")

        def trouble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            yield from batches
            if context.partitionId() == 0 and context.attemptNumber() == 0:
                raise ValueError("the first attempt fails when it has sent all")
            if context.partitionId() == 1:
                if context.attemptNumber() == 0:
                    wait_until(overtaken.exists, deadline_s=120, message="a speculative attempt")
                else:
                    overtaken.touch()

        frame = frame.mapInArrow(trouble, "value string")
    threads = [
        threading.Thread(target=write, args=(frame, zookeeper, topic), daemon=True)
        for topic in topics
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
