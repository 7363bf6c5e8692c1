"""Options of loads and of reprocessing, checked when built."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import UsageError
from spark_logbus.load.layout import OPTIONS, LayoutChoice
from spark_logbus.load.tables import (
    ENVIRONMENT,
    DeltaTable,
    IcebergTable,
    JdbcTable,
    TableName,
    TableOfLake,
)
from spark_logbus.model import Latest
from spark_logbus.offsets.position import (
    OffsetBound,
    Positions,
    parse_positions,
    parse_timestamp,
)

#: Names that Parquet and ORC files both know; ORC calls gzip zlib.
COMPRESSIONS = ("none", "snappy", "gzip", "zstd")

_FILES, _DATABASE, _LAKE = "files", "tables of a database", "tables of a lake"
#: Options that not all kinds of targets have, and those that do.
_KINDS = {
    "compression": (_FILES, _LAKE),
    "compact": (_FILES, _LAKE),
    "hive_table": (_FILES,),
    "evolve": (_LAKE,),
    "accept_restore": (_LAKE,),
}


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """The topic, its target, and how values become columns: options of loads and of reprocessing.

    Raises ConfigError.
    """

    topic: str
    #: A directory on any Hadoop filesystem, a table of a database, or one of a lake.
    warehouse: str | JdbcTable | TableOfLake
    zookeeper: str
    #: DDL of fields in JSON values that become columns, beside the values as they are.
    json_schema: str | None = None
    _: KW_ONLY
    #: Schema, as JSON text, of Avro values that become columns, beside the values as they are.
    avro_schema: str | None = None
    #: Keep only the fields of ``json_schema`` or ``avro_schema``, and values that do not parse.
    drop_value: bool = False
    #: Keep values that do not decode apart, with the reason, and load all others.
    dead_letters: bool = False
    #: Compression of the files; None: Spark's default for the format.
    compression: str | None = None
    #: A table in the Hive metastore, as ``db.table``, that is kept over the warehouse's files.
    hive_table: str | None = None
    #: Add columns to a lake's table for new fields, and widen types where its format can.
    evolve: bool = False
    #: Go on with the offsets that a lake's table had, where somebody has restored an older version.
    accept_restore: bool = False

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
        self._refuse_options_of_others()
        if self.compression is not None and self.compression not in COMPRESSIONS:
            raise ConfigError(
                f"--compression is {self.compression!r}, expected one of {', '.join(COMPRESSIONS)}."
            )

    @property
    def another_target(self) -> str:
        """Words for what to load into where the target cannot be gone on with."""
        into_files = isinstance(self.warehouse, str)
        return "another warehouse directory" if into_files else "another table"

    def _refuse_options_of_others(self) -> None:
        own = _kind_of(self.warehouse)
        others: dict[str, list[str]] = {}
        for option, kinds in self._given_options().items():
            if own not in kinds:
                others.setdefault(" or ".join(kinds), []).append(option)
        if others:
            told = "; ".join(
                f"{', '.join(options)}: for loads into {kinds}" for kinds, options in others.items()
            )
            kind = "warehouse" if own == _FILES else "table"
            raise ConfigError(
                f"{told}, and this one goes into the {kind} {self.warehouse}; leave that out."
            )

    def _given_options(self) -> dict[str, tuple[str, ...]]:
        """Options that are given and that not all kinds of targets have, with those that do."""
        return {
            _option(name): kinds
            for name, kinds in _KINDS.items()
            if getattr(self, name, None) not in (None, False)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig(TargetConfig):
    """Options of a load. Raises ConfigError."""

    #: Go on after records that retention deleted before they were loaded, and over offsets
    #: without a record in a topic that is not compacted (any more).
    allow_gaps: bool = False
    #: Show the progress as this group's offsets in ZooKeeper.
    group: str | None = None
    #: Directories and file format, for a new warehouse; what it has is what it keeps.
    layout: LayoutChoice = LayoutChoice()
    #: Where the first load of a warehouse begins: a moment, or a position as in the source's
    #: options. Later ones go on where the last ended.
    start: str | None = None
    #: Where this load ends at the latest.
    until: str | None = None
    #: Limits of one load, shared out over the partitions; the next one goes on from there.
    max_records: int | None = None
    max_bytes: int | None = None
    #: After the load, rewrite what is in so many small files of a directory, or more.
    compact: int | None = None
    #: Publish how many records the load has committed, by window of their time.
    audit: bool = False

    def __post_init__(self) -> None:
        TargetConfig.__post_init__(self)
        if self.compact is not None and self.compact < 2:
            raise ConfigError(
                f"--compact is {self.compact}, expected 2 files or more: one cannot become fewer."
            )
        for name in ("max_records", "max_bytes"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(
                    f"{_option(name)} is {limit}, expected 1 or more; leave it out to load all "
                    "that is new."
                )
        _check_bounds(self.start, self.until)

    def _given_options(self) -> dict[str, tuple[str, ...]]:
        layout = {
            OPTIONS[name]: (_FILES,) if name == "format" else (_FILES, _LAKE)
            for name in self.layout.chosen()
        }
        return {**layout, **TargetConfig._given_options(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessConfig(TargetConfig):
    """Options of reprocessing. Raises ConfigError."""

    #: Where the window begins and ends: moments, or positions as in the source's options. What was
    #: not loaded is never part of it.
    start: str
    until: str | None = None
    #: Plan alone.
    dry_run: bool = False

    def __post_init__(self) -> None:
        TargetConfig.__post_init__(self)
        _check_bounds(self.start, self.until)


def _check_bounds(start: str | None, until: str | None) -> None:
    if start is not None:
        first_start(start)
    if until is not None:
        last_end(until)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _kind_of(target: str | JdbcTable | TableOfLake) -> str:
    match target:
        case JdbcTable():
            return _DATABASE
        case DeltaTable() | IcebergTable():
            return _LAKE
    return _FILES


def properties_of(path: str | None) -> dict[str, str]:
    """Reads the properties of a connection from a file, in Java's form of one ``name=value`` a
    line, and from the environment, which wins. Raises ConfigError."""
    properties = {} if path is None else _read(path, option="--jdbc-properties")
    for name, variable in ENVIRONMENT.items():
        if variable in os.environ:
            properties[name] = os.environ[variable]
    return properties


def named_lake(
    delta: str | None, iceberg: str | None, properties: str | None
) -> TableOfLake | None:
    """The table of a lake that ``--delta``, ``--iceberg`` and ``--lake-properties`` name; None
    where none of them is given.

    Raises UsageError where they name two tables, or properties of none, and ConfigError.
    """
    if delta is not None and iceberg is not None:
        raise UsageError("--delta and --iceberg each name a table; give one of them.")
    if delta is not None:
        return DeltaTable(delta, lake_properties(properties))
    if iceberg is not None:
        return IcebergTable.parse(iceberg, lake_properties(properties))
    if properties is not None:
        raise UsageError(
            f"--lake-properties is {properties}, and no table of a lake is named; give --delta or "
            "--iceberg as well, or leave it out."
        )
    return None


def lake_properties(path: str | None) -> dict[str, str]:
    """Reads storage options of Delta, or properties of Iceberg's catalogue, from a file of one
    ``name=value`` a line; the libraries read the environment themselves. Raises ConfigError."""
    return {} if path is None else _read(path, option="--lake-properties")


def _read(path: str, *, option: str) -> dict[str, str]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path} cannot be read: {error}.") from error
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            # The line itself may be a password.
            raise ConfigError(
                f"Line {number} of {option} {path} is no name=value, as in user=loader; comments "
                "begin with #."
            )
        found[name.strip()] = value.strip()
    return found


def first_start(text: str) -> OffsetBound:
    """Parses ``--from``. Raises InvalidOptionError and ConfigError."""
    positions = _positions(text, option="--from")
    if isinstance(positions, Latest):
        # With no end that is later, no load would ever bring a record.
        raise ConfigError(
            "--from latest would load nothing; give a time, and the load begins with the first "
            "record of that time."
        )
    return OffsetBound(positions=positions, option="--from", latest_without_match=True)


def last_end(text: str) -> OffsetBound:
    """Parses ``--until``. Raises InvalidOptionError and ConfigError."""
    positions = _positions(text, option="--until")
    return OffsetBound(
        positions=positions, option="--until", latest_without_match=True, is_end=True
    )


def _positions(text: str, *, option: str) -> Positions:
    """A moment, or a position as the source's options have it."""
    word = text.strip().lower()
    if word[:1] in ("{", "-") or word in ("earliest", "latest"):
        return parse_positions(text, option=option)
    if word == "committed":
        raise ConfigError(
            f"{option} cannot be committed: the warehouse itself knows where a load starts. Give a "
            "time or offsets."
        )
    return parse_timestamp(text, option=option)
