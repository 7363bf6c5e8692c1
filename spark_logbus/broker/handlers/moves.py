"""Requests to move partitions to other brokers: checked here, noted in ZooKeeper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.brokers import MOVES, REPLICATES, BrokerRegistry
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
from spark_logbus.topic_replication import MAX_REPLICAS, TopicReplication

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
                begun = {each.partition: each for each in moves if each.to is not None}
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
        asked: Mapping[int, PartitionMove],
        throttle: int,
        features: Mapping[int, int],
    ) -> list[MoveResult]:
        """Begins moves of partitions of one topic: all of them, or none if one is refused."""
        if not asked:
            return []
        try:
            wanted = self._checked(topic, asked, features)
            since_us = self._clock.now_us()
            record = self._moves.begin(
                topic,
                {
                    partition: MovePayload(to=to, since_us=since_us, throttle=throttle)
                    for partition, to in wanted.items()
                },
                topic_id=topic_id,
            )
        except LogbusError as error:
            return _refused(topic, asked, error)
        return [MoveResult(topic, each, done=each not in record.moves) for each in wanted]

    def _checked(
        self, topic: str, asked: Mapping[int, PartitionMove], features: Mapping[int, int]
    ) -> dict[int, list[int]]:
        """Returns the replicas that partitions are to have. Refuses moves to and from brokers that
        cannot take part in one."""
        record, drained = self._topics.get(topic), self._drained.ids()
        wanted: dict[int, list[int]] = {}
        for partition, move in asked.items():
            where = TopicPartition(topic, partition)
            assigned = [] if record is None else record.partitions.get(partition, [])
            to = wanted[partition] = _list_of(where, move, assigned)
            if max(len(to), len(assigned)) > 1:
                _check_replicate(where, features)
            if record is not None:
                TopicReplication.from_topic_config(record.config).check(topic, len(to))
            for broker_id in to:
                if broker_id not in assigned:
                    _check_takes(broker_id, features, drained)
            if assigned and to != assigned:
                _check_copies(where, assigned, features)
        return wanted


def _list_of(where: TopicPartition, move: PartitionMove, assigned: Sequence[int]) -> list[int]:
    """Returns the brokers that are to have a partition. Refuses what is no list of them, and one
    broker in the place of several, as a client of an earlier release names it."""
    to = move.replicas or [0 if move.to is None else move.to]
    if not move.replicas and len(assigned) > 1:
        raise InvalidRequestError(
            f"{where} has {len(assigned)} replicas, and a request to move it names one broker, "
            f"{move.to}. Name all that are to have one; upgrade the client if it cannot."
        )
    listed = ", ".join(map(str, to))
    if len({*to}) < len(to) or min(to) < 0:
        raise InvalidRequestError(
            f"{where} cannot have replicas on the brokers {listed}: each is named once, by an id "
            "of 0 or more."
        )
    if len(to) > MAX_REPLICAS:
        raise InvalidRequestError(
            f"{where} cannot have {len(to)} replicas; use up to {MAX_REPLICAS}."
        )
    return to


def _check_replicate(where: TopicPartition, features: Mapping[int, int]) -> None:
    """Refuses several replicas while a broker runs that would lead one without being elected."""
    behind = [str(each) for each, can in sorted(features.items()) if not can & REPLICATES]
    if behind:
        raise InvalidRequestError(
            f"The replicas of {where} cannot be moved while brokers of an earlier release run "
            f"({', '.join(behind)}); upgrade those first."
        )


def _check_takes(broker_id: int, features: Mapping[int, int], drained: Collection[int]) -> None:
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


def _check_copies(
    where: TopicPartition, assigned: Sequence[int], features: Mapping[int, int]
) -> None:
    """Refuses a move of which no broker runs that has the partition."""
    running = [each for each in assigned if each in features]
    if not running:
        one = len(assigned) == 1
        have = f"Broker{'s' * (not one)} {', '.join(map(str, assigned))} {'has' if one else 'have'}"
        raise BrokerUnavailableError(
            f"{have} {where} and {'is' if one else 'are'} not running, so nobody can "
            "copy that. Start it first; "
            "where its disk is lost, start it with a backup or an empty directory "
            "(docs/operations.md, A broken machine)."
        )
    for broker_id in running:
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
