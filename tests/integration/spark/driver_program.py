"""A streaming driver of its own, to be killed: copies a topic's values into files."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tests.servers.driver_session import patient
from tests.servers.spark import MODES


def main(zookeeper: str, topic: str, directory: str, mode: str, master: str = "local[1]") -> None:
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
    source = (
        spark.readStream.format("logbus")
        .options(zookeeper=zookeeper, subscribe=topic, group=f"killed-{topic}")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="25", **MODES[mode])
        .load()
    )
    query = (
        source.selectExpr("cast(value as string) AS value")
        .writeStream.format("text")
        .option("path", f"{directory}/out")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
