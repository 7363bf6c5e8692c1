"""Partitions of an Iceberg table, and the layout that a load calls them by.

Iceberg has no columns for partitions. The table says how to work them out of the columns that are
there: hour, day or month of a moment, as whole numbers since 1970 in UTC, or a column's own value.
They are worked out in Spark, by the table's own rule, and stand in the table's log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyiceberg import transforms
from pyiceberg import types as ice
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as sp

from spark_logbus.config import nearest
from spark_logbus.errors import ConfigError
from spark_logbus.load.lake.dividing import Divider, Rule
from spark_logbus.load.layout import FileFormat, Layout, LayoutChoice, Period, settle

_FIRST_ID: Final = 1000  # as the specification of Iceberg has it
_SECONDS_OF_A_DAY: Final = 86_400

#: From the finest to the coarsest.
_TRANSFORMS: Final[Mapping[Period, transforms.TimeTransform[Any]]] = {
    Period.HOUR: transforms.HourTransform(),
    Period.DAY: transforms.DayTransform(),
    Period.MONTH: transforms.MonthTransform(),
}
_RULES: Final = {Period.HOUR: Rule.HOUR, Period.DAY: Rule.DAY, Period.MONTH: Rule.MONTH}
_IDENTITY: Final = (
    ice.StringType, ice.BooleanType, ice.IntegerType, ice.LongType, ice.DateType,
)  # fmt: skip


class _AllTimes:
    """A name of each value in the library's summaries of a commit, also of days after the year
    9999, which Python has no dates for. Otherwise one record with such a time would let no commit
    through."""

    def to_human_string(self, kind: ice.IcebergType, value: int | None) -> str:
        try:
            return super().to_human_string(kind, value)  # type: ignore[misc, no-any-return]
        except OverflowError:
            return str(value)


class _Days(_AllTimes, transforms.DayTransform[int]):
    pass


class _Hours(_AllTimes, transforms.HourTransform[int]):
    pass


class _Identity(_AllTimes, transforms.IdentityTransform[int]):
    pass


def with_all_times(spec: PartitionSpec) -> PartitionSpec:
    """Returns the same partitions, which can be named whatever the time is."""
    own = {
        transforms.DayTransform: _Days(),
        transforms.HourTransform: _Hours(),
        transforms.IdentityTransform: _Identity(),
    }
    fields = [
        field.model_copy(update={"transform": own.get(type(field.transform), field.transform)})
        for field in spec.fields
    ]
    return PartitionSpec(*fields, spec_id=spec.spec_id)


def layout_of_new(choice: LayoutChoice, *, table: str) -> Layout:
    """Layout of a table that is not there yet. Raises ConfigError for what Iceberg cannot have."""
    if choice.format not in (None, FileFormat.PARQUET):
        raise ConfigError(
            f"--format is {choice.format.value}, expected parquet for the Iceberg table {table}: "
            "loads write no other format there."
        )
    if choice.prefix:
        raise ConfigError(
            f"--partition-prefix is {choice.prefix!r}, and a load adds no columns to the Iceberg "
            f"table {table} that could have it: Iceberg works partitions out of columns that are "
            "there. Leave it out."
        )
    return settle(None, choice, where=table)


def check_columns(layout: Layout, schema: sp.StructType) -> None:
    """Raises ConfigError unless an Iceberg table of those columns can be partitioned so."""
    name = layout.event_time
    if layout.period is not Period.NONE:
        if name not in schema.names:
            close = nearest(name, schema.names)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(schema.names)}."
            raise ConfigError(
                f"--event-time is {name}, expected a column: an Iceberg table works its partitions "
                f"out of a column that it has; {hint}"
            )
        layout.expressions(schema[name].dataType)  # refuses what is no moment
    # The names of a period's columns may be taken: they are not added.
    replace(layout, period=Period.NONE).check_columns(schema)


def spec_of(layout: Layout, schema: Schema) -> PartitionSpec:
    """Partitions of a new table with that layout, which ``check_columns`` has let through."""
    named: list[tuple[str, transforms.Transform[Any, Any], str]] = []
    if layout.period is not Period.NONE:
        name = f"{layout.event_time}_{layout.period.value}"
        named.append((layout.event_time, _TRANSFORMS[layout.period], name))
    named += [(column, transforms.IdentityTransform(), column) for column in layout.columns]
    fields = []
    for number, (column, transform, name) in enumerate(named):
        while name != column and name in schema.column_names:
            name += "_"
        source = schema.find_field(column).field_id
        fields.append(PartitionField(source, _FIRST_ID + number, transform, name))
    return PartitionSpec(*fields)


def layout_of(spec: PartitionSpec, schema: Schema, event_time: str, *, table: str) -> Layout:
    """Layout of a table's partitions, with ``event_time`` where none is of a time. Raises
    ConfigError for partitions that loads do not write."""
    times: dict[str, list[Period]] = {}
    columns = []
    for field in spec.fields:
        source = _source(field, schema, table)
        match field.transform:
            case transforms.VoidTransform():
                continue
            case transforms.IdentityTransform():
                if not isinstance(source.field_type, _IDENTITY):
                    raise ConfigError(
                        f"Table {table} is partitioned by {source.name}, of Iceberg's type "
                        f"{source.field_type}; loads write partitions by texts, whole numbers, "
                        "dates and booleans. Change the table's partitions, or load into another."
                    )
                columns.append(source.name)
            case _:
                period = _period(field)
                if period is None:
                    raise ConfigError(
                        f"Table {table} is partitioned by {field.transform} of {source.name}; "
                        "loads write partitions by hour, day or month of a time, and by columns "
                        "as they are. Change the table's partitions, or load into another."
                    )
                times.setdefault(source.name, []).append(period)
    if len(times) > 1:
        raise ConfigError(
            f"Table {table} is partitioned by the times {', '.join(times)}; loads know one event "
            "time. Change the table's partitions, or load into another."
        )
    for event_time, periods in times.items():
        period = min(periods, key=list(_TRANSFORMS).index)
        return Layout(period=period, columns=tuple(columns), event_time=event_time)
    return Layout(period=Period.NONE, columns=tuple(columns), event_time=event_time)


def partition_names(spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """Names for the values of a table's partitions in a frame, which no column of the table has."""
    taken = {name.lower() for name in schema.column_names}
    names = []
    for field in spec.fields:
        name = f"_partition_{field.field_id}"
        while name in taken:
            name += "_"
        names.append(name)
    return tuple(names)


def partition_columns(
    spec: PartitionSpec, schema: Schema, records: sp.StructType, *, table: str
) -> Sequence[Column]:
    """Values of a table's partitions for records of that schema, as Iceberg stores them. Raises
    ConfigError where the records do not have the column that they are worked out of."""
    found = []
    for field in spec.fields:
        source = _source(field, schema, table)
        if isinstance(field.transform, transforms.VoidTransform):
            found.append(F.lit(None).cast("int"))
        elif source.name not in records.names:
            raise ConfigError(
                f"Table {table} is partitioned by {source.name}, which no record has; there are "
                f"{', '.join(records.names)}. Change the table's partitions, or load into another."
            )
        else:
            found.append(_values(field, source.name, records[source.name].dataType, table))
    return found


def timed_name(spec: PartitionSpec, schema: Schema, layout: Layout) -> str | None:
    """Name of the first partition by the event time of the layout; None where there is none."""
    for field, name in zip(spec.fields, partition_names(spec, schema), strict=True):
        source = schema.find_column_name(field.source_id)
        if _period(field) is not None and source == layout.event_time:
            return name
    return None


def divider(
    spec: PartitionSpec, schema: Schema, records: sp.StructType, timed: str | None
) -> Divider | None:
    """Returns what does as ``partition_columns``, by Arrow alone; None where only Spark can."""
    rules: dict[str, tuple[Rule, str]] = {}
    for field, name in zip(spec.fields, partition_names(spec, schema), strict=True):
        source, period = schema.find_column_name(field.source_id), _period(field)
        identity = isinstance(field.transform, transforms.IdentityTransform)
        if source is None or source not in records.names or not (identity or period):
            return None
        if period is not None and not isinstance(records[source].dataType, sp.TimestampType):
            return None
        rules[name] = (Rule.VALUE if period is None else _RULES[period], source)
    return Divider(rules, timed)


def _values(field: PartitionField, name: str, kind: sp.DataType, table: str) -> Column:
    value = F.col("`" + name.replace("`", "``") + "`")
    period = _period(field)
    match kind:
        case sp.DateType():
            days = F.unix_date(value)
        case sp.TimestampType() if period is not None:
            # From the seconds since 1970, because a cast to date goes by the session's zone.
            seconds = F.unix_seconds(value)
            if period is Period.HOUR:
                return F.floor(seconds / 3600).cast("int")
            days = F.floor(seconds / _SECONDS_OF_A_DAY).cast("int")
        case sp.TimestampNTZType() if period is not None:
            days = F.unix_date(value.cast("date"))
            if period is Period.HOUR:
                return days * 24 + F.hour(value)
        case _ if period is None:
            return value
        case _:
            raise ConfigError(
                f"Table {table} is partitioned by {period.value} of {name}, which is "
                f"{kind.simpleString()} in the records, expected a timestamp or a date."
            )
    if period is Period.MONTH:
        date = F.date_from_unix_date(days)
        return (F.year(date) - 1970) * 12 + F.month(date) - 1
    return days


def _period(field: PartitionField) -> Period | None:
    for period, transform in _TRANSFORMS.items():
        if isinstance(field.transform, type(transform)):
            return period
    return None


def _source(field: PartitionField, schema: Schema, table: str) -> ice.NestedField:
    """The column that a partition is worked out of."""
    for column in schema.fields:
        if column.field_id == field.source_id:
            return column
    name = schema.find_column_name(field.source_id) or "a column that is gone"
    raise ConfigError(
        f"Table {table} is partitioned by {field.transform} of {name}; loads write partitions by "
        "columns of their own, not by what is within one. Change the table's partitions, or load "
        "into another."
    )
