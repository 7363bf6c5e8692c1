"""What a broker knows of the whole cluster, answered from memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from spark_logbus.broker.partitions import Partitions
from spark_logbus.broker.replies import Answer, Reply
from spark_logbus.coordination import (
    BrokerRegistry,
    PartitionState,
    Session,
    SessionState,
    TopicRecord,
    TopicRegistry,
)
from spark_logbus.errors import LogbusError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    BrokerInfo,
    MetadataRequest,
    MetadataResponse,
    PartitionEnds,
    PartitionInfo,
    TopicInfo,
    encode_response,
)

log = logging.getLogger(__name__)

_REFRESH_S = 5.0
_INCOMPLETE_REFRESH_S = 0.1
UNKNOWN_EPOCH = -1


class ClusterImage:
    """Brokers, topics and leaders as ZooKeeper last told. Thread-safe.

    Requests are answered from memory, so they go on while ZooKeeper is away; only a topic that
    the image lacks is looked up at once, since it may be a moment old.
    """

    def __init__(self, session: Session, *, brokers: BrokerRegistry, topics: TopicRegistry) -> None:
        self._session = session
        self._broker_registry = brokers
        self._topic_registry = topics
        self._brokers: list[BrokerAddress] = []
        self._topics: Mapping[str, TopicRecord] = {}
        self._states: dict[str, tuple[str, dict[int, PartitionState]]] = {}
        self._changed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._refresh, name="cluster-image", daemon=True)

    def start(self) -> None:
        self._broker_registry.watch(self._brokers_changed)
        self._topic_registry.watch(self._topics_changed)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    @property
    def brokers(self) -> list[BrokerAddress]:
        return self._brokers

    def topics(self, names: list[str] | None) -> list[TopicRecord]:
        """The topics that exist, of ``names`` or (None) of all."""
        if names is None:
            return list(self._topics.values())
        found = (self._topics.get(name) or self._look_up(name) for name in names)
        return [record for record in found if record is not None]

    def leader(self, record: TopicRecord, partition: int) -> tuple[int, int]:
        """(broker id, leader epoch) of a partition; the assigned broker until one has led."""
        topic_id, states = self._states.get(record.name, ("", {}))
        state = states.get(partition)
        if topic_id != record.topic_id or state is None:
            return record.partitions[partition][0], UNKNOWN_EPOCH
        return state.leader, state.leader_epoch

    def _look_up(self, name: str) -> TopicRecord | None:
        if self._session.state is not SessionState.CONNECTED:
            return None
        return self._topic_registry.get(name)

    def _brokers_changed(self, brokers: list[BrokerAddress]) -> None:
        self._brokers = brokers
        self._changed.set()

    def _topics_changed(self, topics: dict[str, TopicRecord]) -> None:
        self._topics = topics
        self._changed.set()

    def _refresh(self) -> None:
        wait_s = _REFRESH_S
        while not self._stopping:
            self._changed.wait(wait_s)
            self._changed.clear()
            if self._stopping or self._session.state is not SessionState.CONNECTED:
                continue
            try:
                self._states = {
                    record.name: (record.topic_id, self._topic_registry.states(record.name))
                    for record in self._topics.values()
                }
            except LogbusError as error:
                log.warning("The leaders could not be read from ZooKeeper: %s", error)
            wait_s = _REFRESH_S if self._is_complete() else _INCOMPLETE_REFRESH_S

    def _is_complete(self) -> bool:
        topics = self._topics.values()
        return all(len(self._states.get(t.name, ("", {}))[1]) == len(t.partitions) for t in topics)


class MetadataHandler:
    """Answers metadata requests; thread-safe, keeps nothing."""

    def __init__(self, image: ClusterImage, partitions: Partitions) -> None:
        self._image = image
        self._partitions = partitions

    def handle(self, request: MetadataRequest) -> Answer:
        brokers = [
            BrokerInfo(b.broker_id, b.host, b.port, b.local_socket) for b in self._image.brokers
        ]
        topics = [
            TopicInfo(
                record.name,
                record.topic_id,
                [
                    self._partition(record, partition, ends=request.ends)
                    for partition in sorted(record.partitions)
                ],
                dict(record.config),
            )
            for record in self._image.topics(request.topics)
        ]
        return Reply(encode_response(MetadataResponse(brokers, topics)))

    def _partition(self, record: TopicRecord, partition: int, *, ends: bool) -> PartitionInfo:
        leader, epoch = self._image.leader(record, partition)
        led = self._partitions.find(TopicPartition(record.name, partition)) if ends else None
        if led is None or led.log.topic_id != record.topic_id:
            return PartitionInfo(partition, leader, epoch)
        known = led.log.ends()
        return PartitionInfo(
            partition,
            leader,
            led.leader_epoch,
            PartitionEnds(
                known.log_start_offset,
                known.high_watermark,
                known.log_end_offset,
                known.size_bytes,
            ),
        )
