"""A producer's queue and a log's memory of producers, with everything in between going wrong.

No sockets and no threads: the producer's accumulator, numbering and settling, and the log's check
are the real ones; the test is the network, the clock and the disk.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.accumulator import Accumulator
from spark_logbus.client.producer.acknowledgements import Acknowledgement
from spark_logbus.client.producer.batches import QueuedBatch
from spark_logbus.client.producer.completion import append_outcomes
from spark_logbus.client.producer.failures import Failures
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.client.producer.sequences import Sequences
from spark_logbus.client.producer.topic_queues import TopicQueues
from spark_logbus.errors import (
    BrokerUnavailableError,
    LogbusError,
    NotLeaderError,
    RecordBatchTooLargeError,
    RequestTimeoutError,
    StorageError,
)
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import AppendResult, error_info
from spark_logbus.record import RecordBatchHeader, verify
from spark_logbus.retry import Backoff
from tests.builders.record_batches import record_batch
from tests.fakes.clock import ManualClock
from tests.property.examples import examples

TP = TopicPartition("t", 0)
NOWHERE = BrokerAddress(1, "127.0.0.1", 1)


@dataclass
class Stored:
    header: RecordBatchHeader
    data: bytes
    offset: int


@dataclass
class Log:
    """Record batches in order, and what the broker knows of their producers."""

    stored: list[Stored] = field(default_factory=list)
    producers: ProducerStateManager = field(default_factory=lambda: ProducerStateManager(TP))

    @property
    def end(self) -> int:
        return self.stored[-1].offset + self.stored[-1].header.record_count if self.stored else 0

    def append(self, batches: list[bytes]) -> list[int]:
        headers = [verify(data) for data in batches]
        offsets = self.producers.duplicate_offsets(headers)
        for header, data in list(zip(headers, batches, strict=True))[len(offsets) :]:
            offsets.append(self.end)
            self.producers.note(header, offset=self.end, append_time_us=0)
            self.stored.append(Stored(header, data, self.end))
        return offsets

    def lose(self, count: int) -> None:
        """Loses records as a power failure does that were acknowledged before they were flushed."""
        del self.stored[max(0, len(self.stored) - count) :]
        self.producers = ProducerStateManager(TP)
        for one in self.stored:
            self.producers.note(one.header, offset=one.offset, append_time_us=0)

    def somebody_else(self) -> None:
        self.append([bytes(record_batch(payload=b"another"))])


class Client:
    """One partition of a producer."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        config = ProducerConfig(linger_ms=0, delivery_timeout_ms=10_000)
        self.accumulator = Accumulator(
            config,
            clock=self.clock,
            wake=lambda: None,
            backoff=Backoff(first_ms=0, max_ms=0),
            failures=Failures(),
        )
        self.topic_queues = TopicQueues(
            TP.topic,
            RoundRobin(1),
            batch_limit=1,
            max_record_batch_bytes=1 << 20,
            new_sequences=Sequences,
        )
        self.queue = self.topic_queues.queues[TP.partition]
        self.under_way: deque[list[QueuedBatch]] = deque()  # requests, in order
        self.sent: list[tuple[bytes, Acknowledgement]] = []

    def add(self, count: int) -> None:
        self.clock.advance(1.0)
        payload = b"batch %06d" % len(self.sent)
        data = record_batch(count, payload=payload)
        acknowledgement = self.accumulator.append_encoded(
            self.topic_queues, 0, data, record_count=count
        )
        self.sent.append((payload, acknowledgement))

    def take(self, at_most: int) -> list[QueuedBatch]:
        size = len(record_batch(payload=b"batch 000000"))
        batches = self.accumulator.take_batches(
            self.queue, max_bytes=at_most * size, at_least_one=True
        )
        if batches:
            assert self.queue.sequences is not None
            self.queue.sequences.number(batches, behind=self.queue.in_flight > 1)
        return batches

    def answered(self, batches: list[QueuedBatch], result: AppendResult) -> None:
        (outcome,) = append_outcomes([result], [(self.queue, batches)], NOWHERE)
        self.accumulator.complete(self.queue, batches, outcome, now=self.clock.seconds)

    def failed(self, batches: list[QueuedBatch], error: LogbusError) -> None:
        self.accumulator.complete(self.queue, batches, error, now=self.clock.seconds)

    def give_up_one(self) -> None:
        """Let time pass until the oldest record batch that is not under way is given up."""
        for batch in [*self.queue.ready][:1]:
            self.clock.seconds = max(self.clock.seconds, batch.give_up_at)
        self.accumulator.fail_expired(self.clock.seconds, reason=lambda _: None)


REFUSALS = {
    "not leader": NotLeaderError("moved"),
    "disk": StorageError("no room"),
    "too large": RecordBatchTooLargeError("the limit was lowered"),
}


MAX_IN_FLIGHT = 3


def depart(client: Client, at_most: int) -> None:
    if len(client.under_way) < MAX_IN_FLIGHT and (batches := client.take(at_most)):
        client.under_way.append(batches)


def disconnect(client: Client, log: Log, arrived: int) -> None:
    """The connection ends; so many of the requests on their way had arrived."""
    requests, client.under_way = [*client.under_way], deque()
    for batches in requests[:arrived]:
        with suppress(LogbusError):
            log.append([bytes(batch.data) for batch in batches if batch.data is not None])
    for batches in requests:
        client.failed(batches, BrokerUnavailableError("gone"))


def arrive(client: Client, log: Log, fate: str) -> None:
    if fate in ("request lost", "answer lost"):
        disconnect(client, log, int(fate == "answer lost"))
        return
    if not client.under_way:
        return
    batches = client.under_way.popleft()
    data = [bytes(batch.data) for batch in batches if batch.data is not None]
    if fate in REFUSALS:
        refused = AppendResult(TP.topic, TP.partition, error=error_info(REFUSALS[fate]))
        client.answered(batches, refused)
        return
    try:
        offsets = log.append(data)
        result = AppendResult(
            TP.topic, TP.partition, offsets[0], 1, base_offsets=offsets if len(offsets) > 1 else []
        )
    except LogbusError as error:
        result = AppendResult(TP.topic, TP.partition, error=error_info(error))
    if fate == "flush late" and result.error is None:
        late = RequestTimeoutError("written, not flushed in time")
        client.answered(batches, AppendResult(TP.topic, TP.partition, error=error_info(late)))
    else:
        client.answered(batches, result)


FATES = st.sampled_from(["fine", "fine", "request lost", "answer lost", "flush late", *REFUSALS])
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 3)),
    st.tuples(st.just("depart"), st.integers(1, 4)),
    st.tuples(st.just("depart"), st.just(1)),
    st.tuples(st.just("arrive"), FATES),
    st.tuples(st.just("disconnect"), st.integers(0, MAX_IN_FLIGHT)),
    st.tuples(st.just("give up")),
    st.tuples(st.just("somebody else")),
)


def play(steps: list[Any], *, losses: bool) -> tuple[Client, Log]:
    client, log = Client(), Log()
    for what, *arguments in steps:
        if what == "add":
            client.add(*arguments)
        elif what == "depart":
            depart(client, *arguments)
        elif what == "arrive":
            arrive(client, log, *arguments)
        elif what == "disconnect":
            disconnect(client, log, *arguments)
        elif what == "give up":
            client.give_up_one()
        elif what == "lose":
            assert losses
            log.lose(*arguments)
        else:
            log.somebody_else()
        assert client.queue.ready_bytes == sum(one.size_bytes for one in client.queue.ready)
    for _ in range(10_000):
        if client.accumulator.empty:
            return client, log
        depart(client, 3)
        arrive(client, log, "fine")
    raise AssertionError("the queue does not empty")


def found(client: Client, log: Log) -> list[tuple[list[int], Acknowledgement]]:
    """Returns offsets in the log and fate of each record batch that was handed over."""
    return [
        ([one.offset for one in log.stored if payload in one.data], acknowledgement)
        for payload, acknowledgement in client.sent
    ]


def in_order(client: Client, log: Log) -> bool:
    mine = [one.data[80:96] for one in log.stored if b"batch" in one.data]
    return mine == sorted(mine)


GIVEN_UP_IN_THE_MIDDLE = [
    *[("add", 1)] * 3,
    ("depart", 3),
    ("arrive", "request lost"),
    ("depart", 1),
    ("give up",),  # the second one, which may be there as well as the first and the third
    ("arrive", "answer lost"),
]
GIVEN_UP_FROM_BEHIND = [
    *[("add", 1)] * 3,
    ("depart", 3),
    ("arrive", "answer lost"),
    ("depart", 2),
    ("give up",),  # the third one, and then the first; the second is acknowledged
    *[("arrive", "too large"), ("depart", 1)] * 2,
    ("add", 1),
]
OVERTAKEN = [  # the second one is acknowledged before the first, which is there as well
    *[("add", 1)] * 3,
    *[("depart", 1)] * 2,
    *[("arrive", "flush late"), ("arrive", "fine"), ("depart", 1), ("arrive", "fine")],
]
OVERTAKEN_WITH_OTHERS = [
    *OVERTAKEN[:-2],
    *[("depart", 3), ("arrive", "fine")],
]
STOPPED = [  # what was sent behind one that was refused is sent again, behind it
    *[("add", 1)] * 4,
    *[("depart", 1)] * 3,
    *[("arrive", "not leader"), ("depart", 2), ("arrive", "fine"), ("depart", 2)],
]


@settings(max_examples=examples(500))
@example(OVERTAKEN)
@example(OVERTAKEN_WITH_OTHERS)
@example(STOPPED)
@example(GIVEN_UP_IN_THE_MIDDLE)
@example(GIVEN_UP_FROM_BEHIND)
@given(st.lists(STEPS, min_size=20, max_size=60))
def test_acknowledged_once_and_failed_at_most_once(steps: list[Any]) -> None:
    client, log = play(steps, losses=False)
    for offsets, acknowledgement in found(client, log):
        assert acknowledgement.done
        if acknowledgement.error is None:
            assert offsets == [acknowledgement.wait(0).base_offset]
        else:
            assert len(offsets) <= 1
    assert in_order(client, log)


@settings(max_examples=examples(150))
@given(st.lists(st.one_of(STEPS, st.tuples(st.just("lose"), st.integers(1, 4))), max_size=60))
def test_a_log_that_lost_acknowledged_records_takes_none_twice(steps: list[Any]) -> None:
    """Loses records as a power failure may with acks ``written``; the producer starts over behind
    the gap."""
    client, log = play(steps, losses=True)
    assert all(len(offsets) <= 1 for offsets, _ in found(client, log))
    assert in_order(client, log)
