"""A driver that reads and writes a guarded topic with tasks on workers that have no profile.

Arguments: the directory for checkpoints and event logs. Prints what it has read, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession


def main(directory: Path) -> None:
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    (directory / "events").mkdir()
    session = (
        SparkSession.builder.master("local-cluster[2,1,700]")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", (directory / "events").as_uri())
        .config("spark.executorEnv.LOGBUS_PROFILES", "/nowhere/profiles.toml")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.executorEnv.PYSPARK_PYTHON", sys.executable)
        .getOrCreate()
    )
    options = {"profile": "test"}
    frame = session.createDataFrame([(f"{number}".encode(),) for number in range(100)], ["value"])
    written = frame.repartition(4).selectExpr("cast(value as binary) as value")
    written.write.format("logbus").options(**options).mode("append").save("t")
    read = session.read.format("logbus").options(**options).load("t")
    values = sorted(int(row.value) for row in read.select("value").collect())
    read.explain(extended=True)
    query = (
        session.readStream.format("logbus")
        .options(**options, startingOffsets="earliest", maxPrefetchBytes="0")
        .load("t")
        .select("value")
        .writeStream.format("logbus")
        .options(**options, topic="copy")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = session.read.format("logbus").options(**options).load("copy")
    both = {
        "read": values,
        "copied": sorted(int(row.value) for row in copied.select("value").collect()),
        "progress": json.dumps(query.lastProgress, default=str),
    }
    sys.stdout.write(f"RESULT {json.dumps(both)}\n")
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
