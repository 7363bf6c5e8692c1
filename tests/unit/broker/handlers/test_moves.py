"""Requests to move partitions, refused or noted, with ZooKeeper's part played by a fake."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import cast

import pytest

from spark_logbus.broker.handlers.moves import MoveHandler
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.coordination.cluster.brokers import (
    MOVES,
    REPLICATES,
    BrokerRegistration,
    BrokerRegistry,
)
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.errors import (
    BrokerUnavailableError,
    ConfigError,
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
    """Brokers 1 to 4 and 6: 3 runs an old release, 4 is drained; 5 is away. Topic t is on 1, 3 and
    5. Of ``r``, where all run this release, the partitions have replicas."""

    def __init__(self) -> None:
        self.begun: dict[int, MovePayload] = {}
        both = MOVES | REPLICATES
        self.features = {1: both, 2: both, 3: 0, 4: both, 6: both}
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
        if name == "r":
            config = {"min.insync.replicas": "2"}
            return TopicRecord("r", "id", {0: [1, 2], 1: [5, 1], 2: [5, 7]}, config)
        partitions = {0: [1], 1: [1], 2: [3], 3: [5]}
        return TopicRecord("t", "id", partitions, {}, moves={1: STANDING}) if name == "t" else None

    def registrations(self) -> list[BrokerRegistration]:
        return [
            BrokerRegistration(BrokerAddress(number, "h", 1), "1", 1, features)
            for number, features in self.features.items()
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
        (0, 9, BrokerUnavailableError, "Broker 9 is not running, .* running are: 1, 2, 3, 4, 6"),
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


def test_the_whole_list_of_replicas_is_noted(world: World) -> None:
    del world.features[3]
    results = world.ask(
        PartitionMove("r", 0, 2, replicas=[2, 6]),
        # A replica that is away stays one: the move ends when it is back.
        PartitionMove("r", 1, 5, replicas=[5, 1, 2]),
        throttle=7,
    )
    assert [each.error for each in results] == [None, None]
    assert {each: move.to for each, move in world.begun.items()} == {0: [2, 6], 1: [5, 1, 2]}


@pytest.mark.parametrize(
    ("partition", "replicas", "kind", "said"),
    [
        (0, [2, 2], InvalidRequestError, "r-0 cannot have replicas on the brokers 2, 2: .* once"),
        (0, [-1, 2], InvalidRequestError, "by an id of 0 or more"),
        (0, [*range(17)], InvalidRequestError, "r-0 cannot have 17 replicas; use up to 16"),
        (0, [1, 9], BrokerUnavailableError, "Broker 9 is not running, .* running are: 1, 2, 4, 6"),
        (0, [1, 4], InvalidRequestError, "Broker 4 is being drained"),
        (0, [6], ConfigError, "min.insync.replicas of the topic 'r' is 2, .* has 1 replica"),
        (2, [1, 2], BrokerUnavailableError, "Brokers 5, 7 have r-2 and are not running"),
    ],
)
def test_lists_that_nobody_can_have_are_refused(
    world: World, partition: int, replicas: list[int], kind: type[LogbusError], said: str
) -> None:
    del world.features[3]
    with pytest.raises(kind, match=said):
        raise world.refusal(PartitionMove("r", partition, replicas[0], replicas=replicas))


def test_one_broker_is_no_list_of_replicas(world: World) -> None:
    """A client of an earlier release knows no lists, and would take all other replicas away."""
    del world.features[3]
    with pytest.raises(InvalidRequestError, match=r"r-0 has 2 replicas.*names one broker"):
        raise world.refusal(PartitionMove("r", 0, 2))


def test_replicas_wait_for_brokers_of_earlier_releases(world: World) -> None:
    with pytest.raises(InvalidRequestError, match=r"earlier release run \(3\)"):
        raise world.refusal(PartitionMove("t", 0, 1, replicas=[1, 2]))
