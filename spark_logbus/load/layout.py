"""Layout of a warehouse: the directories that its records are divided into, and its file format.

A record belongs to the period (an hour, a day, a month) of its event time, and to the values of
columns of its own. Both become directories, in the form that Hive, Spark and others read::

    day      date=2013-01-31/
    hour     date=2013-01-31/hour=5/
    month    month=2013-01/
    none     none at all
    columns  carrier=UA/, below those of the period

The event time is an expression of Spark SQL: the record's timestamp unless it is told otherwise.
Timestamps are divided in UTC, wherever the session is; dates and times without a zone are taken as
they are. A record whose event time is null goes to ``date=__HIVE_DEFAULT_PARTITION__``, where
readers find it with a date that is null.

A warehouse has one layout for good: it stands in each commit, and a load that asks for another is
refused. Everything here is pure: names and expressions, that the load hands to Spark.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_logbus.config import nearest
from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError

#: The event time while the layout is worked out; no column of a record can have the name.
EVENT_TIME: Final = "_event_time"

#: A value of another type has more than one spelling, or no name that a directory can have.
_AS_DIRECTORIES: Final = (
    StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, DateType,
)  # fmt: skip


class Period(enum.Enum):
    """The stretch of event time whose records share a directory."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    NONE = "none"


_PERIOD_COLUMNS: Final[Mapping[Period, Mapping[str, DataType]]] = {
    Period.HOUR: {"date": DateType(), "hour": IntegerType()},
    Period.DAY: {"date": DateType()},
    Period.MONTH: {"month": StringType()},
    Period.NONE: {},
}


class FileFormat(enum.Enum):
    """The format of a warehouse's files."""

    PARQUET = "parquet"
    ORC = "orc"


class LayoutChangedError(WarehouseError):
    """A load asks for another layout than the warehouse has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """Layout that a load asks for; None: as the warehouse has it, or the default for a new one."""

    period: Period | None = None
    prefix: str | None = None
    columns: tuple[str, ...] | None = None
    event_time: str | None = None
    format: FileFormat | None = None

    def chosen(self) -> dict[str, Any]:
        """Values that are asked for, by field."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Division of a warehouse's records, and the format of its files. Immutable."""

    period: Period = Period.DAY
    #: Before the names of the period's directories, for values with a field of such a name.
    prefix: str = ""
    #: Columns whose values become directories below the period's.
    columns: tuple[str, ...] = ()
    #: A column, or an expression of Spark SQL, with the moment that a record belongs to.
    event_time: str = "timestamp"
    format: FileFormat = FileFormat.PARQUET

    @property
    def period_columns(self) -> tuple[str, ...]:
        """The names that the load adds; no column of a record can have them."""
        return tuple(f"{self.prefix}{name}" for name in _PERIOD_COLUMNS[self.period])

    @property
    def undivided(self) -> Layout:
        """Layout of dead letters: the same format, without directories."""
        return Layout(period=Period.NONE, format=self.format)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Columns whose values stand in the names of directories, from the top down."""
        return (*self.period_columns, *self.columns)

    def expressions(self, event_time: DataType) -> tuple[str, ...]:
        """SQL for the period's columns, from the column ``EVENT_TIME`` of that type.

        Raises ConfigError where the type is no moment, or a day for a layout by hour.
        """
        match event_time:
            case TimestampType():
                # From the seconds since 1970, because a cast to date goes by the session's zone.
                seconds = f"unix_seconds({EVENT_TIME})"
                date = f"date_from_unix_date(cast(floor({seconds} / 86400) as int))"
                hour = f"cast(pmod(floor({seconds} / 3600), 24) as int)"
            case TimestampNTZType():
                date, hour = f"cast({EVENT_TIME} as date)", f"hour({EVENT_TIME})"
            case DateType():
                if self.period is Period.HOUR:
                    raise ConfigError(
                        f"--event-time {self.event_time} is a date, which has no hour; partition "
                        "by day or month, or give a timestamp."
                    )
                date, hour = EVENT_TIME, ""
            case _:
                raise ConfigError(
                    f"--event-time {self.event_time} is {event_time.simpleString()}, expected a "
                    "timestamp or a date; convert it, as in try_to_timestamp(at), or "
                    "timestamp_millis(at) for milliseconds since 1970."
                )
        month = f"substring(cast({date} as string), 1, length(cast({date} as string)) - 3)"
        return {
            Period.HOUR: (date, hour),
            Period.DAY: (date,),
            Period.MONTH: (month,),
            Period.NONE: (),
        }[self.period]

    def check_columns(self, schema: StructType) -> None:
        """Raises ConfigError unless records of ``schema`` can be divided so, by names and types."""
        for name in self.columns:
            if name not in schema.names:
                close = nearest(name, schema.names)
                hint = f"did you mean {close}?" if close else f"there are {_listed(schema.names)}."
                raise ConfigError(f"--partition-columns names {name}, which no record has; {hint}")
            kind = schema[name].dataType
            if not isinstance(kind, _AS_DIRECTORIES):
                raise ConfigError(
                    f"--partition-columns names {name}, which is {kind.simpleString()}; only "
                    "texts, whole numbers, dates and booleans can name directories."
                )
        self.check_names(schema.names)

    def check_names(self, names: Sequence[str]) -> None:
        """Raises ConfigError where a column has a name that the layout adds."""
        taken = {name.lower() for name in self.period_columns}
        for name in names:
            if name.lower() in taken:
                raise ConfigError(
                    f"The values have a field {name}, a column that the load adds itself "
                    f"({_listed(self.period_columns)}). Give --partition-prefix event_, so that "
                    f"it adds event_{name.lower()}, or choose another --partition-by."
                )

    def stored_schema(self, schema: StructType) -> StructType:
        """The columns that stand in the files and those that the records name directories with."""
        period = set(self.period_columns)
        return StructType([field for field in schema.fields if field.name not in period])

    def table_schema(self, stored: StructType) -> StructType:
        """The columns of a table over the files; those that name directories come last."""
        kinds = _PERIOD_COLUMNS[self.period].values()
        added = zip(self.period_columns, kinds, strict=True)
        return StructType(
            [
                *(field for field in stored.fields if field.name not in self.columns),
                *(StructField(name, kind) for name, kind in added),
                *(field for field in stored.fields if field.name in self.columns),
            ]
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "period": self.period.value,
            "prefix": self.prefix,
            "columns": list(self.columns),
            "event_time": self.event_time,
            "format": self.format.value,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Layout:
        """Raises KeyError, TypeError or ValueError for what ``to_json`` did not make."""
        return Layout(
            period=Period(data["period"]),
            prefix=data["prefix"],
            columns=tuple(data["columns"]),
            event_time=data["event_time"],
            format=FileFormat(data["format"]),
        )


DEFAULT_LAYOUT: Final = Layout()
"""Layout of all warehouses of earlier releases, whose commits do not tell it."""

OPTIONS: Final = {
    "period": "--partition-by",
    "prefix": "--partition-prefix",
    "columns": "--partition-columns",
    "event_time": "--event-time",
    "format": "--format",
}


def settle(kept: Layout | None, choice: LayoutChoice, *, where: str) -> Layout:
    """Returns the layout of a load (pure): the warehouse's, or for a new one what was chosen.

    Raises LayoutChangedError where both are there and differ; ``where`` names the warehouse.
    """
    chosen = choice.chosen()
    if kept is None:
        return replace(DEFAULT_LAYOUT, **chosen)
    for name, value in chosen.items():
        if value != getattr(kept, name):
            raise LayoutChangedError(
                f"{where} was begun with {OPTIONS[name]} {_shown(getattr(kept, name))}, and this "
                f"load asks for {_shown(value)}; readers could not tell the two apart. Nothing "
                f"was written. Leave {OPTIONS[name]} out, or load into another directory."
            )
    return kept


def _shown(value: object) -> str:
    match value:
        case enum.Enum():
            return str(value.value)
        case tuple():
            return ",".join(value) or "''"
    return str(value) or "''"


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
