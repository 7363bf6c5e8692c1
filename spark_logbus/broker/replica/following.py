"""Follows the leaders of partitions that move to this broker, or are assigned to it for good.

Each is copied from its leader, by the fetcher of that leader. What cannot be copied for now,
because its leader is away, comes again later.

Of those that move here a few are copied at a time, in the order in which their moves were asked
for, and no faster than was asked. What cannot be copied at all is given up: the move's node in
ZooKeeper says why, and the partition stays where it is.

An assigned replica is never given up. Whatever keeps it from its leader, its disk or its log, it
tries again after a pause, for ever, and says so; its leader goes on without it meanwhile.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.failed_moves import FailedMoves
from spark_logbus.broker.replica.fetcher import LeaderFetcher
from spark_logbus.broker.replica.opening import (
    LogOpener,
    NoRoomError,
    NotToBeFollowedError,
    wanted_log,
)
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
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import LogDirectory
from spark_logbus.metrics import Counter
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.retry import Backoff
from spark_logbus.sizes import human_bytes
from spark_logbus.threads import Periodic
from spark_logbus.wire.config import ConnectionConfig

logger = logging.getLogger(__name__)

#: Partitions that move here and are copied at a time: enough for the disks, and each is done the
#: sooner.
AT_A_TIME: Final = 5
_RETRY: Final = Backoff(first_ms=200, max_ms=10_000)
# A replica that its leader waits for comes back before that takes it for out of sync.
_ASSIGNED_RETRY: Final = Backoff(first_ms=100, max_ms=2_000)
# Faults that a later try may be spared: after so many in a row a move is given up.
_TRIES: Final = 5
# So long at most several partitions are begun with, before they are copied together.
_BEGIN_S: Final = 0.2
# An assigned replica that fails in the same way on and on says so this often.
_TELL_EVERY_S: Final = 600.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class _Pause:
    """Faults of one partition in a row, and the end of the pause after the last."""

    until: float = -math.inf
    failures: int = 0
    faults: int = 0  # of those the ones that no other broker's return can end
    why: str = ""  # of the last fault
    told: str = ""  # of what was said of it last
    told_at: float = -math.inf


class Following:
    """Follows partitions, on a thread of its own and one for each leader. Thread-safe.

    ``want`` and ``release`` are called by the one who knows what is led where. ``address`` gives
    the address of a broker, None while it is not registered; ``free_bytes`` what is free on the
    disk.
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
        connections: ConnectionConfig,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._opener = LogOpener(
            broker_id,
            logs=logs,
            states=states,
            watermarks=watermarks,
            require_room=self._require_room,
            lives=lambda leader: address(leader) is not None,
        )
        self._replicas = replicas
        self._watermarks = watermarks
        self._address = address
        self._free_bytes = free_bytes
        self._reserve_bytes = reserve_bytes
        self._connections = connections
        self._clock = clock
        self._throttle = Throttle(clock)
        self.received_bytes = Counter()
        self._lock = threading.Condition()  # notified when no beginning is under way
        self._beginning: set[TopicPartition] = set()
        self._wanted: dict[TopicPartition, WantedReplica] = {}
        self._followed: dict[TopicPartition, FollowedLog] = {}
        self._pauses: dict[TopicPartition, _Pause] = {}
        self._failed_moves = FailedMoves(moves, free_disk=self._delete_copy)
        self._copies: dict[TopicPartition, str] = {}  # topic ids of logs that are copies
        self._fetchers: dict[int, LeaderFetcher] = {}
        self.thread = Periodic(
            "following",
            self._look,
            pause_s=_RETRY.max_ms / 1000,
            failure="Partitions that other brokers lead could not be followed.",
        )

    # -- by who knows what is led where ---------------------------------------------------

    def want(self, wanted: Mapping[TopicPartition, WantedReplica]) -> None:
        """Has these followed, the first of them first, and from other leaders, or in other epochs,
        where their states say so. Those that are not among them are released by the caller
        before."""
        with self._lock:
            self._failed_moves.forget_those_before(wanted)
            for where in list(self._pauses):
                now, before = wanted.get(where), self._wanted.get(where)
                if now is None or before is None or _is_led_otherwise(before.state, now.state):
                    del self._pauses[where]
            otherwise = [
                followed
                for where, followed in self._followed.items()
                if (now := wanted.get(where)) is not None and not followed.is_for(now)
            ]
            for followed in otherwise:
                self._forget(followed)
            self._wanted = dict(wanted)
        for followed in otherwise:
            self._stop_copying(followed)
        self._throttle.limit(
            each.move.throttle for each in wanted.values() if each.move is not None
        )
        self.thread.wake()

    def release(self, topic_partition: TopicPartition) -> bool:
        """Follows a partition no more: when it returns nothing is applied to its log. Its watermark
        is that of a sole replica, or rests where there are others. Returns True if all in that log
        was copied by this process."""
        with self._lock:
            wanted = self._wanted.pop(topic_partition, None)
            self._lock.wait_for(lambda: topic_partition not in self._beginning)
            self._pauses.pop(topic_partition, None)
            followed = self._followed.pop(topic_partition, None)
            topic_id = self._copies.pop(topic_partition, None)
        if followed is not None:
            self._stop_copying(followed)
            topic_id = followed.wanted.topic_id if followed.is_copy else topic_id
        was_followed = wanted or (followed.wanted if followed is not None else None)
        if was_followed is not None:
            if was_followed.is_of_several:
                self._watermarks.hold(topic_partition)
            else:
                self._watermarks.forget(topic_partition)
        log = self._logs.get(topic_partition)
        return topic_id is not None and log is not None and log.topic_id == topic_id

    def has(self, topic_partition: TopicPartition) -> bool:
        """True if a partition is followed, or waits for its turn."""
        return topic_partition in self._wanted or topic_partition in self._followed

    def moves_here(self, topic_partition: TopicPartition) -> bool:
        """True if a partition is followed, or is to be, because it moves here."""
        wanted = self._wanted.get(topic_partition)
        return wanted is not None and wanted.move is not None

    def followed(self) -> Collection[TopicPartition]:
        """Returns the partitions that are being copied now."""
        return list(self._followed)

    def troubles(self) -> dict[TopicPartition, str]:
        """Returns the assigned replicas that cannot follow their leaders, each with the reason."""
        with self._lock:
            return {
                where: pause.why
                for where, pause in self._pauses.items()
                if pause.why
                and (wanted := self._wanted.get(where)) is not None
                and wanted.move is None
            }

    def stop(self) -> None:
        """Stops following, for ever."""
        self.thread.stop()
        with self._lock:
            fetchers, self._fetchers = [*self._fetchers.values()], {}
        for fetcher in fetchers:
            fetcher.stop()

    # -- choosing what to follow ----------------------------------------------------------

    def _look(self) -> float:
        self._failed_moves.note()
        while due := self._due():
            while due and not self.thread.stopping.is_set():
                due = self._begin_some(due)
            if self.thread.stopping.is_set():
                return math.inf
        self._reconfigure()
        return self._pause_s()

    def _begin_some(self, due: list[WantedReplica]) -> list[WantedReplica]:
        """Begins with the first of them, all of which their fetchers get together; returns the
        rest. Whoever releases one that is begun with waits for this."""
        began, started = self._clock.monotonic(), dict[int, list[FollowedLog]]()
        try:
            for number, wanted in enumerate(due, start=1):
                followed = self._begin(wanted) if self._takes_turn(wanted) else None
                if followed is not None:
                    started.setdefault(followed.leader, []).append(followed)
                if self._clock.monotonic() - began >= _BEGIN_S:
                    return due[number:]
            return []
        finally:
            for leader, some in started.items():
                with self._lock:
                    fetcher = self._fetcher_of(leader)
                fetcher.add(some)
            with self._lock:
                self._beginning.clear()
                self._lock.notify_all()

    def _due(self) -> list[WantedReplica]:
        """The partitions to begin with, as far as there is a place for each: first those that have
        failed least often. Else ones whose leaders hang, each of which holds its place until it
        fails, would take all the places again before any other has its turn."""
        now = self._clock.monotonic()
        found = []
        with self._lock:
            # One that has nearly all and waits for others' copies would keep theirs from beginning.
            places = AT_A_TIME - sum(
                each.is_move and not (each.is_near and each.wanted.is_of_several)
                for each in self._followed.values()
            )
            for where, wanted in sorted(self._wanted.items(), key=self._times_failed):
                pause = self._pauses.get(where)
                if where in self._followed or (pause is not None and pause.until > now):
                    continue
                if wanted.move is not None:
                    if places <= 0 or self._failed_moves.has(wanted):
                        continue
                    places -= 1
                found.append(wanted)
        return found

    def _times_failed(self, wanted: tuple[TopicPartition, WantedReplica]) -> int:
        pause = self._pauses.get(wanted[0])
        return 0 if pause is None else pause.failures

    def _takes_turn(self, wanted: WantedReplica) -> bool:
        """Notes that a partition is begun with, if it is still wanted just so."""
        where = wanted.topic_partition
        with self._lock:
            if self._wanted.get(where) is not wanted or where in self._followed:
                return False
            self._beginning.add(where)
            return True

    def _pause_s(self) -> float:
        if not self._failed_moves.are_noted:
            return 1.0
        now = self._clock.monotonic()
        with self._lock:
            due = [
                pause.until - now
                for where, pause in self._pauses.items()
                if where not in self._followed
                and (wanted := self._wanted.get(where)) is not None
                and not self._failed_moves.has(wanted)
            ]
        return max(0.01, min(due)) if due else math.inf

    def _reconfigure(self) -> None:
        """Has logs that are followed kept by the present configuration of their topics."""
        with self._lock:
            changed = [
                (followed, self._wanted[where])
                for where, followed in self._followed.items()
                if where in self._wanted
                and self._wanted[where].record.config != followed.wanted.record.config
            ]
        for followed, wanted in changed:
            with followed.lock:
                if not followed.ended:
                    followed.wanted = wanted
                    self._logs.ensure_all([wanted_log(wanted)])

    # -- beginning ------------------------------------------------------------------------

    def _begin(self, wanted: WantedReplica) -> FollowedLog | None:
        """Returns the log if it is to be copied into, which is for its fetcher to do."""
        where = wanted.topic_partition
        try:
            followed = self._opener.open(wanted)
        except CoordinationError as error:
            self._pause(wanted, error)
            return None
        except NotToBeFollowedError as error:
            self._give_up(wanted, error)
            return None
        except LogbusError as error:
            self._fault(wanted, error)
            return None
        except Exception as error:  # else it would be the first to begin with again and again
            logger.exception("%s cannot be copied.", where, extra=fields_about(where))
            text = f"{where} cannot be copied: {type(error).__name__}: {error}"
            self._fault(wanted, StorageError(text))
            return None
        if followed is None:
            self._pause(wanted, None)  # not led yet, or led here soon
            return None
        with self._lock:
            if followed.is_copy:
                self._copies[where] = wanted.topic_id
            now = self._wanted.get(where)
            if now is None or not followed.is_for(now):
                return None  # it was released meanwhile, or is led otherwise; the log is as it was
            self._followed[where] = followed
            self._replicas.change(where, ReplicaEvent.FOLLOW, topic_id=wanted.topic_id)
        return followed

    def _require_room(self, wanted: WantedReplica, size_bytes: int) -> None:
        where = wanted.topic_partition
        with self._lock:
            others = [each for at, each in self._followed.items() if at != where]
        others_bytes = sum(each.remaining_bytes or 0 for each in others)
        free = self._free_bytes()
        if free - size_bytes - others_bytes < self._reserve_bytes:
            raise NoRoomError(
                f"Broker {self._broker_id} has no room for {where}: {human_bytes(size_bytes)} of "
                "it are to be copied"
                + (f", {human_bytes(others_bytes)} of other partitions" if others_bytes else "")
                + f", and of the {human_bytes(free)} that are free on its disk, "
                f"{human_bytes(self._reserve_bytes)} are to stay free ([moves] reserve_bytes)."
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
                connections=self._connections,
                clock=self._clock,
                got_on=self._got_on,
                failed=self._failed,
            )
            fetcher.thread.start()
        return fetcher

    def _forget(self, followed: FollowedLog) -> None:
        """Has a partition wait for its turn again. Under the lock."""
        where = followed.topic_partition
        del self._followed[where]
        if followed.is_copy:
            self._copies[where] = followed.wanted.topic_id
        else:
            self._copies.pop(where, None)

    def _stop_copying(self, followed: FollowedLog) -> None:
        with self._lock:
            fetcher = self._fetchers.get(followed.leader)
        followed.end()  # first: a fetcher takes none that has ended
        if fetcher is not None:
            fetcher.remove(followed)
        self.thread.wake()  # there is a place for another

    # -- by fetchers ----------------------------------------------------------------------

    def _got_on(self, followed: FollowedLog) -> None:
        """Forgets faults that have passed."""
        if not self._pauses:
            return
        where = followed.topic_partition
        with self._lock:
            pause = self._pauses.pop(where, None)
        if pause is not None and pause.told:
            logger.info("%s is copied again.", where, extra=fields_about(where))

    def _failed(self, followed: FollowedLog, error: LogbusError, by_leader: bool) -> None:
        where, wanted = followed.topic_partition, followed.wanted
        with self._lock:
            if self._followed.get(where) is not followed:
                return
            self._forget(followed)
        followed.end()
        if by_leader and (error.retriable or isinstance(error, UnknownTopicError)):
            self._pause(wanted, error)
        elif by_leader:
            self._fault(wanted, error, f"Broker {followed.leader} cannot send {where}")
        elif _is_for_want_of_room(error):
            self._give_up(wanted, error, frees_disk=followed.is_copy)
        else:
            self._fault(wanted, error)
        self.thread.wake()

    def _pause(self, wanted: WantedReplica, error: LogbusError | None) -> None:
        """Lets a partition wait for another broker or for ZooKeeper, and others go on."""
        where = wanted.topic_partition
        retry = _RETRY if wanted.move is not None else _ASSIGNED_RETRY
        with self._lock:
            if where not in self._wanted:
                return
            pause = self._pauses.setdefault(where, _Pause())
            pause.failures += 1
            pause.until = self._clock.monotonic() + retry.pause_s(pause.failures)
        if error is not None:
            level = logging.INFO if pause.failures == 1 else logging.DEBUG
            logger.log(level, "%s is copied later: %s", where, error, extra=fields_about(where))

    def _fault(self, wanted: WantedReplica, error: LogbusError, what: str = "") -> None:
        """Tries again later, or gives up a move that has failed often enough."""
        text = f"{what}: {error.message}" if what else error.message
        where = wanted.topic_partition
        with self._lock:
            pause = self._pauses.setdefault(where, _Pause())
            pause.faults += 1
            faults = pause.faults
        if wanted.move is None:
            self._trouble(wanted, text)
        elif faults >= _TRIES:
            self._give_up_move(wanted, text)
        else:
            logger.warning("%s", text, extra=fields_about(where))
            self._pause(wanted, None)

    def _trouble(self, wanted: WantedReplica, why: str) -> None:
        """Says why an assigned replica cannot follow its leader, and lets it try again later."""
        where, now = wanted.topic_partition, self._clock.monotonic()
        with self._lock:
            pause = self._pauses.setdefault(where, _Pause())
            pause.why = why
            is_news = why != pause.told or now - pause.told_at >= _TELL_EVERY_S
            if is_news:
                pause.told, pause.told_at = why, now
        if is_news:
            logger.error(
                "%s cannot follow its leader, and tries again: %s",
                where, why, extra=fields_about(where),
            )  # fmt: skip
        self._pause(wanted, None)

    def _delete_copy(self, wanted: WantedReplica) -> None:
        """Frees the disk of a copy for which it has no room, when its move cannot be handed over
        any more."""
        where, topic_id = wanted.topic_partition, wanted.topic_id
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
        self._watermarks.forget(where)

    # -- what cannot be followed ----------------------------------------------------------

    def refuse(self, wanted: WantedReplica, why: str) -> None:
        """Gives up a move that cannot begin, for which nobody waits then."""
        if not self._failed_moves.has(wanted):
            self._give_up_move(wanted, why)

    def _give_up(
        self, wanted: WantedReplica, error: LogbusError, *, frees_disk: bool = False
    ) -> None:
        """Gives up a move; an assigned replica tries again."""
        if wanted.move is None:
            self._trouble(wanted, error.message)
        else:
            self._give_up_move(wanted, error.message, frees_disk=frees_disk)

    def _give_up_move(self, wanted: WantedReplica, why: str, *, frees_disk: bool = False) -> None:
        self._failed_moves.add(wanted, why, frees_disk=frees_disk)
        self.thread.wake()


def _is_led_otherwise(before: PartitionState | None, now: PartitionState | None) -> bool:
    """Tells if another broker leads, or in another epoch, as far as that is known."""
    if before is None or now is None:
        return False
    return (before.leader, before.leader_epoch) != (now.leader, now.leader_epoch)


def _is_for_want_of_room(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, NoRoomError) or (isinstance(error, OSError) and error.errno in _FULL):
            return True
        error = error.__cause__
    return False
