"""Tables of a database as data frames, which Spark reads and writes with connections of its own."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_logbus.load.jdbc.connection import DRIVER, Database

#: Of one load: a database takes a hundred in all by default.
_CONNECTIONS: Final = 8
#: Rows that go to the database at once, and come back.
_BATCH_ROWS: Final = "10000"


def read(spark: SparkSession, database: Database, name: str) -> DataFrame:
    """A table of the schema, through one connection."""
    reader = spark.read.format("jdbc").options(**_options(database))
    return reader.option("dbtable", database.qualified(name)).load()


def append(frame: DataFrame, database: Database, name: str) -> None:
    """Add to a table that is there, with the columns of ``frame``."""
    # Spark's own option for it, numPartitions, hides from the load what passes through.
    bounded = frame.coalesce(_CONNECTIONS)
    writer = bounded.write.format("jdbc").options(**_options(database))
    writer.option("dbtable", database.qualified(name)).mode("append").save()


def _options(database: Database) -> dict[str, str]:
    return {
        **database.properties,
        "url": database.url,
        "driver": DRIVER,
        "batchsize": _BATCH_ROWS,
        "fetchsize": _BATCH_ROWS,
    }
