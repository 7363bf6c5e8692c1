"""Count page views per window, and the part of them that is clicked, as two streaming queries.

    spark-submit clickstream.py --checkpoint /data/checkpoints/clickstream --once

The first query counts the views of each page in windows of event time. The second joins views with
the clicks on them, within a bound of time, and counts for each page and window how many views there
were and how many of them were clicked. Both wait for late events as long as ``--watermark`` says,
count an event once though it comes twice, and write a window when it is complete, once: to topics
through the logbus sink, or to Parquet. Killed at any point and run again with the same checkpoint,
they write what they would have written.

A window is complete when the watermark has passed its end, in the second query by
``--click-within`` too. Windows that no event has closed yet are kept in the checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import signal
import threading
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_logbus.client import Admin, Cluster
from spark_logbus.errors import ConfigError, LogbusError, UnknownTopicError
from spark_logbus.model import check_name
from spark_logbus.programs import run_program
from spark_logbus.times import parse_duration_us
from spark_logbus.zookeeper import add_cluster_options, default_connect

COUNTS = "counts"
CLICK_THROUGH = "click-through"

_SHOWN_RECORDS = 50_000  # of each partition, read for the table at the end
_SHOWN_PAGES = 20
_POLL_S = 0.2
_STARTING_POLL_S = 0.02
_INITIALIZING = "Initializing"  # StreamExecution, then sources: what Spark's status says meanwhile
_NO_WATERMARK = "1970-01-01T00:00:00.000Z"
_LAST_EVENTS_S = 30.0  # for the progress of the last micro-batch, which comes after its query ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickstreamConfig:
    """Options: the topics to read, how to count, the place of the results. Raises ConfigError."""

    checkpoint: str
    zookeeper: str = dataclasses.field(default_factory=default_connect)
    views: str = "views"
    clicks: str = "clicks"
    counts_topic: str | None = None
    click_through_topic: str | None = None
    parquet: str | None = None
    window: str = "1 minute"
    watermark: str = "10 minutes"
    click_within: str = "5 minutes"
    starting: str = "earliest"
    max_offsets_per_trigger: int | None = None
    trigger: str = "0 seconds"
    state_partitions: int = 4
    group: str | None = None
    once: bool = False

    def __post_init__(self) -> None:
        for name in ("views", "clicks", "counts_topic", "click_through_topic"):
            if (topic := getattr(self, name)) is not None:
                check_name("topic", topic)
        if self.group is not None:
            check_name("group", self.group)
        for name in ("window", "watermark", "click_within"):
            self._check_duration(name, least_us=1)
        self._check_duration("trigger", least_us=0)
        for name in ("max_offsets_per_trigger", "state_partitions"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigError(f"{_option(name)} must be 1 or more, got {number}.")
        topics = self.counts_topic is not None and self.click_through_topic is not None
        if topics == (self.parquet is not None) or topics != (
            self.counts_topic is not None or self.click_through_topic is not None
        ):
            raise ConfigError(
                "Say where the results go: --counts-topic with --click-through-topic, or --parquet "
                "with a directory, and not both."
            )

    def _check_duration(self, name: str, *, least_us: int) -> None:
        try:
            if parse_duration_us(getattr(self, name)) >= least_us:
                return
            reason = "a duration above zero is needed"
        except ValueError as error:
            reason = str(error)
        raise ConfigError(f"{_option(name)} cannot be used: {reason}.")

    def interval(self, name: str) -> str:
        """A duration as Spark reads it, whatever unit it was given in."""
        return f"{parse_duration_us(getattr(self, name))} microseconds"

    def query_checkpoint(self, query: str) -> str:
        """The directory that is the query's own."""
        return f"{self.checkpoint.rstrip('/')}/{query}"

    def target(self, query: str) -> str:
        """The topic, or the directory, of a query's results."""
        if self.parquet is not None:
            return f"{self.parquet.rstrip('/')}/{query}"
        topic = self.counts_topic if query == COUNTS else self.click_through_topic
        assert topic is not None
        return topic


# -- options ------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> ClickstreamConfig:
    """Parses the command line, then the file that it names. Raises ConfigError."""
    parser = _parser()
    given = vars(parser.parse_args(argv))
    path = given.pop("config")
    values = {**(_read_config(Path(path)) if path else {}), **given}
    if "checkpoint" not in values:
        raise ConfigError(
            "--checkpoint is needed: a directory in which the queries keep what they have read and "
            "counted. Use the same one in each run, and for nothing else."
        )
    return ClickstreamConfig(**values)


def _parser() -> argparse.ArgumentParser:
    defaults = {field.name: field.default for field in dataclasses.fields(ClickstreamConfig)}
    parser = argparse.ArgumentParser(
        prog="clickstream.py",
        description="Count page views per window, and the part of them that is clicked.",
        epilog="example: spark-submit clickstream.py --counts-topic page-counts "
        "--click-through-topic click-through --checkpoint /data/checkpoints/clickstream --once",
        # What is not given is not there, so that it can come from the file.
        argument_default=argparse.SUPPRESS,
    )

    def add(name: str, text: str, **more: Any) -> None:
        default = defaults[name]
        if isinstance(default, str | int) and not isinstance(default, bool):
            text += f" (default: {default})"
        parser.add_argument(_option(name), help=text, **more)

    parser.add_argument("--config", default=None, help="a TOML file with these options as keys")
    add("checkpoint", "directory of the queries' progress and state; needed")
    add_cluster_options(parser)
    add("views", "topic of page views")
    add("clicks", "topic of clicks")
    add("counts_topic", "topic for the counts per page and window")
    add("click_through_topic", "topic for views and clicks per page and window")
    add("parquet", "directory for both, instead of topics")
    add("window", "length of a window")
    add("watermark", "how late an event may be and still count")
    add("click_within", "how long after a view a click is its click")
    add("starting", "where the first run starts", choices=("earliest", "latest"))
    add("max_offsets_per_trigger", "at most so many records in a micro-batch", type=int)
    add("trigger", "between the starts of two micro-batches")
    add("state_partitions", "tasks that keep state; fixed by the first run", type=int)
    add("group", "show progress as the consumer groups GROUP-counts and GROUP-click-through")
    add("once", "process what is there and end, instead of going on", action="store_true")
    return parser


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _read_config(path: Path) -> dict[str, Any]:
    """The file's keys, each with a value of its option's type."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error}.") from error
    known = {field.name: str(field.type) for field in dataclasses.fields(ClickstreamConfig)}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}."
            raise ConfigError(f"{path} has the unknown key {key}; {hint}")
        wanted = known[key].split(" | ")[0]
        if type(value).__name__ != wanted:
            raise ConfigError(f"{key} in {path} takes a value of type {wanted}, got {value!r}.")
    return values


def check_topics(config: ClickstreamConfig) -> None:
    """Raise UnknownTopicError or ConfigError, with what to do, before Spark starts anything."""
    schemas = {config.views: "view", config.clicks: "click"}
    if config.parquet is None:
        schemas[config.target(COUNTS)] = "page_count"
        schemas[config.target(CLICK_THROUGH)] = "click_through"
    folder = Path(__file__).resolve().parents[1] / "conf" / "clickstream"
    with Cluster.from_zookeeper(config.zookeeper) as cluster:
        admin = Admin(cluster)
        there = {topic.name for topic in admin.topics()}
        for topic, schema in schemas.items():
            if topic not in there:
                raise UnknownTopicError(
                    f"There is no topic {topic} in {config.zookeeper}. If the name is right, "
                    f"create it: logbus topics create {topic} --value-schema "
                    f"{folder / schema}.avsc"
                )
        for topic, found in admin.describe_schemas(schemas).items():
            if not any(each.of == "value" for each in found):
                raise ConfigError(
                    f"The topic {topic} has no schema, and this job reads and writes typed "
                    f"columns. Create one with --value-schema {folder / schemas[topic]}.avsc"
                )


def check_parquet(spark: SparkSession, config: ClickstreamConfig) -> None:
    """Raise ConfigError where Spark would leave results out: it passes over micro-batches whose
    numbers a directory has already, also those of another checkpoint."""
    for query in (COUNTS, CLICK_THROUGH):
        written = _exists(spark, f"{config.target(query)}/_spark_metadata")
        if written and not _exists(spark, f"{config.query_checkpoint(query)}/metadata"):
            raise ConfigError(
                f"{config.target(query)} has results that were written with another checkpoint "
                f"than {config.checkpoint}; give that one, or another directory to --parquet."
            )


def _exists(spark: SparkSession, path: str) -> bool:
    jvm: Any = spark.sparkContext._jvm
    found = jvm.org.apache.hadoop.fs.Path(path)
    return bool(
        found.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).exists(found)
    )


# -- the queries --------------------------------------------------------------------------


def read_events(spark: SparkSession, config: ClickstreamConfig, query: str, topic: str,
                columns: str) -> DataFrame:  # fmt: skip
    """The events of a topic, each once, but for those that are later than the watermark."""
    reader = (
        spark.readStream.format("logbus")
        .option("zookeeper", config.zookeeper)
        .option("subscribe", topic)
        .option("columns", columns)
        .option("flatten", "true")
        .option("startingOffsets", config.starting)
    )
    if config.max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", config.max_offsets_per_trigger)
    if config.group is not None:
        reader = reader.option("group", f"{config.group}-{query}")
    events = reader.load().withWatermark("at", config.interval("watermark"))
    return events.dropDuplicatesWithinWatermark(["view_id"])


def count_views(spark: SparkSession, config: ClickstreamConfig) -> DataFrame:
    views = read_events(spark, config, COUNTS, config.views, "view_id,page,at")
    windows = views.groupBy("page", F.window("at", config.interval("window")).alias("window"))
    return _flat(windows.agg(F.count("*").alias("views")), "views")


def count_clicked_views(spark: SparkSession, config: ClickstreamConfig) -> DataFrame:
    views = read_events(spark, config, CLICK_THROUGH, config.views, "view_id,page,at")
    clicks = read_events(spark, config, CLICK_THROUGH, config.clicks, "view_id,at").select(
        F.col("view_id").alias("clicked_view"), F.col("at").alias("clicked_at")
    )
    bound = F.expr(f"interval {config.interval('click_within')}")
    in_time = F.col("clicked_at").between(F.col("at"), F.col("at") + bound)
    joined = views.join(clicks, (F.col("view_id") == F.col("clicked_view")) & in_time, "leftOuter")
    # Spark wants one column of event time in what is grouped.
    windows = joined.select("page", "at", "clicked_view").groupBy(
        "page", F.window("at", config.interval("window")).alias("window")
    )
    counted = windows.agg(F.count("*").alias("views"), F.count("clicked_view").alias("clicks"))
    return _flat(counted, "views", "clicks")


def _flat(windows: DataFrame, *counts: str) -> DataFrame:
    start, end = F.col("window.start"), F.col("window.end")
    return windows.select("page", start.alias("window_start"), end.alias("window_end"), *counts)


def start_query(config: ClickstreamConfig, name: str, results: DataFrame) -> StreamingQuery:
    if config.parquet is not None:
        writer = results.writeStream.format("parquet").option("path", config.target(name))
    else:
        keyed = results.withColumn("key", F.col("page").cast("binary"))
        writer = keyed.writeStream.format("logbus").option("zookeeper", config.zookeeper)
        writer = writer.option("topic", config.target(name))
    writer = writer.option("checkpointLocation", config.query_checkpoint(name))
    writer = writer.queryName(name).outputMode("append")
    if config.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=config.interval("trigger")).start()


def await_sources(query: StreamingQuery, stopping: threading.Event) -> None:
    """Waits until the query has made its sources or ended, or ``stopping`` is set. Start no other
    query before that.

    Queries of one session share the environment variables of a Python source, a map that Spark
    fills without a lock when it makes one. Two that fill it at once can leave it damaged, and then
    all queries of the session fail with "Task not serializable: Illegal size of collection".
    """
    while query.isActive and query.status["message"].startswith(_INITIALIZING):
        if stopping.wait(_STARTING_POLL_S):
            return


# -- what a person sees -------------------------------------------------------------------


class ProgressLines(StreamingQueryListener):
    """Prints a line for each micro-batch, and stops the job when nobody reads them any more. Spark
    calls it from a thread of its own."""

    def __init__(self, console: Console, stopping: threading.Event) -> None:
        self._console = console
        self._stopping = stopping
        self._lock = threading.Lock()
        self._running = 0
        self._ended = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with self._lock:
            self._running += 1

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            self._console.print(progress_line(event.progress), highlight=False, markup=False)
        except SystemExit:  # raised by Rich where the reader of standard output has gone
            self._stopping.set()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Prints nothing: a micro-batch without records has nothing to tell."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._ended.set()

    def await_last(self) -> None:
        """Waits until the last progress of the queries is printed; not for ever, if it does not
        come."""
        self._ended.wait(_LAST_EVENTS_S)


def progress_line(progress: StreamingQueryProgress) -> str:
    late = sum(each.numRowsDroppedByWatermark for each in progress.stateOperators)
    kept = sum(each.numRowsTotal for each in progress.stateOperators)
    watermark = (progress.eventTime or {}).get("watermark", _NO_WATERMARK)
    shown = "none yet" if watermark == _NO_WATERMARK else watermark
    seconds = progress.durationMs.get("triggerExecution", 0) / 1_000
    return (
        f"{progress.name}: micro-batch {progress.batchId}, {progress.numInputRows:,} events, "
        f"{late:,} too late, {kept:,} rows of state, watermark {shown}, {seconds:.1f} s"
    )


def read_results(spark: SparkSession, config: ClickstreamConfig, query: str) -> DataFrame | None:
    """The newest results of a query; None if there are none yet."""
    target = config.target(query)
    if config.parquet is None:
        reader = spark.read.format("logbus").option("zookeeper", config.zookeeper)
        reader = reader.option("startingOffsets", f"-{_SHOWN_RECORDS}")
        columns = "page,window_start,window_end,views"
        columns += ",clicks" if query == CLICK_THROUGH else ""
        return reader.option("columns", columns).option("flatten", "true").load(target)
    try:
        return spark.read.parquet(target)
    except PySparkException:  # no window has been written yet, so there is no schema either
        return None


def report(spark: SparkSession, config: ClickstreamConfig, console: Console) -> None:
    counts = read_results(spark, config, COUNTS)
    clicked = read_results(spark, config, CLICK_THROUGH)
    if counts is None or clicked is None or counts.isEmpty():
        console.print("No window is complete yet: it takes later events to say that one is.")
        return
    rates = clicked.groupBy("page").agg(
        F.sum("views").alias("decided"), F.sum("clicks").alias("clicks")
    )
    rows = (
        counts.groupBy("page")
        .agg(
            F.sum("views").alias("views"),
            F.max_by("window_start", "views").alias("busiest"),
            F.max("views").alias("most"),
            F.min("window_start").alias("start"),
            F.max("window_end").alias("end"),
        )
        .join(rates, "page", "left")
        .orderBy(F.desc("views"), "page")
        .collect()
    )
    start, end = min(row["start"] for row in rows), max(row["end"] for row in rows)
    table = Table(
        "page", "views", "busiest window", "decided", "clicked", "click-through",
        title=f"Page views from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}",
        caption="decided: views of which it is known if they were clicked in time",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows[:_SHOWN_PAGES]:
        decided, clicks = row["decided"] or 0, row["clicks"] or 0
        rate = f"{clicks / decided:.1%}" if decided else "-"
        table.add_row(
            escape(row["page"]), f"{row['views']:,}",
            f"{row['busiest']:%m-%d %H:%M} ({row['most']:,})",
            f"{decided:,}", f"{clicks:,}", rate,
        )  # fmt: skip
    console.print(table)
    if len(rows) > _SHOWN_PAGES:
        console.print(f"and {len(rows) - _SHOWN_PAGES:,} more pages")


# -- the whole ----------------------------------------------------------------------------


class QueryFailedError(LogbusError):
    """A streaming query ended with an error, and the other was stopped."""


def await_end(queries: Iterable[StreamingQuery], stopping: threading.Event) -> None:
    """Waits until all have ended or ``stopping`` is set. Raises QueryFailedError if one has
    failed."""
    running = list(queries)
    while running and not stopping.wait(_POLL_S):
        for query in [each for each in running if not each.isActive]:
            running.remove(query)
            failure = query.exception()
            if failure is not None:
                raise QueryFailedError(f"The query {query.name} ended: {cause(failure)}")


def cause(failure: StreamingQueryException) -> str:
    """The sentence of the logbus error in Spark's text, else the first line of that."""
    text = str(failure)
    found = re.findall(r"spark_logbus\.[\w.]*Error: (.+)", text)
    return str(found[-1]) if found else text.strip().splitlines()[0]


def run(spark: SparkSession, config: ClickstreamConfig, console: Console) -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    lines = ProgressLines(console, stopping)
    spark.streams.addListener(lines)
    frames: Mapping[str, DataFrame] = {
        COUNTS: count_views(spark, config),
        CLICK_THROUGH: count_clicked_views(spark, config),
    }
    queries = []
    try:
        for name, frame in frames.items():
            queries.append(start_query(config, name, frame))
            await_sources(queries[-1], stopping)
        await_end(queries, stopping)
    finally:
        for query in queries:
            query.stop()
    lines.await_last()
    report(spark, config, console)


def main(argv: list[str] | None = None) -> int:
    console = Console(soft_wrap=True)
    try:
        config = parse_arguments(argv)
        check_topics(config)
        spark = (
            SparkSession.builder.appName("clickstream")
            .config("spark.sql.session.timeZone", "UTC")
            # What Parquet readers other than Spark know; Spark's own default is its older INT96.
            .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            .config("spark.sql.shuffle.partitions", str(config.state_partitions))
            .getOrCreate()
        )
        try:
            if config.parquet is not None:
                check_parquet(spark, config)
            run(spark, config, console)
        finally:
            spark.stop()
    except LogbusError as error:
        console.print(f"[bold red]The job failed:[/] {escape(error.message)}", highlight=False)
        return 1
    except (PySparkException, Py4JError) as error:
        text = str(error).strip().splitlines()[0]
        console.print(f"[bold red]Spark ended the job:[/] {escape(text)}", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    run_program(main)
