"""Where a reader starts and stops, how a range is split, and how a group is set back.

Planning is pure (specs, resolve, limits, ranges, loss, plan); snapshot, group and
driver do what little asking and writing there is. No pyspark in here.
"""

from spark_logbus.offsets.clusters import ClusterPool, shared_cluster
from spark_logbus.offsets.driver import DriverLink, zookeeper_address
from spark_logbus.offsets.group import GroupProgress, of_current_topics
from spark_logbus.offsets.limits import DEFAULT_MAX_DELAY_MS, NO_LIMITS, TriggerLimits, limited_ends
from spark_logbus.offsets.locate import locate
from spark_logbus.offsets.loss import (
    AboveEnd,
    BelowLogStart,
    Deselected,
    Finding,
    PartitionGone,
    TopicGone,
    TopicRecreated,
    decide,
    explained,
)
from spark_logbus.offsets.patience import Patience
from spark_logbus.offsets.ranges import (
    DEFAULT_MAX_BYTES,
    Share,
    SplitLimits,
    Splitter,
    split,
    split_by_count,
)
from spark_logbus.offsets.resolve import Resolved, lookups, make_ranges, resolve
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
    require_rows,
)
from spark_logbus.offsets.selection import Partitions, Pattern, Selection, Topics
from spark_logbus.offsets.snapshot import Snapshot, Span, take_snapshot
from spark_logbus.offsets.specs import (
    MAX_OFFSET,
    Bound,
    Committed,
    LastRecords,
    PerPartition,
    Positions,
    Since,
    parse_assignment,
    parse_partition_timestamps,
    parse_positions,
    parse_timestamp,
)
from spark_logbus.offsets.worker_process import freeze_what_is_loaded

__all__ = [
    "DEFAULT_MAX_BYTES",
    "DEFAULT_MAX_DELAY_MS",
    "MAX_OFFSET",
    "NO_LIMITS",
    "AboveEnd",
    "BelowLogStart",
    "Bound",
    "ByCount",
    "ByDuration",
    "ClusterPool",
    "Committed",
    "Deselected",
    "DriverLink",
    "Finding",
    "GroupProgress",
    "LastRecords",
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
    "Share",
    "Since",
    "Snapshot",
    "Span",
    "SplitLimits",
    "Splitter",
    "Target",
    "ToEarliest",
    "ToLatest",
    "ToOffset",
    "ToTime",
    "TopicGone",
    "TopicRecreated",
    "Topics",
    "TriggerLimits",
    "apply",
    "decide",
    "explained",
    "freeze_what_is_loaded",
    "limited_ends",
    "locate",
    "lookups",
    "make_ranges",
    "of_current_topics",
    "parse_assignment",
    "parse_partition_timestamps",
    "parse_positions",
    "parse_timestamp",
    "plan",
    "prepare",
    "require_rows",
    "resolve",
    "shared_cluster",
    "split",
    "split_by_count",
    "take_snapshot",
    "zookeeper_address",
]
