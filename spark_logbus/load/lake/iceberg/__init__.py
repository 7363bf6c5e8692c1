"""Iceberg tables, by the library ``pyiceberg`` alone: no jar."""

from spark_logbus.load.lake.iceberg.table import IcebergLakeTable

__all__ = ["IcebergLakeTable"]
