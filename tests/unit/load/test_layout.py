"""Layouts as tables: names of directories, what is kept, and what cannot be divided."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_logbus.errors import ConfigError
from spark_logbus.load import FileFormat, Layout, LayoutChangedError, LayoutChoice, Period
from spark_logbus.load.layout import DEFAULT_LAYOUT, settle


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (Layout(), ("date",)),
        (Layout(period=Period.HOUR), ("date", "hour")),
        (Layout(period=Period.MONTH), ("month",)),
        (Layout(period=Period.NONE), ()),
        (Layout(period=Period.HOUR, prefix="event_"), ("event_date", "event_hour")),
        (Layout(columns=("region", "kind")), ("date", "region", "kind")),
        (Layout(period=Period.NONE, columns=("region",)), ("region",)),
    ],
)
def test_directories_from_the_top_down(layout: Layout, names: tuple[str, ...]) -> None:
    assert layout.partition_columns == names


@pytest.mark.parametrize("period", Period)
@pytest.mark.parametrize("kind", [TimestampType(), TimestampNTZType(), DateType()], ids=str)
def test_an_expression_for_each_column(period: Period, kind: DataType) -> None:
    layout = Layout(period=period)
    if period is Period.HOUR and kind == DateType():
        with pytest.raises(ConfigError, match="is a date, which has no hour"):
            layout.expressions(kind)
    else:
        assert len(layout.expressions(kind)) == len(layout.period_columns)


@pytest.mark.parametrize("kind", [StringType(), IntegerType(), StructType()], ids=str)
def test_what_is_no_moment_is_refused(kind: DataType) -> None:
    with pytest.raises(ConfigError, match=r"--event-time at is .*expected a timestamp or a date"):
        Layout(event_time="at").expressions(kind)


RECORD = (
    StructType()
    .add("offset", IntegerType())
    .add("carrier", StringType())
    .add("delay", DoubleType())
    .add("key", BinaryType())
    .add("Hour", IntegerType())
)


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        (Layout(columns=("carier",)), "names carier, which no record has; did you mean carrier"),
        (Layout(columns=("xyz",)), "names xyz, which no record has; there are offset, carrier"),
        (Layout(columns=("delay",)), "names delay, which is double; only texts, whole numbers"),
        (Layout(columns=("key",)), "names key, which is binary"),
        (Layout(period=Period.HOUR), "have a field Hour, .*--partition-prefix event_, so that "),
    ],
)
def test_columns_that_records_cannot_be_divided_by(layout: Layout, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        layout.check_columns(RECORD)


def test_columns_that_records_can_be_divided_by() -> None:
    Layout(columns=("carrier", "offset")).check_columns(RECORD)
    Layout(period=Period.HOUR, prefix="event_").check_columns(RECORD)


EVERYTHING = Layout(
    period=Period.MONTH, prefix="p_", columns=("a", "b"), event_time="at", format=FileFormat.ORC
)


@pytest.mark.parametrize("layout", [DEFAULT_LAYOUT, EVERYTHING])
def test_a_layout_reads_back(layout: Layout) -> None:
    assert Layout.from_json(layout.to_json()) == layout


def test_a_new_warehouse_has_what_is_chosen() -> None:
    assert settle(None, LayoutChoice(), where="w") == DEFAULT_LAYOUT
    choice = LayoutChoice(period=Period.HOUR, event_time="at")
    assert settle(None, choice, where="w") == Layout(period=Period.HOUR, event_time="at")


def test_a_warehouse_keeps_its_layout() -> None:
    assert settle(EVERYTHING, LayoutChoice(), where="w") == EVERYTHING
    same = LayoutChoice(period=Period.MONTH, columns=("a", "b"))
    assert settle(EVERYTHING, same, where="w") == EVERYTHING


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        (LayoutChoice(period=Period.DAY), "with --partition-by month, .* for day;"),
        (LayoutChoice(columns=()), "with --partition-columns a,b, .* for '';"),
        (LayoutChoice(event_time="timestamp"), "with --event-time at, .* for timestamp;"),
        (LayoutChoice(format=FileFormat.PARQUET), "with --format orc, .* for parquet;"),
        (LayoutChoice(prefix=""), "with --partition-prefix p_, .* for '';"),
    ],
)
def test_another_layout_is_refused_with_the_remedy(choice: LayoutChoice, named: str) -> None:
    with pytest.raises(LayoutChangedError, match=named + r".*Leave --\S+ out, or load into"):
        settle(EVERYTHING, choice, where="w")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data | {"period": "decade"},
        lambda data: {key: value for key, value in data.items() if key != "prefix"},
    ],
)
def test_a_damaged_layout_is_told(change: Callable[[dict[str, object]], object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        Layout.from_json(change(DEFAULT_LAYOUT.to_json()))  # type: ignore[arg-type]
