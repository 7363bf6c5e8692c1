"""Requests about a partition with three replicas, whose followers the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_logbus.broker.handlers.append import AppendHandler
from spark_logbus.broker.handlers.fetch import FetchHandler
from spark_logbus.broker.handlers.long_poll import DelayedFetches
from spark_logbus.broker.handlers.metadata import MetadataHandler
from spark_logbus.broker.handlers.offsets import OffsetHandler
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.replica.follower_reads import FollowerReads
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.broker.security.owners import WriteOwners
from spark_logbus.errors import (
    LogbusError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
)
from spark_logbus.network import Answer, DelayedResponse
from spark_logbus.protocol import (
    Api,
    AppendPartition,
    AppendRequest,
    AppendResponse,
    AppendResult,
    ErrorInfo,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataRequest,
    MetadataResponse,
    SplitRangePartition,
    SplitRangeRequest,
    SplitRangeResponse,
    StageRequest,
)
from tests.builders.producers import batch
from tests.builders.staged import WRITE, attempt
from tests.fakes.broker_parts import EPOCH, T0, held_lease, logs_in, message_of, record_batch
from tests.fakes.handlers import context, schema_ids
from tests.unit.broker.replica.leading import THREE, TWO, Leading

BATCH = len(record_batch())


class Asked:
    def __init__(self, leading: Leading) -> None:
        logs, in_sync, metrics = leading.logs, leading.in_sync, RequestMetrics(leading.logs.clock)
        self.leading = leading
        self.waiting = DelayedFetches()
        partitions = logs.here.as_replica_manager()
        self.appends = AppendHandler(
            partitions,
            schema_ids=schema_ids({}, logs.clock),
            lease=held_lease(),
            holds=Holds(),
            in_sync=in_sync,
            clock=logs.clock,
            max_wait_ms=10_000,
            owners=WriteOwners(),
            metrics=metrics,
        )
        self.fetches = FetchHandler(
            partitions,
            self.waiting,
            clock=logs.clock,
            max_wait_ms=10_000,
            max_fetch_bytes=1 << 20,
            metrics=metrics,
            followed=cast(FollowerReads, None),  # nothing is followed here
            in_sync=in_sync,
        )
        self.offsets = OffsetHandler(partitions, in_sync=in_sync, metrics=metrics)
        cache = SimpleNamespace(
            brokers=[],
            topics=leading.topics,
            state=lambda *_: leading.states.state,
            leader=lambda *_: (leading.states.state.leader, EPOCH),
        )
        self.metadata = MetadataHandler(
            cast(MetadataCache, cache),
            partitions,
            cast(WorkExecutor, None),  # for topics that are not known
            followers=leading.followers,
            in_sync=in_sync,
        )
        leading.log.add_listener(lambda: self.waiting.wake(T0))

    def append(self, *, acks: str = "replicated", timeout_ms: int = 1_000) -> Answer:
        part = AppendPartition(T0.topic, T0.partition, BATCH)
        request = AppendRequest(acks, timeout_ms, [part])
        return self.appends.append(request, context(record_batch()))

    def stage(self) -> Answer:
        data = memoryview(bytearray(batch(0, 2, producer=attempt(1, write=WRITE))))
        part = AppendPartition(T0.topic, T0.partition, len(data))
        return self.appends.stage(StageRequest(1_000, [part]), context(data))

    def fetch(self, offset: int) -> Answer:
        part = FetchPartition(T0.topic, T0.partition, offset, 1 << 20)
        return self.fetches.handle(FetchRequest(1_000, 1, 1 << 20, [part]), context())

    def listed(self, at: str, timestamp_us: int = 0) -> ListOffsetsResult:
        part = ListOffsetsPartition(T0.topic, T0.partition, at, timestamp_us)
        answer = self.offsets.list_offsets(ListOffsetsRequest([part]), context())
        message = message_of(Api.LIST_OFFSETS, answer)
        assert isinstance(message, ListOffsetsResponse)
        return message.results[0]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    watermarks = HighWatermarks()
    with logs_in(tmp_path / "data", watermark=watermarks) as logs:
        leading = Leading(logs, watermarks)
        leading.lead()
        yield Asked(leading)


def appended(answer: Answer) -> AppendResult:
    message = message_of(Api.APPEND, answer)
    assert isinstance(message, AppendResponse)
    return message.results[0]


def fetched(answer: Answer) -> FetchResult:
    message = message_of(Api.FETCH, answer)
    assert isinstance(message, FetchResponse)
    return message.results[0]


def waits(answer: Answer) -> DelayedResponse:
    assert isinstance(answer, DelayedResponse)
    assert answer.poll() is None
    return answer


def error_of(error: ErrorInfo | None) -> LogbusError:
    assert error is not None
    return error.to_exception()


# -- appends -------------------------------------------------------------------------------------


def test_what_all_in_sync_have_flushed_is_acknowledged(asked: Asked) -> None:
    answer = waits(asked.append())
    asked.leading.log.flush()
    asked.leading.tell(TWO, 1)
    waits(answer)
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    asked.leading.tell(THREE, 1)
    assert woken
    assert (appended(answer).base_offset, appended(answer).error) == (0, None)


def test_acks_of_the_leader_wait_for_no_follower(asked: Asked) -> None:
    assert appended(asked.append(acks="written")).error is None
    answer = waits(asked.append(acks="flushed"))
    asked.leading.log.flush()
    assert appended(answer).error is None
    assert asked.leading.watermark == 0


def test_what_too_few_would_have_is_not_written(asked: Asked) -> None:
    asked.leading.live -= {TWO, THREE}
    asked.leading.look()
    error = error_of(appended(asked.append()).error)
    assert isinstance(error, NotEnoughReplicasError)
    assert error.retriable
    assert "Of t-0 1 replicas are in sync (on the brokers 5), fewer than" in str(error)
    assert asked.leading.log.ends().log_end_offset == 0
    staged = error_of(appended(asked.stage()).error)
    assert isinstance(staged, NotEnoughReplicasError)
    assert not asked.leading.log.staging.replica_state()
    answer = waits(asked.append(acks="flushed"))
    asked.leading.log.flush()
    assert appended(answer).error is None


def test_what_is_not_replicated_in_time_may_become_visible(asked: Asked) -> None:
    answer = waits(asked.append(timeout_ms=1_000))
    asked.leading.log.flush()
    asked.leading.logs.clock.advance(1)
    error = error_of(appended(answer).error)
    assert isinstance(error, RequestTimeoutError)
    assert "written but not replicated within" in str(error)
    assert "may still become visible" in str(error)


def test_what_has_stayed_on_too_few_disks_is_not_acknowledged(asked: Asked) -> None:
    answer = waits(asked.append())
    asked.leading.log.flush()
    asked.leading.live -= {TWO, THREE}
    asked.leading.look()
    error = error_of(appended(answer).error)
    assert isinstance(error, RequestTimeoutError)
    assert "too few replicas have stayed in sync" in str(error)


def test_who_waits_for_replicas_is_told_when_the_lead_is_lost(asked: Asked) -> None:
    answer = waits(asked.append())
    asked.leading.log.flush()
    asked.leading.in_sync.end(asked.leading.led)
    error = error_of(appended(answer).error)
    assert isinstance(error, NotLeaderError)
    assert "may become visible" in str(error)


# -- a new leader --------------------------------------------------------------------------------


@pytest.fixture
def elected(asked: Asked) -> Asked:
    """A leader with 5 records, of which consumers have seen 3 for certain."""
    asked.leading.append(5)
    asked.leading.tell_all(3)
    asked.leading.lead(epoch=EPOCH + 1)
    return asked


def test_a_fetch_behind_a_watermark_that_lags_waits_for_it(elected: Asked) -> None:
    assert fetched(elected.fetch(1)).length == 2 * BATCH
    answers = [waits(elected.fetch(offset)) for offset in (3, 4, 5)]
    elected.leading.tell_all(4)
    assert fetched(answers[0]).length == BATCH
    waits(answers[1])
    elected.leading.tell_all(5)
    assert fetched(answers[1]).length == BATCH
    waits(answers[2])
    elected.leading.append()
    elected.leading.tell_all(6)
    assert fetched(answers[2]).length == BATCH


def test_a_fetch_that_has_waited_in_vain_is_to_be_tried_again(elected: Asked) -> None:
    answers = [waits(elected.fetch(offset)) for offset in (3, 5)]
    assert isinstance(error_of(fetched(elected.fetch(6)).error), OffsetOutOfRangeError)
    elected.leading.logs.clock.advance(1)
    for answer in answers:
        error = error_of(fetched(answer).error)
        assert isinstance(error, OffsetNotAvailableError)
        assert error.retriable


def test_a_new_leader_lists_no_end_that_may_lie_before_what_was_seen(elected: Asked) -> None:
    def info() -> object:
        answer = elected.metadata.handle(MetadataRequest([T0.topic], ends=True), context())
        message = message_of(Api.METADATA, answer)
        assert isinstance(message, MetadataResponse)
        return message.topics[0].partitions[0].ends

    def split(end: int) -> ErrorInfo | None:
        part = SplitRangePartition(T0.topic, T0.partition, 0, end, 1 << 20)
        answer = elected.offsets.split_range(SplitRangeRequest([part]), context())
        message = message_of(Api.SPLIT_RANGE, answer)
        assert isinstance(message, SplitRangeResponse)
        return message.results[0].error

    assert (elected.listed("earliest").offset, elected.listed("timestamp").offset) == (0, 0)
    late_us = 1 << 60
    for result in (elected.listed("latest"), elected.listed("timestamp", late_us)):
        assert isinstance(error_of(result.error), OffsetNotAvailableError)
    assert isinstance(error_of(split(5)), OffsetNotAvailableError)
    assert split(3) is None
    assert info() is None
    elected.leading.append()
    elected.leading.tell_all(5)
    assert elected.listed("latest").offset == 5
    assert elected.listed("timestamp", late_us).error is None
    assert split(5) is None
    assert info() is not None
