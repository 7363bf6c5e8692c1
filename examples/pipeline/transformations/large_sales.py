"""Sales of 100 or more, from the topic ``sales`` into the topic ``sales-large``, exactly once.

Both are on the cluster that ``LOGBUS_ZOOKEEPER`` names.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SALE = "id long, amount double"

dp.create_sink("sales_large", "logbus", {"topic": "sales-large"})


@dp.temporary_view
def sales() -> DataFrame:
    """One row for each sale, with its record's key."""
    spark = SparkSession.active()
    records = spark.readStream.format("logbus").options(
        subscribe="sales", startingOffsets="earliest"
    )
    sale = F.from_json(F.col("value").cast("string"), SALE)
    return records.load().select("key", sale.alias("sale"))


@dp.append_flow(target="sales_large")
def large_sales() -> DataFrame:
    """Columns of a record that is written."""
    large = SparkSession.active().readStream.table("sales").where("sale.amount >= 100")
    return large.select("key", F.to_json("sale").alias("value"))
