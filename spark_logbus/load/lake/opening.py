"""Tables of a lake by the names of ``load.tables``; the libraries are imported when they are needed
and missed by the name of their extra."""

from __future__ import annotations

from spark_logbus.errors import ConfigError
from spark_logbus.load.lake.table import LakeTable
from spark_logbus.load.tables import DeltaTable, TableOfLake


def open_table(name: TableOfLake) -> LakeTable:
    """Returns the table of that name, whether it is there or not. Raises ConfigError where the
    library of its format is not installed."""
    extra = "delta" if isinstance(name, DeltaTable) else "iceberg"
    try:
        if isinstance(name, DeltaTable):
            from spark_logbus.load.lake.delta import DeltaLakeTable

            return DeltaLakeTable(name)
        from spark_logbus.load.lake.iceberg import IcebergLakeTable

        return IcebergLakeTable(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("deltalake", "pyiceberg"):
            raise
        raise ConfigError(
            f"Loads into {name} need the library {error.name}, which is not installed; "
            f"`pip install '.[{extra}]'` in a clone of logbus brings it."
        ) from error
