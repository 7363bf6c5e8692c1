"""Files of Iceberg tables that Spark's tasks write and read, and partitions of their records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, TimeTransform
from pyiceberg.types import DateType, TimestampType, TimestamptzType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_logbus.errors import ConfigError
from spark_logbus.load.lake.columns import conformed
from spark_logbus.load.lake.iceberg import IcebergLakeTable
from spark_logbus.load.lake.iceberg.version import IcebergVersion
from spark_logbus.load.lake.reading import rows_of
from spark_logbus.load.lake.table import Change, Progress
from spark_logbus.load.lake.writing import write
from spark_logbus.load.layout import Layout, LayoutChoice, Period
from spark_logbus.load.tables import IcebergTable
from tests.helpers import spanning

ZONE = "Pacific/Auckland"  # half a day away, on the other side of each midnight
HOUR = 3_600_000_000
#: Microseconds: around 1970, before it, within a second, the ends of months, and far away.
MOMENTS = (
    0, -1, 1, HOUR - 1, HOUR, -HOUR, -HOUR - 1, 24 * HOUR - 1, -24 * HOUR, 31 * 24 * HOUR,
    -31 * 24 * HOUR - 1, 1_356_998_399_999_999, 1_356_998_400_000_000, -62_135_596_800_000_000,
    253_402_300_799_999_999, 2**62,
)  # fmt: skip
#: The library's own rule for a period, and numpy's unit.
RULES: dict[Period, tuple[TimeTransform[Any], str]] = {
    Period.HOUR: (HourTransform(), "h"),
    Period.DAY: (DayTransform(), "D"),
    Period.MONTH: (MonthTransform(), "M"),
}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[IcebergLakeTable]:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalogue.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    made = IcebergLakeTable(IcebergTable("test", "lake.flights", properties))
    yield made
    assert isinstance(made._opened, SqlCatalog)
    made._opened.engine.dispose()


@contextmanager
def in_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def moments(spark: SparkSession) -> DataFrame:
    """Records with each moment in three types, and one with none."""
    rows = [(0, offset, micros) for offset, micros in enumerate((*MOMENTS, None))]
    frame = spark.createDataFrame(rows, "partition int, offset bigint, micros bigint")
    # Without a zone: the same clock as in UTC.
    exact = "cast(micros as decimal(25, 0))"
    interval = f"make_dt_interval(0, 0, 0, cast({exact} / 1000000 as decimal(18, 6)))"
    days = f"date_from_unix_date(cast(floor({exact} / 86400000000) as int))"
    return frame.selectExpr(
        "*",
        "timestamp_micros(micros) as timestamp",
        f"if(abs(micros) < 9e17, timestamp_ntz '1970-01-01 00:00:00' + {interval}, null) as local",
        f"{days} as day",
    )


def opened(table: IcebergLakeTable) -> IcebergVersion:
    version = table.newest()
    assert version is not None
    return version


@pytest.mark.parametrize(("period", "column"), spanning([*RULES], ["timestamp", "local", "day"]))
def test_partitions_are_those_of_the_formats_own_rule(
    spark: SparkSession, table: IcebergLakeTable, period: Period, column: str
) -> None:
    layout = Layout(period=period, event_time=column)
    with in_zone(spark, ZONE):
        frame = moments(spark)
        if column == "day" and period is Period.HOUR:
            with pytest.raises(ConfigError, match="is a date, which has no hour"):
                table.partitioned(frame, layout)
            table.newest()
            return
        table.create(table.partitioned(frame, layout).schema, layout, {})
        version = opened(table)
        divided = version.partitioned(frame, layout)
        [name] = version.partition_names
        has = F.col(column).isNotNull()
        found = divided.select("micros", name, has.alias("has")).collect()
    kind = {"timestamp": TimestamptzType(), "local": TimestampType(), "day": DateType()}[column]
    transform, unit = RULES[period]
    for row in found:
        micros = row["micros"] if row["has"] else None
        if micros is None:
            assert row[name] is None
            continue
        assert row[name] == np.datetime64(micros, "us").astype(f"datetime64[{unit}]").astype(int)
        if micros < 2**60:  # after the year 9999 the library's own has no answer
            value = micros // (24 * HOUR) if column == "day" else micros
            assert row[name] == transform.transform(kind)(value)
    assert sum(row["has"] for row in found) == len(MOMENTS) - (column == "local")


def test_what_tasks_write_is_what_they_and_others_read(
    spark: SparkSession, table: IcebergLakeTable
) -> None:
    layout = Layout(period=Period.DAY, columns=("carrier",))
    with in_zone(spark, ZONE):
        frame = moments(spark).withColumn("carrier", F.expr("if(offset % 3 = 0, null, 'U/A')"))
        table.create(table.partitioned(frame, layout).schema, layout, {})
        version = opened(table)
        assert version.layout(LayoutChoice()) == layout
        divided = version.partitioned(frame, layout)
        columns = conformed(divided, version.schema, version.partition_names)
        written = write(columns, version.writer(), "1-abc")
        assert written.tally.records == len(MOMENTS) + 1
        version.commit(Change(Progress("id", 1, 5, {0: 17}), written.files))

        after = opened(table)
        read = rows_of(spark, after, after.files())
        assert read.schema.simpleString() == frame.schema.simpleString()
        assert read.exceptAll(frame).count() == frame.exceptAll(read).count() == 0
        few = rows_of(spark, after, after.files(), ["carrier", "offset"])
        assert few.columns == ["carrier", "offset"]
    library = table._catalog().load_table("lake.flights")
    at = "timestamp >= '2013-01-01T00:00:00+00:00' and timestamp < '2013-01-02T00:00:00+00:00'"
    scan = library.scan(at)
    assert scan.to_arrow()["offset"].to_pylist() == [12]
    assert len(list(scan.plan_files())) == 1
    assert library.scan().count() == len(MOMENTS) + 1
