"""Requests to move partitions to other brokers: checked here, noted in ZooKeeper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.brokers import MOVES, BrokerRegistry
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.topic_records import TopicRecord
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
        brokers: BrokerRegistry,
        clock: Clock,
        executor: WorkExecutor,
    ) -> None:
        self._moves = moves
        self._brokers = brokers
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
            features = {
                each.address.broker_id: each.features for each in self._brokers.registrations()
            }
            by_topic: defaultdict[tuple[str, str | None], list[PartitionMove]] = defaultdict(list)
            for each in request.moves:
                by_topic[each.topic, each.topic_id].append(each)
            done: dict[TopicPartition, MoveResult] = {}
            for (topic, topic_id), moves in by_topic.items():
                for result in self._of_topic(topic, topic_id, moves, request.throttle, features):
                    done[TopicPartition(topic, result.partition)] = result
            return Response(encode_response(MoveResponse([done[each] for each in wanted])))

        return self._executor.run(move)

    def _of_topic(
        self,
        topic: str,
        topic_id: str | None,
        moves: Sequence[PartitionMove],
        throttle: int,
        features: Mapping[int, int],
    ) -> list[MoveResult]:
        """Cancels, then begins what is asked for of one topic; an error is of all of them."""
        try:
            ended = [each.partition for each in moves if each.to is None]
            if ended:
                self._moves.cancel(topic, ended, topic_id=topic_id)
            begun = {each.partition: each.to for each in moves if each.to is not None}
            record = None
            if begun:
                for broker_id in {*begun.values()}:
                    _check_takes_moves(broker_id, features)
                since_us = self._clock.now_us()
                record = self._moves.begin(
                    topic,
                    {
                        partition: MovePayload(to=[to], since_us=since_us, throttle=throttle)
                        for partition, to in begun.items()
                    },
                    topic_id=topic_id,
                )
        except LogbusError as error:
            info = error_info(error)
            return [MoveResult(topic, each.partition, error=info) for each in moves]
        return [MoveResult(topic, each.partition, done=_is_done(record, each)) for each in moves]


def _is_done(record: TopicRecord | None, move: PartitionMove) -> bool:
    return record is None or move.to is None or move.partition not in record.moves


def _check_takes_moves(broker_id: int, features: Mapping[int, int]) -> None:
    if broker_id not in features:
        live = ", ".join(map(str, sorted(features))) or "none"
        raise BrokerUnavailableError(
            f"Broker {broker_id} is not running, so no partition can be moved to it. Start it, or "
            f"name another one; running are: {live}."
        )
    if not features[broker_id] & MOVES:
        raise InvalidRequestError(
            f"Broker {broker_id} runs a release that takes no partitions that move; upgrade it "
            "first."
        )
