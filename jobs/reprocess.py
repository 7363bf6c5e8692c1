"""Read a window of a loaded topic again, and put it in the place of what loads had made of it.

    spark-submit reprocess.py --topic flights --warehouse /data/warehouse \\
        --from 2026-01-31T12:00Z --json-schema "carrier string, dep_delay double" --dry-run

For when the schema was wrong or has grown, or values that went to dead letters would decode now.
Run it without ``--dry-run`` when the plan is what you want. What is killed at any point loses
nothing and leaves nothing twice: run it again, or go on with loads. How that works is told in
``spark_logbus.load.reprocess``.

Exit codes: 0 reprocessed, or nothing of the window was loaded; 1 failed; 2 options that cannot be
used.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_logbus.config import build, load_toml
from spark_logbus.errors import ConfigError, LogbusError
from spark_logbus.load import JdbcTable, ReprocessConfig, Reprocessed, run_reprocess
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
from spark_logbus.model import check_name
from spark_logbus.programs import run_program
from spark_logbus.zookeeper import default_connect

_TABLE = "reprocess"
_SHOWN_FILES = 10
_NOT_DONE = "Nothing was changed; run it without --dry-run to do it."
_HERE = "here or as a key of the file of --config"


def parse_arguments(argv: list[str] | None = None) -> tuple[ReprocessConfig, bool]:
    """What the command line says, then the file that it names; and if the report is to be JSON.

    ConfigError and InvalidNameError say what is wrong with a value.
    """
    given = vars(_parser().parse_args(argv))
    path, as_json = given.pop("config"), given.pop("json")
    file = load_toml(Path(path), [_TABLE]).get(_TABLE, {}) if path else {}
    values: dict[str, Any] = {"zookeeper": default_connect(), **file, **given}
    if "topic" not in values:
        raise ConfigError(f"--topic is needed, {_HERE}.")
    properties = values.pop("jdbc_properties", None)
    values["warehouse"] = target_of(
        warehouse=values.get("warehouse"),
        url=values.pop("jdbc_url", None),
        table=values.pop("jdbc_table", None),
        properties=properties,
    )
    if values["warehouse"] is None:
        raise ConfigError(f"No one target is named: {NO_TARGET}, {_HERE}.")
    if isinstance(values.get("avro_schema"), str):
        values["avro_schema"] = schema_text(values["avro_schema"])
    config = build(ReprocessConfig, values, where=path or "the options")
    check_name("topic", config.topic)
    return config, as_json


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reprocess.py",
        description="Read a window of a loaded topic again, and put it in the place of what loads "
        "had made of it.",
        epilog="example: spark-submit reprocess.py --topic flights --warehouse /data/warehouse "
        "--from '-2 days' --json-schema 'carrier string, delay int' --dry-run. "
        "Exit codes: 0 reprocessed, or nothing of the window was loaded; 1 failed; 2 options that "
        "cannot be used.",
        # What is not given is not there, so that it can come from the file.
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--config", default=None, help=f"a TOML file with these options as keys of [{_TABLE}]"
    )
    parser.add_argument("--topic")
    parser.add_argument("--warehouse", help="directory that the loads were given")
    add_table_options(parser.add_argument_group("a table of PostgreSQL, in place of --warehouse"))
    parser.add_argument("--zookeeper", help=f"the cluster (default: {default_connect()})")
    parser.add_argument(
        "--hive-table", metavar="DB.TABLE", help="the table over the files, which is told"
    )
    window = parser.add_argument_group("window, of which only what was loaded counts")
    window.add_argument(
        "--from",
        dest="start",
        required=True,
        metavar="WHERE",
        help="a time (2013-12-01T05:00Z), earliest (all that the log still has), -1000 records, "
        """'-10 minutes', or offsets as JSON ({"topic": {"0": 23}})""",
    )
    window.add_argument(
        "--until", metavar="WHERE", help="its end, in the same words (default: the last load's)"
    )
    add_value_options(parser.add_argument_group("values, as the loads after this one decode them"))
    output = parser.add_argument_group("output")
    output.add_argument("--compression", choices=COMPRESSIONS, help="of the files")
    output.add_argument(
        "--dry-run", action="store_true", help="show what would be replaced, and change nothing"
    )
    output.add_argument(
        "--json",
        action="store_true",
        default=False,
        help="the report as one line of JSON, without tables",
    )
    return parser


def report(console: Console, config: ReprocessConfig, done: Reprocessed) -> None:
    """The outcome, or the plan, for a person."""
    if not done.ranges:
        console.print(f"Nothing of that window of {done.topic} was loaded; nothing was changed.")
        return
    _report_window(console, done)
    before = done.before
    if done.columns_added:
        console.print(f"New columns: {', '.join(done.columns_added)}.", highlight=False)
    into_table = isinstance(config.warehouse, JdbcTable)
    if done.columns_left_out:
        default = ", or of their default" if into_table else ""
        console.print(
            f"Null in the window from now on{default}: {', '.join(done.columns_left_out)}.",
            highlight=False,
        )
    if into_table:
        _report_table(console, done)
    elif done.commit is None:
        names = "".join(f"\n  {name}" for name in before.names[:_SHOWN_FILES])
        more = f"\n  and {len(before.names) - _SHOWN_FILES:,} more"
        console.print(
            f"{len(before.names):,} files of {done.path} would be replaced, and {before.kept:,} "
            f"other records in them kept as they are:{escape(names)}"
            f"{more if len(before.names) > _SHOWN_FILES else ''}\n"
            f"{_NOT_DONE}",
            highlight=False,
        )
    else:
        _report_commit(console, done)


def _report_window(console: Console, done: Reprocessed) -> None:
    planned = "Plan for" if done.commit is None else "Reprocessed"
    table = Table("partition", "from", "to", "offsets", title=f"{planned} {done.topic}")
    for r in done.ranges:
        table.add_row(
            str(r.topic_partition.partition), f"{r.start:,}", f"{r.end:,}", f"{r.count:,}"
        )
    _print_right(console, table)
    before = done.before
    now = () if done.commit is None else (f"{done.records:,}", f"{done.dead_letters:,}")
    table = Table("of the window", "before", *(("now",) if now else ()))
    for name, row in zip(
        ("records", "dead letters"),
        zip((f"{before.records:,}", f"{before.dead_letters:,}"), now or ("", ""), strict=True),
        strict=True,
    ):
        table.add_row(name, *row[: 2 if now else 1])
    _print_right(console, table)


def _print_right(console: Console, table: Table) -> None:
    for column in table.columns:
        column.justify = "right"
    console.print(table)


def _report_table(console: Console, done: Reprocessed) -> None:
    rows = done.before.records + done.before.dead_letters
    if done.commit is None:
        console.print(
            f"{rows:,} rows of {done.path} would be replaced.\n{_NOT_DONE}", highlight=False
        )
        return
    console.print(
        f"{rows:,} rows of {done.path} were replaced by {done.records + done.dead_letters:,}, "
        f"{done.seconds:.1f} s ({_times(done)}).",
        highlight=False,
    )
    _report_apart(console, done)


def _report_commit(console: Console, done: Reprocessed) -> None:
    before, commit = done.before, done.commit
    assert commit is not None
    console.print(
        f"{len(before.names):,} files were replaced by {len(commit.files):,} ({done.size_bytes:,} "
        f"bytes) under {done.path}, with {before.kept:,} other records that stay as they were, "
        f"{done.seconds:.1f} s ({_times(done)}).",
        highlight=False,
    )
    _report_apart(console, done)
    if done.hive_table is not None:
        console.print(f"Table {done.hive_table} has them.")


def _times(done: Reprocessed) -> str:
    return ", ".join(f"{step} {seconds:.1f}" for step, seconds in done.steps.items())


def _report_apart(console: Console, done: Reprocessed) -> None:
    assert done.commit is not None
    report_apart(
        console,
        timeless=done.without_event_time,
        layout=done.commit.layout,
        dead_letters=done.dead_letters,
        dead_letters_path=done.dead_letters_path,
    )


def main(argv: list[str] | None = None) -> int:
    console = Console(soft_wrap=True)
    try:
        config, as_json = parse_arguments(argv)
        done = in_session(
            console,
            f"reprocess {config.topic}",
            lambda spark, steps: run_reprocess(spark, config, steps),
            hive=config.hive_table is not None,
        )
    except LogbusError as error:
        console.print(f"[bold red]Reprocessing failed:[/] {escape(error.message)}", highlight=False)
        return 1
    if as_json:
        print(json.dumps(done.to_json()))
    else:
        report(console, config, done)
    return 0


if __name__ == "__main__":
    run_program(main)
