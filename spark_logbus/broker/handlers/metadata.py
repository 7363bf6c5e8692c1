"""Answers metadata requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.replica.followers import Followers, Progress
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.security.authorization import Authorization
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    Api,
    BrokerInfo,
    MetadataRequest,
    MetadataResponse,
    MoveState,
    PartitionEnds,
    PartitionInfo,
    TopicInfo,
    encode_response,
)
from spark_logbus.security.acls import Operation, Resource
from spark_logbus.security.identity import Identity


class MetadataHandler:
    """Answers from the cache, and asks ZooKeeper for topics that it does not know. Thread-safe."""

    def __init__(
        self,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        executor: WorkExecutor,
        *,
        followers: Followers,
        in_sync: InSync,
        authorization: Authorization | None = None,
    ) -> None:
        self._authorization = authorization
        self._in_sync = in_sync
        self._followers = followers
        self._metadata_cache = metadata_cache
        self._replica_manager = replica_manager
        self._executor = executor

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.METADATA: self.handle}

    def handle(self, request: MetadataRequest, context: RequestContext) -> Answer:
        known, identity = self._metadata_cache.topics, context.connection.identity
        if request.topics is None:
            shown = [each for name, each in known.items() if self._may_describe(identity, name)]
            return self._response(shown, ends=request.ends)
        # One repeated name would be a large answer. What may not be described is not there.
        names = [
            name for name in dict.fromkeys(request.topics) if self._may_describe(identity, name)
        ]
        unknown = [name for name in names if name not in known]
        if not unknown:
            return self._response([known[name] for name in names], ends=request.ends)
        for name in unknown:
            check_name("topic", name)

        def look_up() -> Response:
            # "Not there" is final for a client, so it is not said before ZooKeeper has said it.
            found = {**known, **self._metadata_cache.look_up(unknown)}
            records = [found[name] for name in names if name in found]
            return self._response(records, ends=request.ends)

        return self._executor.run(look_up)

    def _may_describe(self, identity: Identity, name: str) -> bool:
        authorization = self._authorization
        return authorization is None or authorization.allows(
            identity, Operation.DESCRIBE, Resource.TOPIC, name
        )

    def _response(self, records: Sequence[TopicRecord], *, ends: bool) -> Response:
        brokers = [
            BrokerInfo(
                broker.broker_id,
                broker.host,
                broker.port,
                broker.local_socket,
                broker.rack,
                broker.tls_port,
            )
            for broker in self._metadata_cache.brokers
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
        leader, epoch = self._metadata_cache.leader(record, partition)
        led = self._replica_manager.find(TopicPartition(record.name, partition)) if ends else None
        move = _move(record, partition)
        found = None if led is None else self._progress(led, record, partition)
        if move is not None and found is not None:
            move = msgspec.structs.replace(
                move,
                copied_bytes=found.copied_bytes,
                total_bytes=found.total_bytes,
                quiet_ms=found.quiet_ms,
            )
        replicas, in_sync = self._replicas(record, partition)
        if (
            led is None
            or led.log.topic_id != record.topic_id
            or self._in_sync.hidden_until(led) is not None
        ):
            return PartitionInfo(
                partition, leader, epoch, move=move, replicas=replicas, in_sync=in_sync
            )
        known, offline = led.log.ends(), led.log.offline
        return PartitionInfo(
            partition,
            leader,
            led.leader_epoch,
            PartitionEnds(
                known.log_start_offset,
                known.high_watermark,
                known.log_end_offset,
                known.size_bytes,
                [(each.start, each.end) for each in known.lost],
                led.log.refusing if offline is None else offline.message,
            ),
            move,
            replicas,
            in_sync,
        )

    def _progress(
        self, led: LeaderPartition, record: TopicRecord, partition: int
    ) -> Progress | None:
        """Returns how far the move of a partition is, by all new brokers together."""
        move = record.moves.get(partition)
        new = () if move is None else {*move.to} - {*record.partitions[partition]}
        told = [self._followers.progress(led, each) for each in new]
        known = [each for each in told if each is not None]
        if not known:
            return None
        return Progress(
            sum(each.copied_bytes for each in known),
            known[0].total_bytes * len(told),
            max(each.quiet_ms for each in known),
        )

    def _replicas(self, record: TopicRecord, partition: int) -> tuple[list[int], list[int]]:
        """The assigned brokers and those in sync; none where there is one and the same."""
        assigned = record.partitions[partition]
        state = self._metadata_cache.state(record, partition)
        in_sync = [] if state is None else state.in_sync
        if len(assigned) < 2 and len(in_sync) < 2:
            return [], []
        return assigned, in_sync


def _move(record: TopicRecord, partition: int) -> MoveState | None:
    """A move that is asked for, or has failed, as the topic's node has it."""
    move = record.moves.get(partition)
    if move is None:
        return None
    several = move.to if len(move.to) > 1 or len(record.partitions[partition]) > 1 else []
    return MoveState(move.to[0], move.since_us, move.throttle, move.error, replicas=several)
