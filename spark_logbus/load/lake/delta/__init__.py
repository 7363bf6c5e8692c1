"""Delta tables, by the library ``deltalake`` alone: no jar, no service."""

from spark_logbus.load.lake.delta.table import DeltaLakeTable

__all__ = ["DeltaLakeTable"]
