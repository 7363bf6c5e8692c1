"""The health of a broker, for ``/healthz`` and ``/livez``.

Two questions, because their answers lead to different deeds. A broker that is not "healthy" wants
a look, or its traffic kept away; one that recovers its logs is not healthy, and must be left alone.
One that is not "alive" wants a restart; that is so only when the process answers nothing.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_logbus.broker.handlers.dispatch import RequestDispatcher
from spark_logbus.broker.monitoring.moves import MovesHere
from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.clock import Clock
from spark_logbus.errors import StorageError
from spark_logbus.log import LogDirectory
from spark_logbus.model import TopicPartition
from spark_logbus.topic_replication import MIN_IN_SYNC
from spark_logbus.zookeeper import Session, SessionState

_SHOWN = 10  # partitions that are named in one answer


class Phase(enum.Enum):
    STARTING = "starting"
    RECOVERING = "recovering"
    JOINING = "joining"
    SERVING = "serving"
    STOPPING = "stopping"


class SessionWatch:
    """Follows the state of the ZooKeeper session. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self.expirations = 0
        self.disconnects = 0

    def follow(self, state: SessionState) -> None:
        """A listener of the session's."""
        with self._lock:
            self.expirations += state is SessionState.LOST
            self.disconnects += state is SessionState.SUSPENDED
            if state is SessionState.CONNECTED:
                self._away_since = None
            elif self._away_since is None:
                self._away_since = self._clock.monotonic()

    def away_s(self) -> float:
        """Seconds since the connection was lost; 0 when there is one."""
        since = self._away_since
        return 0.0 if since is None else self._clock.monotonic() - since


@dataclass(frozen=True, slots=True)
class HealthReport:
    """``reasons`` say why the broker is not healthy; ``notes`` what else deserves a look."""

    status: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return not self.reasons


class Health:
    """Thread-safe. ``phase`` is set by the broker as it starts and stops."""

    def __init__(
        self,
        *,
        logs: LogDirectory,
        replica_manager: ReplicaManager,
        requests: RequestDispatcher,
        session: Session,
        session_watch: SessionWatch,
        moves: MovesHere,
        following: Following,
        in_sync: InSync,
    ) -> None:
        self.phase = Phase.STARTING
        self._logs = logs
        self._replica_manager = replica_manager
        self._requests = requests
        self._session = session
        self._session_watch = session_watch
        self._moves = moves
        self._following = following
        self._in_sync = in_sync

    def report(self) -> HealthReport:
        if self.phase is not Phase.SERVING:
            return HealthReport(self.phase.value, (self._unfinished(),))
        refusal = self._requests.refusal
        reasons = [
            *([refusal.message] if refusal is not None else []),
            *self._without_zookeeper(),
            *_some(self.offline(), "more partitions are offline"),
            *self._logs.stats.refused.described(),
        ]
        notes = [
            *_some(self._damage(), "more damaged ranges are known"),
            *_some(self._session.unreadable.messages, "more nodes in ZooKeeper are not readable"),
            *_some(self._held(), "more logs are kept whole"),
            *_some(self._moves.failed(), "more moves have failed"),
            *_some(self._moves.stuck(), "more moves do not get on"),
            *_some(self._troubles(), "more replicas cannot follow their leaders"),
            *_some(self._too_few(), "more partitions take nothing that is to be replicated"),
            *_some(self._lacking(), "more partitions lack replicas in sync"),
            *([problem] if (problem := self._logs.clock.problem()) is not None else []),
        ]
        return HealthReport("unhealthy" if reasons else "ok", tuple(reasons), tuple(notes))

    def _troubles(self) -> dict[TopicPartition, str]:
        return {
            topic_partition: f"The replica of {topic_partition} cannot follow its leader: {why}"
            for topic_partition, why in self._following.troubles().items()
        }

    def _too_few(self) -> dict[TopicPartition, str]:
        """Partitions led here that take nothing that is to be replicated."""
        return {
            (where := each.led.log.topic_partition): f"Of {where} {len(each.in_sync)} replicas are "
            f"in sync (on the brokers {_listed(each.in_sync)}), fewer than {MIN_IN_SYNC}, "
            f"{each.least}: what is to be replicated is refused."
            for each in self._in_sync.lacking()
            if not each.enough
        }

    def _lacking(self) -> dict[TopicPartition, str]:
        """Partitions led here that survive fewer losses than they should."""
        return {
            (where := each.led.log.topic_partition): f"Of {where} the replicas on the brokers "
            f"{_listed(sorted({*each.assigned} - {*each.in_sync}))} are not in sync."
            for each in self._in_sync.lacking()
            if each.enough
        }

    def offline(self) -> dict[TopicPartition, str]:
        """Partitions that take no appends, or are not even served, with the reason of each."""
        found = {
            topic_partition: error.message for topic_partition, error in self._logs.failed().items()
        }
        for topic_partition, refused in self._replica_manager.refused().items():
            found[topic_partition] = refused.message
        for log in self._logs.logs():
            error = log.offline
            if isinstance(error, StorageError):  # not: closed, or deleted with its topic
                found[log.topic_partition] = error.message
        return found

    def _unfinished(self) -> str:
        recovery = self._logs.recovery
        if self.phase is Phase.RECOVERING:
            return (
                f"The broker is recovering: {recovery.logs_done} of {recovery.logs_total} logs "
                f"are open, {recovery.bytes_scanned // 1_000_000} MB were scanned. Let it finish."
            )
        if self.phase is Phase.JOINING and self._session.state is not SessionState.CONNECTED:
            return (
                "The broker has its logs open and is waiting for ZooKeeper at "
                f"{self._session.connect.servers}, which does not answer. It goes on by itself "
                "when that does."
            )
        return {
            Phase.STARTING: "The broker is starting.",
            Phase.JOINING: "The broker has its logs open and is joining ZooKeeper.",
            Phase.STOPPING: "The broker is shutting down.",
        }[self.phase]

    def _without_zookeeper(self) -> list[str]:
        """A connection that breaks for less than the session's timeout harms nobody."""
        state, away_s = self._session.state, self._session_watch.away_s()
        if state is not SessionState.LOST and away_s < self._session.session_timeout_ms / 1000:
            return []
        return [
            f"ZooKeeper has not answered for {away_s:.0f} seconds (the session is "
            f"{state.value}): partitions that are led here are served, but "
            "topics, leaders and brokers cannot change. Check ZooKeeper and the way to it."
        ]

    def _damage(self) -> dict[TopicPartition, str]:
        return {
            log.topic_partition: f"The records {damaged[0]} are damaged on disk"
            + (f", and {len(damaged) - 1} more ranges." if len(damaged) > 1 else ".")
            for log in self._logs.logs()
            if (damaged := log.damaged)
        }

    def _held(self) -> dict[TopicPartition, str]:
        return {
            log.topic_partition: f"Nothing is deleted from {log.topic_partition}: ZooKeeper has "
            "not told its topic's configuration."
            for log in self._logs.logs()
            if log.deletion_paused
        }


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _some(messages: Mapping[Any, str], more: str) -> Sequence[str]:
    shown = [messages[about] for about in sorted(messages)][:_SHOWN]
    if len(messages) > _SHOWN:
        shown.append(f"{len(messages) - _SHOWN} {more}.")
    return shown
