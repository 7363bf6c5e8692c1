"""The partitions that this broker leads: taken, kept and given up as ZooKeeper says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_logbus.coordination import TopicRecord, TopicRegistry
from spark_logbus.errors import (
    CoordinationError,
    LogbusError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.log import LogDirectory, PartitionLog
from spark_logbus.model import TopicPartition

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class Led:
    """A partition that this broker leads, under a leader epoch."""

    log: PartitionLog
    leader_epoch: int


class _Wanted(NamedTuple):
    """The topics as ZooKeeper told in one of its sessions."""

    topics: Mapping[str, TopicRecord]
    session_id: int


class Partitions:
    """Follows the topics in ZooKeeper with its own thread; lookups are lock-free and thread-safe.

    A partition is served as soon as its leadership stands in ZooKeeper, and goes on being served
    while ZooKeeper is away. A topic's logs are removed only when it is seen to disappear within
    one ZooKeeper session. Logs of topics that ZooKeeper does not know at the start, or no longer
    knows in a new session, are left alone: ZooKeeper may have lost them.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        topics: TopicRegistry,
        session_id: Callable[[], int],
        moved: Callable[[TopicPartition], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._topics = topics
        self._session_id = session_id
        self._moved = moved
        self._led: dict[TopicPartition, Led] = {}
        self._seen: Mapping[str, TopicRecord] = {}
        self._seen_in = 0  # the session in which they were seen
        self._wanted: _Wanted | None = None
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._follow, name="partitions", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._topics.watch(self._topics_changed)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def leader_of(self, topic_partition: TopicPartition) -> Led:
        """The log and epoch of a partition that is led here, else NotLeaderError."""
        led = self._led.get(topic_partition)
        if led is None:
            raise NotLeaderError(
                f"Broker {self._broker_id} does not lead {topic_partition}; "
                "refresh the metadata and ask its leader."
            )
        return led

    @property
    def count(self) -> int:
        return len(self._led)

    def find(self, topic_partition: TopicPartition) -> Led | None:
        return self._led.get(topic_partition)

    # -- following ZooKeeper --------------------------------------------------------------

    def _topics_changed(self, topics: dict[str, TopicRecord]) -> None:
        with self._changed:
            self._wanted = _Wanted(topics, self._session_id())
            self._changed.notify()

    def _follow(self) -> None:
        unfinished: _Wanted | None = None
        pause_s = _FIRST_RETRY_S
        while True:
            with self._changed:
                if self._wanted is None and not self._stopping:
                    self._changed.wait(pause_s if unfinished is not None else None)
                if self._stopping:
                    return
                news, self._wanted = self._wanted, None
            wanted = news or unfinished
            if wanted is None:
                continue
            pause_s = _FIRST_RETRY_S if news else min(2 * pause_s, _LAST_RETRY_S)
            try:
                unfinished = None if self._apply(wanted) else wanted
            except Exception:
                log.exception("The partitions could not be brought in line with ZooKeeper.")
                unfinished = wanted

    def _apply(self, wanted: _Wanted) -> bool:
        """Bring the logs in line with ``wanted``; False when something is to be tried again."""
        for name, record in self._seen.items():
            now = wanted.topics.get(name)
            if now is None or now.topic_id != record.topic_id:
                self._give_up(record, deleted=wanted.session_id == self._seen_in)
        self._seen, self._seen_in = wanted.topics, wanted.session_id
        done = True
        try:
            for record in wanted.topics.values():
                for topic_partition in self._ours(record):
                    if self._stopping:
                        return False
                    done = self._take(topic_partition, record) and done
        except CoordinationError as error:
            log.warning("Not all partitions can be led yet, trying again: %s", error)
            return False
        return done

    def _ours(self, record: TopicRecord) -> list[TopicPartition]:
        return [
            TopicPartition(record.name, partition)
            for partition, brokers in record.partitions.items()
            if brokers[:1] == [self._broker_id]
        ]

    def _take(self, topic_partition: TopicPartition, record: TopicRecord) -> bool:
        """Lead the partition; False when that failed. Raises CoordinationError."""
        led = self._led.get(topic_partition)
        try:
            partition_log = self._logs.ensure(
                topic_partition, topic_id=record.topic_id, config=record.config
            )
            if led is not None and led.log is partition_log:
                return True
            state = self._topics.lead(topic_partition, broker_id=self._broker_id)
        except CoordinationError:
            raise
        except UnknownTopicError as error:
            log.info("Not taking %s, it was deleted just now: %s", topic_partition, error)
            return True
        except LogbusError as error:
            log.error("Cannot serve %s: %s", topic_partition, error, extra=_about(topic_partition))
            return False
        partition_log.add_listener(lambda: self._moved(topic_partition))
        self._led[topic_partition] = Led(partition_log, state.leader_epoch)
        log.info(
            "Leading %s in epoch %d.",
            topic_partition, state.leader_epoch, extra=_about(topic_partition),
        )  # fmt: skip
        return True

    def _give_up(self, record: TopicRecord, *, deleted: bool) -> None:
        for topic_partition in self._ours(record):
            self._led.pop(topic_partition, None)
            self._moved(topic_partition)  # who waits for its records learns of it now
            if not deleted:
                log.warning(
                    "%s is gone from ZooKeeper since its session was lost. Its records are kept, "
                    "in case it was not deleted; remove the directory if it was.",
                    topic_partition,
                )
                continue
            try:
                self._logs.remove(topic_partition, topic_id=record.topic_id)
                log.info(
                    "Removed %s: its topic was deleted.",
                    topic_partition, extra=_about(topic_partition),
                )  # fmt: skip
            except LogbusError as error:
                log.error(
                    "Cannot remove %s: %s",
                    topic_partition, error, extra=_about(topic_partition),
                )  # fmt: skip


def _about(topic_partition: TopicPartition) -> dict[str, object]:
    """Fields for logs that are read by machines."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}
