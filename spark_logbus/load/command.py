"""What the jobs that write to a warehouse have in common: options, the session, and sentences."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from pyspark.sql import SparkSession
from rich.console import Console

from spark_logbus.errors import ConfigError
from spark_logbus.load.commit import DEAD_LETTERS
from spark_logbus.load.config import ENVIRONMENT, JdbcTable, properties_of
from spark_logbus.load.layout import Layout
from spark_logbus.load.steps import StepTimer

T = TypeVar("T")


def add_table_options(group: argparse._ArgumentGroup) -> None:
    """A table in place of a directory."""
    group.add_argument("--jdbc-url", metavar="URL", help="jdbc:postgresql://host:port/database")
    group.add_argument("--jdbc-table", metavar="SCHEMA.TABLE", help="a load makes it, if needed")
    group.add_argument(
        "--jdbc-properties",
        metavar="FILE",
        help="name=value a line: user, password and other properties of the connection; "
        f"{' and '.join(ENVIRONMENT.values())} win over it",
    )


def target_of(
    *, warehouse: str | None, url: str | None, table: str | None, properties: str | None
) -> str | JdbcTable | None:
    """The one target that is given; None where that is not one. Raises ConfigError."""
    match warehouse, url, table:
        case str(), None, None if properties is None:
            return warehouse
        case None, str(), str():
            return JdbcTable(url, table, properties_of(properties))
    return None


NO_TARGET: Final = "give --warehouse, or --jdbc-url and --jdbc-table"


def add_value_options(group: argparse._ArgumentGroup) -> None:
    """How values become columns."""
    group.add_argument(
        "--json-schema", help='fields of JSON values as columns: "carrier string, delay int"'
    )
    group.add_argument(
        "--avro-schema",
        metavar="FILE",
        help="schema of Avro values, whose fields become columns, for topics without a schema",
    )
    group.add_argument(
        "--drop-value",
        action="store_true",
        help="keep of values only the fields of --json-schema or --avro-schema, for good",
    )
    group.add_argument(
        "--dead-letters",
        action="store_true",
        help="keep records whose values do not decode apart, with the reason, in "
        f"<warehouse>/<topic>/{DEAD_LETTERS}, or a table beside the one of --jdbc-table",
    )


def schema_text(path: str) -> str:
    """The file that ``--avro-schema`` names. Raises ConfigError."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--avro-schema {path} cannot be read: {error}.") from error


def warehouse_session(name: str, *, hive: bool = False) -> SparkSession:
    """The session in which all files of a warehouse are written, whichever job does it; with
    Hive's metastore or without."""
    builder = (
        SparkSession.builder.appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        # What Parquet readers other than Spark know; Spark's own default is its older INT96.
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    )
    return (builder.enableHiveSupport() if hive else builder).getOrCreate()


def in_session(
    console: Console, name: str, work: Callable[[SparkSession, StepTimer], T], *, hive: bool
) -> T:
    """The outcome of ``work``, in a session of its own, with each step shown as it passes."""
    with console.status("start Spark") as status:
        steps = StepTimer(lambda step: status.update(f"{name}: {step}"))
        with steps.step("start Spark"):
            spark = warehouse_session(name, hive=hive)
        try:
            return work(spark, steps)
        finally:
            spark.stop()


def report_apart(
    console: Console, *, timeless: int, layout: Layout, dead_letters: int, dead_letters_path: str
) -> None:
    """Where the records are that have no event time, and those that did not decode."""
    if timeless:
        console.print(
            f"{timeless:,} records have no event time; they are in "
            f"{layout.period_columns[0]}=__HIVE_DEFAULT_PARTITION__.",
            highlight=False,
        )
    if dead_letters:
        console.print(
            f"{dead_letters:,} records did not decode; they are in {dead_letters_path}.",
            highlight=False,
        )
