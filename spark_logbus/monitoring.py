"""The listener that logs and exports the lag of Spark's streaming queries."""

from spark_logbus.spark.lag.listener import LagListener

__all__ = ["LagListener"]
