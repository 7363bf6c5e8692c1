"""The ranges of a load: from where the last one ended to where this one may go.

``plan`` is pure; only ``look_up`` asks the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_logbus.client import Admin, Cluster
from spark_logbus.datasource.planning import splitter
from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import LoadConfig, first_start, last_end
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.data_loss import apply_policy
from spark_logbus.offsets.resolve import NOTHING, locate
from spark_logbus.offsets.snapshot import Snapshot, take_snapshot
from spark_logbus.offsets.trigger_limits import TriggerLimits, limited_ends
from spark_logbus.selection import Topics
from spark_logbus.topic_schemas import VALUE_ENCODING


@dataclass(frozen=True, slots=True)
class LoadSource:
    """The topic as it is when a load begins, and what is to be loaded of it. Immutable."""

    ranges: list[OffsetRange]
    topic_id: str
    compacted: bool
    has_schema: bool

    @property
    def filled_ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges without the empty ones."""
        return tuple(each for each in self.ranges if each.count)

    @property
    def ends(self) -> dict[int, int]:
        """End of the load in each partition, also of those that have nothing new."""
        return {each.topic_partition.partition: each.end for each in self.ranges}


def look_up(config: LoadConfig, last: Commit | None, *, now_us: int) -> LoadSource:
    """Asks the brokers for the topic, and what is new in it since ``last``.

    Raises DataLossError, ConfigError, and what the client does.
    """
    topic = config.topic
    with Cluster.from_zookeeper(config.zookeeper) as cluster:
        admin = Admin(cluster)
        snapshot = take_snapshot(admin, Topics((topic,)), missing_ok=False)
        start: Mapping[TopicPartition, int] = NOTHING
        if last is None and config.start is not None:
            located = locate(first_start(config.start), snapshot, admin, now_us=now_us)
            apply_policy(located.findings, fail_on_data_loss=not config.allow_gaps)
            start = located.offsets
        until: Mapping[TopicPartition, int] = NOTHING
        if config.until is not None:
            until = locate(last_end(config.until), snapshot, admin, now_us=now_us).offsets
        ranges = plan(
            snapshot,
            topic,
            last,
            allow_gaps=config.allow_gaps,
            another_target=config.another_target,
            start=start,
            until=until,
        )
        limits = TriggerLimits(max_records=config.max_records, max_bytes=config.max_bytes)
        if limits.bounded:
            ends = limited_ends({r.topic_partition: r for r in ranges}, limits, splitter(admin))
            ranges = [
                OffsetRange(r.topic_partition, r.start, ends[r.topic_partition]) for r in ranges
            ]
    return source_of(snapshot, topic, ranges)


def source_of(snapshot: Snapshot, topic: str, ranges: list[OffsetRange]) -> LoadSource:
    """``ranges`` of a topic that is in the snapshot (pure)."""
    topic_config = snapshot.configs[topic]
    return LoadSource(
        ranges,
        snapshot.topic_ids[topic],
        "compact" in topic_config.get("cleanup.policy", ""),
        VALUE_ENCODING in topic_config,
    )


def plan(
    snapshot: Snapshot,
    topic: str,
    last: Commit | None,
    *,
    allow_gaps: bool,
    another_target: str,
    start: Mapping[TopicPartition, int] = NOTHING,
    until: Mapping[TopicPartition, int] = NOTHING,
) -> list[OffsetRange]:
    """The new records: from the last commit to the high watermark (pure).

    A first load begins at ``start``, or where the log does; none goes beyond ``until``. Raises
    DataLossError when that is not what follows the last commit.
    """
    if last is not None:
        require_same_log(snapshot, topic, last, another_target=another_target)
    ranges = []
    for topic_partition, span in sorted(snapshot.spans.items()):
        if last is None:
            begin = start.get(topic_partition, span.start)
        else:
            # A partition that the last load did not know was added since, and starts at 0.
            begin = last.ends.get(topic_partition.partition, 0)
        lost = span.lost_at(begin)
        if lost is not None and begin >= span.start:
            if not allow_gaps:
                raise DataLossError(
                    f"{topic_partition}: the load is to go on at offset {begin:,}, but the records "
                    "from there on were lost with a part of the log that was given up, and the log "
                    f"goes on at {lost.end:,}. Use --allow-gaps to go on there."
                )
            begin = lost.end
        if last is not None and begin < span.start and not allow_gaps:
            raise DataLossError(
                f"{topic_partition}: load {last.number} ended at offset {begin:,}, but the log "
                "now starts at "
                f"{span.start:,}: the offsets between were not loaded and are gone, deleted by "
                "retention or given up with their log. Use --allow-gaps to go on after them."
            )
        begin = max(begin, span.start)
        # Up to where records are lost: the next load begins there, and is told.
        end = span.reach(begin, min(span.end, until.get(topic_partition, span.end)))
        ranges.append(OffsetRange(topic_partition, begin, max(begin, end)))
    return ranges


def require_same_log(snapshot: Snapshot, topic: str, last: Commit, *, another_target: str) -> None:
    """Raises DataLossError unless ``last`` was loaded from this very log (pure).

    ``another_target`` says for the message what to load into instead.
    """
    if last.topic_id != snapshot.topic_ids[topic]:
        raise DataLossError(
            f"Topic {topic} was deleted and created again since load {last.number}; its offsets "
            f"start over. Load it into {another_target}."
        )
    for topic_partition, span in sorted(snapshot.spans.items()):
        end = last.ends.get(topic_partition.partition, 0)
        if end > span.end:
            raise DataLossError(
                f"{topic_partition}: load {last.number} ended at offset {end:,}, but the log now "
                f"ends at {span.end:,}: records that were loaded are gone from the log, and "
                f"their offsets will be given to others. Load into {another_target}."
            )
