"""What a user asks of a load."""

from __future__ import annotations

from dataclasses import dataclass

from spark_logbus.errors import ConfigError
from spark_logbus.load.files.hive_sql import TableName
from spark_logbus.load.jdbc.config import JdbcTable
from spark_logbus.load.layout import OPTIONS, LayoutChoice

#: Names that Parquet and ORC files both know; ORC calls gzip zlib.
COMPRESSIONS = ("none", "snappy", "gzip", "zstd")


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """The topic to load, and its target."""

    topic: str
    warehouse: str | JdbcTable  # a directory on any Hadoop filesystem, or a table
    zookeeper: str
    #: DDL of fields in JSON values that become columns, beside the values as they are.
    json_schema: str | None = None
    #: Go on after records that retention deleted before they were loaded, and over offsets
    #: without a record in a topic that is not compacted (any more).
    allow_gaps: bool = False
    #: Show the progress as this group's offsets in ZooKeeper.
    group: str | None = None
    #: Keep of JSON values only the fields of ``json_schema``, and values that do not parse.
    drop_value: bool = False
    #: Directories and file format, for a new warehouse; what it has is what it keeps.
    layout: LayoutChoice = LayoutChoice()
    #: Of the files; None: Spark's default for the format.
    compression: str | None = None
    #: Where the first load of a warehouse begins: a moment, or a position as in the source's
    #: options. Later ones go on where the last ended.
    start: str | None = None
    #: Where this load ends at the latest.
    until: str | None = None
    #: Of one load, shared out over the partitions; the next one goes on from there.
    max_records: int | None = None
    max_bytes: int | None = None
    #: Schema, as JSON text, of Avro values that become columns, beside the values as they are.
    avro_schema: str | None = None
    #: Keep values that do not decode apart, with the reason, and load all others.
    dead_letters: bool = False
    #: After the load, rewrite what is in so many small files of a directory, or more.
    compact: int | None = None
    #: Publish how many records the load has committed, by window of their time.
    audit: bool = False
    #: A table in the Hive metastore, as ``db.table``, that is kept over the warehouse's files.
    hive_table: str | None = None

    def __post_init__(self) -> None:
        if self.hive_table is not None:
            TableName.parse(self.hive_table)
        if self.json_schema is not None and self.avro_schema is not None:
            raise ConfigError("Give --json-schema or --avro-schema; values are one or the other.")
        if self.drop_value and self.json_schema is None and self.avro_schema is None:
            raise ConfigError(
                "--drop-value without --json-schema or --avro-schema would keep nothing of the "
                "values; name the fields that are to become columns."
            )
        if isinstance(self.warehouse, JdbcTable):
            self._refuse_options_of_files()
        if self.compact is not None and self.compact < 2:
            raise ConfigError(
                f"--compact is {self.compact}, expected 2 files or more: one cannot become fewer."
            )
        for name in ("max_records", "max_bytes"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(
                    f"--{name.replace('_', '-')} is {limit}, expected 1 or more; leave it out to "
                    "load all that is new."
                )
        if self.compression is not None and self.compression not in COMPRESSIONS:
            raise ConfigError(
                f"--compression is {self.compression!r}, expected one of {', '.join(COMPRESSIONS)}."
            )

    @property
    def elsewhere(self) -> str:
        """What to load into where the target cannot be gone on with."""
        into_table = isinstance(self.warehouse, JdbcTable)
        return "another table" if into_table else "another warehouse directory"

    def _refuse_options_of_files(self) -> None:
        given = [OPTIONS[name] for name in self.layout.chosen()]
        given += [
            f"--{name.replace('_', '-')}"
            for name in ("compression", "compact", "hive_table")
            if getattr(self, name) is not None
        ]
        if given:
            raise ConfigError(
                f"{', '.join(given)}: for loads into files, and this one goes into the table "
                f"{self.warehouse}; leave that out."
            )
