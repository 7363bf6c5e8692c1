"""Code that the warehouse jobs share: options, the Spark session, printed reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_logbus.errors import ConfigError, LogbusError
from spark_logbus.load.commit import DEAD_LETTERS, Commit
from spark_logbus.load.config import TargetConfig, named_lake, properties_of
from spark_logbus.load.errors import UsageError
from spark_logbus.load.report import LoadReport
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tables import (
    ENVIRONMENT,
    DeltaTable,
    IcebergTable,
    JdbcTable,
    TableOfLake,
    check_warehouse,
)
from spark_logbus.model import OffsetRange
from spark_logbus.plurals import plural

#: Exit code for options that cannot be used together, as argparse has it for a single one.
WRONG_USAGE: Final = 2

C = TypeVar("C", bound=TargetConfig)
R = TypeVar("R", bound=LoadReport)


@dataclass(frozen=True, slots=True)
class Output:
    """Options for the outcome of a job."""

    as_json: bool = False
    nothing_new_code: int = 0


def add_target_options(parser: argparse.ArgumentParser, *, warehouse: str) -> None:
    """Adds the options for the target; ``warehouse`` is the help of a directory."""
    parser.add_argument("--warehouse", metavar="DIR", help=warehouse)
    group = parser.add_argument_group("a table of PostgreSQL, in place of --warehouse")
    group.add_argument("--jdbc-url", metavar="URL", help="jdbc:postgresql://host:port/database")
    group.add_argument("--jdbc-table", metavar="SCHEMA.TABLE", help="a load makes it, if needed")
    group.add_argument(
        "--jdbc-properties",
        metavar="FILE",
        help="name=value a line: user, password and other properties of the connection; "
        f"{' and '.join(ENVIRONMENT.values())} win over it",
    )
    lake = parser.add_argument_group("a table of a lake, in place of --warehouse")
    add_lake_options(lake)
    lake.add_argument(
        "--evolve",
        action="store_true",
        help="add columns for new fields, and widen types where the format can",
    )
    lake.add_argument(
        "--accept-restore",
        action="store_true",
        help="go on from the offsets of an older version that somebody has restored",
    )


def add_lake_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options that name a table of a lake."""
    group.add_argument(
        "--delta", metavar="URI", help="directory of a Delta table, local or s3://bucket/..."
    )
    group.add_argument(
        "--iceberg",
        metavar="CATALOG.NAMESPACE.TABLE",
        help="an Iceberg table, by its catalogue and its name there",
    )
    group.add_argument(
        "--lake-properties",
        metavar="FILE",
        help="name=value a line, secrets too: storage options of Delta, or properties of Iceberg's "
        "catalogue",
    )


def resolve_options(values: dict[str, Any]) -> None:
    """Puts the target in the place of the options that name it (None where they do not name exactly
    one), and the text of ``--avro-schema`` in the place of its path. Raises ConfigError."""
    url, table, properties = (
        values.pop(name, None) for name in ("jdbc_url", "jdbc_table", "jdbc_properties")
    )
    lake = named_lake(*(values.pop(name, None) for name in ("delta", "iceberg", "lake_properties")))
    target: str | JdbcTable | TableOfLake | None = None
    match values.get("warehouse"), url, table, lake:
        case str() as root, None, None, None if properties is None:
            check_warehouse(root)
            target = root
        case None, str(), str(), None:
            target = JdbcTable(url, table, properties_of(properties))
        case None, None, None, DeltaTable() | IcebergTable() if properties is None:
            target = lake
    values["warehouse"] = target
    path = values.get("avro_schema")
    if isinstance(path, str):
        try:
            values["avro_schema"] = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--avro-schema {path} cannot be read: {error}.") from error


NO_TARGET: Final = "give one of --warehouse, --delta, --iceberg, or --jdbc-url with --jdbc-table"


def add_value_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options that say how values become columns."""
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
        f"<warehouse>/<topic>/{DEAD_LETTERS}, or in a table <name>_dead_letters beside the target",
    )


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


def run_job(
    verb: str,
    parse: Callable[[], tuple[C, Output]],
    work: Callable[[SparkSession, C, StepTimer], R],
    show: Callable[[Console, C, R], None],
    *,
    failed: str,
) -> int:
    """Runs a job in a session of its own, with each step shown as it passes, and tells the outcome.

    Returns the exit code, which is 2 where options do not go together. An error is told in one
    message, which begins with ``failed``.
    """
    console = Console(soft_wrap=True)
    try:
        config, output = parse()
        name = f"{verb} {config.topic}"
        with console.status("start Spark") as status:
            steps = StepTimer(lambda step: status.update(f"{name}: {step}"))
            with steps.step("start Spark"):
                spark = warehouse_session(name, hive=config.hive_table is not None)
            try:
                report = work(spark, config, steps)
            finally:
                spark.stop()
    except LogbusError as error:
        console.print(f"[bold red]{failed}:[/] {escape(error.message)}", highlight=False)
        return WRONG_USAGE if isinstance(error, UsageError) else 1
    if output.as_json:
        sys.stdout.write(f"{json.dumps(report.to_json())}\n")
    else:
        show(console, config, report)
    return output.nothing_new_code if report.nothing_new else 0


def show_ranges(console: Console, ranges: Iterable[OffsetRange], *, title: str) -> None:
    """Prints a table of ranges."""
    table = Table("partition", "from", "to", "offsets", title=title)
    for each in ranges:
        numbers = (each.start, each.end, each.count)
        table.add_row(str(each.topic_partition.partition), *(f"{n:,}" for n in numbers))
    show_numbers(console, table)


def show_numbers(console: Console, table: Table) -> None:
    """Prints a table whose columns are numbers."""
    for column in table.columns:
        column.justify = "right"
    console.print(table)


def times_of(report: LoadReport) -> str:
    """Time of the whole, and of each step."""
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in report.steps.items())
    return f"{report.seconds:.1f} s ({steps})"


def show_places(
    console: Console, report: LoadReport, commit: Commit, *, in_directories: bool
) -> None:
    """Prints where the records are that have no event time, and those that did not decode; and the
    table over the files. ``in_directories``: partitions of the target are nothing else."""
    if report.without_event_time:
        place = (
            f"{commit.layout.period_columns[0]}=__HIVE_DEFAULT_PARTITION__"
            if in_directories
            else "the partition of null"
        )
        timeless = plural(
            report.without_event_time,
            "record has no event time; it is",
            "records have no event time; they are",
        )
        console.print(f"{timeless} in {place}.", highlight=False)
    if report.dead_letters:
        dead = plural(
            report.dead_letters,
            "record did not decode; it is",
            "records did not decode; they are",
        )
        console.print(f"{dead} in {report.dead_letters_path}.", highlight=False)
    if report.hive_table is not None:
        console.print(f"Table {report.hive_table} has them.")
