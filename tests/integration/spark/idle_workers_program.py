"""A job for spark-submit that reads a topic, and then is idle until Spark has let its workers go.

That takes a minute and some seconds: Spark's own time, which cannot be set.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.helpers import process_is_gone, wait_until


def daemons(spark: SparkSession) -> dict[int, str]:
    """Their process ids, and the kind of worker that each is for."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    found = {}
    for pid in children(jvm.java.lang.ProcessHandle.current().pid()):
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "pyspark.daemon" in arguments:
            found[pid] = arguments[arguments.index("pyspark.daemon") + 1]
    return found


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def main(zookeeper: str, topic: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    reader = spark.read.format("logbus").options(zookeeper=zookeeper, subscribe=topic)
    sys.stdout.write(f"{reader.load().count()} records\n")
    idle = daemons(spark)
    sys.stdout.write(f"idle workers of: {' '.join(sorted(idle.values()))}\n")
    workers = [worker for pid in idle for worker in children(pid)]
    wait_until(
        lambda: all(map(process_is_gone, workers)), deadline_s=180, message="the workers to end"
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
