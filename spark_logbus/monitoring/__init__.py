"""How far Spark's streaming queries are behind, for logs and Prometheus.

Reads what Spark says of a query's progress, and asks no broker.
"""

from spark_logbus.monitoring.listener import LagListener

__all__ = ["LagListener"]
