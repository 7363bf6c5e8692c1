"""Values that say where in a log something was appended, or is to be, and where it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_logbus.log.segment.segment import ActiveSegment
from spark_logbus.model import LostOffsets


@dataclass(frozen=True, slots=True)
class LogAppendInfo:
    """Place of an append: its first record at ``base_offset``, its last before ``end_offset``.

    ``base_offsets`` are those of its record batches if they do not follow one another: when
    some of them were appended before, and are not appended again. ``truncations`` is for
    ``PartitionLog.when_flushed``.
    """

    base_offset: int
    end_offset: int
    append_time_us: int
    base_offsets: tuple[int, ...] = ()
    truncations: int = 0


class AppendTotals(NamedTuple):
    """Counts of what was appended to one log since it was opened."""

    record_batches: int
    records: int
    size_bytes: int


class Tail(NamedTuple):
    """Place of the next append; all before it is written, not necessarily flushed."""

    segment: ActiveSegment
    end_offset: int
    position: int


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Ends of a log. ``size_bytes`` counts all that is written, flushed or not; ``lost`` are
    offsets between the start and the end whose records were given up."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    lost: tuple[LostOffsets, ...] = ()
