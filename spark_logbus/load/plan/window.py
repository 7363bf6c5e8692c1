"""The window of a loaded topic that is to be read again: what of it was loaded, and whether the log
still has all of that.

The log no longer knows which of its records are gone, and when they were. A target does: it has the
columns ``partition``, ``offset`` and ``timestamp`` of all its records, dead letters too.

``plan_window`` and ``gone_since`` are pure. ``look_up_window`` asks the brokers; ``check_moments``
and ``check_all_read`` count the rows of a target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_logbus.audit.warehouse import Loads
from spark_logbus.client import Admin, Cluster
from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import ReprocessConfig, first_start, last_end
from spark_logbus.load.plan.ranges import (
    LoadSource,
    require_same_log,
    source_of,
)
from spark_logbus.load.tally import NONE, RecordTally
from spark_logbus.model import AtTimestamp, LastDuration, LastRecords, OffsetRange, TopicPartition
from spark_logbus.offsets.data_loss import BelowLogStart
from spark_logbus.offsets.position import OffsetBound
from spark_logbus.offsets.resolve import locate
from spark_logbus.offsets.snapshot import Snapshot, take_snapshot
from spark_logbus.selection import Topics


class NotInLogError(DataLossError):
    """Records of the window were loaded, and the log has them no longer."""


@dataclass(frozen=True, slots=True)
class ExistingRows:
    """Rows that a target holds of the window, and the files that they stand in. Immutable."""

    records: int = 0
    dead_letters: int = 0
    tally: RecordTally = NONE  # of both
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


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """Begin and end of the window, as the user gave them: offsets, which the log may no longer
    have, and moments where those were given. Immutable."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Ranges that were loaded of the window, and are still in the log. Immutable."""

    source: LoadSource  # with the ranges of the window alone
    asked: WindowBounds
    #: Starts of the log, of partitions that were loaded from an earlier offset on.
    cut_at: Mapping[TopicPartition, int]

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        return tuple(self.source.ranges)

    @property
    def may_lack_moments(self) -> bool:
        """Tells whether a moment bounds the window, which the log may have forgotten."""
        return self.asked.since_us is not None and bool(self.cut_at)

    def all_read(self, read: RecordTally, held: RecordTally) -> bool:
        """Tells whether the tallies of what was ``read`` and is ``held`` of the window show by
        themselves that all of it was read again."""
        return read == held or read.records == sum(each.count for each in self.ranges)


def look_up_window(config: ReprocessConfig, last: Commit, loads: Loads, *, now_us: int) -> Window:
    """Asks the brokers for the topic, and where the window is in it.

    Raises NotInLogError, DataLossError, ConfigError, and what the client does.
    """
    topic = config.topic
    with Cluster.from_zookeeper(config.zookeeper) as cluster:
        admin = Admin(cluster)
        snapshot = take_snapshot(admin, Topics((topic,)), missing_ok=False)
        require_same_log(snapshot, topic, last, another_target=config.another_target)
        begin = first_start(config.start)
        starts = _offsets(begin, snapshot, admin, now_us=now_us)
        ends: Mapping[TopicPartition, int] = snapshot.ends()
        until_us = None
        if config.until is not None:
            end = last_end(config.until)
            ends = _offsets(end, snapshot, admin, now_us=now_us)
            until_us = _moment(end, now_us=now_us)
    since_us = _moment(begin, now_us=now_us)
    if since_us is not None:
        starts = _with_given_up(starts, snapshot, loads)
    asked = WindowBounds(starts, ends, since_us, until_us)
    return Window(
        source_of(snapshot, topic, plan_window(snapshot, topic, loads, asked)),
        asked,
        {
            topic_partition: span.start
            for topic_partition, span in snapshot.spans.items()
            if any(s < span.start for s, _ in loads.spans.get(topic_partition.partition, []))
        },
    )


def _offsets(
    bound: OffsetBound, snapshot: Snapshot, admin: Admin, *, now_us: int
) -> Mapping[TopicPartition, int]:
    """Resolves ``bound``, also where it is below what the log still has."""
    located = locate(bound, snapshot, admin, now_us=now_us)
    if isinstance(bound.positions, LastRecords):
        count = bound.positions.count
        return {
            each: max(0, span.back_from(span.end, count)) for each, span in snapshot.spans.items()
        }
    below = (each for each in located.findings if isinstance(each, BelowLogStart))
    return {**located.offsets, **{each.topic_partition: each.wanted for each in below}}


def _with_given_up(
    starts: Mapping[TopicPartition, int], snapshot: Snapshot, loads: Loads
) -> dict[TopicPartition, int]:
    """Moves a start of ``starts`` that is the first after records that were loaded and then given
    up before these: they may be of that moment too."""
    moved = dict(starts)
    for each, start in starts.items():
        lost = next((at for at in snapshot.spans[each].lost if at.end == start), None)
        spans = loads.spans.get(each.partition, [])
        if lost is not None and any(s < lost.end and e > lost.start for s, e in spans):
            moved[each] = lost.start
    return moved


def _moment(bound: OffsetBound, *, now_us: int) -> int | None:
    match bound.positions:
        case AtTimestamp(timestamp_us):
            return timestamp_us
        case LastDuration(duration_us):
            return now_us - duration_us
    return None


def plan_window(
    snapshot: Snapshot, topic: str, loads: Loads, asked: WindowBounds
) -> list[OffsetRange]:
    """Returns the ranges of the window that were loaded: one for each partition that has some, or
    more where the log has given up records between (pure).

    One is enough else, because loads leave out only what was gone from the log when they came to
    it, and that never comes back. Raises NotInLogError where the log no longer has all of it.
    """
    ranges = []
    gone = []
    possible = {}
    for topic_partition, span in sorted(snapshot.spans.items()):
        start, end = asked.starts[topic_partition], asked.ends[topic_partition]
        loaded = [
            (max(first, start), min(after, end))
            for first, after in sorted(loads.spans.get(topic_partition.partition, []))
            if max(first, start) < min(after, end)
        ]
        if not loaded:
            continue
        first, after = loaded[0][0], loaded[-1][1]
        if first < span.start:
            lost = [min(end, span.start) for start, end in loaded if start < span.start]
            gone.append(OffsetRange(topic_partition, first, lost[-1]))
            possible[topic_partition] = span.start
        for given_up in span.lost:
            for start, end in loaded:
                both = OffsetRange(topic_partition, max(start, given_up[0]), min(end, given_up[1]))
                if both.count:
                    gone.append(both)
                    possible[topic_partition] = given_up.end
        begin = max(first, span.start)
        ranges += [OffsetRange(topic_partition, *each) for each in span.pieces(begin, after)]
    if gone:
        raise not_in_log(gone, possible, asked, topic)
    return ranges


def gone_since(
    topic: str, window: Window, found: Mapping[TopicPartition, tuple[int | None, int | None]]
) -> None:
    """Raises NotInLogError where records of the moments that were asked for are in the warehouse
    and no longer in the log, which does not know what it had (pure).

    ``found`` are the first offsets of the warehouse below ``window.cut_at``, from the one moment on
    and from the other on; None where there is none.
    """
    gone = []
    for topic_partition, (first, after) in sorted(found.items()):
        cut = window.cut_at[topic_partition]
        end = min(cut, window.asked.ends[topic_partition]) if after is None else after
        if first is not None and first < end:
            gone.append(OffsetRange(topic_partition, first, end))
    if gone:
        raise not_in_log(gone, window.cut_at, window.asked, topic)


def not_in_log(
    gone: list[OffsetRange],
    possible: Mapping[TopicPartition, int],
    asked: WindowBounds,
    topic: str,
) -> NotInLogError:
    """The error for ranges that are gone, with the offsets from which on nothing is missing."""
    listed = "; ".join(
        f"{each.topic_partition}: records of offsets {each.start:,} to {each.end - 1:,} were "
        "loaded and are no longer in the log; reprocessing is possible from offset "
        f"{possible[each.topic_partition]:,} on"
        for each in gone
    )
    starts = {
        str(each.partition): max(start, possible.get(each, 0))
        for each, start in sorted(asked.starts.items())
    }
    return NotInLogError(
        f"{listed}. Nothing was changed: what was made of them stays as it is. For all others, "
        f"give --from '{json.dumps({topic: starts})}'."
    )


def inside(ranges: tuple[OffsetRange, ...]) -> Column:
    """The condition that a record is one of ``ranges``."""
    partition, offset = F.col("partition"), F.col("offset")
    condition = F.lit(False)
    for each in ranges:
        own = partition == each.topic_partition.partition
        condition |= own & (offset >= each.start) & (offset < each.end)
    return condition


def below(ends: Mapping[int, int]) -> Column:
    """The condition that a record is below the end of its partition, of ``ends`` by number. None
    is in a partition that they do not name."""
    if not ends:
        return F.lit(False)
    # Looked up by place, however many partitions there are.
    by_partition = F.array(
        *(F.lit(ends.get(each, 0)).cast("bigint") for each in range(max(ends) + 1))
    )
    return F.col("offset") < F.get(by_partition, F.col("partition"))


def check_moments(topic: str, rows: DataFrame, window: Window) -> None:
    """Raises NotInLogError where records of the moments of the window are gone from the log, which
    looks moments up in what it still has. ``rows``, of all records, know when they were."""
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
    """Raises NotInLogError if rows of the window that are ``held`` were not ``read`` again."""
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
