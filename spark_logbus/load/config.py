"""Options of loads and of reprocessing, checked when built."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from spark_logbus.errors import ConfigError
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
        given = self._options_of_others()
        if given:
            raise ConfigError(
                f"{', '.join(given)}: for loads into {self._another_kind}, and this one goes into "
                f"the {self._kind} {self.warehouse}; leave that out."
            )
        if self.compression is not None and self.compression not in COMPRESSIONS:
            raise ConfigError(
                f"--compression is {self.compression!r}, expected one of {', '.join(COMPRESSIONS)}."
            )

    @property
    def another_target(self) -> str:
        """Words for what to load into where the target cannot be gone on with."""
        into_files = isinstance(self.warehouse, str)
        return "another warehouse directory" if into_files else "another table"

    @property
    def _kind(self) -> str:
        return "warehouse" if isinstance(self.warehouse, str) else "table"

    @property
    def _another_kind(self) -> str:
        """Words for the targets that have the options which this one does not have."""
        return "tables of a lake" if isinstance(self.warehouse, str) else "files"

    def _options_of_others(self) -> list[str]:
        """Options that are given, and that loads into this kind of target do not have."""
        names: tuple[str, ...]
        match self.warehouse:
            case JdbcTable():
                names = ("compression", "compact", "hive_table")
            case DeltaTable() | IcebergTable():
                names = ("hive_table",)
            case _:
                names = ("evolve", "accept_restore")
        given = (name for name in names if getattr(self, name, None) not in (None, False))
        return [*self._layout_of_others(), *map(_option, given)]

    def _layout_of_others(self) -> list[str]:
        """Options of a layout that are given, and that this kind of target does not have."""
        return []


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

    def _layout_of_others(self) -> list[str]:
        chosen = self.layout.chosen()
        match self.warehouse:
            case JdbcTable():
                return [OPTIONS[name] for name in chosen]
            case DeltaTable() | IcebergTable():
                return [OPTIONS[name] for name in chosen if name == "format"]
        return []


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


def properties_of(path: str | None) -> dict[str, str]:
    """Reads the properties of a connection from a file, in Java's form of one ``name=value`` a
    line, and from the environment, which wins. Raises ConfigError."""
    properties = {} if path is None else _read(path)
    for name, variable in ENVIRONMENT.items():
        if variable in os.environ:
            properties[name] = os.environ[variable]
    return properties


def _read(path: str) -> dict[str, str]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--jdbc-properties {path} cannot be read: {error}.") from error
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            # The line itself may be a password.
            raise ConfigError(
                f"Line {number} of --jdbc-properties {path} is no name=value, as in user=loader; "
                "comments begin with #."
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
