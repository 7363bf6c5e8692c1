"""Tables of a lake as places of an audit.

One version of the table tells both its rows and the offsets that are in, so what others commit
meanwhile changes nothing. Dead letters are in another table, which gets them after the commit: of
these, what was loaded after the version does not count.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_logbus.audit.auditing import Place
from spark_logbus.audit.warehouse import ROW_COLUMNS, Loads, place_of
from spark_logbus.client import Cluster
from spark_logbus.errors import InvalidRequestError
from spark_logbus.load.lake.opening import open_table
from spark_logbus.load.lake.table import TOPIC, LakeFile, LakeVersion
from spark_logbus.load.tables import TableOfLake

_FILES_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table into which a topic was loaded, as it is at one version. Not thread-safe."""

    name: str
    version: LakeVersion
    #: Table of the dead letters; None where there is none.
    letters: LakeVersion | None
    loads: Loads

    @staticmethod
    def open(table: TableOfLake, topic: str) -> LoadedTable:
        """Opens the newest version. Raises InvalidRequestError where no load of the topic was
        committed to it, RestoredError where it was set back since the last one, ConfigError and
        WarehouseError."""
        opened = open_table(table)
        version = opened.newest()
        progress = None if version is None else version.progress()
        if version is None or progress is None or version.properties.get(TOPIC) != topic:
            other = None if version is None else version.properties.get(TOPIC)
            reason = (
                f"it holds the topic {other}" if other not in (None, topic) else "there is none"
            )
            raise InvalidRequestError(
                f"Expected a table with loads of {topic} under the name {table}: {reason}. Name it "
                "as it was given to load_warehouse.py."
            )
        letters = open_table(table.dead_letters).newest()
        return LoadedTable(f"table {opened.name}", version, letters, progress.loads)

    def rows(self) -> pa.Table:
        """Reads partition, offset and timestamp of all records, dead letters too, in this process.

        Rows of another writer, which may lack one of these, are left out.
        """
        rows = _read(self.version)
        if self.letters is not None:
            letters = _read(self.letters)
            rows = pa.concat_tables([rows, letters.filter(pa.array(self._loaded(letters)))])
        return rows.drop_null()

    def _loaded(self, rows: pa.Table) -> np.ndarray:
        """Tells of each row whether its offset is among those that the version has."""
        partitions, offsets = (
            rows.column(name).fill_null(-1).to_numpy() for name in ("partition", "offset")
        )
        loaded = np.zeros(rows.num_rows, dtype=bool)
        for partition, end in self.loads.ends.items():
            loaded |= (partitions == partition) & (offsets < end)
        return loaded


def lake_place(cluster: Cluster, topic: str, table: TableOfLake) -> Place:
    """Makes a place of a lake's table, which is read in this process. Raises what
    ``LoadedTable.open`` does."""
    loaded = LoadedTable.open(table, topic)
    return place_of(cluster, topic, loaded.name, loaded.loads, loaded.rows)


def _read(version: LakeVersion) -> pa.Table:
    reader = version.reader(ROW_COLUMNS.names)

    def read(file: LakeFile) -> pa.Table:
        return pa.Table.from_batches(reader.read(file), reader.schema).cast(ROW_COLUMNS)

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return pa.concat_tables([ROW_COLUMNS.empty_table(), *pool.map(read, version.files())])
