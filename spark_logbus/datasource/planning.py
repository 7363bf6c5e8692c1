"""From offset ranges to input partitions: the cuts, and the addresses that tasks need."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from spark_logbus.datasource.options import SourceOptions
from spark_logbus.datasource.read import RangePartition
from spark_logbus.errors import OffsetOutOfRangeError
from spark_logbus.model import OffsetRange
from spark_logbus.offsets import DriverLink, SplitLimits, split


def plan_input_partitions(
    ranges: Sequence[OffsetRange], options: SourceOptions, link: DriverLink
) -> list[InputPartition]:
    """One input partition for each piece of ``ranges``; none for no records."""
    admin = link.admin()

    def cut(
        wanted: Sequence[OffsetRange], target_bytes: int
    ) -> Mapping[OffsetRange, tuple[list[OffsetRange], int]]:
        try:
            return admin.split_many(wanted, target_bytes=target_bytes)
        except OffsetOutOfRangeError:
            # Retention was faster. The tasks meet the gap and decide on it, each for its range.
            return {one: ([one], 0) for one in wanted}

    limits = SplitLimits(
        max_bytes=options.max_bytes_per_input_partition,
        min_partitions=options.min_partitions,
        parallelism=local_cores(),
    )
    pieces = split(ranges, limits, cut)
    if not pieces:
        return []
    bootstrap = link.bootstrap()
    return [RangePartition(bootstrap, piece) for piece in pieces]


def local_cores() -> int:
    """Cores of the driver's machine.

    A Python source is not told how many tasks can run at once. On one machine this is that
    number; on a cluster it is a lower bound that costs nothing, and ``minPartitions`` says more.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
