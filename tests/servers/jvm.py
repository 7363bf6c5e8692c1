"""Start of the tests' JVMs: quick, as most of them live for seconds.

They compile no further than the first tier, collect garbage with one thread, and find Spark's
classes in an archive, parsed and verified: that saves half of the processor time of a start. The
archive is made once for a Java and a PySpark, beside the first long run of tests, and costs as much
as some starts; JVMs that start before it is there do without.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

import pyspark

_PROJECT = Path(__file__).parents[2]
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def set_up(environment: MutableMapping[str, str], directory: Path) -> Path:
    """Has JVMs of programs in this environment start quickly; returns the path of the archive,
    which is in ``directory``."""
    made_for = f"{pyspark.__version__} {environment['JAVA_HOME']}"
    archive = directory / f"classes-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.jsa"
    # Without an archive that fits, a JVM goes on, and would say so.
    options = f"{_SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xlog:disable"
    environment["SPARK_LAUNCHER_OPTS"] = _SHORT_LIVED
    environment["SPARK_SUBMIT_OPTS"] = options  # drivers
    environment["SPARK_DAEMON_JAVA_OPTS"] = options  # masters and workers
    environment["PYSPARK_SUBMIT_ARGS"] = f"--conf '{executors(environment)}' pyspark-shell"
    return archive


def executors(environment: MutableMapping[str, str]) -> str:
    """Setting of Spark that has executors start as drivers do."""
    return f"spark.executor.extraJavaOptions={environment['SPARK_SUBMIT_OPTS']}"


def make(archive: Path) -> None:
    """Starts a program that makes the archive, unless it is there."""
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        subprocess.Popen(
            [sys.executable, "-m", "tests.servers.jvm", str(archive)],
            cwd=_PROJECT, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _main(archive: Path) -> None:
    """Uses Spark as the tests do, and has its JVM write down the classes that it has loaded."""
    from pyspark.sql import SparkSession

    partial = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"{_SHORT_LIVED} -Xlog:disable -XX:ArchiveClassesAtExit={partial}"
    )
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    directory = archive.with_suffix(f".{os.getpid()}.tables")
    frame = spark.range(10).selectExpr("id", "cast(id AS string) AS name", "id % 2 AS part")
    frame.write.partitionBy("part").parquet(str(directory / "table"))
    query = (
        spark.readStream.schema(spark.read.parquet(str(directory / "table")).schema)
        .parquet(str(directory / "table"))
        .groupBy("part")
        .count()
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("counts")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.table("counts").collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.proc.stdin.close()  # at which the JVM ends
    gateway.proc.wait()
    shutil.rmtree(directory)
    partial.rename(archive)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
