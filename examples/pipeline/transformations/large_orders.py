"""Orders of 100 or more, from the topic ``orders`` into the topic ``orders-large``, exactly once.

Both are on the cluster that ``LOGBUS_ZOOKEEPER`` names.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ORDER = "id long, amount double"

dp.create_sink("orders_large", "logbus", {"topic": "orders-large"})


@dp.temporary_view
def orders() -> DataFrame:
    """One row for each order, with its record's key."""
    spark = SparkSession.active()
    records = spark.readStream.format("logbus").options(
        subscribe="orders", startingOffsets="earliest"
    )
    order = F.from_json(F.col("value").cast("string"), ORDER)
    return records.load().select("key", order.alias("order"))


@dp.append_flow(target="orders_large")
def large_orders() -> DataFrame:
    """What is written: columns of a record."""
    large = SparkSession.active().readStream.table("orders").where("order.amount >= 100")
    return large.select("key", F.to_json("order").alias("value"))
