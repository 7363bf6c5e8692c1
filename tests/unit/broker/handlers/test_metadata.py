from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from spark_logbus.broker.handlers.metadata import MetadataHandler
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.metadata_cache import UNKNOWN_EPOCH, MetadataCache
from spark_logbus.broker.replica.followers import Copy, Followers
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import CoordinationError, InvalidNameError
from spark_logbus.model import BrokerAddress
from spark_logbus.network import DelayedResponse, Response
from spark_logbus.protocol import (
    Api,
    BrokerInfo,
    MetadataRequest,
    MetadataResponse,
    MoveState,
    PartitionEnds,
    decode_response,
)
from tests.builders.staged import attempt, stage
from tests.fakes.broker_parts import EPOCH, T0, TOPIC_ID, Logs, logs_in, record_batch
from tests.fakes.handlers import context
from tests.helpers import wait_until


def record(name: str, topic_id: str = TOPIC_ID) -> TopicRecord:
    return TopicRecord(name, topic_id, {0: [1], 1: [2]}, {"retention.ms": "5"})


class Cache:
    """Stands in for ``MetadataCache``."""

    def __init__(self) -> None:
        self.brokers = [BrokerAddress(1, "h", 9192, "local", "east")]
        self.states: dict[int, PartitionState] = {}
        self.topics = {"t": record("t")}
        self.in_zookeeper: dict[str, TopicRecord] | CoordinationError = {}
        self.looked_up: list[Sequence[str]] = []

    def look_up(self, names: Sequence[str]) -> dict[str, TopicRecord]:
        self.looked_up.append(names)
        if isinstance(self.in_zookeeper, CoordinationError):
            raise self.in_zookeeper
        return self.in_zookeeper

    def leader(self, record: TopicRecord, partition: int) -> tuple[int, int]:
        return record.partitions[partition][0], UNKNOWN_EPOCH

    def state(self, record: TopicRecord, partition: int) -> PartitionState | None:
        return self.states.get(partition)


class Asking:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.cache = Cache()
        self.executor = WorkExecutor("ZooKeeper", clock=logs.clock, max_wait_ms=60_000)
        self.followers = Followers(clock=logs.clock, written=lambda _: None)
        self.handler = MetadataHandler(
            cast(MetadataCache, self.cache),
            logs.here.as_replica_manager(),
            self.executor,
            followers=self.followers,
            in_sync=logs.in_sync,
        )

    def ask(self, topics: list[str] | None, *, ends: bool = False) -> MetadataResponse:
        answer = self.handler.handle(MetadataRequest(topics, ends), context())
        reply = wait_until(answer.poll) if isinstance(answer, DelayedResponse) else answer
        assert isinstance(reply, Response)
        message = decode_response(Api.METADATA, reply.header)
        assert isinstance(message, MetadataResponse)
        return message


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    with logs_in(tmp_path / "data") as logs:
        asking = Asking(logs)
        yield asking
        asking.executor.stop()


def test_what_is_known_is_answered_without_zookeeper(asking: Asking) -> None:
    for names in (None, ["t"]):
        response = asking.ask(names)
        assert response.brokers == [BrokerInfo(1, "h", 9192, "local", "east")]
        (topic,) = response.topics
        assert (topic.name, topic.topic_id, topic.config) == ("t", TOPIC_ID, {"retention.ms": "5"})
        assert [(p.partition, p.leader, p.leader_epoch) for p in topic.partitions] == [
            (0, 1, UNKNOWN_EPOCH),
            (1, 2, UNKNOWN_EPOCH),
        ]
    assert asking.ask([]).topics == []
    assert not asking.cache.looked_up


def test_ends_are_those_of_the_partitions_led_here(asking: Asking) -> None:
    asking.logs.lead(T0).append_as_leader(record_batch(3), leader_epoch=0)
    here, elsewhere = asking.ask(["t"], ends=True).topics[0].partitions
    size = len(record_batch())
    assert here.ends == PartitionEnds(0, 0, 3, size)
    assert here.leader_epoch == EPOCH
    assert elsewhere.ends is None
    assert asking.ask(["t"]).topics[0].partitions[0].ends is None


def test_the_leader_tells_how_far_a_move_has_come(asking: Asking) -> None:
    moves = {0: MovePayload(to=[6], since_us=4, throttle=3), 1: MovePayload(to=[1], since_us=5)}
    asking.cache.topics["t"] = replace(record("t"), moves=moves)
    log = asking.logs.lead(T0)
    log.append_as_leader(record_batch(), leader_epoch=EPOCH)
    stage(log, attempt(1), 1)
    not_known = [MoveState(6, 4, 3), MoveState(1, 5)]
    assert [each.move for each in asking.ask(None, ends=True).topics[0].partitions] == not_known
    led = asking.logs.here.leader_of(T0)
    asking.followers.tell(led, Copy(6, "b" * 32, 0, 0, 4), lacking_bytes=100)
    asking.logs.clock.advance(2)
    assert [each.move for each in asking.ask(None).topics[0].partitions] == not_known
    total = log.ends().size_bytes + log.staging.totals.size_bytes
    known = [MoveState(6, 4, 3, "", total - 100, total, 2_000), MoveState(1, 5)]
    assert [each.move for each in asking.ask(None, ends=True).topics[0].partitions] == known
    log.append_as_leader(record_batch(), leader_epoch=EPOCH)  # while the new broker is away
    moved = asking.ask(None, ends=True).topics[0].partitions[0].move
    assert moved is not None
    assert (moved.copied_bytes, moved.total_bytes) == (total - 100, total + len(record_batch()))


def test_replicas_are_told_where_there_are_several(asking: Asking) -> None:
    asking.logs.lead(T0)
    here, elsewhere = asking.ask(["t"], ends=True).topics[0].partitions
    assert [here.replicas, here.in_sync, elsewhere.replicas, elsewhere.in_sync] == [[]] * 4
    asking.cache.topics["t"] = replace(record("t"), partitions={0: [1, 2, 3], 1: [2]})
    asking.cache.states = {0: PartitionState(1, EPOCH, [3, 1]), 1: PartitionState(2, EPOCH, [2])}
    for ends in (False, True):
        several, one = asking.ask(["t"], ends=ends).topics[0].partitions
        assert (several.replicas, several.in_sync) == ([1, 2, 3], [3, 1])
        assert (one.replicas, one.in_sync) == ([], [])
    asking.cache.states = {}
    assert asking.ask(["t"]).topics[0].partitions[0].in_sync == [], "nobody has led yet"


def test_ends_of_an_earlier_topic_of_that_name_are_not_told(asking: Asking) -> None:
    asking.logs.lead(T0)
    asking.cache.topics["t"] = record("t", "b" * 32)
    assert asking.ask(["t"], ends=True).topics[0].partitions[0].ends is None


def test_unknown_names_are_looked_up_off_the_network_thread(
    asking: Asking,
) -> None:
    asking.cache.in_zookeeper = {"new": record("new", "b" * 32)}
    answer = asking.handler.handle(MetadataRequest(["t", "new", "gone"]), context())
    assert isinstance(answer, DelayedResponse)
    wait_until(answer.poll)
    assert asking.cache.looked_up == [["new", "gone"]]
    assert [topic.name for topic in asking.ask(["new", "gone", "t"]).topics] == ["new", "t"]


def test_without_zookeeper_unknown_is_not_missing(asking: Asking) -> None:
    asking.cache.in_zookeeper = CoordinationError("ZooKeeper is away.")
    with pytest.raises(CoordinationError):
        asking.ask(["gone"])
    assert len(asking.ask(["t"]).topics) == 1


def test_names_that_cannot_be_are_refused(asking: Asking) -> None:
    for name in ("..", "a/b", "x" * 10_000, ""):
        with pytest.raises(InvalidNameError):
            asking.ask(["t", name])
    assert not asking.cache.looked_up
