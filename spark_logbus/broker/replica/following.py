"""Follows the leaders of partitions that move to this broker.

A few partitions are copied at a time, in the order in which their moves were asked for; each from
its leader, by the fetcher of that leader. What cannot be copied for now, because its leader is
away, gives its place to the next and comes again later. What cannot be copied at all is given up:
the move's node in ZooKeeper says why, and the partition stays where it is.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.assignments import MovingHere
from spark_logbus.broker.replica.fetcher import LeaderFetcher
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.states import ReplicaEvent, Replicas, ReplicaState
from spark_logbus.broker.replica.throttle import Throttle
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    CoordinationError,
    LogbusError,
    PartitionOfflineError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import LogDirectory, PartitionLog, WantedLog
from spark_logbus.metrics import Counter
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.retry import Backoff
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper import CorruptNodeError

logger = logging.getLogger(__name__)

#: Partitions that are copied at a time: enough for the disks, and each is done the sooner.
AT_A_TIME: Final = 5
_RETRY: Final = Backoff(first_ms=200, max_ms=10_000)
# Faults that a later try may be spared: after so many in a row the move is given up.
_TRIES: Final = 5
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class NoRoomError(StorageError):
    """The disk has no room for a partition that is to move here."""


@dataclass
class _Pause:
    """Faults of one partition in a row, and the end of the pause after the last."""

    until: float = -math.inf
    failures: int = 0
    faults: int = 0  # of those the ones that no other broker's return can end


@dataclass
class _Failure:
    """A move that is given up, and why; as long as ZooKeeper has not noted it."""

    moving: MovingHere
    why: str
    noted: bool = field(default=False)
    #: What was copied is to be deleted then: the disk has no room for it.
    frees_disk: bool = field(default=False)


class Following:
    """Follows partitions, on a thread of its own and one for each leader. Thread-safe.

    ``want`` and ``release`` are called by the one who applies the images of the topics. ``address``
    gives the address of a broker, None while it is not registered; ``free_bytes`` what is free on
    the disk.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        states: PartitionStates,
        moves: PartitionMoves,
        replicas: Replicas,
        watermarks: HighWatermarks,
        address: Callable[[int], BrokerAddress | None],
        free_bytes: Callable[[], int],
        reserve_bytes: int,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._states = states
        self._moves = moves
        self._replicas = replicas
        self._watermarks = watermarks
        self._address = address
        self._free_bytes = free_bytes
        self._reserve_bytes = reserve_bytes
        self._clock = clock
        self._throttle = Throttle(clock)
        self.received_bytes = Counter()
        self._lock = threading.Condition()  # notified when no beginning is under way
        self._beginning: TopicPartition | None = None
        self._wanted: dict[TopicPartition, MovingHere] = {}
        self._followed: dict[TopicPartition, FollowedLog] = {}
        self._pauses: dict[TopicPartition, _Pause] = {}
        self._failures: dict[TopicPartition, _Failure] = {}
        self._copies: dict[TopicPartition, str] = {}  # topic ids of what was copied here only
        self._fetchers: dict[int, LeaderFetcher] = {}
        self.thread = Periodic(
            "following",
            self._look,
            pause_s=_RETRY.max_ms / 1000,
            failure="Partitions that move here could not be followed.",
        )

    # -- by who applies images ------------------------------------------------------------

    def want(self, wanted: Mapping[TopicPartition, MovingHere]) -> None:
        """Has these followed, the first of them first. Those that are not among them are released
        by the caller before."""
        with self._lock:
            for topic_partition, failure in list(self._failures.items()):
                now = wanted.get(topic_partition)
                is_over = now is None or not now.is_same(failure.moving)
                if is_over and failure.noted:
                    del self._failures[topic_partition]
            for topic_partition in self._pauses.keys() - wanted.keys():
                del self._pauses[topic_partition]
            self._wanted = dict(wanted)
        self._throttle.limit(each.move.throttle for each in wanted.values())
        self.thread.wake()

    def release(self, topic_partition: TopicPartition) -> bool:
        """Follows a partition no more: when it returns nothing is applied to its log, which has the
        watermark of a sole replica. Returns True if all in that log was copied by this process."""
        with self._lock:
            self._wanted.pop(topic_partition, None)
            self._lock.wait_for(lambda: self._beginning != topic_partition)
            self._pauses.pop(topic_partition, None)
            followed = self._followed.pop(topic_partition, None)
            topic_id = self._copies.pop(topic_partition, None)
        if followed is not None:
            self._stop_copying(followed)
        self._watermarks.lead(topic_partition)
        log = self._logs.get(topic_partition)
        return topic_id is not None and log is not None and log.topic_id == topic_id

    def has(self, topic_partition: TopicPartition) -> bool:
        """True if a partition is followed, or waits for its turn."""
        return topic_partition in self._wanted or topic_partition in self._followed

    def followed(self) -> Collection[TopicPartition]:
        """Returns the partitions that are being copied now."""
        return list(self._followed)

    def stop(self) -> None:
        """Stops following, for ever."""
        self.thread.stop()
        with self._lock:
            fetchers, self._fetchers = [*self._fetchers.values()], {}
        for fetcher in fetchers:
            fetcher.stop()

    # -- choosing what to follow ----------------------------------------------------------

    def _look(self) -> float:
        self._note_failures()
        while not self.thread.stopping.is_set():
            moving = self._next()
            if moving is None:
                break
            try:
                self._begin(moving)
            finally:
                with self._lock:
                    self._beginning = None
                    self._lock.notify_all()
        self._reconfigure()
        return self._pause_s()

    def _next(self) -> MovingHere | None:
        """The partition to begin with, if there is a place for one."""
        now = self._clock.monotonic()
        with self._lock:
            if len(self._followed) >= AT_A_TIME:
                return None
            for topic_partition, moving in self._wanted.items():
                pause = self._pauses.get(topic_partition)
                failure = self._failures.get(topic_partition)
                if (
                    topic_partition not in self._followed
                    and (failure is None or not failure.moving.is_same(moving))
                    and (pause is None or pause.until <= now)
                ):
                    self._beginning = topic_partition
                    return moving
        return None

    def _pause_s(self) -> float:
        now = self._clock.monotonic()
        with self._lock:
            if any(not failure.noted for failure in self._failures.values()):
                return 1.0
            due = [
                pause.until - now
                for where, pause in self._pauses.items()
                if where not in self._followed and where not in self._failures
            ]
        return max(0.01, min(due)) if due else math.inf

    def _reconfigure(self) -> None:
        """Has logs that are followed kept by the present configuration of their topics."""
        with self._lock:
            changed = [
                (followed, self._wanted[where])
                for where, followed in self._followed.items()
                if where in self._wanted
                and self._wanted[where].record.config != followed.moving.record.config
            ]
        for followed, moving in changed:
            with followed.lock:
                if not followed.ended:
                    followed.moving = moving
                    self._logs.ensure_all([_wanted_log(moving)])

    # -- beginning ------------------------------------------------------------------------

    def _begin(self, moving: MovingHere) -> None:
        where = moving.topic_partition
        try:
            followed = self._opened(moving)
        except CoordinationError as error:
            self._pause(where, error)
            return
        except LogbusError as error:
            self._fault(moving, error)
            return
        except Exception as error:  # else it would be the first to begin with again and again
            logger.exception("%s cannot be copied.", where, extra=fields_about(where))
            text = f"{where} cannot be copied: {type(error).__name__}: {error}"
            self._fault(moving, StorageError(text))
            return
        if followed is None:
            return
        with self._lock:
            now = self._wanted.get(where)
            if now is None or not now.is_same(moving):
                return  # it was released meanwhile; the log is as it was
            self._followed[where] = followed
            fetcher = self._fetcher_of(followed.leader)
            self._replicas.change(where, ReplicaEvent.FOLLOW, topic_id=moving.topic_id)
        fetcher.add(followed)

    def _opened(self, moving: MovingHere) -> FollowedLog | None:
        """Returns the partition to follow; None if its turn has not come. Raises CoordinationError,
        and what hinders it for longer."""
        where = moving.topic_partition
        state = self._states.states_of([where])[where]
        if isinstance(state, CorruptNodeError):
            raise state
        if state is None or state.leader == self._broker_id:
            self._pause(where, None)  # not led yet, or led here soon
            return None
        if state.refused is not None:
            self._give_up(moving, f"Broker {state.leader} does not serve {where}: {state.refused}")
            return None
        self._watermarks.follow(where, 0)
        try:
            log = self._log_of(moving, state)
        except BaseException:
            self._watermarks.lead(where)
            raise
        if log is None:
            self._watermarks.lead(where)
            return None
        logger.info(
            "Following %s, which moves here from broker %d, from offset %d on.",
            where, state.leader, log.ends().log_end_offset, extra=fields_about(where),
        )  # fmt: skip
        return FollowedLog(
            moving,
            log,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            logs=self._logs,
            watermarks=self._watermarks,
            is_copy=self._copies.get(where) == moving.topic_id,
            require_room=lambda size_bytes: self._require_room(where, size_bytes),
        )

    def _log_of(self, moving: MovingHere, state: PartitionState) -> PartitionLog | None:
        where = moving.topic_partition
        before = self._logs.get(where)
        is_new = before is None or before.topic_id != moving.topic_id
        log = self._logs.ensure_all([_wanted_log(moving)])[where]
        if isinstance(log, PartitionOfflineError):  # what is there is kept, whatever it is
            log = self._logs.start_over(_wanted_log(moving), keep_files=True)
            is_new = True
        if isinstance(log, LogbusError):
            raise log.again()
        if log.epochs.latest > state.leader_epoch:
            self._give_up(
                moving,
                f"Broker {self._broker_id} has a log of {where} in {log.directory} that was led in "
                f"epoch {log.epochs.latest}, and ZooKeeper knows of none after "
                f"{state.leader_epoch}. Was ZooKeeper restored from an older state? Move that "
                "directory away while the broker is stopped, if its records are not needed.",
            )
            return None
        if log.damaged:
            # A crash tore what was not flushed, and the leader has it: it is copied again.
            if log.damaged[0].start > log.ends().log_start_offset:
                log.truncate_to(log.damaged[0].start, below_watermark=True)
            else:
                log = self._logs.start_over(_wanted_log(moving), keep_files=True)
        if is_new and not log.ends().log_end_offset:
            self._copies[where] = moving.topic_id
        return log

    def _require_room(self, where: TopicPartition, size_bytes: int) -> None:
        with self._lock:
            others = [each for at, each in self._followed.items() if at != where]
        wanted = size_bytes + sum(each.remaining_bytes or 0 for each in others)
        free = self._free_bytes()
        if free - wanted < self._reserve_bytes:
            raise NoRoomError(
                f"Broker {self._broker_id} has no room for {where}: {size_bytes} bytes of it are "
                f"to be copied"
                + (f", {wanted - size_bytes} of other partitions" if wanted > size_bytes else "")
                + f", and of the {free} bytes that are free on its disk, {self._reserve_bytes} "
                "are to stay free ([moves] reserve_bytes)."
            )

    def _fetcher_of(self, leader: int) -> LeaderFetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = LeaderFetcher(
                leader,
                broker_id=self._broker_id,
                address=self._address,
                throttle=self._throttle,
                received=self.received_bytes,
                clock=self._clock,
                got_on=self._got_on,
                failed=self._failed,
            )
            fetcher.thread.start()
        return fetcher

    def _stop_copying(self, followed: FollowedLog) -> None:
        with self._lock:
            fetcher = self._fetchers.get(followed.leader)
        if fetcher is not None:
            fetcher.remove(followed)
        followed.end()
        self.thread.wake()  # there is a place for another

    # -- by fetchers ----------------------------------------------------------------------

    def _got_on(self, followed: FollowedLog) -> None:
        """Forgets faults that have passed."""
        if self._pauses:
            with self._lock:
                self._pauses.pop(followed.topic_partition, None)

    def _failed(self, followed: FollowedLog, error: LogbusError, by_leader: bool) -> None:
        where = followed.topic_partition
        with self._lock:
            if self._followed.get(where) is not followed:
                return
            del self._followed[where]
            if followed.is_copy:
                self._copies[where] = followed.moving.topic_id
        followed.end()
        if by_leader and (error.retriable or isinstance(error, UnknownTopicError)):
            self._pause(where, error)
        elif by_leader:
            self._fault(followed.moving, error, f"Broker {followed.leader} cannot send {where}")
        elif _is_for_want_of_room(error):
            self._give_up(followed.moving, error.message, frees_disk=followed.is_copy)
        else:
            self._fault(followed.moving, error)
        self.thread.wake()

    def _pause(self, where: TopicPartition, error: LogbusError | None) -> None:
        """Lets a partition wait for another broker or for ZooKeeper, and others go on."""
        with self._lock:
            pause = self._pauses.setdefault(where, _Pause())
            pause.failures += 1
            pause.until = self._clock.monotonic() + _RETRY.pause_s(pause.failures)
        if error is not None:
            level = logging.INFO if pause.failures == 1 else logging.DEBUG
            logger.log(level, "%s is copied later: %s", where, error, extra=fields_about(where))

    def _fault(self, moving: MovingHere, error: LogbusError, what: str = "") -> None:
        """Tries again later, or gives up what has failed often enough."""
        where = moving.topic_partition
        with self._lock:
            pause = self._pauses.setdefault(where, _Pause())
            pause.faults += 1
            faults = pause.faults
        text = f"{what}: {error.message}" if what else error.message
        if faults >= _TRIES:
            self._give_up(moving, text)
        else:
            logger.warning("%s", text, extra=fields_about(where))
            self._pause(where, None)

    def _delete_copy(self, moving: MovingHere) -> None:
        """Frees the disk of a copy for which it has no room, when its move cannot be handed over
        any more."""
        where, topic_id = moving.topic_partition, moving.topic_id
        if self._replicas.get(where).state is not ReplicaState.FOLLOWING:
            return
        with self._lock:
            if where in self._followed or self._copies.get(where) != topic_id:
                return  # released meanwhile, by who deletes it
            del self._copies[where]
        try:
            self._logs.remove_copy(where, topic_id=topic_id)
        except LogbusError as error:
            logger.error("%s", error, extra=fields_about(where))
        self._watermarks.lead(where)

    # -- moves that are given up ----------------------------------------------------------

    def refuse(self, moving: MovingHere, why: str) -> None:
        """Gives up a move that cannot begin, for which nobody waits then."""
        with self._lock:
            failure = self._failures.get(moving.topic_partition)
        if failure is None or not failure.moving.is_same(moving):
            self._give_up(moving, why)

    def _give_up(self, moving: MovingHere, why: str, *, frees_disk: bool = False) -> None:
        where = moving.topic_partition
        with self._lock:
            self._failures[where] = _Failure(moving, why, frees_disk=frees_disk)
        logger.error(
            "%s does not move here: %s", where, why, extra=fields_about(where),
        )  # fmt: skip
        self.thread.wake()

    def _note_failures(self) -> None:
        with self._lock:
            failures = [each for each in self._failures.values() if not each.noted]
        for failure in failures:
            moving = failure.moving
            try:
                has_failed = self._moves.fail(
                    moving.topic_partition,
                    topic_id=moving.topic_id,
                    move=moving.move,
                    error=failure.why,
                )
                failure.noted = True
                # Else the leader may have handed it over by what it was told before.
                if has_failed and failure.frees_disk:
                    self._delete_copy(moving)
            except UnknownTopicError:
                failure.noted = True  # deleted; the news of it is under way
            except LogbusError as error:
                logger.debug("%s", error)


def _wanted_log(moving: MovingHere) -> WantedLog:
    return WantedLog(moving.topic_partition, moving.topic_id, moving.record.config, follows=True)


def _is_for_want_of_room(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, NoRoomError) or (isinstance(error, OSError) and error.errno in _FULL):
            return True
        error = error.__cause__
    return False
