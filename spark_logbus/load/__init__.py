"""Offline loads: a topic's records into a warehouse, data and offsets committed together."""

from spark_logbus.load.commits import Commit
from spark_logbus.load.completeness import SparkCounts
from spark_logbus.load.hadoop import WarehouseError
from spark_logbus.load.load import LoadConfig, Loaded, run_load
from spark_logbus.load.schema import IncompatibleSchemaError
from spark_logbus.load.warehouse import SupersededError, Warehouse

__all__ = [
    "Commit",
    "IncompatibleSchemaError",
    "LoadConfig",
    "Loaded",
    "SparkCounts",
    "SupersededError",
    "Warehouse",
    "WarehouseError",
    "run_load",
]
