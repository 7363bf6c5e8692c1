"""The partitions that this broker leads: taken, kept and given up as ZooKeeper says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_logbus.coordination import TopicRecord, TopicRegistry
from spark_logbus.errors import CoordinationError, LogbusError, NotLeaderError
from spark_logbus.log import LogDirectory, PartitionLog
from spark_logbus.model import TopicPartition

log = logging.getLogger(__name__)

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Led:
    """A partition that this broker leads, under a leader epoch."""

    log: PartitionLog
    leader_epoch: int


class Partitions:
    """Follows the topics in ZooKeeper with its own thread; lookups are lock-free and thread-safe.

    A partition is served as soon as its leadership stands in ZooKeeper, and goes on being served
    while ZooKeeper is away. A topic's logs are removed only when it is seen to disappear while
    this broker runs; logs of topics that ZooKeeper does not know at the start are left alone, as
    ZooKeeper may have lost them.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        topics: TopicRegistry,
        moved: Callable[[TopicPartition], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._topics = topics
        self._moved = moved
        self._led: dict[TopicPartition, Led] = {}
        self._seen: Mapping[str, TopicRecord] = {}
        self._wanted: Mapping[str, TopicRecord] | None = None
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

    def find(self, topic_partition: TopicPartition) -> Led | None:
        return self._led.get(topic_partition)

    # -- following ZooKeeper --------------------------------------------------------------

    def _topics_changed(self, topics: dict[str, TopicRecord]) -> None:
        with self._changed:
            self._wanted = topics
            self._changed.notify()

    def _follow(self) -> None:
        unfinished: Mapping[str, TopicRecord] | None = None
        while True:
            with self._changed:
                if self._wanted is None and not self._stopping:
                    self._changed.wait(_RETRY_S if unfinished is not None else None)
                if self._stopping:
                    return
                wanted = self._wanted if self._wanted is not None else unfinished
                self._wanted = None
            if wanted is not None:
                unfinished = None if self._apply(wanted) else wanted

    def _apply(self, wanted: Mapping[str, TopicRecord]) -> bool:
        """Bring the logs in line with ``wanted``; False when something is to be tried again."""
        for name, record in self._seen.items():
            now = wanted.get(name)
            if now is None or now.topic_id != record.topic_id:
                self._give_up(record)
        self._seen = wanted
        done = True
        for record in wanted.values():
            for partition, brokers in record.partitions.items():
                if brokers[:1] == [self._broker_id]:
                    topic_partition = TopicPartition(record.name, partition)
                    done = self._take(topic_partition, record) and done
        return done

    def _take(self, topic_partition: TopicPartition, record: TopicRecord) -> bool:
        led = self._led.get(topic_partition)
        try:
            partition_log = self._logs.ensure(
                topic_partition, topic_id=record.topic_id, config=record.config
            )
            if led is not None and led.log is partition_log:
                return True
            state = self._topics.lead(topic_partition, broker_id=self._broker_id)
        except CoordinationError as error:
            log.warning("Cannot take %s yet, trying again: %s", topic_partition, error)
            return False
        except LogbusError as error:
            log.error("Cannot serve %s: %s", topic_partition, error)
            return False
        partition_log.add_listener(lambda: self._moved(topic_partition))
        self._led[topic_partition] = Led(partition_log, state.leader_epoch)
        log.info("Leading %s in epoch %d.", topic_partition, state.leader_epoch)
        return True

    def _give_up(self, record: TopicRecord) -> None:
        for partition in record.partitions:
            topic_partition = TopicPartition(record.name, partition)
            if self._led.pop(topic_partition, None) is None:
                continue
            self._moved(topic_partition)  # who waits for its records learns of it now
            try:
                self._logs.remove(topic_partition, topic_id=record.topic_id)
                log.info("Removed %s: its topic was deleted.", topic_partition)
            except LogbusError as error:
                log.error("Cannot remove %s: %s", topic_partition, error)
