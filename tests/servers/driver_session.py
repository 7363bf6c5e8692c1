"""Settings that Spark sessions of tests and of their programs share."""

from __future__ import annotations

from pyspark.sql import SparkSession

_WORKER_START_MS = 60_000


def driver_builder() -> SparkSession.Builder:
    """Builds the session of a program that loads, and is killed by tests: small, on loopback."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
    )


def patient(spark: SparkSession) -> SparkSession:
    """Gives Python processes of the driver a minute to start, where Spark has a constant of ten
    seconds: a machine that does much else needs them."""
    java = spark.sparkContext._jvm.java.lang.Class  # type: ignore[union-attr]
    access = java.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
    access.setAccessible(True)
    unsafe = access.get(None)
    factory = java.forName("org.apache.spark.api.python.PythonWorkerFactory$")
    constant = factory.getDeclaredField("PROCESS_WAIT_TIMEOUT_MS")
    place = unsafe.staticFieldBase(constant), unsafe.staticFieldOffset(constant)
    unsafe.putInt(*place, _WORKER_START_MS)
    return spark
