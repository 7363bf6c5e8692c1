"""Lets go of partitions that are other brokers': they moved away, or do not move here any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from spark_logbus.broker.metadata_cache import TopicsImage
from spark_logbus.broker.replica.assignments import Assignments, WantedReplica
from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.old_logs import OldLog, OldLogs
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.states import Replica, ReplicaEvent, Replicas, ReplicaState
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.errors import LogbusError
from spark_logbus.log import LogDirectory, PartitionLog
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)

# The leader notes how far its log has come every few seconds. A copy that reaches further than is
# known of the leader's waits for that note; after this it is kept as any other log is.
_COPY_WAITS_S: Final = 15.0


class Leaving:
    """Stops serving or following what is assigned to others, and lets go of its log. Used by one
    thread. ``partition_changed`` is called with a partition that is not led here any more."""

    def __init__(
        self,
        assignments: Assignments,
        *,
        logs: LogDirectory,
        replicas: Replicas,
        following: Following,
        old_logs: OldLogs,
        clock: Clock,
        partition_changed: Callable[[TopicPartition], None],
    ) -> None:
        self._assignments = assignments
        self._logs = logs
        self._replicas = replicas
        self._following = following
        self._old_logs = old_logs
        self._clock = clock
        self._notify = partition_changed
        self._copies: dict[TopicPartition, float] = {}  # and since when they are of no use

    def leave(
        self,
        image: TopicsImage,
        moving: Mapping[TopicPartition, WantedReplica],
        elected: Collection[TopicPartition],
    ) -> bool:
        """Leaves what is assigned to others and not ``moving`` here, but for what this broker was
        ``elected`` to lead while it moves here. Returns False if the log of one is still in its
        place. Raises CoordinationError."""
        for record in image.topics.values():
            for topic_partition in self._assignments.assigned_elsewhere(record):
                if topic_partition not in elected:
                    self._hand_over(topic_partition, record, moves=topic_partition in moving)
        return self._let_go(moving)

    def _hand_over(self, where: TopicPartition, record: TopicRecord, *, moves: bool) -> None:
        if not moves and self._following.has(where):
            moved_here = self._following.moves_here(where)
            # One that was assigned here is kept for a while, as other logs are that moved away.
            if self._following.release(where) and moved_here:
                self._copies[where] = self._clock.monotonic()
        replica, log = self._replicas.get(where), self._logs.get(where)
        is_here = log is not None and log.topic_id == record.topic_id
        match replica.state:
            case ReplicaState.LEADING:
                leaves = is_here
            case ReplicaState.REFUSED:
                leaves = replica.topic_id == record.topic_id
            case ReplicaState.FOLLOWING:
                leaves = not moves and replica.topic_id == record.topic_id
            case ReplicaState.HELD:
                leaves = is_here and (not moves or replica.leader is not None)
            case ReplicaState.ABSENT:
                # One that has led is let go before the partition comes back, or kept.
                leaves = is_here and not (moves and log is not None and log.is_copy)
            case _:
                leaves = False
        if not leaves:
            return
        self._logs.pause_deletion(where, topic_id=record.topic_id)
        with self._replicas.lock:
            if self._replicas.get(where) is not replica:
                return  # its lead was handed over just now, or this broker has resigned
            self._replicas.change(where, ReplicaEvent.HAND_OVER, topic_id=record.topic_id)
        if replica.state is ReplicaState.LEADING:
            self._notify(where)
            logger.info("%s has moved to another broker.", where, extra=fields_about(where))

    @property
    def waits(self) -> bool:
        """True while a copy that is of no use takes room on the disk."""
        return bool(self._copies)

    # -- logs -----------------------------------------------------------------------------

    def _let_go(self, moving: Mapping[TopicPartition, WantedReplica]) -> bool:
        """Sets aside or deletes what is not the only log; the rest stays as it is."""
        logs = {}
        for where, replica in self._replicas.in_state(ReplicaState.MOVED).items():
            log = self._logs.get(where)
            if log is not None and log.topic_id == replica.topic_id:
                log.pause_deletion()
                logs[where] = log
            elif where not in self._logs.failed():
                self._gone(where, replica)
        if not logs:
            return True
        reasons = self._old_logs.why_kept([OldLog.of(log) for log in logs.values()])
        done = True
        for where, log in logs.items():
            replica = self._replicas.get(where)
            try:
                if self._is_let_go(where, log, reasons[where]):
                    self._gone(where, replica)
                else:
                    self._keep(where, log, reasons[where], moving.get(where))
                    done = False
            except LogbusError as error:
                logger.error("%s", error, extra=fields_about(where))
                done = False
        return done

    def _is_let_go(self, where: TopicPartition, log: PartitionLog, reason: str | None) -> bool:
        since = self._copies.get(where)
        if since is not None and reason is None:
            # It was made here and never led, and its leader has all that is in it.
            self._logs.remove_copy(where, topic_id=log.topic_id)
            logger.info("Deleted the copy of %s, which does not move here.", where,
                        extra=fields_about(where))  # fmt: skip
            return True
        if since is not None and self._clock.monotonic() - since < _COPY_WAITS_S:
            return False
        if reason is not None and since is None:
            return False
        self._old_logs.set_aside(where, log.topic_id)
        return True

    def _keep(
        self,
        where: TopicPartition,
        log: PartitionLog,
        reason: str | None,
        moving: WantedReplica | None,
    ) -> None:
        """Tells why a log stays, which is not known to be a copy."""
        if reason is None or where in self._copies:
            return
        self._old_logs.warn(where, log.directory, reason)
        if moving is not None:
            self._following.refuse(
                moving,
                f"The log of {where} that is in {log.directory} may be the only one: {reason}. "
                "Move that directory away while the broker is stopped, if its records are not "
                "needed.",
            )

    def _gone(self, where: TopicPartition, replica: Replica) -> None:
        self._copies.pop(where, None)
        with self._replicas.lock:
            if self._replicas.get(where) is replica:
                self._replicas.change(where, ReplicaEvent.REMOVE)
