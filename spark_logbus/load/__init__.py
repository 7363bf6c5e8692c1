"""Offline loads: a topic's records into a warehouse, data and offsets committed together."""

from spark_logbus.load.commit import Commit
from spark_logbus.load.completeness import SparkCounts
from spark_logbus.load.config import LoadConfig, ReprocessConfig
from spark_logbus.load.errors import SupersededError, WarehouseError
from spark_logbus.load.files.hadoop import UnsuitableFilesystemError
from spark_logbus.load.files.hive import HiveTableError, MetastoreError
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.jdbc.columns import UnknownRowsError
from spark_logbus.load.layout import (
    FileFormat,
    Layout,
    LayoutChangedError,
    LayoutChoice,
    Period,
)
from spark_logbus.load.plan.window import NotInLogError
from spark_logbus.load.report import Loaded, Reprocessed
from spark_logbus.load.reprocess import run_reprocess
from spark_logbus.load.run import run_load
from spark_logbus.load.schema import IncompatibleColumnsError
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tables import DeltaTable, IcebergTable, JdbcTable

#: Earlier name of ``IncompatibleColumnsError``. The registry has another error of this name.
IncompatibleSchemaError = IncompatibleColumnsError
#: Earlier name of ``StepTimer``.
Steps = StepTimer

__all__ = [
    "Commit",
    "DeltaTable",
    "FileFormat",
    "HiveTableError",
    "IcebergTable",
    "IncompatibleColumnsError",
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
    "StepTimer",
    "Steps",
    "SupersededError",
    "UnknownRowsError",
    "UnsuitableFilesystemError",
    "Warehouse",
    "WarehouseError",
    "run_load",
    "run_reprocess",
]
