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
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_logbus.config import build, load_toml
from spark_logbus.load import JdbcTable, ReprocessConfig, Reprocessed, run_reprocess
from spark_logbus.load.command import (
    NO_TARGET,
    Output,
    add_target_options,
    add_value_options,
    resolve_options,
    run_job,
    show_numbers,
    show_places,
    show_ranges,
    times_of,
)
from spark_logbus.load.config import COMPRESSIONS
from spark_logbus.load.errors import UsageError
from spark_logbus.model import check_name
from spark_logbus.plurals import plural
from spark_logbus.programs import run_program
from spark_logbus.zookeeper import add_cluster_options, default_connect

_TABLE = "reprocess"
_SHOWN_FILES = 10
_NOT_DONE = "Nothing was changed; run it without --dry-run to do it."
_HERE = "here or as a key of the file of --config"


def parse_arguments(argv: list[str] | None = None) -> tuple[ReprocessConfig, Output]:
    """Parses the command line, then the file that it names.

    Raises ConfigError and InvalidNameError for a wrong value.
    """
    given = vars(_parser().parse_args(argv))
    path, as_json = given.pop("config"), given.pop("json")
    file = load_toml(Path(path), [_TABLE]).get(_TABLE, {}) if path else {}
    values: dict[str, Any] = {"zookeeper": default_connect(), **file, **given}
    if "topic" not in values:
        raise UsageError(f"--topic is needed, {_HERE}.")
    resolve_options(values)
    if values["warehouse"] is None:
        raise UsageError(f"No one target is named: {NO_TARGET}, {_HERE}.")
    config = build(ReprocessConfig, values, where=path or "the options")
    check_name("topic", config.topic)
    return config, Output(as_json)


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
    add_target_options(parser, warehouse="directory that the loads were given")
    add_cluster_options(parser)
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
    """Prints the outcome, or the plan, for a person."""
    if not done.ranges:
        console.print(f"Nothing of that window of {done.topic} was loaded; nothing was changed.")
        return
    _report_window(console, done)
    if done.columns_added:
        console.print(f"New columns: {', '.join(done.columns_added)}.", highlight=False)
    into_table = isinstance(config.warehouse, JdbcTable)
    if done.columns_left_out:
        default = ", or of their default" if into_table else ""
        console.print(
            f"Null in the window from now on{default}: {', '.join(done.columns_left_out)}.",
            highlight=False,
        )
    told = _told_of_rows(done) if into_table else _told_of_files(done)
    console.print(told if done.commit is not None else f"{told}\n{_NOT_DONE}", highlight=False)
    if done.commit is not None:
        in_directories = isinstance(config.warehouse, str)
        show_places(console, done, done.commit, in_directories=in_directories)


def _report_window(console: Console, done: Reprocessed) -> None:
    planned = "Plan for" if done.commit is None else "Reprocessed"
    show_ranges(console, done.ranges, title=f"{planned} {done.topic}")
    table = Table("of the window", "before", *(() if done.commit is None else ("now",)))
    for name, before, now in (
        ("records", done.before.records, done.records),
        ("dead letters", done.before.dead_letters, done.dead_letters),
    ):
        table.add_row(name, f"{before:,}", *(() if done.commit is None else (f"{now:,}",)))
    show_numbers(console, table)


def _told_of_rows(done: Reprocessed) -> str:
    rows = done.before.records + done.before.dead_letters
    if done.commit is None:
        return f"{plural(rows, 'row')} of {done.path} would be replaced."
    replaced = plural(
        rows, f"row of {done.path} was replaced", f"rows of {done.path} were replaced"
    )
    return f"{replaced} by {done.records + done.dead_letters:,}, {times_of(done)}."


def _told_of_files(done: Reprocessed) -> str:
    before, commit = done.before, done.commit
    if commit is None:
        names = "".join(f"\n  {name}" for name in before.names[:_SHOWN_FILES])
        kept = plural(before.kept, "other record there is", "other records there are")
        more = f"\n  and {len(before.names) - _SHOWN_FILES:,} more"
        return (
            f"{plural(len(before.names), 'file')} of {done.path} would be replaced; {kept} kept as "
            f"now:{escape(names)}"
            f"{more if len(before.names) > _SHOWN_FILES else ''}"
        )
    kept = plural(
        before.kept, "other record that stays as it was", "other records that stay as they were"
    )
    files = plural(len(before.names), "file was replaced", "files were replaced")
    return (
        f"{files} by {len(commit.files):,} ({done.size_bytes:,} bytes) under {done.path}, with "
        f"{kept}, {times_of(done)}."
    )


def main(argv: list[str] | None = None) -> int:
    return run_job(
        "reprocess",
        lambda: parse_arguments(argv),
        run_reprocess,
        report,
        failed="Reprocessing failed",
    )


if __name__ == "__main__":
    run_program(main)
