"""Copies of partitions for the brokers that follow their leaders.

A follower has one session with a leader, on one connection. Its first request names all partitions
that it follows from there; later ones name those that are new, and those of which it has more, or
other things, to tell than before. What was told of a partition stands until it is told anew. The
leader in turn answers only for partitions that have something for the follower.
"""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, declare
from spark_logbus.protocol.messages.error import ErrorInfo

__all__ = [
    "FollowedPartition",
    "HighWatermark",
    "LogPoint",
    "PartitionLeft",
    "ReplicateRequest",
    "ReplicateResponse",
    "ReplicateResult",
    "StagedCopy",
    "StagedPoint",
    "StagedSource",
]


class StagedCopy(Message):
    """The follower's copy of what a write has staged: ``position`` bytes, of which ``flushed`` are
    on its disk. ``digest`` is of the headers of the record batches before ``position``."""

    write: int
    position: int
    flushed: int
    digest: int


class FollowedPartition(Message):
    """A partition as its follower has it.

    ``offset`` is the end of the follower's log, from where on it wants records; ``last_epoch`` the
    leader epoch of the record before, -1 if it knows none; ``flushed_end`` the end of what is on
    its disk, and ``safe_end`` the end of what is as safe there as the topic's flush policy asks.
    ``log_id`` is of that log; empty as long as there is none: then nothing is copied, and
    the answer says where the leader's log begins. ``leader_epoch`` is the one that it follows, and
    ``since_us`` the time of the move for which it does; 0 for a replica that is assigned to it.
    ``refuses``: its disk takes nothing more for now, as it is full.
    """

    topic: str
    partition: int
    topic_id: str
    since_us: int
    leader_epoch: int
    log_id: str
    offset: int
    last_epoch: int
    flushed_end: int
    safe_end: int
    max_bytes: int
    staged: list[StagedCopy] = []
    refuses: bool = False


class PartitionLeft(Message):
    """A partition that a broker follows from there no more."""

    topic: str
    partition: int


class ReplicateRequest(Message):
    """Waits up to ``max_wait_ms`` until one of the partitions of a session has something for the
    follower, which is the broker ``broker_id``.

    ``sequence`` is 1 for the first request of a session, which ends the one that this broker had
    before, and counts on from there; a leader that has not got that far in it answers with
    ReplicaSessionError. ``left`` are partitions to be taken out of the session, before
    ``partitions`` are put in, or told of anew. A request has the one before it answered at once.
    """

    broker_id: int
    sequence: int
    max_wait_ms: int
    max_bytes: int
    partitions: list[FollowedPartition] = []
    left: list[PartitionLeft] = []


class LogPoint(Message):
    """The end of what a log has of a leader epoch."""

    leader_epoch: int
    offset: int


class StagedPoint(Message):
    """An end of a record batch of what a write has staged with the leader, and the digest there."""

    position: int
    digest: int


class StagedSource(Message):
    """Place of what a write has staged with the leader: ``size`` bytes. ``length`` bytes of the
    payload are of it, from ``position`` on: the end of the follower's copy.

    Where that has something else, ``position`` and ``length`` are 0. The copy is to be cut back
    then to the highest of ``points`` at which both are the same, and dropped if there is none.
    """

    write: int
    size: int
    position: int = 0
    length: int = 0
    points: list[StagedPoint] = []


class ReplicateResult(Message):
    """``length`` bytes of the payload are record batches, from the one that holds the follower's
    offset on; after them come those of ``staged``, in its order. A write of which the follower has
    a copy, and that ``staged`` does not name, is over: the copy is to be dropped.

    ``diverges``: the follower's log has records that the leader's has not. It is to be cut back to
    where that leader epoch ends in both logs, and nothing is sent. ``go_on_at``: the records
    from the follower's offset up to there are lost. A ``log_start_offset`` beyond the follower's
    offset: its log is to begin anew there. ``log_end`` is the end of what the leader has written,
    ``remaining_bytes`` about how much of that and of what is staged the follower lacks.
    ``leader_epoch`` is the leader's, also where ``error`` says that the follower's is another one.
    ``hand_over``: the leader takes no appends, and waits until all that it has is on the follower's
    disk. ``handed_over``: the follower leads the partition from now on. ``error``: it is not, or no
    longer, in the session.

    ``clean_end`` and ``purged_end`` are those of the leader's compactions: a follower that ends
    before the purged end may lack tombstones, and starts over, unless that is before its own clean
    end.

    ``waits``: before the follower has told of the partition anew, it gets nothing more of it.
    """

    topic: str
    partition: int
    length: int = 0
    leader_epoch: int = -1
    log_start_offset: int = -1
    high_watermark: int = -1
    log_end: int = -1
    remaining_bytes: int = 0
    diverges: LogPoint | None = None
    go_on_at: int | None = None
    staged: list[StagedSource] = []
    hand_over: bool = False
    handed_over: bool = False
    waits: bool = False
    clean_end: int = 0
    purged_end: int = 0
    error: ErrorInfo | None = None


class HighWatermark(Message):
    """The high watermark of a partition."""

    topic: str
    partition: int
    offset: int


class ReplicateResponse(Message):
    """Results of the partitions that have something for the follower, and ``high_watermarks`` that
    have moved and stand in no result."""

    results: list[ReplicateResult]
    high_watermarks: list[HighWatermark] = []


declare(
    Api.REPLICATE, ReplicateRequest, ReplicateResponse,
    needs=None,
    entries=lambda request: request.partitions,
)  # fmt: skip
