"""An Iceberg table by its name in a catalogue, whether it is there or not."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Final

from pyarrow import fs as pafs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table, Transaction
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.iceberg import columns as column_types
from spark_logbus.load.lake.iceberg import partitions
from spark_logbus.load.lake.iceberg.asking import asking, conflict, shown
from spark_logbus.load.lake.iceberg.files import FILE_IO, file_io, located
from spark_logbus.load.lake.iceberg.version import FORMAT_VERSION, IcebergVersion
from spark_logbus.load.lake.table import OWN_DIRECTORY
from spark_logbus.load.layout import Layout, LayoutChoice
from spark_logbus.load.tables import IcebergTable

#: Properties of a table that a load makes. Each commit writes a file of metadata; without the
#: second of these all of them would be kept, which are ever longer.
_OF_NEW: Final = {
    "format-version": str(FORMAT_VERSION),
    "write.metadata.delete-after-commit.enabled": "true",
}
#: A change of schema or properties is made again on what another writer has made meanwhile.
_ATTEMPTS: Final = 5


class IcebergLakeTable:
    """A table of a catalogue. Not thread-safe."""

    widens = True

    def __init__(self, table: IcebergTable) -> None:
        self._table = table
        self._opened: Catalog | None = None

    @property
    def name(self) -> str:
        return str(self._table)

    def newest(self) -> IcebergVersion | None:
        found = self._load()
        return None if found is None else IcebergVersion(found, self._table)

    def create(self, schema: StructType, layout: Layout, properties: Mapping[str, str]) -> None:
        columns = column_types.iceberg_schema(schema)
        spec = partitions.spec_of(layout, columns)
        catalog, namespace = self._catalog(), self._table.identifier[:-1]
        with asking(f"create table {self.name}", self._table):
            for depth in range(1, len(namespace) + 1):
                if not catalog.namespace_exists(namespace[:depth]):
                    catalog.create_namespace_if_not_exists(namespace[:depth])
            try:
                catalog.create_table(
                    self._table.identifier,
                    columns,
                    partition_spec=spec,
                    properties={**_OF_NEW, **properties},
                )
            except TableAlreadyExistsError:
                return
            except ValueError as error:
                # The library's own words for a location that no property tells.
                raise ConfigError(
                    f"Cannot create table {self.name}: {shown(error, self._table)} The catalogue "
                    "needs its property warehouse, with the place for tables."
                ) from error

    def set_properties(self, properties: Mapping[str, str]) -> None:
        def change(_: Table, transaction: Transaction) -> None:
            transaction.set_properties(dict(properties))

        self._alter("set properties of", change)

    def evolve(self, schema: StructType) -> None:
        new = column_types.iceberg_schema(schema)

        def change(table: Table, transaction: Transaction) -> None:
            with transaction.update_schema() as update:
                column_types.evolve(update, table.schema(), new)

        self._alter("change the columns of", change)

    def layout_of_new(self, choice: LayoutChoice) -> Layout:
        return partitions.layout_of_new(choice, table=self.name)

    def partitioned(self, frame: DataFrame, layout: Layout) -> DataFrame:
        partitions.check_columns(layout, frame.schema)
        column_types.iceberg_schema(frame.schema)  # refuses what Iceberg does not have
        return frame

    def own_directory(self) -> tuple[pafs.FileSystem, str]:
        table = self._existing()
        with asking(f"reach the storage of {self.name}", self._table):
            io = file_io(table, self.name)
            filesystem, path = located(io, table.location())
        return filesystem, posixpath.join(path, OWN_DIRECTORY)

    def _alter(self, what: str, change: Callable[[Table, Transaction], None]) -> None:
        """Commits a change that is the same on whatever version it is made."""
        for attempt in range(_ATTEMPTS):
            table = self._existing()
            with asking(f"{what} table {self.name}", self._table):
                transaction = table.transaction()
                change(table, transaction)
                try:
                    transaction.commit_transaction()
                except CommitFailedException as error:
                    if attempt == _ATTEMPTS - 1:
                        raise conflict(self.name) from error
                else:
                    return

    def _existing(self) -> Table:
        table = self._load()
        if table is None:
            raise WarehouseError(f"Table {self.name} is missing; it was there a moment ago.")
        return table

    def _load(self) -> Table | None:
        catalog = self._catalog()
        with asking(f"open table {self.name}", self._table):
            try:
                return catalog.load_table(self._table.identifier)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                # There are subclasses for names of what is no table of Iceberg's.
                if type(error) in (NoSuchTableError, NoSuchNamespaceError):
                    return None
                raise

    def _catalog(self) -> Catalog:
        if self._opened is None:
            table = self._table
            try:
                self._opened = load_catalog(table.catalog, **{**FILE_IO, **table.properties})
            except Exception as error:
                told = (
                    f"Cannot open the Iceberg catalogue {table.catalog}: {shown(error, table)} "
                    "Its properties (type, uri, warehouse) come from the file of "
                    "--lake-properties, or from .pyiceberg.yaml."
                )
                if isinstance(error, ValueError | KeyError | ImportError | NotInstalledError):
                    # Without the library's error: it may show all properties.
                    raise ConfigError(told) from None
                raise WarehouseError(told) from error
        return self._opened
