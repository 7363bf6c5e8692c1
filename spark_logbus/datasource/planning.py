"""From offset ranges to input partitions: the cuts, and the addresses that tasks need."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from spark_logbus.client import Admin, Bootstrap
from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.datasource.input_partition import NO_SCHEMAS, RangesPartition
from spark_logbus.datasource.options import SourceOptions
from spark_logbus.errors import OffsetOutOfRangeError, UnknownTopicError
from spark_logbus.model import OffsetRange
from spark_logbus.offsets.ranges import SplitLimits, Splitter, TaskRanges, split


def plan_input_partitions(
    ranges: Sequence[OffsetRange],
    options: SourceOptions,
    admin: Admin,
    *,
    bootstrap: Bootstrap,
    topic_ids: Mapping[str, str],
    schemas: Mapping[str, ValueSchemas] = NO_SCHEMAS,
) -> list[RangesPartition]:
    """The tasks that read ``ranges``; none for no records."""
    limits = SplitLimits(
        max_bytes=options.max_bytes_per_input_partition,
        max_records=options.max_records_per_partition,
        min_partitions=options.min_partitions,
        parallelism=local_cores(),
    )
    tasks = split(ranges, limits, splitter(admin))
    return [_input_partition(task, bootstrap, topic_ids, schemas, options.rack) for task in tasks]


def _input_partition(
    task: TaskRanges,
    bootstrap: Bootstrap,
    topic_ids: Mapping[str, str],
    schemas: Mapping[str, ValueSchemas],
    rack: str | None,
) -> RangesPartition:
    topics = {one.topic_partition.topic for one in task.ranges}
    return RangesPartition(
        bootstrap,
        task.ranges,
        {topic: topic_ids[topic] for topic in topics},
        {topic: schemas[topic] for topic in topics if topic in schemas},
        task.size_bytes,
        rack,
    )


def splitter(admin: Admin) -> Splitter:
    """Has brokers cut ranges; a range that they do not hold any more stays whole."""

    def cut(
        wanted: Mapping[OffsetRange, int],
    ) -> Mapping[OffsetRange, tuple[list[OffsetRange], int]]:
        try:
            return admin.split_many(list(wanted), target_bytes=wanted)
        except (OffsetOutOfRangeError, UnknownTopicError):
            if len(wanted) > 1:
                return {one: cut({one: size})[one] for one, size in wanted.items()}
            # Retention or a deletion of the topic was faster. The tasks meet the gap and decide on
            # it, each for its range.
            return {one: ([one], 0) for one in wanted}

    return cut


def local_cores() -> int:
    """Cores of the driver's machine.

    A Python source is not told how many tasks can run at once. On one machine this is that
    number; on a cluster it is a lower bound that costs nothing, and ``minPartitions`` says more.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
