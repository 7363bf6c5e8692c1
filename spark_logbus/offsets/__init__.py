"""Where a reader starts and stops, how a range is split, and how a group is set back.

Planning is pure (specs, resolve, limits, ranges, loss, plan); snapshot, group and
driver do what little asking and writing there is. No pyspark in here.
"""

from spark_logbus.offsets.clusters import ClusterPool, shared_cluster
from spark_logbus.offsets.driver import DriverLink, default_zookeeper
from spark_logbus.offsets.group import GroupProgress, of_current_topics
from spark_logbus.offsets.limits import share
from spark_logbus.offsets.loss import (
    AboveEnd,
    BelowLogStart,
    Finding,
    PartitionGone,
    TopicGone,
    TopicRecreated,
    decide,
)
from spark_logbus.offsets.patience import Patience
from spark_logbus.offsets.ranges import DEFAULT_MAX_BYTES, SplitLimits, split, split_by_count
from spark_logbus.offsets.resolve import Resolved, make_ranges, resolve
from spark_logbus.offsets.rewind import (
    ByCount,
    ByDuration,
    RewindPlan,
    RewindRow,
    Target,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    apply,
    plan,
    prepare,
)
from spark_logbus.offsets.selection import Partitions, Pattern, Selection, Topics
from spark_logbus.offsets.snapshot import Snapshot, Span, take_snapshot
from spark_logbus.offsets.specs import (
    MAX_OFFSET,
    Committed,
    PerPartition,
    Positions,
    parse_assignment,
    parse_positions,
)

__all__ = [
    "DEFAULT_MAX_BYTES",
    "MAX_OFFSET",
    "AboveEnd",
    "BelowLogStart",
    "ByCount",
    "ByDuration",
    "ClusterPool",
    "Committed",
    "DriverLink",
    "Finding",
    "GroupProgress",
    "PartitionGone",
    "Partitions",
    "Patience",
    "Pattern",
    "PerPartition",
    "Positions",
    "Resolved",
    "RewindPlan",
    "RewindRow",
    "Selection",
    "Snapshot",
    "Span",
    "SplitLimits",
    "Target",
    "ToEarliest",
    "ToLatest",
    "ToOffset",
    "ToTime",
    "TopicGone",
    "TopicRecreated",
    "Topics",
    "apply",
    "decide",
    "default_zookeeper",
    "make_ranges",
    "of_current_topics",
    "parse_assignment",
    "parse_positions",
    "plan",
    "prepare",
    "resolve",
    "share",
    "shared_cluster",
    "split",
    "split_by_count",
    "take_snapshot",
]
