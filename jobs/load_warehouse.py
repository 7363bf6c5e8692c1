"""Load a topic's new records into Parquet or ORC, or a table, data and offsets together.

    spark-submit load_warehouse.py --topic flights --warehouse /data/warehouse
    spark-submit load_warehouse.py --topic flights --delta s3://lake/flights

Run it as often as new records should come in. A load that is killed at any point loses nothing
and leaves nothing twice: run it again. How that works is told in
``spark_logbus.load.files.warehouse``, and of a lake's tables in ``spark_logbus.load.lake.target``.

Exit codes: 0 loaded, or nothing was new; 1 failed; 2 options that cannot be used.
"""

from __future__ import annotations

import argparse

from rich.console import Console

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
    Output,
    add_target_options,
    add_value_options,
    resolve_options,
    run_job,
    show_places,
    show_ranges,
    times_of,
)
from spark_logbus.load.config import COMPRESSIONS
from spark_logbus.load.small_files import DEFAULT_FILES
from spark_logbus.model import check_name
from spark_logbus.plurals import plural
from spark_logbus.programs import run_program
from spark_logbus.zookeeper import add_cluster_options, default_connect


def parse_arguments(argv: list[str] | None = None) -> tuple[LoadConfig, Output]:
    """Parses the options. Raises ConfigError and InvalidNameError for a wrong value."""
    parser = argparse.ArgumentParser(
        prog="load_warehouse.py",
        description="Load a topic's new records into Parquet or ORC, or into a table.",
        epilog="Exit codes: 0 loaded, or nothing was new (see --nothing-new-exit-code); 1 failed; "
        "2 options that cannot be used.",
    )
    parser.add_argument("--topic", required=True)
    add_target_options(parser, warehouse="directory, local or hdfs://...")
    add_cluster_options(parser, default=default_connect())
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
    values = vars(parser.parse_args(argv))
    output = Output(values.pop("json"), values.pop("nothing_new_exit_code"))
    check_name("topic", values["topic"])
    if values["group"]:
        check_name("group", values["group"])
    resolve_options(values)
    if values["warehouse"] is None:
        parser.error(NO_TARGET)
    period, form = values.pop("partition_by"), values.pop("format")
    columns = values.pop("partition_columns")
    layout = LayoutChoice(
        period=None if period is None else Period(period),
        prefix=values.pop("partition_prefix"),
        columns=None if columns is None else tuple(filter(None, columns.split(","))),
        event_time=values.pop("event_time"),
        format=None if form is None else FileFormat(form),
    )
    return LoadConfig(**values, layout=layout), output


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
    """Prints the outcome for a person."""
    commit = loaded.commit
    if commit is None or loaded.nothing_new:
        console.print(f"Nothing new in {config.topic}; {loaded.path} is up to date.")
    else:
        _report_commit(console, config, loaded, commit)
    if loaded.files_replaced:
        small = plural(
            loaded.files_replaced, "small file was rewritten", "small files were rewritten"
        )
        console.print(f"{small} as {loaded.files_rewritten:,}.", highlight=False)


def _report_commit(console: Console, config: LoadConfig, loaded: Loaded, commit: Commit) -> None:
    show_ranges(console, commit.ranges, title=f"Load {commit.number} of {config.topic}")
    match config.warehouse:
        case JdbcTable():
            where = loaded.path
        case target:
            place = "under" if isinstance(target, str) else "of table"
            files = f"{plural(len(commit.files), 'file')} ({loaded.size_bytes:,} bytes)"
            where = f"{files} {place} {loaded.path}"
    records = plural(loaded.records, "record")
    console.print(f"{records} in {where}, {times_of(loaded)}.", highlight=False)
    show_places(console, loaded, commit, in_directories=isinstance(config.warehouse, str))
    if config.group is not None:
        console.print(f"Group {config.group} in ZooKeeper stands at the end of this load.")


def main(argv: list[str] | None = None) -> int:
    return run_job(
        "load", lambda: parse_arguments(argv), run_load, report, failed="The load failed"
    )


if __name__ == "__main__":
    run_program(main)
