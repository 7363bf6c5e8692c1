"""Counts of an audit, made by Spark: topics, warehouses and tables of a lake that one process
would take long to read, and warehouses on any filesystem."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_logbus.audit.auditing import Place
from spark_logbus.audit.comparison import Copy
from spark_logbus.audit.counts import WindowTally
from spark_logbus.audit.topic import TopicCounts, plan_count
from spark_logbus.audit.warehouse import (
    ROW_COLUMNS,
    SHOWN,
    Loads,
    OffsetSpan,
    doubled_note,
    loads_of,
    missing_note,
    since,
)
from spark_logbus.client import Cluster
from spark_logbus.load.audit_windows import tallies_of
from spark_logbus.load.errors import translated
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.lake.places import LoadedTable
from spark_logbus.load.lake.reading import rows_of
from spark_logbus.load.plan.window import inside
from spark_logbus.load.read.reading import in_reads, options_of
from spark_logbus.load.tables import TableOfLake
from spark_logbus.model import OffsetRange, TopicPartition


class SparkCounts:
    """Counts one topic, and its warehouses, with a Spark session."""

    def __init__(self, spark: SparkSession, cluster: Cluster, zookeeper: str, topic: str) -> None:
        self._spark = spark
        self._cluster = cluster
        self._zookeeper = zookeeper
        self._topic = topic

    def count(self, window_us: int, since_us: int) -> TopicCounts:
        """Counts the records of the topic from ``since_us`` on."""
        plan = plan_count(self._cluster, self._topic, since_us=since_us)
        counts = plan.counts()
        counts.tallies = self._in_ranges(plan.ranges, window_us)
        return counts

    def _in_ranges(self, ranges: Sequence[OffsetRange], window_us: int) -> dict[int, WindowTally]:
        if not any(each.count for each in ranges):
            return {}
        frames = []
        for each in in_reads(ranges):
            options = options_of(each, self._zookeeper, self._topic)
            read = self._spark.read.format("logbus").options(**options).load()
            frames.append(read.select("timestamp"))
        return tallies_of(reduce(DataFrame.union, frames), window_us=window_us)

    def warehouse(self, root: str) -> Place:
        """The warehouse under ``root``. InvalidRequestError if no load was ever committed there."""
        warehouse = Warehouse(self._spark, root, self._topic)
        loads = loads_of(warehouse.path, self._topic, warehouse.commit_texts())

        with translated(f"read {warehouse.path}"):
            return self._place(f"warehouse {root}", loads, warehouse.rows())

    def lake_table(self, table: TableOfLake) -> Place:
        """The table of a lake. Raises what ``LoadedTable.open`` does."""
        loaded = LoadedTable.open(table, self._topic)
        version, letters = loaded.version, loaded.letters
        rows = rows_of(self._spark, version, version.files(), ROW_COLUMNS.names)
        if letters is not None:
            ranges = (
                OffsetRange(TopicPartition(self._topic, partition), 0, end)
                for partition, end in loaded.loads.ends.items()
            )
            dead = rows_of(self._spark, letters, letters.files(), ROW_COLUMNS.names)
            rows = rows.unionByName(dead.where(inside(tuple(ranges))))
        # Rows of another writer may lack one of these.
        return self._place(loaded.name, loaded.loads, rows.dropna())

    def _place(self, name: str, loads: Loads, frame: DataFrame) -> Place:
        def read(window_us: int, since_us: int) -> Copy:
            plan = plan_count(self._cluster, self._topic, since_us=since_us)
            with translated(f"count the rows of {name}"):
                tallies = tallies_of(frame, window_us=window_us)
                notes = _offset_notes(frame, self._topic, loads)
            return Copy(
                name=name,
                counts=TopicCounts(plan.read_at_us, since(tallies, since_us)),
                not_yet=self._in_ranges(plan.beyond(loads.ends), window_us),
                notes=tuple(notes),
            )

        return read


def _offset_notes(frame: DataFrame, topic: str, loads: Loads) -> list[str]:
    """Does what ``audit.warehouse.offset_notes`` does. Looks for missing offsets only where numbers
    differ."""
    rows = (
        frame.groupBy("partition", "offset")
        .agg(F.count(F.lit(1)).alias("rows"), F.min(F.unix_micros("timestamp")).alias("at_us"))
        .persist()
    )
    try:
        known = {row["partition"]: row for row in _by_partition(rows).collect()}
        notes = []
        for partition, spans in sorted(loads.spans.items()):
            topic_partition = TopicPartition(topic, partition)
            own = rows.where(F.col("partition") == partition)
            counts = known.get(partition)
            if counts is not None and counts["again"]:
                twice = own.where("rows > 1").orderBy("offset").limit(SHOWN).collect()
                some = [(row["offset"], row["at_us"]) for row in twice]
                notes += doubled_note(topic_partition, some, count=counts["again"])
            if (counts["offsets"] if counts else 0) != sum(end - start for start, end in spans):
                notes += missing_note(topic_partition, _missing(own, spans))
        return notes
    finally:
        rows.unpersist()


def _by_partition(rows: DataFrame) -> DataFrame:
    return rows.groupBy("partition").agg(
        F.count(F.lit(1)).alias("offsets"), F.sum(F.col("rows") - 1).alias("again")
    )


def _missing(own: DataFrame, spans: Sequence[OffsetSpan]) -> list[OffsetSpan]:
    """Returns the parts of ``spans`` without a row: between offsets that follow each other, and at
    the ends of the spans."""
    found = []
    in_order = Window.orderBy("offset")
    for start, end in spans:
        inside = own.where((F.col("offset") >= start) & (F.col("offset") < end)).select("offset")
        edges = inside.union(own.sparkSession.range(start - 1, start).toDF("offset")).union(
            own.sparkSession.range(end, end + 1).toDF("offset")
        )
        gaps = edges.select("offset", F.lead("offset").over(in_order).alias("next"))
        wide = gaps.where(F.col("next") - F.col("offset") > 1).orderBy("offset").collect()
        found += [(row["offset"] + 1, row["next"]) for row in wide]
    return found
