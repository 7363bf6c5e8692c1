"""Failures, whether met by a second try or raised, keep nothing that was at hand where they were
met: no caller's records stay in memory until Python's collector runs."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_logbus.client import (
    Admin,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerInterceptor,
    RangeReader,
)
from spark_logbus.client.producer.acknowledgements import (
    Acknowledgement,
    AppendedRange,
    RangeFuture,
    RecordFuture,
)
from spark_logbus.errors import (
    BrokerUnavailableError,
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from spark_logbus.protocol import Api
from tests.builders.arrow_batches import QUICK, T0, T1, numbered, record_batch
from tests.fakes.broker import FakeCluster, FaultKind
from tests.helpers import kept_of_caller

pytestmark = pytest.mark.usefixtures("no_collector")

MENDED: list[tuple[FaultKind, LogbusError | None]] = [
    ("drop_before", None),
    ("drop_after", None),
    ("half", None),
    ("error", BrokerUnavailableError("going down")),
    ("partition_error", NotLeaderError("not any more")),
]
RECORDS = 20


@pytest.fixture(autouse=True)
def _topic(fake: FakeCluster) -> None:
    fake.create("t", partitions=2)
    for each in (T0, T1):
        fake.append(each, record_batch(numbered(0, RECORDS)))


def test_who_keeps_the_error_keeps_the_records() -> None:
    """Shows that the other tests can fail."""
    errors = []

    def keep() -> None:
        try:
            raise UnknownTopicError("t")
        except UnknownTopicError as error:
            errors.append(error)
            raise

    assert kept_of_caller(keep) is not None


@pytest.mark.parametrize(("kind", "error"), MENDED)
def test_a_range_that_is_read_in_the_end(
    fake: FakeCluster, cluster: Cluster, kind: FaultKind, error: LogbusError | None
) -> None:
    for _ in range(3):
        fake.brokers[0].fault(Api.FETCH, kind, error)
    count = 0

    def read_all() -> None:
        nonlocal count
        for fetched in RangeReader(cluster, OffsetRange(T0, 0, RECORDS)):
            count += fetched.arrow_batch.num_rows

    assert kept_of_caller(read_all) is None
    assert count == RECORDS
    assert not fake.brokers[0].faults[Api.FETCH]


@pytest.mark.parametrize(("kind", "error"), MENDED)
def test_records_that_are_consumed_in_the_end(
    fake: FakeCluster, cluster: Cluster, kind: FaultKind, error: LogbusError | None
) -> None:
    with Consumer(cluster, ConsumerConfig(max_wait_ms=20)) as consumer:
        consumer.assign([T0, T1])
        for broker in fake.brokers:
            broker.fault(Api.FETCH, kind, error)
        count = 0

        def poll() -> None:
            nonlocal count
            count += sum(fetched.arrow_batch.num_rows for fetched in consumer.poll_arrow(60))

        while count < 2 * RECORDS:
            assert kept_of_caller(poll) is None
        assert not any(broker.faults[Api.FETCH] for broker in fake.brokers)


@pytest.mark.parametrize(("kind", "error"), MENDED)
def test_offsets_that_are_listed_in_the_end(
    fake: FakeCluster, cluster: Cluster, kind: FaultKind, error: LogbusError | None
) -> None:
    fake.brokers[0].fault(Api.LIST_OFFSETS, kind, error)
    admin = Admin(cluster)
    assert kept_of_caller(lambda: admin.list_offsets({T0: Latest(), T1: Latest()})) is None
    assert not fake.brokers[0].faults[Api.LIST_OFFSETS]


def test_errors_that_a_broker_reports(fake: FakeCluster, cluster: Cluster) -> None:
    admin = Admin(cluster)
    with pytest.raises(TopicExistsError):
        admin.create_topic("t", partitions=1)
    assert kept_of_caller(lambda: admin.create_topic("t", partitions=1)) is None
    unknown = TopicPartition("unknown", 0)
    with pytest.raises(UnknownTopicError):
        admin.list_offsets({unknown: Latest()})
    assert kept_of_caller(lambda: admin.list_offsets({unknown: Latest()})) is None
    fake.brokers[0].fault(Api.LIST_OFFSETS, "partition_error", InvalidRequestError("no"))
    assert kept_of_caller(lambda: admin.list_offsets({T0: Latest()})) is None


def test_giving_up(fake: FakeCluster) -> None:
    config = replace(QUICK, retry_deadline_ms=100)
    with Cluster.connect(fake.bootstrap, config) as cluster, Consumer(cluster) as consumer:
        consumer.assign([T0, T1])
        for broker in fake.brokers:
            broker.stop()
        admin = Admin(cluster)

        def read() -> None:
            next(RangeReader(cluster, OffsetRange(T0, 0, RECORDS)))

        def list_offsets() -> None:
            admin.list_offsets({T0: Latest()})

        def poll() -> None:
            consumer.poll_arrow(60)

        for call in (read, list_offsets, poll):
            with pytest.raises(BrokerUnavailableError):
                call()
            assert kept_of_caller(call) is None


def test_records_that_are_refused(fake: FakeCluster, cluster: Cluster) -> None:
    with Producer(cluster) as producer:

        def send() -> None:
            fake.brokers[0].fault(Api.APPEND, "partition_error", InvalidRequestError("no"))
            producer.send("t", b"a", partition=0).result()

        with pytest.raises(InvalidRequestError, match="no"):
            send()
        assert kept_of_caller(send) is None


def test_futures_of_a_record_that_others_ask_too() -> None:
    refused = Acknowledgement(T0)
    refused.fail(InvalidRequestError("no"))
    future = RecordFuture(refused, 2, 0)

    def ask() -> None:
        raise future.exception(0) or AssertionError("it did not fail")

    with pytest.raises(InvalidRequestError, match="no"):
        ask()
    assert kept_of_caller(ask) is None
    assert kept_of_caller(future.result) is None


def test_futures_of_record_batches_that_one_error_refused() -> None:
    refusal = InvalidRequestError("no")
    refused = [Acknowledgement(T0), Acknowledgement(T1)]
    for each in refused:
        each.fail(refusal)
    left = RangeFuture(refused[0])
    assert kept_of_caller(lambda: RangeFuture(refused[1]).result(0)) is None
    assert str(left.exception(0)) == "no"


def test_consumers_that_cannot_go_on(fake: FakeCluster, cluster: Cluster) -> None:
    with Consumer(cluster, ConsumerConfig(out_of_range="error")) as consumer:

        def poll() -> None:
            consumer.poll_arrow(60)

        consumer.assign([T0])
        consumer.seek(T0, 1_000)
        with pytest.raises(OffsetOutOfRangeError):
            poll()
        assert kept_of_caller(poll) is None
        consumer.seek(T0, 0)
        for _ in range(2):
            fake.brokers[0].fault(Api.FETCH, "partition_error", CorruptRecordBatchError("damaged"))
        with pytest.raises(CorruptRecordBatchError):
            poll()
        assert kept_of_caller(poll) is None


class Raises(ProducerInterceptor):
    """Raises what it is told, with something at hand; who names an error that it raises waits for
    the collector."""

    def __init__(self) -> None:
        self.at_hand: weakref.ref[threading.Event] | None = None

    def after_append(
        self,
        topic: str,
        records: pa.RecordBatch,
        appended: AppendedRange | None,
        error: LogbusError | None,
    ) -> None:
        del topic, records, appended
        at_hand = threading.Event()
        self.at_hand = weakref.ref(at_hand)
        if error is not None:
            with suppress(InvalidRequestError):
                raise error


def test_interceptors_that_raise_what_a_future_has_too(fake: FakeCluster, cluster: Cluster) -> None:
    raises = Raises()
    with Producer(cluster, interceptors=[raises]) as producer:
        fake.brokers[0].fault(Api.APPEND, "partition_error", InvalidRequestError("no"))
        future = producer.send("t", b"a", partition=0)
        assert future.exception(60) is not None
    gc.collect()
    assert raises.at_hand is not None
    assert raises.at_hand() is None
    assert str(future.exception(0)).startswith("no")
