"""The Spark session of programs that load, and are killed by tests: small, and on loopback."""

from __future__ import annotations

from pyspark.sql import SparkSession


def driver_builder() -> SparkSession.Builder:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
    )
