"""Load a topic's new records into date-partitioned Parquet, data and offsets together.

    spark-submit load_warehouse.py --topic flights --warehouse /data/warehouse

The warehouse is a directory on any Hadoop filesystem::

    <warehouse>/<topic>/date=2013-01-01/part-....parquet     what everyone reads
    <warehouse>/<topic>/_logbus/loads/<number>.json          one per load: offsets and files
    <warehouse>/<topic>/_logbus/staging/<number>-<id>/       files of a load under way

A load reads from where the last committed load ended, writes into staging, counts what is there,
and then writes its ``loads/<number>.json`` by one atomic rename. That file is the commit: it names the
offsets and the data files together. Moving the files into place comes after it and can be repeated,
so a load that is killed before the commit leaves nothing (its staging is discarded by the next
run), and one that is killed after it is finished by the next run. No record is lost, none is there
twice. A lock in ZooKeeper keeps two loads of one topic into one warehouse apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from spark_logbus.client import Admin, Bootstrap, Cluster
from spark_logbus.coordination import GroupOffsets, Lock, Session, default_connect
from spark_logbus.errors import DataLossError, LogbusError
from spark_logbus.model import OffsetRange, TopicPartition, check_name
from spark_logbus.offsets import Snapshot, take_snapshot
from spark_logbus.offsets.selection import Topics

COMMIT_VERSION = 1
_DIGITS = 20


class WarehouseError(LogbusError):
    """The warehouse directory is not in a state that a load can build on."""

    fault = "data"


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed load: which offsets are in, and which files hold them."""

    number: int
    staging: str  # the name of its directory under staging/
    topic_id: str
    ranges: tuple[OffsetRange, ...]
    ends: dict[int, int]  # of all partitions, also those that had nothing new
    records: int
    files: tuple[str, ...]  # relative to the topic's directory

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": COMMIT_VERSION,
                "number": self.number,
                "staging": self.staging,
                "topic_id": self.topic_id,
                "ranges": [
                    {"partition": r.topic_partition.partition, "start": r.start, "end": r.end}
                    for r in self.ranges
                ],
                "ends": {str(partition): end for partition, end in sorted(self.ends.items())},
                "records": self.records,
                "files": list(self.files),
            },
            indent=1,
        )

    @staticmethod
    def from_json(topic: str, text: str) -> Commit:
        data = json.loads(text)
        if data["version"] != COMMIT_VERSION:
            raise WarehouseError(
                f"Load {data['number']} was committed in format {data['version']}, this job knows "
                f"{COMMIT_VERSION}; use the newer release that wrote it."
            )
        return Commit(
            data["number"],
            data["staging"],
            data["topic_id"],
            tuple(
                OffsetRange(TopicPartition(topic, r["partition"]), r["start"], r["end"])
                for r in data["ranges"]
            ),
            {int(partition): end for partition, end in data["ends"].items()},
            data["records"],
            tuple(data["files"]),
        )


class Warehouse:
    """The directory of one topic, through Hadoop's filesystem API. Not thread-safe."""

    def __init__(self, spark: SparkSession, root: str, topic: str) -> None:
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()  # type: ignore[union-attr]
        self.topic = topic
        self.path = f"{root.rstrip('/')}/{topic}"
        self._loads = f"{self.path}/_logbus/loads"
        self._staging = f"{self.path}/_logbus/staging"
        self._fs: Any = self._hadoop_path(self.path).getFileSystem(self._conf)

    def _hadoop_path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._hadoop_path(path)))

    def staging(self, name: str) -> str:
        return f"{self._staging}/{name}"

    def last_commit(self) -> Commit | None:
        if not self._exists(self._loads):
            return None
        names = [
            status.getPath().getName() for status in self._fs.listStatus(self._hadoop_path(self._loads))
        ]
        commits = sorted(n for n in names if n.endswith(".json") and n[:_DIGITS].isdigit())
        return self._read_commit(commits[-1]) if commits else None

    def _read_commit(self, name: str) -> Commit:
        stream = self._fs.open(self._hadoop_path(f"{self._loads}/{name}"))
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return Commit.from_json(self.topic, text)

    def recover(self) -> Commit | None:
        """Finish a load that was committed and discard those that were not; the last commit."""
        last = self.last_commit()
        if self._exists(self._staging):
            for status in self._fs.listStatus(self._hadoop_path(self._staging)):
                name = status.getPath().getName()
                if last is not None and name == last.staging:
                    self.publish(last)
                else:
                    self._fs.delete(status.getPath(), True)
        return last

    def data_files(self, staging: str) -> Iterator[str]:
        """The Parquet files that a load has written, relative to its staging directory."""
        root = self._hadoop_path(self.staging(staging))
        if not self._fs.exists(root):
            return
        prefix = self._fs.makeQualified(root).toUri().getPath().rstrip("/") + "/"
        found = self._fs.listFiles(root, True)
        while found.hasNext():
            path = found.next().getPath().toUri().getPath()
            name = path.rsplit("/", 1)[1]
            if not name.startswith(("_", ".")):
                yield path.removeprefix(prefix)

    def commit(self, commit: Commit) -> None:
        """Write the commit file by one rename that fails if another load was faster."""
        final = self._hadoop_path(f"{self._loads}/{commit.number:0{_DIGITS}d}.json")
        fresh = self._hadoop_path(f"{self._loads}/.{commit.number:0{_DIGITS}d}.{time.time_ns()}")
        stream = self._fs.create(fresh, False)
        try:
            stream.write(bytearray(commit.to_json().encode()))
            stream.hsync()
        finally:
            stream.close()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._fs.getUri(), self._conf
        )
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        no_overwrite = _java_array(self._jvm, rename, [rename.NONE])
        try:
            context.rename(fresh, final, no_overwrite)
        except Exception as error:
            self._fs.delete(fresh, False)
            raise WarehouseError(
                f"Load {commit.number} of {self.path} could not be committed; was another load "
                f"running at the same time? Nothing was changed; run the load again. ({error})"
            ) from error

    def publish(self, commit: Commit) -> None:
        """Move a committed load's files into place; repeating it is harmless."""
        staging = self.staging(commit.staging)
        for name in commit.files:
            source = self._hadoop_path(f"{staging}/{name}")
            target = self._hadoop_path(f"{self.path}/{name}")
            if self._fs.exists(source):
                self._fs.mkdirs(target.getParent())
                if not self._fs.rename(source, target):
                    raise WarehouseError(f"Cannot move {source} to {target}; run the load again.")
            elif not self._fs.exists(target):
                raise WarehouseError(
                    f"{target} of committed load {commit.number} is missing, and so is its staged "
                    "copy; restore the file before loading on."
                )
        self._fs.delete(self._hadoop_path(staging), True)


def _java_array(jvm: Any, kind: Any, values: list[Any]) -> Any:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    array = gateway.new_array(kind, len(values))
    for position, value in enumerate(values):
        array[position] = value
    return array


def plan(
    snapshot: Snapshot, topic: str, last: Commit | None, *, allow_gaps: bool
) -> list[OffsetRange]:
    """What is new: from the last commit (or the log's start) to the high watermark."""
    if last is not None and last.topic_id != snapshot.topic_ids[topic]:
        raise DataLossError(
            f"Topic {topic} was deleted and created again since load {last.number}; its offsets "
            "start over. Load it into another warehouse directory."
        )
    ranges = []
    for tp, span in sorted(snapshot.spans.items()):
        start = span.start if last is None else last.ends.get(tp.partition, span.start)
        if start < span.start and not allow_gaps:
            raise DataLossError(
                f"{tp}: load {last.number if last else 0} ended at offset {start}, but the log now "
                f"starts at {span.start}: {span.start - start} records were deleted by retention "
                "before they were loaded. Use --allow-gaps to go on after them."
            )
        ranges.append(OffsetRange(tp, max(start, span.start), span.end))
    return ranges


def read(spark: SparkSession, ranges: list[OffsetRange], zookeeper: str, topic: str) -> DataFrame:
    """Exactly the records of ``ranges``, with a ``date`` column (UTC) to partition by."""

    def positions(pick: str) -> str:
        return json.dumps(
            {topic: {str(r.topic_partition.partition): getattr(r, pick) for r in ranges}}
        )

    return (
        spark.read.format("logbus")
        .option("zookeeper", zookeeper)
        .option(
            "assign", json.dumps({topic: [r.topic_partition.partition for r in ranges]})
        )
        .option("startingOffsets", positions("start"))
        .option("endingOffsets", positions("end"))
        .option("includeHeaders", "true")
        .load()
        .drop("topic", "timestampType")
        .withColumn("date", F.to_date("timestamp"))
    )


def parse_json(frame: DataFrame, ddl: str) -> DataFrame:
    """Add the fields of JSON values as columns; ``value`` is kept only where it does not parse."""
    parsed = F.from_json(
        F.col("value").cast("string"),
        f"{ddl}, _malformed string",
        {"columnNameOfCorruptRecord": "_malformed"},
    )
    frame = frame.withColumn("_parsed", parsed)
    bad = F.col("_parsed").isNull() | F.col("_parsed._malformed").isNotNull()
    names = [f.name for f in frame.schema["_parsed"].dataType.fields]  # type: ignore[attr-defined]
    kept = [c for c in frame.columns if c not in ("_parsed", "value", "date")]
    return frame.select(
        *kept,
        *[F.col("_parsed")[name].alias(name) for name in names if name != "_malformed"],
        F.when(bad, F.col("value")).alias("malformed_value"),
        "date",
    )


def load(spark: SparkSession, args: argparse.Namespace, lock: Lock, console: Console) -> int:
    """One load, under ``lock``; returns how many records it brought in."""
    warehouse = Warehouse(spark, args.warehouse, args.topic)
    last = warehouse.recover()
    with Cluster.connect(Bootstrap.from_zookeeper(args.zookeeper)) as cluster:
        snapshot = take_snapshot(Admin(cluster), Topics((args.topic,)), missing_ok=False)
    ranges = plan(snapshot, args.topic, last, allow_gaps=args.allow_gaps)
    expected = sum(r.count for r in ranges)
    if expected == 0:
        console.print(f"Nothing new in {args.topic}; the warehouse is up to date.")
        return 0
    started = time.monotonic()
    number = last.number + 1 if last else 1
    staging = f"{number:0{_DIGITS}d}-{uuid.uuid4().hex}"
    frame = read(spark, ranges, args.zookeeper, args.topic)
    if args.json_schema:
        frame = parse_json(frame, args.json_schema)
    frame.write.partitionBy("date").parquet(warehouse.staging(staging))
    records = spark.read.parquet(warehouse.staging(staging)).count()  # what is really there
    if records != expected:
        raise DataLossError(
            f"Expected {expected} records in {', '.join(map(str, ranges))}, staged {records}; "
            "nothing was committed. Run the load again, and if it persists, check the topic with "
            "`logbus dump`."
        )
    commit = Commit(
        number,
        staging,
        snapshot.topic_ids[args.topic],
        tuple(r for r in ranges if r.count),
        {r.topic_partition.partition: r.end for r in ranges},
        records,
        tuple(warehouse.data_files(staging)),
    )
    lock.check()
    warehouse.commit(commit)
    warehouse.publish(commit)
    _report(console, commit, warehouse, time.monotonic() - started)
    return records


def tell_group(
    args: argparse.Namespace, spark: SparkSession, session: Session, console: Console
) -> None:
    """Show the warehouse's progress as a group's offsets in ZooKeeper, for lag and rewinds.

    The warehouse's own commit decides where the next load starts; this is its copy.
    """
    last = Warehouse(spark, args.warehouse, args.topic).last_commit()
    if last is None:
        return
    offsets = {TopicPartition(args.topic, p): end for p, end in last.ends.items()}
    GroupOffsets(session).commit(
        args.group,
        offsets,
        by=f"load_warehouse {args.warehouse}",
        topic_ids={args.topic: last.topic_id},
    )
    console.print(f"Group {args.group} in ZooKeeper stands at the end of load {last.number}.")


def _report(console: Console, commit: Commit, warehouse: Warehouse, seconds: float) -> None:
    table = Table(
        "partition", "from", "to", "records", title=f"Load {commit.number} of {warehouse.topic}"
    )
    for column in table.columns:
        column.justify = "right"
    for r in commit.ranges:
        table.add_row(
            str(r.topic_partition.partition), f"{r.start:,}", f"{r.end:,}", f"{r.count:,}"
        )
    console.print(table)
    console.print(
        f"{commit.records:,} records in {len(commit.files)} files under {warehouse.path}, "
        f"{seconds:.1f} s.",
        highlight=False,
    )


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
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
        "--allow-gaps",
        action="store_true",
        help="go on after records that retention deleted before they were loaded",
    )
    args = parser.parse_args(argv)
    check_name("topic", args.topic)
    if args.group:
        check_name("group", args.group)
    return args


def main(argv: list[str] | None = None) -> int:
    console = Console(soft_wrap=True)
    args = parse_arguments(argv)
    spark = (
        SparkSession.builder.appName(f"load {args.topic}")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    try:
        with (
            Session(args.zookeeper, client_name="load-warehouse") as session,
            Lock(session, f"{args.warehouse}/{args.topic}", holder="load_warehouse") as lock,
        ):
            load(spark, args, lock, console)
            if args.group:
                tell_group(args, spark, session, console)
    except LogbusError as error:
        console.print(f"[bold red]The load failed:[/] {error}", highlight=False)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
