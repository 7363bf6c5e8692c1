"""Compare what producers counted with what is in a topic, its warehouse and its mirror.

    spark-submit audit_completeness.py --topic flights --since 1d --warehouse /data/warehouse

Spark counts, so topics, warehouses and tables of a lake may be large, and a warehouse on any Hadoop
filesystem. What is compared and said is what ``logbus audit`` compares and says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from spark_logbus.audit import AUDIT_TOPIC, AuditResult, Question, audit
from spark_logbus.audit.showing import as_objects, exit_code, row_of, sentences
from spark_logbus.client import Cluster
from spark_logbus.errors import LogbusError
from spark_logbus.load import SparkCounts
from spark_logbus.load.command import WRONG_USAGE, add_lake_options
from spark_logbus.load.config import named_lake
from spark_logbus.load.errors import UsageError
from spark_logbus.load.tables import check_warehouse
from spark_logbus.mirror import mirror_places
from spark_logbus.model import check_name
from spark_logbus.programs import run_program
from spark_logbus.times import parse_duration_us, parse_past_us, show_moment
from spark_logbus.zookeeper import add_cluster_options, default_connect


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="audit_completeness.py",
        description="Compare what producers counted with what is in a topic and its copies. Exit "
        "code 0: complete, 1: something is missing, there twice, in doubt, uncounted or not known, "
        "2: wrong usage, 3: not yet known.",
    )
    parser.add_argument("--topic", required=True)
    add_cluster_options(parser, default=default_connect())
    parser.add_argument(
        "--since", default="1d", type=_moment, help="a time, 2026-01-31T12:00Z, or how long ago"
    )
    parser.add_argument("--until", type=_moment, help="as late as all have reported by default")
    parser.add_argument("--window", type=_duration, help="a multiple of the counters' own: 1h")
    parser.add_argument("--warehouse", help="directory of loads, local or hdfs://...")
    add_lake_options(parser.add_argument_group("a table of a lake that loads write to"))
    parser.add_argument("--mirror", help="cluster with the topic's mirror; profile:NAME is one")
    parser.add_argument("--audit-topic", default=AUDIT_TOPIC)
    parser.add_argument(
        "--wait", default="90s", type=_duration, help="at most so long for counts that decide"
    )
    parser.add_argument("--json", action="store_true", help="an object for each window")
    args = parser.parse_args(argv)
    check_name("topic", args.topic)
    if args.warehouse is not None:
        check_warehouse(args.warehouse)
    args.table = named_lake(args.delta, args.iceberg, args.lake_properties)
    return args


def _moment(text: str) -> int:
    try:
        return parse_past_us(text, now_us=time.time_ns() // 1_000)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _duration(text: str) -> int:
    try:
        return parse_duration_us(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(args: argparse.Namespace, spark: SparkSession) -> AuditResult:
    question = Question(
        topic=args.topic,
        since_us=args.since,
        until_us=args.until,
        window_us=args.window,
        audit_topic=args.audit_topic,
        wait_s=args.wait / 1e6,
    )
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.from_zookeeper(args.zookeeper))
        counts = SparkCounts(spark, cluster, args.zookeeper, args.topic)
        places = []
        if args.warehouse is not None:
            places.append(counts.warehouse(args.warehouse))
        if args.table is not None:
            places.append(counts.lake_table(args.table))
        if args.mirror is not None:
            other = stack.enter_context(Cluster.from_zookeeper(args.mirror))
            places += mirror_places(
                cluster, args.topic,
                copy=other, copy_topic=args.topic, address=args.mirror,
                audit_topic=args.audit_topic,
            )  # fmt: skip
        return audit(cluster, question, places=places, count=counts.count)


def report(console: Console, result: AuditResult) -> None:
    """A table of all windows, and what is to be said below it."""
    heads = ("window", "counted", "in doubt", "found", "verdict", "its time", "counters", "copies")
    table = Table(*heads, title=f"Audit of {result.topic}")
    for column in table.columns[:5]:
        column.no_wrap = True
    for column in table.columns[1:4]:
        column.justify = "right"
    for window in result.windows:
        row = row_of(window)
        start = show_moment(row["window_us"]).removesuffix("+00:00")
        numbers = (f"{row[name]:,}" for name in ("counted", "in_doubt", "found"))
        others = (row[name] or "" for name in ("verdict", "its_time", "counters", "copies"))
        table.add_row(start, *numbers, *others)
    if result.windows:
        console.print(table)
    for line in sentences(result):
        console.print(line)


def main(argv: list[str] | None = None, *, spark: SparkSession | None = None) -> int:
    # A file or a pipe has no width of its own; the table must not be squeezed for it.
    width = None if sys.stdout.isatty() else 160
    console = Console(soft_wrap=True, highlight=False, markup=False, width=width)
    try:
        args = parse_arguments(argv)
        session = spark or SparkSession.builder.appName(f"audit {args.topic}").getOrCreate()
        try:
            result = run(args, session)
        finally:
            if spark is None:
                session.stop()
    except LogbusError as error:
        console.print(f"The audit failed: {error}")
        return WRONG_USAGE if isinstance(error, UsageError) else 1
    if args.json:
        for each in as_objects(result):
            print(json.dumps(each, ensure_ascii=False))
    else:
        report(console, result)
    return exit_code(result)


if __name__ == "__main__":
    run_program(main)
