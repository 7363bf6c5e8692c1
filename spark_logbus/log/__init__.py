"""The durable log of one partition, and the set of them in a data directory.

``LogDirectory`` opens, recovers and keeps up all logs; ``PartitionLog`` appends and reads. A
record is visible once it is on disk: readers see what lies below the high watermark, and a flush
moves that. No sockets, no Arrow, no ZooKeeper.
"""

from spark_logbus.log.append_info import LogAppendInfo, LogEnds
from spark_logbus.log.compaction.log_compaction import CompactionGroup, CompactionPlan
from spark_logbus.log.compaction.notes import PurgedLog
from spark_logbus.log.compaction.swap import index_cleaned
from spark_logbus.log.config import FlushPolicy, LogConfig
from spark_logbus.log.directory import LogDirectory
from spark_logbus.log.disk.filesystem import OS_FILES, File, FileSystem, free_bytes
from spark_logbus.log.epochs import NO_EPOCH, EpochEnd, EpochEntry, LeaderEpochs
from spark_logbus.log.guarded_clock import JumpGuardedClock
from spark_logbus.log.log import PartitionLog
from spark_logbus.log.moved_logs import Extent, MovedLog
from spark_logbus.log.recovery import RecoveryProgress
from spark_logbus.log.staging.staged_file import RECOVERED
from spark_logbus.log.staging.staging import (
    DecidedShare,
    StagedAppend,
    StagedCopied,
    StagedPosition,
)
from spark_logbus.log.view import LogSlice
from spark_logbus.log.wanted import WantedLog
from spark_logbus.log.writer_runs import StagedBy, owned_mark

__all__ = [
    "NO_EPOCH",
    "OS_FILES",
    "RECOVERED",
    "CompactionGroup",
    "CompactionPlan",
    "DecidedShare",
    "EpochEnd",
    "EpochEntry",
    "Extent",
    "File",
    "FileSystem",
    "FlushPolicy",
    "JumpGuardedClock",
    "LeaderEpochs",
    "LogAppendInfo",
    "LogConfig",
    "LogDirectory",
    "LogEnds",
    "LogSlice",
    "MovedLog",
    "PartitionLog",
    "PurgedLog",
    "RecoveryProgress",
    "StagedAppend",
    "StagedBy",
    "StagedCopied",
    "StagedPosition",
    "WantedLog",
    "free_bytes",
    "index_cleaned",
    "owned_mark",
]
