"""Sessions of followers: what each follows from here, and which of that may have news for it.

A follower names a partition once and is then told of it when there is something to tell. So a
session costs by what happens, and not by what there is. What marks a partition: an append to it, a
hand-over that begins, the end of its lead, a word of the follower. High watermarks move with every
round of appends, and are told a little later and many at a time. Whatever else may change, such as
where the log begins, is found because each partition is looked at now and then.

A broker has one session, the one that it began last: an earlier one, on a connection that broke
without a sign, or of another process that takes itself for that broker, has ended by that. Only
partitions that are led here and that the broker may follow get into a session, so nobody can have
more kept than there are.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from spark_logbus.broker.replica.followers import Copy
from spark_logbus.broker.replica.holds import Hold
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.errors import LimitExceededError, ReplicaSessionError
from spark_logbus.model import TopicPartition
from spark_logbus.network import Connection, DelayedResponse
from spark_logbus.protocol import FollowedPartition, ReplicateRequest

# A high watermark is told at the latest so long after it has moved.
_WATERMARKS_EVERY_S: Final = 0.1
# Each partition is looked at once in about ten times this.
_SWEEP_EVERY_S: Final = 0.5
_SWEEPS: Final = 10
# Copies of staged writes that one session tells of: many times what brokers have.
_MAX_COPIES: Final = 100_000


@dataclass(slots=True)
class FollowedHere:
    """A partition as its follower has told of it last; ``copy`` is None as long as it has none.

    ``waits``: it was answered with what changes that, and is told nothing more before it says how
    far it is. ``high_watermark`` and ``log_start`` are what it was told last. ``asked_in`` is the
    last hand-over in which it was asked how far it is, though nothing had come.
    """

    wanted: FollowedPartition
    copy: Copy | None
    waits: bool = False
    high_watermark: int = -1
    log_start: int = -1
    asked_in: Hold | None = None

    @property
    def is_behind(self) -> bool:
        """True if the high watermark that it knows is to come to the end of its log yet."""
        return self.copy is not None and self.high_watermark < self.copy.offset


@dataclass(eq=False)
class ReplicaSession:
    """The session of one broker. Requests of its connection use it, one at a time; ``mark`` and
    ``wake`` may be called by anyone."""

    broker_id: int
    connection: weakref.ref[Connection]
    sequence: int = 0
    ended: bool = False
    followed: dict[TopicPartition, FollowedHere] = field(default_factory=dict)
    #: Partitions whose high watermarks are to be told, or looked at, when that is due.
    behind: dict[TopicPartition, None] = field(default_factory=dict)
    watermarks_due_at: float = 0.0
    _copies: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _marked: dict[TopicPartition, None] = field(default_factory=dict)  # those first marked first
    _waiting: DelayedResponse | None = None
    _sweep: list[TopicPartition] = field(default_factory=list)
    _sweep_due_at: float = 0.0

    # -- by anyone ------------------------------------------------------------------------

    def mark(self, topic_partition: TopicPartition) -> None:
        """Has a partition looked at, at once if a request waits."""
        with self._lock:
            self._marked[topic_partition] = None
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.wake()

    def wake(self) -> None:
        """Has the request that waits look again."""
        waiting = self._waiting
        if waiting is not None:
            waiting.wake()

    # -- by requests ----------------------------------------------------------------------

    def wait(self, request: DelayedResponse | None) -> None:
        """Notes the request that is to be woken by the next mark."""
        with self._lock:
            self._waiting = request

    def take_marked(self, now: float) -> list[TopicPartition]:
        """Returns the partitions that are to be looked at now, those first marked first."""
        if now >= self._sweep_due_at:
            self._sweep_due_at = now + _SWEEP_EVERY_S
            if not self._sweep:
                self._sweep = list(self.followed)
            count = 1 + len(self.followed) // _SWEEPS
            some, self._sweep = self._sweep[:count], self._sweep[count:]
        else:
            some = []
        with self._lock:
            marked, self._marked = self._marked, {}
        return list(marked | dict.fromkeys(some)) if some else list(marked)

    def put_back(self, topic_partitions: list[TopicPartition]) -> None:
        """Has partitions that found no place in an answer looked at first for the next."""
        with self._lock:
            self._marked = dict.fromkeys(topic_partitions) | self._marked

    def next_watermarks(self, now: float) -> bool:
        """Tells if high watermarks are due now; then they are again a little later."""
        if not self.behind or now < self.watermarks_due_at:
            return False
        self.watermarks_due_at = now + _WATERMARKS_EVERY_S
        return True

    def put(self, topic_partition: TopicPartition, told: FollowedHere) -> None:
        """Notes what the follower tells of a partition, in the place of what it told before. Raises
        LimitExceededError."""
        before = self.followed.get(topic_partition)
        copies = self._copies + _staged(told) - (0 if before is None else _staged(before))
        if copies > _MAX_COPIES:
            raise LimitExceededError(
                f"A session of broker {self.broker_id} would have {copies} copies of staged writes,"
                f" expected {_MAX_COPIES} at most."
            )
        if before is not None and _is_same_log(before.wanted, told.wanted):
            told.high_watermark, told.log_start = before.high_watermark, before.log_start
            told.asked_in = before.asked_in
        self._copies = copies
        self.followed[topic_partition] = told
        with self._lock:
            self._marked[topic_partition] = None

    def take_out(self, topic_partition: TopicPartition) -> bool:
        told = self.followed.pop(topic_partition, None)
        self.behind.pop(topic_partition, None)
        if told is not None:
            self._copies -= _staged(told)
        return told is not None


class ReplicaSessions:
    """The sessions of all followers. Thread-safe. ``leader`` gives a partition as it is led here,
    None if it is not."""

    def __init__(self, leader: Callable[[TopicPartition], LeaderPartition | None]) -> None:
        self._leader = leader
        self._lock = threading.Lock()
        self._sessions: dict[int, ReplicaSession] = {}
        # Replaced as a whole, so that those who append look without a lock.
        self._followers: dict[TopicPartition, tuple[ReplicaSession, ...]] = {}

    def changed(self, topic_partition: TopicPartition) -> None:
        """Has the followers of a partition look at it at once."""
        for session in self._followers.get(topic_partition, ()):
            session.mark(topic_partition)

    def partition_changed(self, topic_partition: TopicPartition) -> None:
        """Has them look at a partition that is not led as it was, or is offline. If only its high
        watermark has moved, they are told in time."""
        for session in self._followers.get(topic_partition, ()):
            followed = session.followed.get(topic_partition)
            led = self._leader(topic_partition)
            if followed is not None and (
                led is None
                or led.leader_epoch != followed.wanted.leader_epoch
                or led.log.offline is not None
            ):
                session.mark(topic_partition)

    def wake_all(self) -> None:
        for session in list(self._sessions.values()):
            session.wake()

    def count(self) -> int:
        """Returns the number of sessions that are kept."""
        return len(self._sessions)

    def of(self, request: ReplicateRequest, connection: Connection) -> ReplicaSession:
        """Returns the session to which a request belongs, a new one for the first. That is kept as
        soon as something is put in. Raises ReplicaSessionError."""
        if request.sequence == 1:
            return ReplicaSession(request.broker_id, weakref.ref(connection), sequence=1)
        known = self._sessions.get(request.broker_id)
        if known is None or known.connection() is not connection:
            raise ReplicaSessionError(
                f"Broker {request.broker_id} has no session on this connection, or began another "
                "one since: begin anew."
            )
        if request.sequence != known.sequence + 1:
            self._end(known)
            raise ReplicaSessionError(
                f"The request {request.sequence} of a session of broker {request.broker_id} came "
                f"after its request {known.sequence}: begin anew."
            )
        known.sequence = request.sequence
        return known

    def put(
        self, session: ReplicaSession, topic_partition: TopicPartition, told: FollowedHere
    ) -> None:
        """Puts a partition into a session, which ends an earlier one of that broker. Raises
        LimitExceededError."""
        session.put(topic_partition, told)
        with self._lock:
            before = self._sessions.get(session.broker_id)
            self._sessions[session.broker_id] = session
            sessions = self._followers.get(topic_partition, ())
            if session not in sessions:
                self._followers[topic_partition] = (*sessions, session)
        if before is not None and before is not session:
            self._end(before)

    def take_out(self, session: ReplicaSession, topic_partition: TopicPartition) -> None:
        if not session.take_out(topic_partition):
            return
        with self._lock:
            self._forget(session, topic_partition)

    def _end(self, session: ReplicaSession) -> None:
        session.ended = True
        with self._lock:
            if self._sessions.get(session.broker_id) is session:
                del self._sessions[session.broker_id]
            for topic_partition in list(session.followed):
                self._forget(session, topic_partition)
        session.wake()

    def _forget(self, session: ReplicaSession, topic_partition: TopicPartition) -> None:
        sessions = self._followers.get(topic_partition, ())
        left = tuple(each for each in sessions if each is not session)
        if left:
            self._followers[topic_partition] = left
        else:
            self._followers.pop(topic_partition, None)


def _staged(told: FollowedHere) -> int:
    return 0 if told.copy is None else len(told.copy.staged)


def _is_same_log(before: FollowedPartition, now: FollowedPartition) -> bool:
    return (before.topic_id, before.log_id, before.leader_epoch, before.since_us) == (
        now.topic_id, now.log_id, now.leader_epoch, now.since_us,
    )  # fmt: skip
