"""Logs of partitions that other brokers lead: set aside first, and deleted when it is safe.

What is here may be the only log of a partition: another broker's disk may be empty, ZooKeeper may
have been restored from an older state, a move may not have happened for all that is known. So a log
is set aside only if ZooKeeper says that another broker leads the partition, in an epoch and from an
end that this log does not go beyond, and that this log has handed over the lead on the way there,
or never had it; and deleted only if it says so again, after the time that such
logs are kept, while that broker is registered and serves the partition. The time counts from when
this broker has seen that, in one session with ZooKeeper; a restart begins it anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import CoordinationError, LogbusError, StorageError
from spark_logbus.log import Extent, LogDirectory, MovedLog, PartitionLog
from spark_logbus.log_ids import is_same_log
from spark_logbus.model import TopicPartition
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 60.0
_SHORTEST_PAUSE_S: Final = 0.05


class OldLog(NamedTuple):
    """A log here of a partition that another broker leads, or should. ``extent`` is None where it
    is not known how far it reaches. ``is_copy`` is true if it never led."""

    topic_partition: TopicPartition
    topic_id: str
    extent: Extent | None
    log_id: str
    is_copy: bool

    @classmethod
    def of(cls, log: PartitionLog) -> OldLog:
        extent = Extent.of(log)
        return cls(log.topic_partition, log.topic_id, extent, log.log_id or "", log.is_copy)


def why_kept(
    log: OldLog,
    record: TopicRecord | None,
    state: PartitionState | CorruptNodeError | None,
    *,
    broker_id: int,
    aside: bool = False,
    was_handed_over: bool = False,
) -> str | None:
    """Returns the reason why a log here may be the only one; None if the partition is assigned to
    another broker, and led there with all that this log has. One that is ``aside`` may be needless
    too because the partition has come back. ``record`` and ``state`` are ZooKeeper's, of now.
    ``was_handed_over`` says that the log is known to have handed over the lead in the history that
    ZooKeeper has."""
    where = log.topic_partition
    if log.extent is None:
        return "it does not say how far it reaches"
    if record is None or not record.readable or record.topic_id != log.topic_id:
        return f"ZooKeeper has no topic {where.topic} with the id {log.topic_id} that can be read"
    assigned = record.partitions.get(where.partition, [])
    if not assigned or (broker_id in assigned and not aside):
        return "ZooKeeper does not have the partition assigned to another broker"
    if state is None or isinstance(state, CorruptNodeError) or state.leader not in assigned:
        return "ZooKeeper does not know that a broker leads to which the partition is assigned"
    if broker_id in state.in_sync and is_same_log(log.log_id, state.replicas.get(broker_id, "")):
        return (
            f"it is in sync until broker {state.leader} drops it, and has what was acknowledged "
            "since as few others have"
        )
    if state.refused is not None:
        return f"broker {state.leader} does not serve the partition: {state.refused}"
    if state.leader_epoch < log.extent.leader_epoch or (state.end or 0) < log.extent.end:
        return (
            f"it reaches offset {log.extent.end} in leader epoch {log.extent.leader_epoch}, and "
            f"the log of broker {state.leader} is only known to reach {state.end or 0} in epoch "
            f"{state.leader_epoch}"
        )
    if not (was_handed_over or log.is_copy or _has_handed_over(log.log_id, log.extent, state)):
        return (
            f"it has led in epoch {log.extent.leader_epoch} and ZooKeeper, perhaps restored from "
            "an older state, knows of no hand-over by it since"
        )
    if aside and state.given_up is not None and log.extent.leader_epoch <= state.given_up:
        return (
            f"the log of the broker that led the partition in epoch {state.given_up} was given up, "
            "and this one may have what was lost with it; remove the directory when it is not "
            "needed"
        )
    return None


def _has_handed_over(log_id: str, extent: Extent, state: PartitionState) -> bool:
    """Tells whether a log handed over the lead after all that it has, as ``state`` knows; one that
    has nothing needs not."""
    if extent.leader_epoch < 0:
        return True
    return any(
        is_same_log(log_id, each) and extent.leader_epoch < epoch
        for each, epoch in state.handed_over.items()
    )


class _Seen(NamedTuple):
    """Time at which a log was first seen not to be the only one, in one session."""

    session_id: int
    at: float


class OldLogs:
    """Deletes logs that were set aside, on a thread of its own; the broker starts and stops
    ``thread``. Thread-safe."""

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        topics: TopicRegistry,
        states: PartitionStates,
        brokers: BrokerRegistry,
        session: Session,
        clock: Clock,
        retention_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._topics = topics
        self._states = states
        self._brokers = brokers
        self._session = session
        self._clock = clock
        self._retention_s = retention_ms / 1000
        self._lock = threading.Lock()
        self._deleted_topics: set[str] = set()
        self._seen: dict[Path, _Seen] = {}
        self._told: dict[Path, str] = {}  # why logs are kept, as it was logged last
        pause_s = min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, self._retention_s / 4))
        self.thread = Periodic(
            "old-logs",
            self._look_or_warn,
            pause_s=pause_s,
            failure="Logs of partitions that moved away could not be looked after.",
        )

    def why_kept(self, logs: Sequence[OldLog]) -> dict[TopicPartition, str | None]:
        """Asks ZooKeeper of each log if it may be the only one: the reason, or None. Raises
        CoordinationError."""
        return self._why_kept(logs, live=None, was_handed_over=False)

    def _why_kept(
        self, logs: Sequence[OldLog], *, live: Collection[int] | None, was_handed_over: bool
    ) -> dict[TopicPartition, str | None]:
        records = self._topics.each_of({each.topic_partition.topic for each in logs})
        states = self._states.states_of({each.topic_partition for each in logs})
        reasons: dict[TopicPartition, str | None] = {}
        for each in logs:
            record = records.get(each.topic_partition.topic)
            state = states.get(each.topic_partition)
            reason = why_kept(
                each,
                record if isinstance(record, TopicRecord) else None,
                state,
                broker_id=self._broker_id,
                aside=live is not None,
                was_handed_over=was_handed_over,
            )
            leader = state.leader if isinstance(state, PartitionState) else None
            if reason is None and live is not None and leader not in live:
                reason = f"broker {leader}, which leads the partition, is away"
            reasons[each.topic_partition] = reason
        return reasons

    def warn(self, topic_partition: TopicPartition, directory: Path, why: str) -> None:
        """Logs once why a log of a partition that is not this broker's is kept."""
        if self._told.get(directory) != why:
            self._told[directory] = why
            logger.warning(
                "The log of %s in %s is kept, though the partition is not this broker's: %s.",
                topic_partition, directory, why, extra=fields_about(topic_partition),
            )  # fmt: skip

    def set_aside(self, topic_partition: TopicPartition, topic_id: str) -> None:
        """Sets aside a log that is known not to be the only one. Raises StorageError."""
        log = self._logs.get(topic_partition)
        moved = self._logs.set_aside_moved(topic_partition, topic_id=topic_id)
        if log is not None:
            self._told.pop(log.directory, None)
        if moved is not None:
            logger.info(
                "%s is another broker's; its log was moved to %s, and is deleted after %d s.",
                topic_partition, moved.directory, self._retention_s,
                extra=fields_about(topic_partition),
            )  # fmt: skip
            self.thread.wake()

    def topic_deleted(self, topic_id: str) -> None:
        """Has the logs of a topic deleted that were set aside: it was seen to be deleted."""
        with self._lock:
            self._deleted_topics.add(topic_id)
        self.thread.wake()

    # -- deleting -------------------------------------------------------------------------

    def _look_or_warn(self) -> None:
        try:
            self.look()
        except CoordinationError as error:
            logger.info("Logs of partitions that moved away are looked after later: %s", error)
        except LogbusError as error:
            logger.warning("Logs of partitions that moved away are looked after later: %s", error)

    def look(self) -> None:
        """Deletes what may be deleted by now. Raises CoordinationError, StorageError."""
        moved = self._logs.moved.find()
        with self._lock:
            deleted, self._deleted_topics = self._deleted_topics, set()
        for log in [each for each in moved if each.topic_id in deleted]:
            if not self._delete_or_warn(log, "its topic was deleted"):
                with self._lock:
                    self._deleted_topics.add(log.topic_id)
            moved.remove(log)
        if not moved or self._session.state is not SessionState.CONNECTED:
            return
        session_id, now = self._session.session_id, self._clock.monotonic()
        live = {address.broker_id for address in self._brokers.live()}
        seen: dict[Path, _Seen] = {}
        for log in moved:
            # One at a time: there may be several of one partition.
            old = OldLog(log.topic_partition, log.topic_id, log.extent, log.log_id, log.is_copy)
            since = self._seen.get(log.directory)
            # ZooKeeper knows the last hand-overs only. It keeps no session when it goes back.
            was_seen = since is not None and since.session_id == session_id
            whys = self._why_kept([old], live=live, was_handed_over=was_seen)
            why = whys[log.topic_partition]
            if why is not None:
                self.warn(log.topic_partition, log.directory, why)
                continue
            if since is None or since.session_id != session_id:
                since = _Seen(session_id, now)
            seen[log.directory] = since
            is_due = now - since.at >= self._retention_s and self._session.session_id == session_id
            if is_due and self._delete_or_warn(log, "another broker leads it"):
                del seen[log.directory]
        self._seen = seen

    def _delete_or_warn(self, log: MovedLog, why: str) -> bool:
        """Deletes a log; returns False where the disk does not let that be done, for now."""
        try:
            self._logs.moved.delete(log)
        except StorageError as error:
            logger.warning("%s", error, extra=fields_about(log.topic_partition))
            return False
        self._told.pop(log.directory, None)
        logger.info(
            "Deleted the log of %s in %s: %s.",
            log.topic_partition, log.directory, why, extra=fields_about(log.topic_partition),
        )  # fmt: skip
        return True
