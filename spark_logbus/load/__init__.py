"""Offline loads: a topic's records into a warehouse, data and offsets committed together."""

from spark_logbus.load.commit import Commit
from spark_logbus.load.completeness import SparkCounts
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.files.hadoop import UnsuitableFilesystemError, WarehouseError
from spark_logbus.load.files.hive_table import HiveTableError, MetastoreError
from spark_logbus.load.files.warehouse import SupersededError, Warehouse
from spark_logbus.load.jdbc import JdbcTable, UnknownRowsError
from spark_logbus.load.layout import (
    FileFormat,
    Layout,
    LayoutChangedError,
    LayoutChoice,
    Period,
)
from spark_logbus.load.plan.window import NotInLogError
from spark_logbus.load.reprocess import ReprocessConfig, Reprocessed, run_reprocess
from spark_logbus.load.run import Loaded, run_load
from spark_logbus.load.schema import IncompatibleSchemaError
from spark_logbus.load.steps import Steps

__all__ = [
    "Commit",
    "FileFormat",
    "HiveTableError",
    "IncompatibleSchemaError",
    "JdbcTable",
    "Layout",
    "LayoutChangedError",
    "LayoutChoice",
    "LoadConfig",
    "Loaded",
    "MetastoreError",
    "NotInLogError",
    "Period",
    "ReprocessConfig",
    "Reprocessed",
    "SparkCounts",
    "Steps",
    "SupersededError",
    "UnknownRowsError",
    "UnsuitableFilesystemError",
    "Warehouse",
    "WarehouseError",
    "run_load",
    "run_reprocess",
]
