"""The producer's buffers, as tables of what goes in and what comes out."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from spark_logbus.client import ProducerConfig
from spark_logbus.client.producer.accumulator import Accumulator
from spark_logbus.client.producer.acknowledgements import (
    AppendedRange,
    RecordFuture,
    RecordMetadata,
)
from spark_logbus.client.producer.batches import QueuedBatch
from spark_logbus.client.producer.completion import AppendedBatches, NextStep
from spark_logbus.client.producer.failures import Failures
from spark_logbus.client.producer.interceptors import Interceptors
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.client.producer.topic_queues import TopicQueues
from spark_logbus.errors import (
    BufferExhaustedError,
    DuplicateSequenceError,
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    ProducerClosedError,
    RequestTimeoutError,
)
from spark_logbus.model import Compression
from spark_logbus.retry import Backoff, no_jitter
from tests.builders.arrow_batches import record_batch
from tests.fakes.clock import ManualClock

CONFIG = ProducerConfig(
    linger_ms=1_000, delivery_timeout_ms=10_000, batch_bytes=10, buffer_bytes=1_000, max_block_ms=0
)
LINGER, TIMEOUT = 1.0, 10.0
ERROR = NotLeaderError("moved")


class Bench:
    """An accumulator whose clock starts at 0, and the queues of one topic."""

    def __init__(
        self,
        *,
        batch_limit: int = 100,
        partitions: int = 2,
        max_block_ms: int = 0,
        buffer_bytes: int = 1_000,
    ) -> None:
        self.clock = ManualClock()
        self.clock.seconds = 0.0
        self.woken = threading.Event()
        self.accumulator = Accumulator(
            replace(CONFIG, max_block_ms=max_block_ms, buffer_bytes=buffer_bytes),
            clock=self.clock,
            wake=self.woken.set,
            backoff=Backoff(first_ms=1_000, max_ms=1_000, jitter=no_jitter),
            failures=Failures(),
        )
        self.topic_queues = TopicQueues(
            "t",
            RoundRobin(partitions, start=0),
            batch_limit=batch_limit,
            max_record_batch_bytes=1 << 20,
        )
        self.queues = self.topic_queues.queues

    def add(
        self, number: int | None, value: bytes = b"v", *, size: int = 10, now: float = 0.0
    ) -> RecordFuture:
        self.clock.seconds = now
        future, _ = self.accumulator.append_record(
            self.topic_queues, number, value, None, 1, None, size
        )
        return future

    def add_encoded(self, number: int, data: memoryview) -> None:
        self.accumulator.append_encoded(self.topic_queues, number, data, record_count=1)

    def take(self, number: int, max_bytes: int = 1 << 30) -> list[QueuedBatch]:
        return self.accumulator.take_batches(
            self.queues[number], max_bytes=max_bytes, at_least_one=True
        )

    def settle(self, number: int, batches: list[QueuedBatch]) -> None:
        appended = AppendedBatches([None] * len(batches))
        self.accumulator.complete(self.queues[number], batches, appended, now=0.0)

    def requeue(self, number: int, batches: list[QueuedBatch], *, not_before: float = 0.0) -> None:
        self.accumulator.requeue(self.queues[number], batches, not_before=not_before, error=ERROR)

    def fail_expired(self, now: float) -> None:
        self.accumulator.fail_expired(now, reason=lambda _: None)

    def ready(self) -> list[int]:
        return [queue.topic_partition.partition for queue in self.accumulator.ready_queues()]


def test_the_sender_hears_of_first_and_full_record_batches_only() -> None:
    bench = Bench(batch_limit=30)
    heard = []
    for _ in range(4):
        bench.woken.clear()
        bench.add(0)
        heard.append(bench.woken.is_set())
    assert heard == [True, False, True, True]


def test_a_batch_is_ready_when_full_lingered_or_flushed() -> None:
    bench = Bench(batch_limit=20)
    bench.add(0)
    assert bench.ready() == []
    bench.add(0)
    assert bench.ready() == [0]
    bench.add(1, now=5.0)
    bench.accumulator.seal_lingering(5.9)
    assert bench.ready() == [0]
    bench.accumulator.seal_lingering(6.0)
    assert bench.ready() == [0, 1]
    bench.add(1, now=6.0)
    bench.accumulator.begin_flush()
    assert [batch.record_count for batch in bench.take(1)] == [1, 1]


def test_keyless_records_move_on_with_each_record_batch() -> None:
    bench = Bench(batch_limit=20, partitions=3)
    for number in range(6):
        bench.add(None, b"%d" % number)
    chosen = {number: bench.take(number)[0] for number in range(3)}
    assert [len(batch.builder or ()) for batch in chosen.values()] == [2, 2, 2]
    assert not any(batch.keyed for batch in chosen.values())


def test_one_request_per_partition_takes_all_that_fits() -> None:
    bench = Bench(batch_limit=10)
    for _ in range(3):
        bench.add(0)
    taken = bench.take(0, max_bytes=2 * (10 + 2_048))
    assert len(taken) == 2
    assert bench.ready() == []  # the third waits for the answer
    bench.settle(0, taken)
    assert bench.ready() == [0]


def test_what_is_put_back_comes_first_and_in_order() -> None:
    bench = Bench(batch_limit=10)
    for value in (b"1", b"2"):
        bench.add(0, value)
    taken = bench.take(0)
    bench.add(0, b"3")
    bench.requeue(0, taken, not_before=7.0)
    assert bench.queues[0].not_before == 7.0
    again = bench.take(0)
    assert again[:2] == taken
    assert len(again) == 3
    assert [batch.failures for batch in again] == [1, 1, 0]
    assert again[0].last_error is ERROR


def test_a_record_batch_that_is_to_go_alone_goes_alone() -> None:
    bench = Bench(batch_limit=10)
    for _ in range(3):
        bench.add(0)
    taken = bench.take(0)
    taken[1].alone = True
    bench.requeue(0, taken)
    sizes = []
    while taken := bench.take(0):
        sizes.append(len(taken))
        bench.settle(0, taken)
    assert sizes == [1, 1, 1]


def test_memory_is_counted_until_settled() -> None:
    bench = Bench(batch_limit=20)
    for _ in range(4):
        bench.add(0)
    data = record_batch([b"x"])
    bench.add_encoded(1, data)
    assert bench.accumulator.buffered_bytes == 40 + len(data)
    taken = bench.take(0)
    assert bench.accumulator.buffered_bytes == 40 + len(data)
    bench.settle(0, taken)
    assert bench.accumulator.buffered_bytes == len(data)
    bench.settle(1, bench.take(1))
    assert bench.accumulator.buffered_bytes == 0
    assert bench.accumulator.empty


def test_a_value_goes_where_a_record_would_or_is_left_to_it() -> None:
    bench = Bench(batch_limit=100)
    append = bench.accumulator.append_value
    assert append(bench.topic_queues, None, b"none is open") is None
    bench.add(None)
    bench.clock.wall_us = 7
    appended = append(bench.topic_queues, None, b"second")
    assert appended is not None
    assert bench.accumulator.buffered_bytes == 10 + 20 + len(b"second")
    assert append(bench.topic_queues, None, b"x" * 44) is None  # it would be full, and ready
    assert bench.accumulator.buffered_bytes == 36
    bench.accumulator.begin_flush()
    assert append(bench.topic_queues, None, b"sealed") is None
    (batch,) = bench.take(0)
    assert not batch.keyed
    assert batch.record_count == 2
    batch.acknowledgement.succeed(AppendedRange("t", 0, 40, 2, None))
    assert appended.result(0) == RecordMetadata("t", 0, 41, 7)


def test_a_value_for_a_partition_that_is_named_stays_there() -> None:
    bench = Bench(batch_limit=1_000)
    append = bench.accumulator.append_value
    bench.add(None)
    assert append(bench.topic_queues, 1, b"none is open there") is None
    assert append(bench.topic_queues, 0, b"named") is not None
    bench.add(1)
    assert append(bench.topic_queues, 1, b"elsewhere") is not None
    bench.accumulator.begin_flush()
    assert [[batch.keyed for batch in bench.take(number)] for number in (0, 1)] == [[True], [True]]


def test_a_value_needs_room_and_an_open_producer() -> None:
    bench = Bench(batch_limit=10_000)
    append = bench.accumulator.append_value
    bench.add(None)
    assert append(bench.topic_queues, None, b"x" * 971) is None  # of 1,000
    assert append(bench.topic_queues, None, b"x" * 970) is not None, "as much as there is"
    bench.settle(0, _sealed(bench))
    bench.add(None)
    bench.accumulator.close()
    assert append(bench.topic_queues, None, b"x") is None


def _sealed(bench: Bench) -> list[QueuedBatch]:
    bench.accumulator.begin_flush()
    return bench.take(0)


def test_columns_line_up_behind_single_records() -> None:
    bench = Bench()
    bench.add(0, b"first")
    bench.add_encoded(0, record_batch([b"x"]))
    assert [batch.builder is not None for batch in bench.take(0)] == [True, False]


def test_waiting_record_batches_expire_but_not_those_under_way() -> None:
    bench = Bench(batch_limit=10)
    first = bench.add(0, now=0.0)
    under_way = bench.take(0)
    second = bench.add(0, now=1.0)
    third = bench.add(1, now=5.0, size=5)
    bench.fail_expired(TIMEOUT + 0.5)
    assert not second.done()
    bench.fail_expired(TIMEOUT + 1.0)
    assert second.done()
    bench.requeue(0, under_way)
    assert not first.done()
    bench.fail_expired(TIMEOUT + 1.0)
    assert "last failure: moved" in str(first.exception(0))
    assert "last failure: none" in str(second.exception(0))
    assert isinstance(first.exception(0), RequestTimeoutError)
    assert bench.ready() == []
    bench.fail_expired(TIMEOUT + 5)
    assert third.done()
    assert bench.accumulator.buffered_bytes == 0


def test_failing_a_topic_fails_what_waits_for_it() -> None:
    bench = Bench(batch_limit=10)
    futures = [bench.add(0), bench.add(1, size=5)]
    bench.accumulator.fail_topic("other", ERROR)
    assert not any(future.done() for future in futures)
    bench.accumulator.fail_topic("t", ERROR)
    assert [str(future.exception(0)) for future in futures] == [str(ERROR)] * 2
    assert bench.accumulator.empty


def test_aborting_fails_what_is_on_its_way_too() -> None:
    bench = Bench(batch_limit=10)
    futures = [bench.add(0), bench.add(1)]
    bench.take(0)
    bench.accumulator.abort(ERROR)
    assert [str(future.exception(0)) for future in futures] == [str(ERROR)] * 2
    assert bench.accumulator.buffered_bytes == 0


def test_events_tell_the_linger_the_timeout_and_the_pause() -> None:
    bench = Bench(batch_limit=20)
    bench.add(0, now=2.0)
    assert sorted(bench.accumulator.events()) == [2.0 + LINGER, 2.0 + TIMEOUT]
    bench.accumulator.begin_flush()
    bench.requeue(0, bench.take(0), not_before=4.0)
    assert sorted(bench.accumulator.events()) == [4.0, 2.0 + TIMEOUT]


def test_encoding_happens_once_and_keeps_the_count() -> None:
    bench = Bench()
    bench.add(0, b"a")
    bench.add(0, b"b")
    bench.accumulator.begin_flush()
    (batch,) = bench.take(0)
    estimate = batch.size_bytes
    data = batch.encoded(Compression.NONE, Interceptors(()))
    assert batch.encoded(Compression.NONE, Interceptors(())) is data
    assert batch.record_count == 2
    assert len(data) <= estimate


@pytest.mark.parametrize(
    ("error", "batches", "step", "again_at"),
    [
        (NotLeaderError("moved"), 2, NextStep.RETRY, 6.0),
        (InvalidRequestError("one is too large"), 2, NextStep.SEPARATE, 5.0),
        (InvalidRequestError("too large"), 1, NextStep.FAIL, None),
        (DuplicateSequenceError("seen"), 1, NextStep.ACKNOWLEDGE, None),
    ],
)
def test_failed_appends_are_requeued_or_settled(
    error: LogbusError, batches: int, step: NextStep, again_at: float | None
) -> None:
    bench = Bench(batch_limit=10)
    futures = [bench.add(0) for _ in range(batches)]
    taken = bench.take(0)
    assert bench.accumulator.complete(bench.queues[0], taken, error, now=5.0) is step
    assert [future.done() for future in futures] == [again_at is None] * batches
    if again_at is None:
        assert bench.accumulator.empty
        failed = error if step is NextStep.FAIL else None
        assert repr(futures[0].exception(0)) == repr(failed)
    else:
        assert bench.queues[0].not_before == again_at
        assert bench.take(0) == (taken[:1] if step is NextStep.SEPARATE else taken)


def test_appending_without_room_fails_in_the_end() -> None:
    bench = Bench(batch_limit=100)
    for _ in range(10):
        bench.add(0, size=100)
    bench.woken.clear()
    with pytest.raises(BufferExhaustedError, match="1000 of 1000 bytes"):
        bench.add(0, size=1)
    bench.settle(0, bench.take(0))
    bench.add(0, size=5_000)  # larger than all: into the empty buffer


@pytest.mark.parametrize("ending", ["room", "closed"])
def test_appending_waits_for_room_or_the_end(ending: str) -> None:
    bench = Bench(max_block_ms=60_000)
    bench.add(0, size=90)
    bench.add(1, size=90)
    outcome: list[object] = []

    def append() -> None:
        try:
            outcome.append(bench.add(0, size=950))
        except ProducerClosedError as error:
            outcome.append(error)

    bench.woken.clear()
    thread = threading.Thread(target=append)
    thread.start()
    assert bench.woken.wait(60)  # with all that is open made ready
    if ending == "closed":
        bench.accumulator.close()
    else:
        for number in (0, 1):
            bench.settle(number, bench.take(number))
    thread.join(60)
    kind = ProducerClosedError if ending == "closed" else RecordFuture
    assert [type(one) for one in outcome] == [kind]


def test_a_closed_accumulator_takes_nothing() -> None:
    bench = Bench()
    bench.accumulator.close()
    with pytest.raises(ProducerClosedError):
        bench.add(0)
    with pytest.raises(ProducerClosedError):
        bench.add_encoded(0, record_batch([b"x"]))


def test_an_appender_gives_way_to_that_of_the_partition_whose_turn_it_is() -> None:
    bench = Bench(batch_limit=1 << 20, partitions=3, buffer_bytes=1 << 20)
    append = bench.accumulator.append_value
    bench.add(None)
    bench.accumulator.begin_flush()  # the turn passes on to the next partition
    bench.add(None)
    assert append(bench.topic_queues, None, b"there") is not None
    bench.accumulator.exclude([bench.queues[0]])  # what was flushed moves, and passes the turn on
    bench.add(None)
    assert append(bench.topic_queues, None, b"here") is not None
    bench.accumulator.begin_flush()
    taken = [[batch.record_count for batch in bench.take(number)] for number in (1, 2)]
    assert taken == [[1, 2], [2]]
