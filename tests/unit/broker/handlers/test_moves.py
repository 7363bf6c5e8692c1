"""Requests to move partitions, refused or noted, with ZooKeeper's part played by a fake."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import cast

import pytest

from spark_logbus.broker.handlers.moves import MoveHandler
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.coordination.cluster.brokers import MOVES, BrokerRegistration, BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LogbusError,
    UnknownTopicError,
)
from spark_logbus.model import BrokerAddress
from spark_logbus.network import DelayedResponse
from spark_logbus.protocol import (
    Api,
    MoveRequest,
    MoveResponse,
    MoveResult,
    PartitionMove,
    decode_response,
)
from tests.fakes.clock import ManualClock
from tests.fakes.handlers import Drained, context
from tests.helpers import wait_until

STANDING = MovePayload(to=[2], since_us=1)


class World:
    """Brokers 1 to 4: 3 runs an old release, 4 is drained; 5 is away. Topic t is on 1, 3 and 5."""

    def __init__(self) -> None:
        self.begun: dict[int, MovePayload] = {}
        clock = ManualClock()
        self.executor = WorkExecutor("ZooKeeper", clock=clock, max_wait_ms=60_000)
        self._handler = MoveHandler(
            cast(PartitionMoves, self),
            topics=cast(TopicRegistry, self),
            brokers=cast(BrokerRegistry, self),
            drained=cast(DrainedBrokers, Drained(frozenset({4}))),
            clock=clock,
            executor=self.executor,
        )

    def get(self, name: str) -> TopicRecord | None:
        partitions = {0: [1], 1: [1], 2: [3], 3: [5]}
        return TopicRecord("t", "id", partitions, {}, moves={1: STANDING}) if name == "t" else None

    def registrations(self) -> list[BrokerRegistration]:
        return [
            BrokerRegistration(BrokerAddress(number, "h", 1), "1", 1, 0 if number == 3 else MOVES)
            for number in (1, 2, 3, 4)
        ]

    def begin(
        self, topic: str, moves: Mapping[int, MovePayload], *, topic_id: str | None
    ) -> TopicRecord:
        record = self.get(topic)
        if record is None:
            raise UnknownTopicError(f"There is no topic {topic}.")
        self.begun = {each: move for each, move in moves.items() if move.to != [1]}
        return TopicRecord("t", "id", record.partitions, {}, moves=self.begun)

    def cancel(self, topic: str, partitions: Collection[int], *, topic_id: str | None) -> set[int]:
        return {1} & {*partitions}

    def ask(self, *moves: PartitionMove, throttle: int = 0) -> list[MoveResult]:
        answer = self._handler.move(MoveRequest([*moves], throttle), context())
        assert isinstance(answer, DelayedResponse)
        response = wait_until(answer.poll)
        assert response is not None
        message = decode_response(Api.MOVE, response.header)
        assert isinstance(message, MoveResponse)
        return message.results

    def refusal(self, *moves: PartitionMove) -> LogbusError:
        error = self.ask(*moves)[0].error
        assert error is not None
        assert not self.begun
        return error.to_exception()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.executor.stop()


def test_moves_are_begun_with_their_throttle_and_answered_in_order(world: World) -> None:
    results = world.ask(
        PartitionMove("t", 1, 1), PartitionMove("t", 0, 2), PartitionMove("u", 0, 2), throttle=7
    )
    assert [(each.topic, each.partition, each.done) for each in results] == [
        ("t", 1, True),  # it is there
        ("t", 0, False),
        ("u", 0, False),
    ]
    assert (results[2].error or results[0]) is not results[0]
    assert [(move.to, move.throttle) for move in world.begun.values()] == [([2], 7)]


def test_a_cancel_says_if_there_was_something_and_is_not_touched_by_what_is_refused(
    world: World,
) -> None:
    cancelled, nothing, refused = world.ask(
        PartitionMove("t", 1), PartitionMove("t", 2), PartitionMove("t", 0, 9)
    )
    assert (cancelled.done, cancelled.error) == (False, None)
    assert (nothing.done, nothing.error) == (True, None)
    assert refused.error is not None


@pytest.mark.parametrize(
    ("partition", "to", "kind", "said"),
    [
        (0, 9, BrokerUnavailableError, "Broker 9 is not running, .* running are: 1, 2, 3, 4"),
        (0, 5, BrokerUnavailableError, "Broker 5 is not running"),
        (0, 3, InvalidRequestError, "Broker 3 runs a release that knows no moves"),
        (0, 4, InvalidRequestError, "Broker 4 is being drained.*logbus cluster drain 4 --undo"),
        (2, 2, InvalidRequestError, "Broker 3 runs a release that knows no moves"),
        (3, 2, BrokerUnavailableError, "Broker 5 has t-3 and is not running"),
    ],
)
def test_what_nobody_can_carry_out_is_refused(
    world: World, partition: int, to: int, kind: type[LogbusError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        raise world.refusal(PartitionMove("t", partition, to), PartitionMove("t", 1, 2))


def test_requests_that_make_no_sense(world: World) -> None:
    for throttle in (-1, 1 << 41):
        with pytest.raises(InvalidRequestError, match="throttle is 0"):
            world.ask(PartitionMove("t", 0, 2), throttle=throttle)
    with pytest.raises(InvalidRequestError, match="names t-0 twice"):
        world.ask(PartitionMove("t", 0, 2), PartitionMove("t", 0))
    assert world.ask() == []
