"""What a broker knows of the whole cluster, answered from memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from spark_logbus.broker.handlers.coordination_executor import CoordinationExecutor
from spark_logbus.broker.network import Answer, Response
from spark_logbus.broker.replica_manager import ReplicaManager
from spark_logbus.coordination.brokers import BrokerRegistry
from spark_logbus.coordination.topic_records import PartitionState, TopicRecord
from spark_logbus.coordination.topics import TopicRegistry
from spark_logbus.errors import LogbusError
from spark_logbus.model import BrokerAddress, TopicPartition, check_name
from spark_logbus.protocol import (
    BrokerInfo,
    MetadataRequest,
    MetadataResponse,
    PartitionEnds,
    PartitionInfo,
    TopicInfo,
    encode_response,
)
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState

logger = logging.getLogger(__name__)

_REFRESH_S = 5.0
_INCOMPLETE_REFRESH_S = 0.1
UNKNOWN_EPOCH = -1


class MetadataCache:
    """Brokers, topics and leaders as ZooKeeper last told. Thread-safe.

    It is answered from, so metadata requests go on while ZooKeeper is away. It may be a moment
    old; ``look_up`` asks ZooKeeper itself.
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

    @property
    def topics(self) -> Mapping[str, TopicRecord]:
        return self._topics

    def look_up(self, names: Sequence[str]) -> dict[str, TopicRecord]:
        """Those of ``names`` that exist, from ZooKeeper: may take as long as that does.

        Raises CoordinationError.
        """
        return self._topic_registry.some(names)

    def leader(self, record: TopicRecord, partition: int) -> tuple[int, int]:
        """(broker id, leader epoch) of a partition; the assigned broker until one has led."""
        topic_id, states = self._states.get(record.name, ("", {}))
        state = states.get(partition)
        if topic_id != record.topic_id or state is None:
            return record.partitions[partition][0], UNKNOWN_EPOCH
        return state.leader, state.leader_epoch

    def _brokers_changed(self, brokers: list[BrokerAddress]) -> None:
        self._brokers = brokers
        self._changed.set()

    def _topics_changed(self, topics: dict[str, TopicRecord]) -> None:
        self._topics = topics
        self._changed.set()

    def _refresh(self) -> None:
        """Read the leaders after every change, and now and then: they have no watch.

        A topic has none at first, so one that is new is looked at again soon; one whose broker
        is away would be so for long, so soon becomes later.
        """
        wait_s = _REFRESH_S
        while not self._stopping:
            if self._changed.wait(wait_s):
                self._changed.clear()
                wait_s = _INCOMPLETE_REFRESH_S
            if self._stopping or self._session.state is not SessionState.CONNECTED:
                continue
            try:
                self._states = {
                    record.name: self._states_of(record) for record in self._topics.values()
                }
            except LogbusError as error:
                logger.warning("The leaders could not be read from ZooKeeper: %s", error)
            except Exception:
                logger.exception("The leaders could not be read from ZooKeeper.")
            wait_s = _REFRESH_S if self._is_complete() else min(2 * wait_s, _REFRESH_S)

    def _states_of(self, record: TopicRecord) -> tuple[str, dict[int, PartitionState]]:
        try:
            return record.topic_id, self._topic_registry.states(record.name)
        except CorruptNodeError:  # was reported; what was known before is as good as anything
            return self._states.get(record.name, (record.topic_id, {}))

    def _is_complete(self) -> bool:
        topics = self._topics.values()
        return all(len(self._states.get(t.name, ("", {}))[1]) == len(t.partitions) for t in topics)


class MetadataHandler:
    """Answers metadata requests; thread-safe, keeps nothing."""

    def __init__(
        self, image: MetadataCache, partitions: ReplicaManager, offload: CoordinationExecutor
    ) -> None:
        self._image = image
        self._partitions = partitions
        self._offload = offload

    def handle(self, request: MetadataRequest) -> Answer:
        known = self._image.topics
        if request.topics is None:
            return self._reply(list(known.values()), ends=request.ends)
        names = list(dict.fromkeys(request.topics))  # one repeated name would be a large answer
        unknown = [name for name in names if name not in known]
        if not unknown:
            return self._reply([known[name] for name in names], ends=request.ends)
        for name in unknown:
            check_name("topic", name)

        def look_up() -> Response:
            # "Not there" is final for a client, so it is not said before ZooKeeper has said it.
            found = {**known, **self._image.look_up(unknown)}
            records = [found[name] for name in names if name in found]
            return self._reply(records, ends=request.ends)

        return self._offload.run(look_up)

    def _reply(self, records: Sequence[TopicRecord], *, ends: bool) -> Response:
        brokers = [
            BrokerInfo(b.broker_id, b.host, b.port, b.local_socket) for b in self._image.brokers
        ]
        topics = [
            TopicInfo(
                record.name,
                record.topic_id,
                [
                    self._partition(record, partition, ends=ends)
                    for partition in sorted(record.partitions)
                ],
                dict(record.config),
            )
            for record in records
        ]
        return Response(encode_response(MetadataResponse(brokers, topics)))

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
