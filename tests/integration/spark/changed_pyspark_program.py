"""A stream on a PySpark that has dropped the private class which hands rows over."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession, datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_logbus import DefaultSource
from tests.servers.spark import finish, input_partitions


class ChangedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "changed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if hasattr(sys.modules["__main__"], "partitions_func"):  # in the planner's process
            del datasource_internal._SimpleStreamReaderWrapper
        return super().streamReader(schema)


def main(zookeeper: str, topic: str) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.dataSource.register(ChangedSource)
    source = (
        spark.readStream.format("changed")
        .options(zookeeper=zookeeper, subscribe=topic)
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="6")
        .load()
    )
    rows: list[str] = []
    tasks: list[list[bool]] = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        tasks.append(input_partitions(frame))
        rows.extend(row["value"].decode() for row in frame.collect())

    finish(source.writeStream.foreachBatch(collect).trigger(availableNow=True).start())
    sys.stdout.write(json.dumps({"rows": rows, "tasks": tasks}))
    spark.stop()


if __name__ == "__main__":
    # As a module, so that the planner's process finds the source by name.
    from tests.integration.spark import changed_pyspark_program

    changed_pyspark_program.main(*sys.argv[1:])
