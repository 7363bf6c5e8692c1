"""Replicas of one partition that is led here: who is in sync, and for whom the watermark waits.

A member of the in-sync set is a broker and the id of the log with which it was taken in. The
watermark waits for those that are *counted*: all members as ZooKeeper has them, and whoever may be
one for all that is known. So a member that leaves is counted until ZooKeeper has said that it has
left, and one that joins from before the request is sent. Otherwise a follower could be elected that
lacks what was acknowledged. A follower that keeps up is counted even before it is asked for, for a
moment (see ``join_waits``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from spark_logbus.broker.replica.followers import Follower, Followers
from spark_logbus.broker.replica.join_waits import JoinWaits
from spark_logbus.broker.replica.staging_pauses import StagingPauses
from spark_logbus.broker.replica.staging_waits import StagedSize, StagingWaits
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.log import RECOVERED, PartitionLog


@dataclass(frozen=True, slots=True)
class Change:
    """A change of who is in sync: log ids by broker that join, brokers that leave. ``since_us`` is
    the time of the move by which those join to which the partition is not assigned."""

    add: Mapping[int, str] = field(default_factory=dict)
    remove: frozenset[int] = frozenset()
    since_us: int = 0

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


@dataclass(slots=True)
class _Pace:
    """Pace of a follower: ``log_end`` is the leader's when it told the last time. ``round_s`` is
    how long it took to get what the leader had then; infinity if it has not got all of it.
    """

    caught_up_at: float
    told_at: float
    log_end: int
    round_s: float = math.inf


class Members:
    """Replicas of a partition in one leader epoch. Thread-safe.

    ``assigned`` are the brokers to which the partition is assigned, ``joining`` those and the ones
    to which it is to move, by the move of the time ``since_us``: others are not in sync for long.
    ``least`` is how many have to be in sync, with the leader, for an append that is to be
    replicated. A member that has not caught up for ``lag_s``, or lacks staged bytes for which
    somebody waits so long, is to leave.
    """

    def __init__(
        self,
        led: LeaderPartition,
        state: PartitionState,
        *,
        broker_id: int,
        followers: Followers,
        epoch_start: int,
        seen_end: int,
        lag_s: float,
        clock: Clock,
    ) -> None:
        self.led = led
        #: The log's end when this epoch began: all before it may have been acknowledged.
        self.epoch_start = epoch_start
        #: All before it may have been seen, too.
        self.seen_end = seen_end
        self.assigned: Collection[int] = ()
        self.joining: Collection[int] = ()
        self.since_us = 0
        self.least = 1
        self._broker_id = broker_id
        self._followers = followers
        self._lag_s = lag_s
        self._clock = clock
        self._began_at = clock.monotonic()
        self._lock = threading.Lock()
        self._replicated_end = 0
        self._paces: dict[int, _Pace] = {}
        self._leaving: frozenset[int] = frozenset()
        self._members: Mapping[int, str] = {}  # but for the leader
        self._joining: Mapping[int, str] = {}  # that ZooKeeper is asked to take in
        self._waits = JoinWaits(lag_s)
        self._counted: Mapping[int, str] = {}  # all of these
        self._staging_pauses = StagingPauses()
        self.staging = StagingWaits(
            self._is_staged,
            is_over=self._is_over,
            clock=clock,
            staged=led.log.staging.replica_state(),
        )
        self.know(state)

    # -- who is in sync -------------------------------------------------------------------

    @property
    def in_sync(self) -> list[int]:
        """Brokers that are in sync as ZooKeeper has it, the leader first."""
        return [self._broker_id, *self._members]

    @property
    def enough(self) -> bool:
        """True if as many are in sync as the topic asks for, and are to stay so."""
        return 1 + len(self._members.keys() - self._leaving) >= self.least

    @property
    def is_alone(self) -> bool:
        """True if only the leader is in sync."""
        return not self._members

    @property
    def is_under_replicated(self) -> bool:
        return not {*self.assigned} <= {self._broker_id, *self._members}

    def know(self, state: PartitionState) -> None:
        """Go by the state as ZooKeeper has it for certain."""
        members = {
            each: state.replicas.get(each, "") for each in state.in_sync if each != self._broker_id
        }
        for left in self._members.keys() - members.keys():  # before it may be asked to join
            follower = self._followers.find(self.led, left)
            lacked = [] if follower is None else self._lacks(follower, self._lag_s)
            if follower is not None and lacked:
                self._staging_pauses.begin(follower.copy.log_id, lacked, self._clock.monotonic())
        with self._lock:
            self._members, self._joining, self._leaving = members, {}, frozenset()
            for each in members:
                self._waits.forget(each)
            self._count()

    def _count(self) -> None:
        """Go by who is counted as of now. ``_lock`` is held."""
        self._counted = {**self._waits.counted, **self._joining, **self._members}

    # -- the watermark --------------------------------------------------------------------

    def replicated_end(self, end: int) -> int:
        """The rule of the watermark: the lowest safe end of those that are counted, as each has
        told it in this epoch of the log with which it counts; it rests while one has told nothing.
        ``end`` is that of the leader's own log."""
        with self._lock:
            self._end_waits()  # also while nobody looks, as ZooKeeper does not answer
            for broker_id, log_id in self._counted.items():
                follower = self._followers.find(self.led, broker_id)
                if follower is None or not _is_of(follower, log_id):
                    return self._replicated_end
                end = min(end, follower.copy.safe_end)
            self._replicated_end = max(self._replicated_end, end)
            return self._replicated_end

    def go_on_from(self, replicated_end: int) -> None:
        """Take so much for replicated, by the rule of before."""
        with self._lock:
            self._replicated_end = max(self._replicated_end, replicated_end)

    @property
    def hides_what_was_seen(self) -> bool:
        """True as long as consumers may have seen more, of the leader before, than they see."""
        return self.led.log.ends().high_watermark < self.seen_end

    # -- followers that keep up -----------------------------------------------------------

    def note(self, follower: Follower) -> None:
        """Note what a follower has just told: it keeps up if it has by now what the leader had when
        it told the last time."""
        now, end, flushed = (
            self._clock.monotonic(), self.led.log.ends().log_end_offset, follower.copy.safe_end,
        )  # fmt: skip
        with self._lock:
            pace = self._paces.setdefault(follower.copy.broker_id, _Pace(self._began_at, now, end))
            if flushed >= end:
                pace.caught_up_at, pace.round_s = now, 0.0
            elif flushed >= pace.log_end:
                pace.caught_up_at = max(pace.caught_up_at, pace.told_at)
                pace.round_s = now - pace.told_at
            else:
                pace.round_s = math.inf
            pace.told_at, pace.log_end = now, end

    def forgive(self) -> None:
        """Count no time before as a delay: this broker did nothing in it."""
        now = self._clock.monotonic()
        with self._lock:
            self._began_at = now
            for pace in self._paces.values():
                pace.caught_up_at = max(pace.caught_up_at, now)
        self.staging.forgive()

    def wait_for(self, follower: Follower) -> bool:
        """Have the watermark wait for a follower that keeps up and may join, until it has all, for
        a moment at most; returns False if it does not wait, or did so before."""
        broker_id, log_id = follower.copy.broker_id, follower.copy.log_id
        if (
            broker_id in self._counted
            or not self._may_be_in_sync(follower)
            or not (follower.is_near or has_promised(self.led.log, follower))
            or self._lags_in_staging(follower)
        ):
            return False
        now = self._clock.monotonic()
        with self._lock:
            pace = self._paces.get(broker_id)
            if pace is None or not self._waits.begin(
                broker_id, log_id, round_s=pace.round_s, now=now
            ):
                return False
            self._count()
            return True

    def end_waits(self) -> None:
        """End the waits that have lasted long enough."""
        with self._lock:
            self._end_waits()

    def _end_waits(self) -> None:
        """``_lock`` is held."""
        if self._waits.next_end < math.inf and self._waits.end_those_before(
            self._clock.monotonic()
        ):
            self._count()

    @property
    def waits_until(self) -> float:
        """The time at which the watermark waits no more for one of them; infinity if it waits for
        none."""
        return self._waits.next_end

    # -- decisions ------------------------------------------------------------------------

    def is_in_sync(self, broker_id: int) -> bool:
        return broker_id in self._members

    def is_counted(self, broker_id: int) -> bool:
        return broker_id in self._counted

    def in_sync_follower(self, broker_id: int) -> Follower | None:
        """Returns what a broker has told last, if it is in sync with that log; else None."""
        log_id = self._members.get(broker_id, "")
        follower = self._followers.find(self.led, broker_id)
        return follower if follower is not None and _is_of(follower, log_id) else None

    def _may_be_in_sync(self, follower: Follower) -> bool:
        """True if a broker is not in sync, and may be with the log that it tells of. One that told
        of it in an earlier move may have deleted it since."""
        copy = follower.copy
        return (
            copy.broker_id in self.joining
            and (copy.broker_id in self.assigned or copy.since_us == self.since_us)
            and copy.broker_id not in self._members
            and bool(copy.log_id)
        )

    def may_join(self, follower: Follower) -> bool:
        """True if a broker that is not in sync has what it needs for that, and may be."""
        return (
            self._may_be_in_sync(follower)
            and follower.copy.safe_end >= max(self._replicated_end, self.epoch_start)
            and has_promised(self.led.log, follower)
            and self._has_acknowledged(follower)
            and not self._lags_in_staging(follower)
        )

    def wanted(self, live: Collection[int]) -> Change:
        """Decides on a change of who is in sync, of which nothing is done yet."""
        since_us = self.since_us  # first: who joins has told in this move, or ZooKeeper refuses it
        joins = {
            each.copy.broker_id: each.copy.log_id
            for each in self._followers.of(self.led)
            if each.copy.broker_id in live and self.may_join(each)
        }
        leaves = frozenset(
            broker_id
            for broker_id, log_id in self._members.items()
            if broker_id not in live
            or broker_id not in self.joining
            or self._is_out(broker_id, log_id)
        )
        return Change(joins, leaves, since_us)

    def _is_out(self, broker_id: int, log_id: str) -> bool:
        follower = self._followers.find(self.led, broker_id)
        if follower is not None and not _is_of(follower, log_id):
            return True  # the log with which it was in sync is gone
        if follower is not None and self._lacks(follower, self._lag_s):
            return True
        now = self._clock.monotonic()
        with self._lock:
            pace = self._paces.get(broker_id)
            caught_up_at = self._began_at if pace is None else pace.caught_up_at
            if (
                follower is not None
                and follower.copy.safe_end >= self.led.log.ends().log_end_offset
            ):
                if pace is not None:
                    pace.caught_up_at = now
                return False
        return now - caught_up_at > self._lag_s

    def begin(self, change: Change) -> Change:
        """Count those that join, before anything is sent; returns the change without such as have
        fallen behind until then."""
        since_us = self.since_us  # first, as above
        with self._lock:
            self._joining, self._leaving = change.add, change.remove
            self._count()
        # From here on nothing more is acknowledged, or prepared, that these have not.
        joins = {each: log_id for each, log_id in change.add.items() if self._has_all(each, log_id)}
        with self._lock:
            self._joining = joins
            self._count()
        return Change(joins, change.remove, since_us)

    def give_up(self) -> None:
        """Count those that are in sync as they were before ``begin``: what that was for was refused
        for certain."""
        now = self._clock.monotonic()
        with self._lock:
            for each in self._joining:
                self._waits.fail(each, now)
            self._joining, self._leaving = {}, frozenset()
            self._count()

    def have(self, condition: Callable[[Follower], bool]) -> bool:
        """True if the condition holds of the logs of all that are counted."""
        with self._lock:
            counted = list(self._counted.items())
        return all(
            (follower := self._followers.find(self.led, broker_id)) is not None
            and _is_of(follower, log_id)
            and condition(follower)
            for broker_id, log_id in counted
        )

    def have_staged(self, write: int, size_bytes: int) -> bool:
        """True if so much of what a write has staged is on the disks of all that are counted."""
        return self.have(lambda each: has_staged(self.led.log, each, write, size_bytes))

    def _is_over(self, write: int) -> bool:
        return self.led.log.staging.position_of(write) is None

    def _is_staged(self, write: int, size_bytes: int) -> bool:
        size = StagedSize(write, size_bytes)
        return self._is_over(write) or self.have(lambda each: self._has(each, size))

    def _has(self, follower: Follower, size: StagedSize) -> bool:
        """True if a follower lacks nothing of that: bytes of which a flush has failed are not here
        any more, nor those of a write that is over."""
        position = self.led.log.staging.position_of(size.write)
        size_bytes = 0 if position is None else min(size.size_bytes, position.size_bytes)
        return not size_bytes or has_staged(self.led.log, follower, size.write, size_bytes)

    def _lacks(self, follower: Follower, seconds: float) -> list[StagedSize]:
        """Returns what a follower lacks, for which somebody waits longer than that."""
        waited_for = self.staging.older_than(seconds)
        return [each for each in waited_for if not self._has(follower, each)]

    def _lags_in_staging(self, follower: Follower) -> bool:
        """True if a follower would be dropped soon for what it lacks of what is staged, or was for
        that just now, and has none of it yet."""
        if self._lacks(follower, self._lag_s / 2):
            return True
        if not self.enough:
            return False  # nothing is staged that it could hold up

        def has(size: StagedSize) -> bool:
            return not self._is_over(size.write) and self._has(follower, size)

        return self._staging_pauses.has(follower.copy.log_id, has, self._clock.monotonic())

    def _has_acknowledged(self, follower: Follower) -> bool:
        """True if all that was acknowledged of open writes is on the follower's disk."""
        acknowledged = self.staging.acknowledged()
        return all(self._has(follower, StagedSize(*each)) for each in acknowledged.items())

    def _has_all(self, broker_id: int, log_id: str) -> bool:
        follower = self._followers.find(self.led, broker_id)
        return follower is not None and _is_of(follower, log_id) and self.may_join(follower)


def _is_of(follower: Follower, log_id: str) -> bool:
    return bool(log_id) and follower.copy.log_id == log_id


def has_promised(log: PartitionLog, follower: Follower) -> bool:
    """True if all that writes have staged and prepared is on the follower's disk. What was there
    when the log was opened, or was copied, counts as prepared: it may be decided yet by a promise
    of an earlier process, or is by now by one of the leader before."""
    staging = log.staging
    return all(
        has_staged(log, follower, each.write, each.size_bytes)
        for each in staging.replica_state()
        if each.write in staging.decided or staging.is_promised(each.write, RECOVERED)
    )


def has_staged(log: PartitionLog, follower: Follower, write: int, size_bytes: int) -> bool:
    """True if so much of what a write has staged here is on the follower's disk."""
    there = follower.copy.staged.get(write)
    return (
        there is not None
        and there.flushed_bytes >= size_bytes
        and log.staging.agrees(write, there.size_bytes, there.digest)
    )
