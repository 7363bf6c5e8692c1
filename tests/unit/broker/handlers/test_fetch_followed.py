"""Fetches at a broker that follows a partition, of consumers to which it is nearer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from spark_logbus.broker.handlers.fetch import FetchHandler
from spark_logbus.broker.handlers.long_poll import DelayedFetches
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.replica.follower_reads import FollowerReads
from spark_logbus.broker.replica.states import ReplicaEvent, Replicas
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import NotLeaderError
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.network import Answer, DelayedResponse
from spark_logbus.protocol import Api, FetchPartition, FetchRequest, FetchResponse, FetchResult
from spark_logbus.record import stamp
from tests.fakes.broker_parts import T0, TOPIC_ID, Logs, logs_in, message_of, record_batch
from tests.fakes.handlers import context
from tests.fakes.log_directory import ensure_one

HERE, LEADER, EPOCH = 5, 1, 7
BATCH = len(record_batch())


class Cache:
    """Stands in for ``MetadataCache``."""

    def __init__(self, log_id: str) -> None:
        self.topics = {"t": TopicRecord("t", TOPIC_ID, {0: [LEADER, HERE]}, {})}
        self.known: PartitionState | None = PartitionState(
            LEADER, EPOCH, [LEADER, HERE], replicas={HERE: log_id}
        )

    def state(self, _: TopicRecord, __: int) -> PartitionState | None:
        return self.known


class Followed:
    """A broker that follows partition 0, with three records, and has heard that two are safe."""

    def __init__(self, logs: Logs, watermarks: HighWatermarks) -> None:
        self.logs, self.watermarks = logs, watermarks
        watermarks.follow(T0, 0)
        self.log: PartitionLog = ensure_one(logs.directory, T0, topic_id=TOPIC_ID, config={})
        self.replicas = Replicas()
        self.replicas.change(T0, ReplicaEvent.FOLLOW, topic_id=TOPIC_ID)
        self.cache = Cache(self.log.log_id or "")
        self.is_current = True
        waiting = DelayedFetches()
        self.handler = FetchHandler(
            logs.here.as_replica_manager(),
            waiting,
            clock=logs.clock,
            max_wait_ms=60_000,
            max_fetch_bytes=1 << 20,
            metrics=RequestMetrics(logs.clock),
            followed=FollowerReads(
                HERE,
                logs=logs.directory,
                replicas=self.replicas,
                metadata_cache=cast(MetadataCache, self.cache),
                is_current=lambda: self.is_current,
                changed=waiting.wake,
            ),
            in_sync=logs.in_sync,
        )
        for offset in range(3):
            self.copy(offset)
        self.hear(2)

    def copy(self, offset: int) -> None:
        batch = bytearray(record_batch())
        stamp(batch, base_offset=offset, leader_epoch=EPOCH, append_time_us=1)
        self.log.append_as_follower(memoryview(batch), flush=True)
        self.logs.flush()

    def hear(self, high_watermark: int) -> None:
        self.watermarks.follow(T0, high_watermark)
        self.log.advance_high_watermark()

    def ask(
        self, offset: int, *, replica: bool = True, wait_ms: int = 500, topic_id: str = TOPIC_ID
    ) -> Answer:
        wanted = FetchPartition("t", 0, offset, 1 << 20, topic_id=topic_id)
        request = FetchRequest(wait_ms, 1, 1 << 20, [wanted], replica=replica)
        return self.handler.handle(request, context())


def result(answer: Answer) -> FetchResult:
    message = message_of(Api.FETCH, answer)
    assert isinstance(message, FetchResponse)
    return message.results[0]


def is_refused(answer: Answer) -> bool:
    error = result(answer).error
    return error is not None and isinstance(error.to_exception(), NotLeaderError)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    watermarks = HighWatermarks()
    with logs_in(tmp_path / "data", LogConfig(), watermark=watermarks) as logs:
        yield Followed(logs, watermarks)


def test_a_follower_in_sync_serves_what_is_below_its_watermark(followed: Followed) -> None:
    found = result(followed.ask(0))
    assert (found.length, found.high_watermark, found.error) == (2 * BATCH, 2, None)


def test_who_does_not_ask_for_replicas_is_sent_to_the_leader(followed: Followed) -> None:
    assert is_refused(followed.ask(0, replica=False))


@pytest.mark.parametrize("offset", [2, 3])
def test_a_reader_that_is_ahead_waits_for_the_follower(followed: Followed, offset: int) -> None:
    waiting = followed.ask(offset)
    assert isinstance(waiting, DelayedResponse)
    woken: list[bool] = []
    waiting.subscribe(lambda: woken.append(True))
    assert waiting.poll() is None
    followed.copy(3)
    assert not woken, "nobody said that it is safe"
    followed.hear(4)
    assert woken
    assert result(waiting).length == (4 - offset) * BATCH


def test_a_follower_that_lags_says_how_far_it_is_after_the_wait(followed: Followed) -> None:
    waiting = followed.ask(1_000)
    assert isinstance(waiting, DelayedResponse)
    assert waiting.poll() is None
    followed.logs.clock.advance(1)
    found = result(waiting)
    assert (found.length, found.high_watermark, found.error) == (0, 2, None)
    assert result(followed.ask(1_000, wait_ms=0)).error is None


def test_what_is_gone_at_a_follower_the_leader_is_asked_for(followed: Followed) -> None:
    followed.log.start_from(1)
    assert is_refused(followed.ask(0))
    assert result(followed.ask(1)).length == BATCH


def test_a_follower_that_may_lag_refuses(followed: Followed) -> None:
    state = followed.cache.known
    assert state is not None
    for now in (
        None,
        PartitionState(LEADER, EPOCH, [LEADER]),
        PartitionState(LEADER, EPOCH, [LEADER, HERE], replicas={HERE: "of a disk before"}),
    ):
        followed.cache.known = now
        assert is_refused(followed.ask(0))
    followed.cache.known = state
    followed.is_current = False
    assert is_refused(followed.ask(0)), "ZooKeeper may have given it up"
    followed.is_current = True
    assert is_refused(followed.ask(0, topic_id="b" * 32))
    topic = followed.cache.topics["t"]
    followed.cache.topics["t"] = replace(topic, topic_id="b" * 32)
    assert is_refused(followed.ask(0)), "the topic was made anew"
    followed.cache.topics["t"] = topic
    assert result(followed.ask(0)).length == 2 * BATCH
    followed.replicas.change(T0, ReplicaEvent.HAND_OVER)
    assert is_refused(followed.ask(0))


def test_a_waiting_fetch_is_refused_when_the_follower_fell_behind(followed: Followed) -> None:
    waiting = followed.ask(2)
    assert isinstance(waiting, DelayedResponse)
    followed.cache.known = PartitionState(LEADER, EPOCH, [LEADER])
    followed.logs.clock.advance(1)
    assert is_refused(waiting)
