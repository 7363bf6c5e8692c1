"""Load a topic's new records into date-partitioned Parquet, data and offsets together.

    spark-submit load_warehouse.py --topic flights --warehouse /data/warehouse

Run it as often as new records should come in. A load that is killed at any point loses nothing
and leaves nothing twice: run it again. How that works is told in ``spark_logbus.load.warehouse``.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from spark_logbus.errors import LogbusError
from spark_logbus.load import LoadConfig, Loaded, run_load
from spark_logbus.model import check_name
from spark_logbus.zookeeper import default_connect


def parse_arguments(argv: list[str] | None = None) -> LoadConfig:
    parser = argparse.ArgumentParser(
        prog="load_warehouse.py",
        description="Load a topic's new records into date-partitioned Parquet.",
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--warehouse", required=True, help="directory, local or hdfs://...")
    parser.add_argument("--zookeeper", default=default_connect())
    parser.add_argument("--group", help="also show the progress as this group's offsets")
    parser.add_argument(
        "--json-schema", help='fields of JSON values as columns: "carrier string, delay int"'
    )
    parser.add_argument(
        "--drop-value",
        action="store_true",
        help="keep of JSON values only the fields of --json-schema, for good",
    )
    parser.add_argument(
        "--allow-gaps",
        action="store_true",
        help="go on after records that retention deleted before they were loaded, and over "
        "offsets without a record in a topic that is no longer compacted",
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="publish how many records were loaded, for `logbus audit`",
    )
    args = parser.parse_args(argv)
    check_name("topic", args.topic)
    if args.group:
        check_name("group", args.group)
    return LoadConfig(**vars(args))


def report(console: Console, config: LoadConfig, loaded: Loaded) -> None:
    commit = loaded.commit
    if commit is None:
        console.print(f"Nothing new in {config.topic}; the warehouse is up to date.")
        return
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
    console.print(
        f"{commit.records:,} records in {len(commit.files):,} files under {loaded.path}, "
        f"{loaded.seconds:.1f} s.",
        highlight=False,
    )
    if config.group is not None:
        console.print(f"Group {config.group} in ZooKeeper stands at the end of this load.")


def main(argv: list[str] | None = None) -> int:
    console = Console(soft_wrap=True)
    try:
        config = parse_arguments(argv)
        spark = (
            SparkSession.builder.appName(f"load {config.topic}")
            .config("spark.sql.session.timeZone", "UTC")
            # What Parquet readers other than Spark know; Spark's own default is its older INT96.
            .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            .getOrCreate()
        )
        try:
            report(console, config, run_load(spark, config))
        finally:
            spark.stop()
    except LogbusError as error:
        console.print(f"[bold red]The load failed:[/] {error}", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
