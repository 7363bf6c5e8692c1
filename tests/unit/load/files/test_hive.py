"""Tables over a warehouse: their SQL, and which of them fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql.types import ArrayType, DateType, IntegerType, StringType, StructType

from spark_logbus.errors import ConfigError
from spark_logbus.load import FileFormat, Layout, LoadConfig, Period
from spark_logbus.load.files import hive
from spark_logbus.load.files.hive import MetastoreTable, missing_columns, table_mismatch
from spark_logbus.load.tables import TableName

FLIGHTS = TableName("air", "flights")
STORED = StructType().add("key", StringType()).add("Carrier", StringType())


@pytest.mark.parametrize(
    "name", ["flights", "a.b.c", "a.", ".b", "a b.c", "`a`.`b`", "a.b\n", "ä.b"]
)
def test_a_table_is_named_with_its_database(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--hive-table is .*, expected database\.table"):
        LoadConfig("topic", "/warehouse", "localhost:2181", hive_table=name)


def test_names_and_values_are_quoted_in_statements() -> None:
    created = hive.create_table(
        FLIGHTS,
        "a INT,b DATE",
        partition_columns=["b", "wei`rd"],
        format=FileFormat.ORC,
        location="file:/it's/here\\",
    )
    assert created == (
        "CREATE TABLE `air`.`flights` (a INT,b DATE) USING orc PARTITIONED BY (`b`, `wei``rd`) "
        "LOCATION 'file:/it\\'s/here\\\\'"
    )
    undivided = hive.create_table(
        FLIGHTS, "a INT", partition_columns=[], format=FileFormat.PARQUET, location="file:/x"
    )
    assert undivided == "CREATE TABLE `air`.`flights` (a INT) USING parquet LOCATION 'file:/x'"


def test_directories_become_partitions_by_the_hundred() -> None:
    directories = [
        "date=2013-01-01/hour=5",
        "date=__HIVE_DEFAULT_PARTITION__/a%3Db=O%27Hara%2F%25=",
        *(f"hour={hour}" for hour in range(hive.PARTITIONS_PER_STATEMENT)),
    ]
    first, second = hive.add_partitions(FLIGHTS, directories)
    assert first.startswith(
        "ALTER TABLE `air`.`flights` ADD IF NOT EXISTS "
        "PARTITION (`date` = '2013-01-01', `hour` = '5') "
        "PARTITION (`date` = NULL, `a=b` = 'O\\'Hara/%=') PARTITION (`hour` = '0')"
    )
    assert second.count("PARTITION") == 2
    assert list(hive.add_partitions(FLIGHTS, [])) == []


def test_columns_that_name_directories_come_last() -> None:
    layout = Layout(period=Period.HOUR, prefix="event_", columns=("key",))
    table = layout.table_schema(STORED)
    assert table.names == ["Carrier", "event_date", "event_hour", "key"]
    assert [table[name].dataType for name in table.names[1:]] == [
        DateType(), IntegerType(), StringType(),
    ]  # fmt: skip
    assert Layout(period=Period.MONTH).table_schema(STORED)["month"].dataType == StringType()


def test_what_keeps_a_table_from_being_ours() -> None:
    layout = Layout(columns=("Carrier",))
    ours = MetastoreTable("EXTERNAL", "parquet", "hdfs:/w/t", StructType(), ("date", "carrier"))
    assert table_mismatch(ours, layout, path="hdfs:/w/t") is None
    for other, complaint in (
        (replace(ours, kind="MANAGED"), "is a managed table"),
        (replace(ours, kind="VIEW", location=""), "is a view"),
        (replace(ours, provider="hive"), "has the format hive, and the warehouse parquet"),
        (replace(ours, location="hdfs:/w"), "is at hdfs:/w, and the warehouse at hdfs:/w/t"),
        (
            replace(ours, partition_columns=()),
            "is partitioned by nothing, and the warehouse by date, carrier",
        ),
    ):
        assert table_mismatch(other, layout, path="hdfs:/w/t") == complaint


def test_a_table_gets_the_columns_it_lacks() -> None:
    wanted = StructType([*STORED.fields]).add("delay", IntegerType())
    wanted = wanted.add("legs", ArrayType(StringType(), containsNull=False))
    found = StructType().add("carrier", StringType()).add("mine", DateType())
    found = found.add("legs", ArrayType(StringType()))
    added = missing_columns(found, wanted)
    assert isinstance(added, StructType)
    assert added.names == ["key", "delay"]
    assert missing_columns(found.add("KEY", DateType()), wanted) == (
        "has the column key as date, and the warehouse as string"
    )
