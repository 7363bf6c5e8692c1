"""Requests to move partitions to other brokers: checked here, noted in ZooKeeper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.brokers import MOVES, BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError, LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    Api,
    MoveRequest,
    MoveResponse,
    MoveResult,
    PartitionMove,
    encode_response,
    error_info,
)

_MAX_THROTTLE = 1 << 40


class MoveHandler:
    """Answers requests that begin or cancel moves. Thread-safe, keeps nothing."""

    def __init__(
        self,
        moves: PartitionMoves,
        *,
        topics: TopicRegistry,
        brokers: BrokerRegistry,
        drained: DrainedBrokers,
        clock: Clock,
        executor: WorkExecutor,
    ) -> None:
        self._moves = moves
        self._topics = topics
        self._brokers = brokers
        self._drained = drained
        self._clock = clock
        self._executor = executor

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.MOVE: self.move}

    def move(self, request: MoveRequest, _: RequestContext) -> Answer:
        if not 0 <= request.throttle <= _MAX_THROTTLE:
            raise InvalidRequestError(
                f"A throttle is 0 (none) to {_MAX_THROTTLE} bytes a second, got {request.throttle}."
            )
        wanted: dict[TopicPartition, PartitionMove] = {}
        for each in request.moves:
            topic_partition = TopicPartition(each.topic, each.partition)
            if topic_partition in wanted:
                raise InvalidRequestError(f"A request to move partitions names {topic_partition} "
                                          "twice.")  # fmt: skip
            wanted[topic_partition] = each

        def move() -> Response:
            features: Mapping[int, int] = {}
            if any(each.to is not None for each in request.moves):
                features = {
                    each.address.broker_id: each.features for each in self._brokers.registrations()
                }
            by_topic: defaultdict[tuple[str, str | None], list[PartitionMove]] = defaultdict(list)
            for each in request.moves:
                by_topic[each.topic, each.topic_id].append(each)
            done: dict[TopicPartition, MoveResult] = {}
            for (topic, topic_id), moves in by_topic.items():
                begun = {each.partition: each.to for each in moves if each.to is not None}
                ended = [each.partition for each in moves if each.to is None]
                for result in (
                    *self._cancel(topic, topic_id, ended),
                    *self._begin(topic, topic_id, begun, request.throttle, features),
                ):
                    done[TopicPartition(topic, result.partition)] = result
            return Response(encode_response(MoveResponse([done[each] for each in wanted])))

        return self._executor.run(move)

    def _cancel(
        self, topic: str, topic_id: str | None, partitions: Sequence[int]
    ) -> list[MoveResult]:
        if not partitions:
            return []
        try:
            ended = self._moves.cancel(topic, partitions, topic_id=topic_id)
        except LogbusError as error:
            return _refused(topic, partitions, error)
        return [MoveResult(topic, each, done=each not in ended) for each in partitions]

    def _begin(
        self,
        topic: str,
        topic_id: str | None,
        wanted: Mapping[int, int],
        throttle: int,
        features: Mapping[int, int],
    ) -> list[MoveResult]:
        """Begins moves of partitions of one topic: all of them, or none if one is refused."""
        if not wanted:
            return []
        try:
            self._check(topic, wanted, features)
            since_us = self._clock.now_us()
            record = self._moves.begin(
                topic,
                {
                    partition: MovePayload(to=[to], since_us=since_us, throttle=throttle)
                    for partition, to in wanted.items()
                },
                topic_id=topic_id,
            )
        except LogbusError as error:
            return _refused(topic, wanted, error)
        return [MoveResult(topic, each, done=each not in record.moves) for each in wanted]

    def _check(self, topic: str, wanted: Mapping[int, int], features: Mapping[int, int]) -> None:
        """Refuses moves to and from brokers that cannot take part in one."""
        drained = self._drained.ids()
        for broker_id in {*wanted.values()}:
            if broker_id not in features:
                live = ", ".join(map(str, sorted(features))) or "none"
                raise BrokerUnavailableError(
                    f"Broker {broker_id} is not running, so no partition can be moved to it. Start "
                    f"it, or name another one; running are: {live}."
                )
            _require_moves(broker_id, features)
            if broker_id in drained:
                raise InvalidRequestError(
                    f"Broker {broker_id} is being drained, so no partition is moved to it. Name "
                    f"another one, or end that: logbus cluster drain {broker_id} --undo."
                )
        record = self._topics.get(topic)
        for partition, to in wanted.items():
            assigned = [] if record is None else record.partitions.get(partition, [])
            if len(assigned) > 1:
                raise InvalidRequestError(
                    f"{topic}-{partition} has replicas on brokers "
                    f"{', '.join(map(str, assigned))}: it cannot be moved to one broker, as that "
                    "would leave one replica. Create a topic with the replicas that it is to have."
                )
            for broker_id in assigned[:1]:
                if broker_id == to:
                    continue
                if broker_id not in features:
                    raise BrokerUnavailableError(
                        f"Broker {broker_id} has {topic}-{partition} and is not running, so nobody "
                        "can copy that. Start it first; where its disk is lost, start it with a "
                        "backup or an empty directory (docs/operations.md, A broken machine)."
                    )
                _require_moves(broker_id, features)


def _refused(topic: str, partitions: Iterable[int], error: LogbusError) -> list[MoveResult]:
    info = error_info(error)
    return [MoveResult(topic, each, error=info) for each in partitions]


def _require_moves(broker_id: int, features: Mapping[int, int]) -> None:
    if not features[broker_id] & MOVES:
        raise InvalidRequestError(
            f"Broker {broker_id} runs a release that knows no moves of partitions; upgrade it "
            "first."
        )
