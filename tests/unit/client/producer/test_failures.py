"""Records that fail while nobody looks: who hears of it, when, and how often."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_logbus.client import AsyncProducer, Cluster, FailedRecords, Producer, ProducerConfig
from spark_logbus.client.producer import failures as failures_module
from spark_logbus.client.producer import sender as sender_module
from spark_logbus.client.producer.acknowledgements import Acknowledgement
from spark_logbus.client.producer.failures import Failures, UnheardFailure
from spark_logbus.errors import (
    DeliveryFailedError,
    InvalidRequestError,
    LogbusError,
    ProducerClosedError,
    RequestTimeoutError,
    StorageError,
)
from spark_logbus.protocol import Api
from tests.builders.arrow_batches import T0, record_batch
from tests.fakes.broker import FakeCluster
from tests.helpers import wait_until

CONFIG = ProducerConfig(linger_ms=0)
IMPATIENT = ProducerConfig(linger_ms=0, delivery_timeout_ms=300)


@pytest.fixture
def full(fake: FakeCluster) -> FakeCluster:
    """Brokers with the topic t, whose disks refuse the next appends."""
    fake.create("t", partitions=2)
    for broker in fake.brokers:
        for _ in range(100):
            broker.fault(Api.APPEND, "partition_error", StorageError("The disk is full."))
    return fake


def without_leader(fake: FakeCluster) -> None:
    """The topic t is there, and nobody leads its partition."""
    fake.create("t")
    fake.partition(T0).leader = 77


SENDS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send("t", b"v"),
    "send with a key": lambda producer: producer.send("t", b"v", key=b"k", headers={"h": b""}),
    "send_many": lambda producer: producer.send_many("t", [b"v"]),
    "send_arrow": lambda producer: producer.send_arrow("t", pa.table({"value": [b"v"]})),
    "append_encoded": lambda producer: producer.append_encoded(
        "t", record_batch([b"v"]), partition=0
    ),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
@pytest.mark.parametrize("end", ["flush", "close", "leave"])
def test_a_failure_that_nobody_heard_of_is_raised(
    full: FakeCluster, cluster: Cluster, send: Callable[[Producer], object], end: str
) -> None:
    def run() -> None:
        with Producer(cluster, CONFIG) as producer:
            send(producer)
            if end != "leave":
                getattr(producer, end)()

    with pytest.raises(
        DeliveryFailedError, match=r"^1 record .* failed, .*The disk is full"
    ) as told:
        run()
    assert told.value.record_count == 1
    assert isinstance(told.value.__cause__, StorageError)
    assert full.partition(T0).batches == []


def test_a_leader_that_stays_away_is_told_when_the_block_is_left(
    fake: FakeCluster, cluster: Cluster
) -> None:
    without_leader(fake)

    def run() -> None:
        with Producer(cluster, IMPATIENT) as producer:
            for number in range(50):
                producer.send("t", b"%d" % number)

    with pytest.raises(DeliveryFailedError, match=r"50 records .* is not running"):
        run()


def test_what_lingers_for_longer_than_its_timeout_is_counted(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    config = replace(IMPATIENT, linger_ms=60_000, delivery_timeout_ms=1_500)
    with Producer(cluster, config) as producer:
        futures = [producer.send("t", b"v") for _ in range(7)]
        assert "7 records" in str(futures[0].exception(60))
        with pytest.raises(DeliveryFailedError, match=r"^6 records"):
            producer.flush()


HEARD: dict[str, Callable[[Producer], object]] = {
    "exception": lambda producer: producer.send("t", b"v").exception(60),
    "result": lambda producer: _raised(lambda: producer.send("t", b"v").result(60)),
    "callback": lambda producer: producer.send("t", b"v").add_done_callback(lambda _: None),
    "on_ack": lambda producer: producer.send_many("t", [b"v"] * 3, on_ack=lambda _: None),
    "range": lambda producer: producer.send_many("t", [b"v"] * 3)[0].exception(60),
    "range's result": lambda producer: _raised(
        lambda: producer.send_many("t", [b"v"] * 3)[0].result(60)
    ),
    "range's callback": lambda producer: producer.send_many("t", [b"v"])[0].add_done_callback(
        lambda _: None
    ),
    "waited for, then asked": lambda producer: [
        future.exception() for future in wait(producer.send_many("t", [b"v"]), timeout=60).done
    ],
}


def _raised(call: Callable[[], object]) -> None:
    with pytest.raises(StorageError):
        call()


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("hear", HEARD.values(), ids=HEARD)
def test_a_failure_that_somebody_heard_of_is_not_raised(
    cluster: Cluster, hear: Callable[[Producer], object]
) -> None:
    with Producer(cluster, CONFIG) as producer:
        hear(producer)
        producer.flush()


@pytest.mark.usefixtures("full")
def test_each_record_of_a_record_batch_is_heard_of_by_itself(cluster: Cluster) -> None:
    with Producer(cluster, ProducerConfig(linger_ms=60_000)) as producer:
        futures = [producer.send("t", b"%d" % number, partition=0) for number in range(10)]
        with pytest.raises(DeliveryFailedError, match=r"^10 records"):
            producer.flush()
        producer.flush()  # once is enough
        futures += [producer.send("t", b"%d" % number, partition=0) for number in range(10)]
        futures[12].add_done_callback(lambda _: None)
        with pytest.raises(TimeoutError):
            futures[13].result(0)  # which says nothing of how it ends
        assert not futures[14].done()
        producer._accumulator.begin_flush()
        for _ in range(2):
            assert isinstance(futures[15].exception(60), StorageError)
        assert isinstance(futures[0].exception(60), StorageError)  # of those that were raised
        with pytest.raises(DeliveryFailedError, match=r"^8 records"):
            producer.close()


@pytest.mark.usefixtures("full")
def test_waiting_for_a_future_is_not_hearing(cluster: Cluster) -> None:
    with Producer(cluster, ProducerConfig(linger_ms=60_000)) as producer:
        many = producer.send_many("t", [b"v"], partition=0)
        assert wait(many, timeout=60).done == set(many)
        with pytest.raises(DeliveryFailedError, match=r"^1 record "):
            producer.flush()


@pytest.mark.usefixtures("full")
def test_a_producers_own_callback_hears_of_all(cluster: Cluster) -> None:
    told: list[FailedRecords] = []
    with Producer(cluster, CONFIG, on_failure=told.append) as producer:
        producer.send("t", b"v", partition=1)
        producer.send_many("t", [b"v"] * 4, partition=0)
    assert sorted((each.topic, each.partition, each.record_count) for each in told) == [
        ("t", 0, 4),
        ("t", 1, 1),
    ]
    assert {type(each.error) for each in told} == {StorageError}


@pytest.mark.usefixtures("full")
def test_a_producers_own_callback_that_fails_has_not_heard(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(cluster, CONFIG, on_failure=lambda _: 1 / 0) as producer:
        producer.send("t", b"v")
        with pytest.raises(DeliveryFailedError):
            producer.flush()
    assert "on_failure failed" in caplog.text


@pytest.mark.parametrize("way", ["on_failure", "future"])
@pytest.mark.parametrize("act", ["flush", "close", "exit"])
def test_a_callback_that_waits_or_ends_its_thread_does_no_harm(
    full: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture, act: str, way: str
) -> None:
    def call(_: object) -> None:
        if act == "exit":
            raise SystemExit(3)
        getattr(producer, act)()

    refusal = full.brokers[0].faults[Api.APPEND][0]
    refusal.is_held = True  # until there is a callback, which then runs in the sending thread
    on_failure = call if way == "on_failure" else None
    producer = Producer(
        cluster, ProducerConfig(linger_ms=0, max_in_flight=1), on_failure=on_failure
    )
    first = producer.send("t", b"v")
    if way == "future":
        first.add_done_callback(call)
    refusal.release.set()
    wait_until(lambda: first.done() and "failed" in caplog.text)
    producer.send("t", b"v")
    with pytest.raises(DeliveryFailedError, match="^2 records" if on_failure else "^1 record "):
        producer.close(60)
    assert ("cannot flush or close it" in caplog.text) == (act != "exit")


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    "error", [ZeroDivisionError("mine"), SystemExit(3), KeyboardInterrupt()], ids=repr
)
def test_what_ends_the_block_goes_on_with_a_note(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def run() -> None:
        with Producer(cluster, CONFIG) as producer:
            producer.send("t", b"v")
            wait_until(lambda: producer._accumulator.empty)
            raise error

    with pytest.raises(type(error)) as left:
        run()
    assert left.value is error
    [note] = error.__notes__
    assert "1 record that was handed over failed" in note
    assert "The disk is full" in note
    # A traceback shows the note; an end of the program shows none.
    assert ("The disk is full" in caplog.text) == (not isinstance(error, Exception))


def test_what_a_failure_leaves_unsent_is_in_the_note(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")

    def run() -> None:
        with Producer(cluster, ProducerConfig(linger_ms=60_000)) as producer:
            for _ in range(3):
                producer.send("t", b"v")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as left:
        run()
    assert "3 records" in left.value.__notes__[0]


def test_a_close_that_takes_too_long_says_both(fake: FakeCluster, cluster: Cluster) -> None:
    without_leader(fake)
    producer = Producer(cluster, CONFIG)
    future = producer.send("t", b"v")
    with pytest.raises(RequestTimeoutError, match="the producer is closed") as told:
        producer.close(0.05)
    assert isinstance(told.value.__cause__, DeliveryFailedError)
    assert isinstance(future.exception(0), ProducerClosedError)
    producer.close()


@pytest.mark.usefixtures("full")
def test_an_async_send_that_is_cancelled_has_not_heard(cluster: Cluster) -> None:
    async def run() -> None:
        async with AsyncProducer(cluster, ProducerConfig(linger_ms=400)) as producer:
            with pytest.raises(StorageError):
                await producer.send("t", b"v")
            with pytest.raises(StorageError):
                await producer.send_many("t", [b"v"] * 5)
            await producer.flush()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send("t", b"v"), 0.001)

    with pytest.raises(DeliveryFailedError, match=r"^1 record "):
        asyncio.run(run())


def test_more_failures_than_reasons_are_counted() -> None:
    failures = Failures()
    told = [failures.add(2, InvalidRequestError(f"no {number}")) for number in range(1_000)]
    for each in told[:-1]:
        each.hear(None)
    told[-1].hear(0)
    failed = failures.take()
    assert failed is not None
    assert failed.record_count == 1
    assert "no 999" in str(failed)
    assert failures.take() is None
    told[-1].hear(1)
    failures.add(1, InvalidRequestError("later"))
    with pytest.raises(DeliveryFailedError, match=r"^1 record .*later"):
        failures.raise_unheard()


def test_what_waits_and_what_nobody_asks_about_is_logged(
    fake: FakeCluster,
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender_module, "_LOOK_AT_WAITING_S", 0.0)
    monkeypatch.setattr(sender_module, "_SAY_AFTER_S", 0.05)
    monkeypatch.setattr(failures_module, "_SAY_AFTER_S", 0.1)
    without_leader(fake)
    caplog.set_level(logging.WARNING)
    patient = Producer(cluster, CONFIG)
    patient.send("t", b"v").add_done_callback(lambda _: None)
    wait_until(lambda: "have waited for" in caplog.text)
    assert "is not running" in caplog.text
    patient._abandon()
    with Producer(cluster, IMPATIENT) as producer:
        producer.send("t", b"v")
        wait_until(lambda: "nobody has asked for their fate so far" in caplog.text)
        with pytest.raises(DeliveryFailedError):
            producer.flush()


PROGRAM = """
    import sys
    from spark_logbus.client import Bootstrap, Cluster, Producer, ProducerConfig
    from spark_logbus.model import BrokerAddress

    addresses = [(int(n), host, int(port)) for n, host, port in map(str.split, sys.argv[2:])]
    brokers = tuple(BrokerAddress(n, host, port) for n, host, port in addresses)
    cluster = Cluster.connect(Bootstrap(brokers))
    producer = Producer(cluster, ProducerConfig(linger_ms=600_000))
    for number in range(100):
        producer.send(sys.argv[1], b"%d" % number)
"""


def program(fake: FakeCluster, topic: str) -> subprocess.CompletedProcess[str]:
    """A program that sends 100 records and comes to its end."""
    brokers = [f"{each.broker_id} {each.host} {each.port}" for each in fake.bootstrap.brokers]
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), topic, *brokers]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_program_that_ends_without_closing_sends_what_it_has(fake: FakeCluster) -> None:
    fake.create("t")
    ended = program(fake, "t")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sum(header.record_count for header, _ in fake.partition(T0).batches) == 100


def test_a_program_that_ends_says_what_it_could_not_send(fake: FakeCluster) -> None:
    fake.create("t")
    for broker in fake.brokers:
        broker.fault(Api.APPEND, "partition_error", StorageError("The disk is full."))
    ended = program(fake, "t")
    assert "because the program ends: 100 records" in ended.stderr
    assert "The disk is full" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_it_can_be_raised_again() -> None:
    failed = DeliveryFailedError("2 records failed.", record_count=2)
    failed.__cause__ = LogbusError("why")
    again = failed.again()
    assert (str(again), again.record_count) == ("2 records failed.", 2)
    assert again.__cause__ is failed.__cause__


def test_who_asks_at_the_very_moment_of_a_failure_has_heard_of_it() -> None:
    """The error is seen by nobody before it can be heard of."""
    acknowledgement = Acknowledgement(T0)
    seen: list[bool] = []

    class Watched(Failures):
        def add(self, records: int, error: LogbusError) -> UnheardFailure:
            seen.append(acknowledgement.done)
            return super().add(records, error)

    failures = Watched()
    acknowledgement.fail(StorageError("full"), records=1, failures=failures)
    assert seen == [False]
    assert acknowledgement.done
    acknowledgement.hear()
    failures.raise_unheard()
