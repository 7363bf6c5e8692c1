"""A fetcher copies several partitions, each of which may fail in its own way."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from spark_logbus.broker.replica import fetcher as module
from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.fetcher import LeaderFetcher
from spark_logbus.broker.replica.throttle import Throttle
from spark_logbus.clock import SystemClock
from spark_logbus.errors import LogbusError, StorageError
from spark_logbus.metrics import Counter
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    Api,
    FollowedPartition,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
)

THERE = BrokerAddress(2, "host", 1)


class Followed:
    """Stands in for ``FollowedLog``: notes what is applied, or raises what nobody foresaw."""

    is_near = is_move = is_to_be_flushed = False
    remaining_bytes: int | None = None
    ended = False

    def __init__(self, partition: int) -> None:
        self.topic_partition = TopicPartition("t", partition)
        self.lock = threading.Lock()
        self.applied: queue.Queue[ReplicateResult] = queue.Queue()
        self.fails_to_ask: Exception | None = None
        self.fails: Exception | None = None

    def request(self, max_bytes: int) -> FollowedPartition:
        if self.fails_to_ask is not None:
            raise self.fails_to_ask
        where = self.topic_partition
        return FollowedPartition(where.topic, where.partition, "", 1, 5, "", 0, -1, 0, 0, max_bytes)

    def apply(self, result: ReplicateResult, payload: memoryview) -> None:
        if self.fails is not None:
            raise self.fails
        self.applied.put(result)

    def settle(self) -> None:
        pass


class Connection:
    """A leader that has nothing new; ``fails`` is raised for the next request."""

    address, failure, payload = THERE, None, memoryview(b"")

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.closed = 0

    def send(self, _: Api, request: ReplicateRequest) -> object:
        fails, self.fails = self.fails, None
        if fails is not None:
            raise fails
        results = [
            ReplicateResult(each.topic, each.partition, waits=True) for each in request.partitions
        ]
        return SimpleNamespace(
            payload=self.payload, result=lambda *_, **__: ReplicateResponse(results)
        )

    def interrupt(self, _: LogbusError) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connection = connection = Connection()
        monkeypatch.setattr(module, "connect", lambda *_, **__: connection)
        monkeypatch.setattr(module, "_PAUSE_S", 0.01)
        self.failed: queue.Queue[tuple[object, LogbusError, bool]] = queue.Queue()
        self.fetcher = LeaderFetcher(
            2,
            broker_id=1,
            address=lambda _: THERE,
            throttle=Throttle(SystemClock()),
            received=Counter(),
            clock=SystemClock(),
            got_on=lambda _: None,
            failed=lambda *told: self.failed.put(told),
        )
        self.one, self.other = Followed(0), Followed(1)

    def start(self) -> None:
        self.fetcher.add([cast(FollowedLog, each) for each in (self.one, self.other)])
        self.fetcher.thread.start()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("while_asking", [True, False])
def test_what_was_not_foreseen_of_one_partition_holds_up_no_other(
    world: World, while_asking: bool
) -> None:
    setattr(world.one, "fails_to_ask" if while_asking else "fails", OSError(28, "It is full"))
    world.start()
    followed, error, by_leader = world.failed.get(timeout=60)
    for _ in range(3):
        world.other.applied.get(timeout=60)
    world.fetcher.stop()
    assert followed is world.one
    assert not by_leader
    assert isinstance(error, StorageError)
    assert isinstance(error.__cause__, OSError), "who is told finds that the disk is full"
    assert "t-0 could not be copied: OSError: " in error.message
    assert world.failed.empty()


def test_what_was_not_foreseen_of_a_request_does_not_end_the_copying(world: World) -> None:
    world.connection.fails = ValueError("Nobody thought of that.")
    world.start()
    for each in (world.one, world.other):
        each.applied.get(timeout=60)
    assert world.connection.closed == 1, "what is on its way there is not known"
    world.fetcher.stop()
    assert world.failed.empty()
