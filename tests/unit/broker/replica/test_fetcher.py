"""A fetcher copies several partitions, each of which may fail in its own way."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from spark_logbus.broker.replica import fetcher as module
from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.fetcher import LeaderFetcher
from spark_logbus.broker.replica.throttle import Throttle
from spark_logbus.clock import SystemClock
from spark_logbus.errors import LogbusError, ReplicaSessionError, StorageError
from spark_logbus.metrics import Counter
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    Api,
    FollowedPartition,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
)
from spark_logbus.wire.config import ConnectionConfig

THERE = BrokerAddress(2, "host", 1)


class Followed:
    """Stands in for ``FollowedLog``: notes what is applied, or raises what nobody foresaw."""

    is_near = is_move = False
    remaining_bytes: int | None = None
    ended = False
    flushes_late = False
    safe_end = 0

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
        return FollowedPartition(
            where.topic, where.partition, "", 1, 5, "", 0, -1, 0, self.safe_end, max_bytes
        )

    @property
    def is_to_be_flushed(self) -> bool:
        return self.flushes_late

    def flush(self) -> None:
        self.flushes_late = False
        self.safe_end += 10

    def apply(self, result: ReplicateResult, payload: memoryview) -> None:
        if self.fails is not None:
            raise self.fails
        self.applied.put(result)

    def settle(self) -> None:
        pass


class Connection:
    """A leader that has nothing new: it answers what names partitions at once, with ``waits`` if
    they are to come back, and the rest when ``answers`` lets it, or another request comes. A real
    socket tells that an answer is there. ``fails`` is raised for the next request.
    """

    address, failure, wants_to_write = THERE, None, False

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.closed = 0
        self.waits = True
        self.answers = True
        self.requests: queue.Queue[ReplicateRequest] = queue.Queue()
        self._there, self._here = socket.socketpair()
        self._pending: list[Pending] = []

    def fileno(self) -> int:
        return self._here.fileno()

    def send(self, _: Api, request: ReplicateRequest) -> Pending:
        fails, self.fails = self.fails, None
        if fails is not None:
            raise fails
        results = [
            ReplicateResult(each.topic, each.partition, waits=self.waits)
            for each in request.partitions
            if self.waits
        ]
        for each in self._pending:
            each.done.set()
        pending = Pending(ReplicateResponse(results))
        self._pending = [pending]
        if results or self.answers or not request.max_wait_ms:
            pending.done.set()
        self.requests.put(request)
        return pending

    def interrupt(self, error: LogbusError) -> None:
        for each in self._pending:
            each.error = error
            each.done.set()
        self._there.send(b"1")

    def close(self) -> None:
        self.closed += 1

    def end(self) -> None:
        self._there.close()
        self._here.close()


class Pending:
    """A response of a ``Connection``."""

    payload = memoryview(b"")

    def __init__(self, response: ReplicateResponse) -> None:
        self.response = response
        self.done = threading.Event()
        self.error: LogbusError | None = None

    def starts(self, _: object) -> bool:
        return self.done.is_set()

    def result(self, *_: object, **__: object) -> ReplicateResponse:
        assert self.done.is_set(), "nobody waits for more than the leader has"
        if self.error is not None:
            raise self.error
        return self.response


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
            connections=ConnectionConfig(client_id="broker-1"),
            clock=SystemClock(),
            got_on=lambda _: None,
            failed=lambda *told: self.failed.put(told),
        )
        self.one, self.other = Followed(0), Followed(1)

    def start(self) -> None:
        self.fetcher.add([cast(FollowedLog, each) for each in (self.one, self.other)])
        self.fetcher.thread.start()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(monkeypatch)
    yield world
    world.fetcher.stop()
    world.fetcher._end()
    world.connection.end()


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


def named(world: World) -> list[TopicPartition]:
    """Returns what the next request names."""
    request = world.connection.requests.get(timeout=60)
    return [TopicPartition(each.topic, each.partition) for each in request.partitions]


def test_what_is_added_is_named_at_once_and_nothing_else_again(world: World) -> None:
    world.connection.waits = world.connection.answers = False
    world.start()
    assert named(world) == [world.one.topic_partition, world.other.topic_partition]
    for partition in range(2, 5):
        added = Followed(partition)
        world.fetcher.add([cast(FollowedLog, added)])
        assert named(world) == [added.topic_partition]
    # Whether there is an answer for it under way is not known: the leader ends that first.
    world.fetcher.add([cast(FollowedLog, world.one)])
    assert named(world) == []
    assert named(world) == [world.one.topic_partition]
    assert world.connection.closed == 0
    world.fetcher.stop()


def test_what_is_followed_anew_while_an_answer_is_under_way_is_named(world: World) -> None:
    """Replica that moves here, and is assigned here from now on."""
    world.connection.waits = world.connection.answers = False
    world.one.is_move = True
    world.start()
    assert named(world) == [world.one.topic_partition, world.other.topic_partition]
    world.one.ended = True
    world.fetcher.remove(cast(FollowedLog, world.one))
    world.fetcher.add([cast(FollowedLog, Followed(0))])
    assert named(world) == []
    assert named(world) == [world.one.topic_partition]
    world.fetcher.stop()


@pytest.mark.parametrize("flushes_late", [True, False])
def test_what_was_flushed_since_it_was_told_is_told_again(world: World, flushes_late: bool) -> None:
    world.connection.waits = False
    world.start()
    assert len(named(world)) == 2
    if flushes_late:
        world.one.flushes_late = True
    else:
        world.one.safe_end = 10
    while not (names := named(world)):
        pass  # idle requests
    assert names == [world.one.topic_partition]
    while (request := world.connection.requests.get(timeout=60)).sequence < 20:
        assert not request.partitions, "it is told once"
    world.fetcher.stop()


def test_sessions_that_another_process_ends_are_begun_with_pauses(world: World) -> None:
    replaced = ReplicaSessionError("Broker 1 began another session since: begin anew.")
    pauses = [world.fetcher._ended(replaced) for _ in range(8)]
    assert pauses[0] == 0
    assert pauses[-1] > 1
    assert world.failed.empty()
