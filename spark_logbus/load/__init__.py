"""Offline loads: a topic's records into a warehouse, data and offsets committed together."""

from spark_logbus.load.commits import Commit
from spark_logbus.load.hadoop import WarehouseError
from spark_logbus.load.load import LoadConfig, Loaded, run_load
from spark_logbus.load.warehouse import Warehouse

__all__ = ["Commit", "LoadConfig", "Loaded", "Warehouse", "WarehouseError", "run_load"]
