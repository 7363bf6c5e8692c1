"""A Delta table, whether it is there or not."""

from __future__ import annotations

import json
from collections.abc import Mapping

import deltalake
from pyarrow import fs as pafs
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_logbus.errors import ConfigError
from spark_logbus.load.lake.columns import nullable
from spark_logbus.load.lake.delta.files import arrow_schema
from spark_logbus.load.lake.delta.layout import check_parquet
from spark_logbus.load.lake.delta.log import DIRECTORY, CommitLog
from spark_logbus.load.lake.delta.protocol import check_columns
from spark_logbus.load.lake.delta.storage import DeltaStorage
from spark_logbus.load.lake.delta.version import DeltaLakeVersion, open_newest
from spark_logbus.load.lake.table import OWN_DIRECTORY
from spark_logbus.load.layout import Layout, LayoutChoice, settle
from spark_logbus.load.read.reading import partitioned
from spark_logbus.load.tables import DeltaTable


class DeltaLakeTable:
    """A Delta table by its path or URI, whether it is there or not. Not thread-safe."""

    widens = False

    def __init__(self, name: DeltaTable) -> None:
        self._storage = DeltaStorage.of(name.uri, name.options)
        self._log = CommitLog(self._storage)

    @property
    def name(self) -> str:
        return self._storage.root

    def newest(self) -> DeltaLakeVersion | None:
        return open_newest(self._storage, self._log)

    def create(self, schema: StructType, layout: Layout, properties: Mapping[str, str]) -> None:
        check_columns(schema, where=self.name)
        self._check_empty()
        wanted = nullable(schema)
        with self._storage.errors("make"):
            try:
                deltalake.DeltaTable.create(
                    self.name,
                    deltalake.Schema.from_json(json.dumps(wanted.jsonValue())),
                    mode="error",
                    partition_by=list(layout.partition_columns),
                    configuration=dict(properties),
                    storage_options=dict(self._storage.options),
                    raise_if_key_not_exists=False,
                )
            except Exception:
                # Another may have made it just now; else the first error tells more.
                if self.newest() is None:
                    raise

    def _check_empty(self) -> None:
        """Raises ConfigError for a directory with files of something else, which would then be
        taken for the table's."""
        storage, root = self._storage.filesystem(), self._storage.path("").rstrip("/")
        with self._storage.errors("look for"):
            found = storage.get_file_info(pafs.FileSelector(root, allow_not_found=True))
            own = pafs.FileSelector(self._storage.path(OWN_DIRECTORY), allow_not_found=True)
            others = [each.base_name for each in found if each.base_name != OWN_DIRECTORY]
            # A load into files keeps directories there.
            others += [
                f"{OWN_DIRECTORY}/{each.base_name}"
                for each in storage.get_file_info(own)
                if each.type is pafs.FileType.Directory
            ]
        if others and DIRECTORY not in others:
            shown = ", ".join(sorted(others)[:3])
            raise ConfigError(
                f"{self.name} is no Delta table and has files of something else ({shown}). Name a "
                "directory that is empty or not there yet."
            )

    def set_properties(self, properties: Mapping[str, str]) -> None:
        with self._storage.errors("set properties of"):
            self._open().alter.set_table_properties(dict(properties), raise_if_not_exists=False)

    def evolve(self, schema: StructType) -> None:
        check_columns(schema, where=self.name)
        with self._storage.errors("add columns to"):
            table = self._open()
            deltalake.write_deltalake(
                table,
                arrow_schema(schema).empty_table(),
                mode="append",
                schema_mode="merge",
                partition_by=table.metadata().partition_columns,
            )

    def _open(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.name, storage_options=dict(self._storage.options))

    def layout_of_new(self, choice: LayoutChoice) -> Layout:
        layout = settle(None, choice, where=self.name)
        check_parquet(layout)
        return layout

    def partitioned(self, frame: DataFrame, layout: Layout) -> DataFrame:
        return partitioned(frame, layout)

    def own_directory(self) -> tuple[pafs.FileSystem, str]:
        return self._storage.filesystem(), self._storage.path(OWN_DIRECTORY)
