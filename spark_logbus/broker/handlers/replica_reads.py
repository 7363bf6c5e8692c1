"""Reads of one partition for a follower: what that lacks, up to what is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.broker.replica.followers import Copy
from spark_logbus.errors import CorruptRecordBatchError, InvalidRequestError, OffsetOutOfRangeError
from spark_logbus.log import FlushPolicy, LogSlice, PartitionLog, StagedPosition
from spark_logbus.protocol import (
    FollowedPartition,
    LogPoint,
    ReplicateResult,
    StagedPoint,
    StagedSource,
)

# A follower has copies of what the leader has staged, and of some that are over there: more than
# twice as many as the leader takes make no sense.
_MAX_COPIES: Final = 1_000
_MAX_ID_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class ReplicaRead:
    """One partition's part of an answer. ``settled``: it is to be said at once, also without any
    bytes, and the follower does something about it."""

    result: ReplicateResult
    slices: Sequence[LogSlice] = ()
    settled: bool = False

    @property
    def length(self) -> int:
        return sum(each.length for each in self.slices)


def read_partition(
    log: PartitionLog,
    wanted: FollowedPartition,
    copy: Copy | None,
    result: ReplicateResult,
    *,
    room: int,
    first: bool,
    hands_over: bool,
    others_have_all: bool,
) -> ReplicaRead:
    """Fills ``result`` in, and reads at most ``room`` bytes, unless they are the ``first`` of an
    answer. ``hands_over``: the leader waits for the follower to have everything.
    ``others_have_all``: other replicas are in sync, so what is damaged here is not lost. Raises
    CorruptRecordBatchError for that, StorageError."""
    result.clean_end = log.compaction.notes.clean_end  # before anything is read that it is told of
    ends, start = log.ends(), log.first_offset
    result.log_start_offset, result.log_end = start, ends.log_end_offset
    result.high_watermark = ends.high_watermark
    if copy is None or copy.offset < start:
        result.remaining_bytes = ends.size_bytes + log.staging.totals.size_bytes
        return ReplicaRead(result, settled=True)
    result.diverges = divergence(log, wanted)
    if result.diverges is not None:
        return ReplicaRead(result, settled=True)
    result.remaining_bytes = lacking_bytes(log, copy)
    slices: list[LogSlice] = []
    most = max(1, min(wanted.max_bytes, room))
    if room > 0 or first:
        found = _read_log(
            log, copy.offset, result, max_bytes=most, passes_damage=not others_have_all
        )
        if found is not None and (first or found.length <= room):
            slices.append(found)
            result.length = found.length
        result.purged_end = log.compaction.notes.purged_end  # what is missing was noted before
    staged, drops = log.staging.replica_state(), {*copy.staged}
    settled = result.go_on_at is not None
    for each in staged:
        drops.discard(each.write)
        source, piece = _staged(
            log, each, copy.staged.get(each.write),
            room=most - sum(one.length for one in slices), first=first and not slices,
        )  # fmt: skip
        settled = settled or source.position < _position(copy, each.write)
        result.staged.append(source)
        if piece is not None:
            slices.append(piece)
    if hands_over:
        result.hand_over = True
        settled = settled or copy.is_unflushed
    return ReplicaRead(result, slices, settled=settled or bool(drops))


def _read_log(
    log: PartitionLog, offset: int, result: ReplicateResult, *, max_bytes: int, passes_damage: bool
) -> LogSlice | None:
    """Reads record batches, or sets where the follower is to go on because there are none."""
    try:
        return log.read_as_replica(offset, max_bytes=max_bytes)
    except (CorruptRecordBatchError, OffsetOutOfRangeError) as error:
        is_damage = isinstance(error, CorruptRecordBatchError)
        if (lost := log.lost_at(offset)) is None or (is_damage and not passes_damage):
            raise
    result.go_on_at = lost.end
    return None


def _staged(
    log: PartitionLog, there: StagedPosition, told: StagedPosition | None, *, room: int, first: bool
) -> tuple[StagedSource, LogSlice | None]:
    """Reads what the follower lacks of what a write has staged, as far as there is room."""
    position = 0 if told is None else told.size_bytes
    if told is not None and not log.staging.agrees(there.write, position, told.digest):
        points = [StagedPoint(*each) for each in log.staging.points(there.write)]
        return StagedSource(there.write, there.size_bytes, points=points), None
    source = StagedSource(there.write, there.size_bytes, position)
    if room <= 0 and not first:
        return source, None
    piece = log.staging.read_as_replica(there.write, position, max_bytes=max(1, room))
    if piece is None or (piece.length > room and not first):
        return source, None
    source.length = piece.length
    return source, piece


def _position(copy: Copy, write: int) -> int:
    told = copy.staged.get(write)
    return 0 if told is None else told.size_bytes


def lacking_bytes(log: PartitionLog, copy: Copy) -> int:
    """Estimates how many bytes the follower lacks, of the log and of what is staged."""
    end = log.ends().log_end_offset
    lacking = log.bytes_from(copy.safe_end) if copy.safe_end < end else 0
    for each in log.staging.replica_state():
        told = copy.staged.get(each.write)
        lacking += each.size_bytes - min(each.size_bytes, 0 if told is None else told.flushed_bytes)
    return lacking


def divergence(log: PartitionLog, wanted: FollowedPartition) -> LogPoint | None:
    """Returns where the follower's log is to be cut back to, if it has what this one has not."""
    ends = log.ends()
    end = ends.log_end_offset
    last = log.epochs.end_of(wanted.last_epoch, end)
    if wanted.last_epoch >= 0 and (
        last.end_offset < wanted.offset or last.epoch < wanted.last_epoch
    ):
        return LogPoint(last.epoch, last.end_offset)
    for lost in ends.lost:
        if lost.start < wanted.offset < lost.end:
            # It has some of what was given up here, and would go on behind it as this one does.
            return LogPoint(last.epoch, lost.start)
    return LogPoint(log.epochs.latest, end) if wanted.offset > end else None


def checked_copy(log: PartitionLog, broker_id: int, wanted: FollowedPartition) -> Copy | None:
    """Returns the copy of ``log`` that is told of; None if there is none yet. Raises
    InvalidRequestError for what no copy can be."""
    if not wanted.log_id:
        return None
    where = f"The copy of {wanted.topic}-{wanted.partition} on broker {broker_id}"
    if len(wanted.log_id) > _MAX_ID_CHARS:
        raise InvalidRequestError(f"{where} has a log id of {len(wanted.log_id)} characters.")
    if (
        not 0 <= wanted.flushed_end <= wanted.offset
        or not 0 <= wanted.safe_end <= wanted.offset
        or wanted.last_epoch < -1
    ):
        raise InvalidRequestError(
            f"{where} cannot end at {wanted.offset}, with {wanted.flushed_end} as the end of what "
            f"is on its disk, {wanted.safe_end} of what is safe, and {wanted.last_epoch} as its "
            "last leader epoch."
        )
    if len(wanted.staged) > _MAX_COPIES:
        raise InvalidRequestError(
            f"{where} has {len(wanted.staged)} staged writes, expected {_MAX_COPIES} at most."
        )
    staged: dict[int, StagedPosition] = {}
    for each in wanted.staged:
        if not 0 <= each.flushed <= each.position or each.write in staged:
            raise InvalidRequestError(
                f"{where} has {each.position} bytes of the write {each.write}, {each.flushed} of "
                "them on its disk: that cannot be, or is told twice."
            )
        staged[each.write] = StagedPosition(each.write, each.position, each.flushed, each.digest)
    is_left_to_os = log.config.flush_policy is FlushPolicy.OS
    return Copy(
        broker_id,
        wanted.log_id,
        wanted.offset,
        wanted.flushed_end,
        wanted.since_us,
        staged,
        written_end=wanted.safe_end if is_left_to_os else 0,
        refuses=wanted.refuses,
    )
