"""Interface of a table format: what a load needs of Delta or Iceberg, and nothing else.

A table is a log of versions. Each names the files whose records are in it, and carries the offsets
up to which a topic is loaded: its **progress**. One commit makes the next version, with files added
and removed and the progress after them, and it does so only on the very version that was looked at.
So whoever commits has seen the progress that it goes on from, and two loads cannot both commit.

What a format does with a load's files is done twice: in Spark's tasks, which write and read them,
and in the driver, which commits. What goes to the tasks is picklable: ``FileWriter`` and
``FileReader``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pyarrow as pa
from pyarrow import fs as pafs
from pyarrow import parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_logbus.audit.warehouse import Loads, OffsetSpan
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.dividing import Divider
from spark_logbus.load.layout import Layout, LayoutChoice
from spark_logbus.model import OffsetRange

#: Names of the table's properties that tell what it is to loads.
TOPIC = "logbus.topic"
TOPIC_ID = "logbus.topic-id"
LAYOUT = "logbus.layout"

#: Directory in the table's own, for what readers of the table pass over.
OWN_DIRECTORY = "_logbus"

_ASKED_AT_ONCE: Final = 16


class VersionConflictError(WarehouseError):
    """Error: somebody has committed to the table since the version that was looked at."""


class RestoredError(WarehouseError):
    """The table was set back to an earlier version since the last load."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The offsets that are in a table, and which load has committed them last. Immutable."""

    topic_id: str
    number: int
    #: Number of 63 bits that no other load or fence has.
    token: int
    #: Of all partitions, also those that had nothing yet.
    ends: Mapping[int, int]
    #: Offsets that came in, by partition; loads leave some out with ``--allow-gaps`` alone.
    spans: Mapping[int, Sequence[OffsetSpan]] = field(default_factory=dict)

    def after(
        self, number: int, token: int, ranges: Sequence[OffsetRange], ends: Mapping[int, int]
    ) -> Progress:
        """Progress when the ranges have come in too."""
        spans = {partition: list(own) for partition, own in self.spans.items()}
        for each in ranges:
            own = spans.setdefault(each.topic_partition.partition, [])
            if own and own[-1][1] == each.start:
                own[-1] = (own[-1][0], each.end)
            else:
                own.append((each.start, each.end))
        return Progress(self.topic_id, number, token, {**self.ends, **ends}, spans)

    def fenced(self, token: int) -> Progress:
        """Returns the same progress under another token, after which no load before can commit."""
        return replace(self, token=token)

    @property
    def loads(self) -> Loads:
        return Loads({each: list(own) for each, own in self.spans.items()}, dict(self.ends))


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One file of a table, as the table's log names it, or as a task has written it. Immutable and
    picklable."""

    #: As the log has it: from the table's directory on for Delta, the whole URI for Iceberg.
    path: str
    size_bytes: int
    records: int
    #: Values of the partition columns, in the order of ``LakeVersion.partition_names``, as text
    #: that is the same for the same value; files of one partition are rewritten together.
    partition: tuple[str | None, ...] = ()
    #: Smallest and largest of the columns ``partition`` and ``offset``; None where the log does
    #: not tell.
    partitions: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None
    #: False for a file of another writer that ``commit`` cannot remove.
    removable: bool = True
    #: What else the format needs to add or remove the file; picklable.
    detail: object = field(default=None, compare=False, repr=False)


def properties_of(topic: str, topic_id: str, layout: Layout) -> dict[str, str]:
    """Properties of a table that holds a topic."""
    described = json.dumps(layout.to_json(), sort_keys=True)
    return {TOPIC: topic, TOPIC_ID: topic_id, LAYOUT: described}


@dataclass(frozen=True, slots=True)
class Change:
    """Change that one commit makes to a version. Immutable."""

    progress: Progress
    added: Sequence[LakeFile] = ()
    removed: Sequence[LakeFile] = ()
    #: False where the same records are stored in other files, which readers of changes pass over.
    data_change: bool = True


def missing_files(storage: pafs.FileSystem, paths: Mapping[str, str]) -> list[str]:
    """Returns the names of files that are not in the storage; ``paths`` has the path of each."""
    shares = [[*paths.values()][each::_ASKED_AT_ONCE] for each in range(_ASKED_AT_ONCE)]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        found = pool.map(storage.get_file_info, filter(None, shares))
        there = {each.path for share in found for each in share if each.is_file}
    return [name for name, path in paths.items() if path not in there]


class FileWriter(Protocol):
    """Writer of files in tasks. Picklable; holds no connection."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the files, with names and types as the table has them, without the columns of
        ``partition_names``. What the format keeps in the fields (ids) is there too."""
        ...

    @property
    def partition_names(self) -> tuple[str, ...]:
        """Columns of the frame that say which partition a record belongs to; in no file."""
        ...

    def filesystem(self) -> pafs.FileSystem:
        """Opens the table's storage."""
        ...

    def path(self, values: Sequence[object], name: str) -> str:
        """Path for ``filesystem`` of a file called ``name`` with these partition values (Python's,
        as Arrow gives them). Directories are made by the caller where the storage has them."""
        ...

    def describe(
        self, path: str, size_bytes: int, metadata: pq.FileMetaData, values: Sequence[object]
    ) -> LakeFile:
        """Describes a file that was written at ``path``, from its footer."""
        ...


class FileReader(Protocol):
    """Reader of a table's files in tasks. Picklable; holds no connection."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and types of what ``read`` yields, in this order; Spark takes it as it is."""
        ...

    def read(self, file: LakeFile) -> Iterator[pa.RecordBatch]:
        """Reads the rows that the version has of the file (deleted ones are not among them), with
        partition columns, and null for columns that the file was written before."""
        ...


class LakeVersion(Protocol):
    """One version of a table. What it tells does not change, whatever others commit.

    All methods raise WarehouseError.
    """

    @property
    def version(self) -> int:
        """Number or id of the version, for messages."""
        ...

    @property
    def table_id(self) -> str:
        """Id of the table, which another one under the same name does not have."""
        ...

    @property
    def schema(self) -> StructType:
        """Columns of the table in their order, partition columns of Delta among them; nullability
        as the table has it."""
        ...

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        ...

    @property
    def partition_names(self) -> tuple[str, ...]:
        """Columns that ``partitioned`` adds to a frame, or that are there and no file holds."""
        ...

    def layout(self, choice: LayoutChoice) -> Layout:
        """Layout of the table's partitions. Raises LayoutChangedError where ``choice`` asks for
        another, and ConfigError for partitions that loads cannot write."""
        ...

    def partitioned(self, frame: DataFrame, layout: Layout) -> DataFrame:
        """Adds the columns of ``partition_names`` to records. Raises ConfigError."""
        ...

    def timed_name(self, layout: Layout) -> str | None:
        """Name, of ``partition_names``, of the column that is null for records without event time;
        None where the event time makes no partition."""
        ...

    def divider(self, layout: Layout, schema: StructType) -> Divider | None:
        """Returns what does as ``partitioned``, to records of that schema, by Arrow alone; None
        where only Spark can."""
        ...

    def progress(self, *, restored: bool = False) -> Progress | None:
        """Reads the offsets that are in; None before a first load.

        Raises RestoredError, with the offsets of both, where the table was set back since then;
        with ``restored`` it is the newest progress, with the offsets of the version that the table
        was set back to.
        """
        ...

    def check_appendable(self) -> None:
        """Raises ConfigError for tables that a load must not write to: features of the format that
        it does not know, settings that make offsets expire."""
        ...

    def files(self) -> list[LakeFile]:
        """Lists all files of the version."""
        ...

    def writer(self) -> FileWriter:
        """Returns what tasks write the table's files with."""
        ...

    def reader(self, columns: Sequence[str] | None = None) -> FileReader:
        """Returns what tasks read ``columns`` of the table's files with; None: all. Raises
        ConfigError for features that it does not know."""
        ...

    def describe(self, path: str) -> LakeFile:
        """Describes a file of the table's storage from its footer; it must be without partition."""
        ...

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Returns those of ``paths``, of files as ``LakeFile`` has them, that are not in the
        storage."""
        ...

    def commit(self, change: Change) -> None:
        """Commits on this very version, once. Raises VersionConflictError where there is another
        one by now, and then nothing was committed; after any other error it may have been."""
        ...


class LakeTable(Protocol):
    """A table by its name, whether it is there or not."""

    @property
    def name(self) -> str:
        """Name of the table, the same for every way to write it."""
        ...

    @property
    def widens(self) -> bool:
        """Tells whether the format takes wider types for columns that are there."""
        ...

    def newest(self) -> LakeVersion | None:
        """Opens the newest version, by asking the storage or the catalogue; None: no table."""
        ...

    def create(self, schema: StructType, layout: Layout, properties: Mapping[str, str]) -> None:
        """Creates the table, without a record. Does nothing where another has just made it.

        ``schema`` is that of the records, with the columns that ``partitioned`` adds where the
        format keeps them (Delta) and without them where not (Iceberg).
        """
        ...

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Sets properties of a table that was there before its first load."""
        ...

    def evolve(self, schema: StructType) -> None:
        """Adds the columns of ``schema`` that the table does not have, nullable, and widens types
        where ``schema`` has wider ones, in a commit of its own that changes no record."""
        ...

    def layout_of_new(self, choice: LayoutChoice) -> Layout:
        """Layout that ``choice`` asks for of a new table. Raises ConfigError where the format
        cannot have it."""
        ...

    def partitioned(self, frame: DataFrame, layout: Layout) -> DataFrame:
        """Columns that records have in a table with that layout, those of partitions included
        where the format keeps them; for the schema of a new table. Raises ConfigError."""
        ...

    def own_directory(self) -> tuple[pafs.FileSystem, str]:
        """Storage, and the path in it of the directory for loads' own files, which may not be
        there yet."""
        ...
