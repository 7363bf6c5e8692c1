"""Rows of a target that are of a window of the log, and whether the log still has all of them.

A target has the columns ``partition``, ``offset`` and ``timestamp`` of all its records, dead
letters too. They show what the log no longer knows of itself: which records it had, and when they
were.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_logbus.load.plan.window import Window, gone_since, not_in_log
from spark_logbus.load.tally import NONE, Tally
from spark_logbus.model import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class ExistingRows:
    """What a target holds of the window, and the files that it stands in. Immutable."""

    records: int = 0
    dead_letters: int = 0
    tally: Tally = NONE  # of both
    files: tuple[str, ...] = ()  # with records, by name from the warehouse's directory on
    letter_files: tuple[str, ...] = ()
    #: Records of those files that are not of the window, and stay as they are.
    kept_records: int = 0
    kept_letters: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.files, *self.letter_files)

    @property
    def kept(self) -> int:
        return self.kept_records + self.kept_letters


def inside(ranges: tuple[OffsetRange, ...]) -> Column:
    """The condition that a record is one of ``ranges``."""
    partition, offset = F.col("partition"), F.col("offset")
    condition = F.lit(False)
    for each in ranges:
        own = partition == each.topic_partition.partition
        condition |= own & (offset >= each.start) & (offset < each.end)
    return condition


def check_moments(topic: str, rows: DataFrame, window: Window) -> None:
    """NotInLogError where records of the moments of the window are gone from the log: it looks
    moments up in what it still has. ``rows``, of all records, know when they were."""
    since_us, until_us = window.asked.since_us, window.asked.until_us
    at, offset = F.unix_micros("timestamp"), F.col("offset")
    gone = inside(tuple(OffsetRange(each, 0, cut) for each, cut in window.cut_at.items()))
    found = (
        rows.where(gone & (at >= F.lit(since_us)))
        .groupBy("partition")
        .agg(
            F.min(offset).alias("first"),
            F.min(F.when(at >= F.lit(until_us), offset)).alias("after"),
        )
        .collect()
    )
    firsts = {
        TopicPartition(topic, row["partition"]): (row["first"], row["after"]) for row in found
    }
    gone_since(topic, window, firsts)


def check_all_read(topic: str, held: DataFrame, read: DataFrame, window: Window) -> None:
    """NotInLogError if rows of the window that are ``held``, of all, were not ``read`` again."""
    rows = (
        held.where(inside(window.ranges))
        .join(read, ["partition", "offset"], "anti")
        .groupBy("partition")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        .orderBy("partition")
        .collect()
    )
    gone = [
        OffsetRange(TopicPartition(topic, row["partition"]), row["first"], row["last"] + 1)
        for row in rows
    ]
    if gone:
        possible = {each.topic_partition: each.end for each in gone}
        raise not_in_log(gone, possible, window.asked, topic)
