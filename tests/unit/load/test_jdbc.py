"""The target table and its credentials, and the fit of a table's columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from jobs.load_warehouse import parse_arguments
from spark_logbus.errors import ConfigError
from spark_logbus.load import FileFormat, IncompatibleColumnsError, JdbcTable, LayoutChoice
from spark_logbus.load.config import LoadConfig, properties_of
from spark_logbus.load.jdbc.columns import (
    ExistingColumn,
    UnknownRowsError,
    check_fit,
    check_known,
    columns_of,
    create_target,
    insert_staged,
    quoted,
)
from spark_logbus.load.jdbc.connection import DatabaseError, DatabaseUnavailableError, error_of

URL = "jdbc:postgresql://db:5432/warehouse"
PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("url", "table", "named"),
    [
        ("jdbc:mysql://db/x", "t", "begins with 'jdbc:mysql', expected jdbc:postgresql:"),
        (f"{URL}?user=a&password=secret", "t", "holds credentials.*LOGBUS_JDBC_PASSWORD"),
        (f"{URL}?sslPassword=secret", "t", "holds credentials"),
        ("jdbc:postgresql://a:secret@db/x", "t", "holds credentials"),
        (URL, "a.b.c", "'a.b.c', expected schema.table"),
        (URL, 't"; DROP TABLE x', "expected schema.table"),
        (URL, "t" * 51, "_dead_letters, of 64 bytes; the database takes 63"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused_by_value(url: str, table: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as told:
        JdbcTable(url, table)
    assert "secret" not in told.value.message


def test_credentials_come_from_file_and_environment_and_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOGBUS_JDBC_USER", raising=False)
    monkeypatch.setenv("LOGBUS_JDBC_PASSWORD", "from outside")
    file = tmp_path / "jdbc.properties"
    file.write_text("# comment\n\nuser = me\npassword=a=b\n")
    arguments = ["--topic", "t", "--jdbc-url", f"{URL}?ssl=true", "--jdbc-table", "s.flights"]
    config, _ = parse_arguments([*arguments, "--jdbc-properties", str(file)])
    assert isinstance(config.warehouse, JdbcTable)
    assert config.warehouse.properties == {"user": "me", "password": "from outside"}
    assert "outside" not in repr(config)
    assert str(config.warehouse) == f"{URL} s.flights"
    file.write_text("only-a-secret\n")
    with pytest.raises(ConfigError, match=r"Line 1 of .* is no name=value") as told:
        properties_of(str(file))
    assert "only-a-secret" not in told.value.message
    with pytest.raises(ConfigError, match="cannot be read"):
        properties_of(str(tmp_path / "none"))


def test_the_sample_of_properties_is_read() -> None:
    assert set(properties_of(str(PROJECT / "conf" / "jdbc.properties"))) == {"user", "password"}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--jdbc-url", URL],
        ["--jdbc-table", "t"],
        ["--warehouse", "/d", "--jdbc-url", URL, "--jdbc-table", "t"],
        ["--warehouse", "/d", "--jdbc-properties", "f"],
    ],
)
def test_one_whole_target_is_given(wrong: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(["--topic", "t", *wrong])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (
            {"layout": LayoutChoice(format=FileFormat.ORC, prefix="x_")},
            "--partition-prefix: for loads into files or tables of a lake; --format: for loads "
            "into files, and this one goes into the table jdbc:postgresql:.* public.t; leave",
        ),
        ({"evolve": True, "accept_restore": True}, "--evolve, --accept-restore: .* of a lake, and"),
        ({"compression": "zstd"}, "--compression: for loads into files"),
        ({"compact": 8}, "--compact: for loads into files"),
        ({"hive_table": "a.b"}, "--hive-table: for loads into files"),
    ],
)
def test_options_of_files_are_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        LoadConfig("t", JdbcTable(URL, "t"), "zk", **given)


@pytest.mark.parametrize(
    ("kind", "takes", "refuses"),
    [
        (StringType(), ["text", "character varying"], ["character varying(9)", "character(9)"]),
        (IntegerType(), ["integer", "bigint", "numeric"], ["smallint", "numeric(5,0)", "real"]),
        (LongType(), ["bigint"], ["integer", "double precision"]),
        (FloatType(), ["real", "double precision"], ["numeric"]),
        (DecimalType(9, 2), ["numeric(9,2)", "numeric"], ["numeric(9,1)"]),
        (TimestampType(), ["timestamp with time zone"],
         ["timestamp(3) with time zone", "timestamp without time zone"]),
        (StructType().add("a", IntegerType()), ["json", "jsonb", "text"], ["bytea"]),
    ],
)  # fmt: skip
def test_columns_that_keep_each_value_are_taken_and_no_others(
    kind: DataType, takes: list[str], refuses: list[str]
) -> None:
    columns = columns_of(StructType().add("x", kind))
    assert columns[0].types[0] == takes[0]
    for there in takes:
        check_fit(columns, {"x": ExistingColumn(there, needed=True)}, table="t")
    for there in refuses:
        with pytest.raises(IncompatibleColumnsError, match=r"Column x of t is .*, expected"):
            check_fit(columns, {"x": ExistingColumn(there, needed=False)}, table="t")


def test_names_that_no_column_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="of 64 bytes, which cannot name a column"):
        columns_of(StructType().add("é" * 32, IntegerType()))
    with pytest.raises(ConfigError, match="a field x of the type void"):
        columns_of(StructType().add("x", NullType()))


def test_statements_quote_all_names() -> None:
    columns = columns_of(
        StructType().add('a"; DROP', StringType()).add("h", ArrayType(IntegerType()))
    )
    assert quoted('a"; DROP') == '"a""; DROP"'
    assert create_target(columns, table="t") == (
        'CREATE TABLE t ("a""; DROP" text, "h" json, PRIMARY KEY ("partition", "offset"))'
    )
    there = {"h": ExistingColumn("jsonb", needed=False)}
    assert insert_staged(columns, there, table="t", staging="s") == (
        'INSERT INTO t ("a""; DROP", "h") SELECT c0, CAST(c1 AS jsonb) FROM s'
    )


@pytest.mark.parametrize(
    ("state", "kind", "remedy"),
    [
        ("08006", DatabaseUnavailableError, "run the load again"),
        ("57P01", DatabaseUnavailableError, "run the load again"),
        ("28P01", DatabaseError, "--jdbc-properties"),
        ("42501", DatabaseError, "right to create tables"),
        ("XX000", DatabaseError, "Nothing was committed"),
    ],
)
def test_states_of_the_database_have_their_remedy(
    state: str, kind: type[DatabaseError], remedy: str
) -> None:
    error = error_of(state, "no\n  good", URL)
    assert type(error) is kind
    assert f"{URL} says: no good. " in error.message
    assert remedy in error.message


def test_rows_are_known_by_the_columns_that_loads_write() -> None:
    columns = {
        "partition": ExistingColumn("integer", needed=True),
        "offset": ExistingColumn("numeric", needed=True),
        "timestamp": ExistingColumn("timestamp with time zone", needed=False),
    }
    check_known(columns, table="t")
    for changed, named in (
        (
            {"offset": ExistingColumn("text", needed=False)},
            "column offset is text, expected bigint or",
        ),
        (
            {"timestamp": ExistingColumn("timestamp without time zone", needed=False)},
            "expected timest",
        ),
    ):
        with pytest.raises(UnknownRowsError, match=named):
            check_known({**columns, **changed}, table="t")
    del columns["partition"]
    with pytest.raises(UnknownRowsError, match="column partition is none of that name"):
        check_known(columns, table="t")
