"""The window of a loaded topic that is to be read again: what of it was loaded, and whether the log
still has all of that.

``plan_window`` and ``gone_since`` are pure; only ``look_up_window`` asks the brokers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from spark_logbus.audit.warehouse import Loads
from spark_logbus.client import Admin, Bootstrap, Cluster
from spark_logbus.clock import SystemClock
from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.plan.ranges import (
    Source,
    first_start,
    last_end,
    require_same_log,
    source_of,
)
from spark_logbus.load.tally import Tally
from spark_logbus.model import AtTimestamp, LastDuration, LastRecords, OffsetRange, TopicPartition
from spark_logbus.offsets.data_loss import BelowLogStart
from spark_logbus.offsets.position import OffsetBound
from spark_logbus.offsets.resolve import locate
from spark_logbus.offsets.snapshot import Snapshot, take_snapshot
from spark_logbus.selection import Topics


class NotInLogError(DataLossError):
    """Records of the window were loaded, and the log has them no longer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Where the window begins and ends, as the user said it: offsets that may be none of the log
    any more, and moments where those were said."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """What was loaded of the window, and is still in the log."""

    source: Source  # with those ranges alone
    asked: Asked
    #: Of partitions that were loaded from an offset on which is no longer in the log.
    cut_at: Mapping[TopicPartition, int]

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        return tuple(self.source.ranges)

    @property
    def may_lack_moments(self) -> bool:
        """True where it is given by a moment, which the log may have forgotten."""
        return self.asked.since_us is not None and bool(self.cut_at)

    def all_read(self, read: Tally, held: Tally) -> bool:
        """True if what was ``read`` of the window, and what is ``held`` of it, say by themselves
        that all of that was read again."""
        return read == held or read.records == sum(each.count for each in self.ranges)


def look_up_window(
    config: LoadConfig, last: Commit, loads: Loads, *, start: str, until: str | None
) -> Window:
    """Ask the brokers for the topic, and where the window is in it.

    Raises NotInLogError, DataLossError, ConfigError, and what the client does.
    """
    topic, now_us = config.topic, SystemClock().now_us()
    with Cluster.connect(Bootstrap.from_zookeeper(config.zookeeper)) as cluster:
        admin = Admin(cluster)
        snapshot = take_snapshot(admin, Topics((topic,)), missing_ok=False)
        require_same_log(snapshot, topic, last, another_target=config.another_target)
        begin = first_start(start)
        starts = _offsets(begin, snapshot, admin, now_us=now_us)
        ends: Mapping[TopicPartition, int] = snapshot.ends()
        until_us = None
        if until is not None:
            end = last_end(until)
            ends = _offsets(end, snapshot, admin, now_us=now_us)
            until_us = _moment(end, now_us=now_us)
    since_us = _moment(begin, now_us=now_us)
    if since_us is not None:
        starts = _with_given_up(starts, snapshot, loads)
    asked = Asked(starts, ends, since_us, until_us)
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
    """What ``bound`` means, also where it is below what the log still has."""
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
    """``starts`` of a moment, where one that is the first after records that were loaded and then
    given up is moved before these: they may be of that moment too."""
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


def plan_window(snapshot: Snapshot, topic: str, loads: Loads, asked: Asked) -> list[OffsetRange]:
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
    """NotInLogError where records of the moments that were asked for are in the warehouse and no
    longer in the log, which does not know what it had (pure).

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
    asked: Asked,
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
