"""Load a topic's new records into Parquet or ORC, or a table, data and offsets together.

    spark-submit load_warehouse.py --topic flights --warehouse /data/warehouse

Run it as often as new records should come in. A load that is killed at any point loses nothing
and leaves nothing twice: run it again. How that works is told in
``spark_logbus.load.files.warehouse``.

Exit codes: 0 loaded, or nothing was new; 1 failed; 2 options that cannot be used.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_logbus.errors import LogbusError
from spark_logbus.load import (
    Commit,
    FileFormat,
    JdbcTable,
    LayoutChoice,
    LoadConfig,
    Loaded,
    Period,
    run_load,
)
from spark_logbus.load.command import (
    NO_TARGET,
    add_table_options,
    add_value_options,
    in_session,
    report_apart,
    schema_text,
    target_of,
)
from spark_logbus.load.config import COMPRESSIONS
from spark_logbus.load.files.small_files import DEFAULT_FILES
from spark_logbus.load.plan.ranges import first_start, last_end
from spark_logbus.model import check_name
from spark_logbus.programs import run_program
from spark_logbus.zookeeper import default_connect


@dataclass(frozen=True, slots=True)
class Output:
    """How the job tells its outcome."""

    as_json: bool = False
    nothing_new_code: int = 0


def parse_arguments(argv: list[str] | None = None) -> tuple[LoadConfig, Output]:
    """ConfigError and InvalidNameError say what is wrong with a value."""
    parser = argparse.ArgumentParser(
        prog="load_warehouse.py",
        description="Load a topic's new records into Parquet or ORC, or into a table.",
        epilog="Exit codes: 0 loaded, or nothing was new (see --nothing-new-exit-code); 1 failed; "
        "2 options that cannot be used.",
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--warehouse", help="directory, local or hdfs://...")
    add_table_options(parser.add_argument_group("a table of PostgreSQL, in place of --warehouse"))
    parser.add_argument("--zookeeper", default=default_connect())
    parser.add_argument(
        "--hive-table",
        metavar="DB.TABLE",
        help="keep a table over the files in the Hive metastore that Spark is set up for",
    )
    parser.add_argument("--group", help="also show the progress as this group's offsets")
    add_value_options(parser.add_argument_group("values"))
    _add_bounds(parser.add_argument_group("bounds of a load"))
    _add_layout(parser.add_argument_group("layout, which a warehouse keeps from its first load on"))
    _add_output(parser.add_argument_group("output"))
    args = parser.parse_args(argv)
    check_name("topic", args.topic)
    if args.group:
        check_name("group", args.group)
    target = target_of(
        warehouse=args.warehouse,
        url=args.jdbc_url,
        table=args.jdbc_table,
        properties=args.jdbc_properties,
    )
    if target is None:
        parser.error(NO_TARGET)
    columns = args.partition_columns
    config = LoadConfig(
        args.topic,
        target,
        args.zookeeper,
        json_schema=args.json_schema,
        allow_gaps=args.allow_gaps,
        group=args.group,
        drop_value=args.drop_value,
        layout=LayoutChoice(
            period=None if args.partition_by is None else Period(args.partition_by),
            prefix=args.partition_prefix,
            columns=None if columns is None else tuple(filter(None, columns.split(","))),
            event_time=args.event_time,
            format=None if args.format is None else FileFormat(args.format),
        ),
        compression=args.compression,
        start=args.start,
        until=args.until,
        max_records=args.max_records,
        max_bytes=args.max_bytes,
        avro_schema=None if args.avro_schema is None else schema_text(args.avro_schema),
        dead_letters=args.dead_letters,
        compact=args.compact,
        audit=args.audit,
        hive_table=args.hive_table,
    )
    # Before Spark starts.
    if config.start is not None:
        first_start(config.start)
    if config.until is not None:
        last_end(config.until)
    return config, Output(args.json, args.nothing_new_exit_code)


def _add_bounds(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        help="where the first load begins: a time (2013-12-01T05:00Z), earliest, -1000 records, "
        """'-10 minutes', or offsets as JSON ({"topic": {"0": 23}})""",
    )
    group.add_argument("--until", metavar="WHERE", help="where this load ends at the latest")
    group.add_argument("--max-records", type=int, help="of this load; the next one goes on")
    group.add_argument("--max-bytes", type=int, help="of this load, about; the next one goes on")
    group.add_argument(
        "--allow-gaps",
        action="store_true",
        help="go on after records that retention deleted before they were loaded, and over "
        "offsets without a record in a topic that is no longer compacted",
    )


def _add_layout(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--partition-by",
        choices=[period.value for period in Period],
        help="directories of that much event time, in UTC (default: day)",
    )
    group.add_argument(
        "--event-time",
        "--date-column",
        metavar="SQL",
        help="a field of the value, or an expression, that is a timestamp or a date "
        "(default: timestamp, the record's own)",
    )
    group.add_argument(
        "--partition-columns",
        metavar="A,B",
        help="columns whose values become directories below those of the event time",
    )
    group.add_argument(
        "--partition-prefix",
        metavar="TEXT",
        help="before the names date, hour and month, where values have a field of that name",
    )
    group.add_argument(
        "--format",
        choices=[each.value for each in FileFormat],
        help="of the files (default: parquet)",
    )
    group.add_argument(
        "--compression", choices=COMPRESSIONS, help="of the files; may change from load to load"
    )
    group.add_argument(
        "--compact",
        type=int,
        nargs="?",
        const=DEFAULT_FILES,
        metavar="FILES",
        help="after the load, rewrite the small files of each directory that has so many of them "
        f"(default: {DEFAULT_FILES}) as one",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json", action="store_true", help="the report as one line of JSON, without a table"
    )
    group.add_argument(
        "--audit",
        action="store_true",
        help="publish how many records were loaded, for `logbus audit`",
    )
    group.add_argument(
        "--nothing-new-exit-code",
        type=int,
        default=0,
        metavar="CODE",
        help="end with this code where nothing was new (Airflow skips a task that ends with 99)",
    )


def report(console: Console, config: LoadConfig, loaded: Loaded) -> None:
    """The outcome for a person."""
    commit = loaded.commit
    if commit is None or loaded.nothing_new:
        console.print(f"Nothing new in {config.topic}; the warehouse is up to date.")
    else:
        _report_commit(console, config, loaded, commit)
    if loaded.files_replaced:
        console.print(
            f"{loaded.files_replaced:,} small files were rewritten as {loaded.files_rewritten:,}.",
            highlight=False,
        )


def _report_commit(console: Console, config: LoadConfig, loaded: Loaded, commit: Commit) -> None:
    table = Table(
        "partition", "from", "to", "offsets", title=f"Load {commit.number} of {config.topic}"
    )
    for column in table.columns:
        column.justify = "right"
    for r in commit.ranges:
        table.add_row(
            str(r.topic_partition.partition), f"{r.start:,}", f"{r.end:,}", f"{r.count:,}"
        )
    console.print(table)
    times = ", ".join(f"{step} {seconds:.1f}" for step, seconds in loaded.steps.items())
    where = (
        f"{loaded.path}"
        if isinstance(config.warehouse, JdbcTable)
        else f"{len(commit.files):,} files ({loaded.size_bytes:,} bytes) under {loaded.path}"
    )
    console.print(
        f"{commit.records:,} records in {where}, {loaded.seconds:.1f} s ({times}).",
        highlight=False,
    )
    report_apart(
        console,
        timeless=loaded.without_event_time,
        layout=commit.layout,
        dead_letters=commit.dead_letters,
        dead_letters_path=loaded.dead_letters_path,
    )
    if config.hive_table is not None:
        console.print(f"Table {config.hive_table} has them.")
    if config.group is not None:
        console.print(f"Group {config.group} in ZooKeeper stands at the end of this load.")


def main(argv: list[str] | None = None) -> int:
    console = Console(soft_wrap=True)
    try:
        config, output = parse_arguments(argv)
        loaded = in_session(
            console,
            f"load {config.topic}",
            lambda spark, steps: run_load(spark, config, steps),
            hive=config.hive_table is not None,
        )
    except LogbusError as error:
        console.print(f"[bold red]The load failed:[/] {escape(str(error))}", highlight=False)
        return 1
    if output.as_json:
        print(json.dumps(loaded.to_json()))
    else:
        report(console, config, loaded)
    return output.nothing_new_code if loaded.nothing_new else 0


if __name__ == "__main__":
    run_program(main)
