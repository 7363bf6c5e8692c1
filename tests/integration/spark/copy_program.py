"""A streaming driver of its own, to be killed: copies topics into others, exactly once.

After the mode and the master, the arguments are source, target and checkpoint of each query.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tests.servers.driver_session import patient
from tests.servers.spark import MODES


def main(zookeeper: str, mode: str, master: str, *copies: str) -> None:
    spark = patient(
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    for source, target, checkpoint in zip(copies[::3], copies[1::3], copies[2::3], strict=True):
        # More tasks than partitions: the records of a key then are of several tasks.
        frame = (
            spark.readStream.format("logbus")
            .options(zookeeper=zookeeper, subscribe=source, startingOffsets="earliest")
            .options(maxOffsetsPerTrigger="60", minPartitions="5", **MODES[mode])
            .load()
        )
        query = (
            frame.select("key", "value")
            .writeStream.format("logbus")
            .options(zookeeper=zookeeper, topic=target, checkpointLocation=checkpoint)
            .start()
        )
        # One after the other: Spark gives the process of each only seconds to start.
        query.processAllAvailable()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
